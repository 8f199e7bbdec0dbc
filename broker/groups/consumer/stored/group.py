"""The stored state of a consumer group, with indexes. Only records change it, so loading and deciding agree.

Records may come in the order in which compaction leaves them: records of a member are kept before its subscription is
known, and a partition belongs to its last owner.

Invariants:
1. Every index can be computed from the records.
2. Applying the value that a key had before restores the state.

Source: Kafka's GroupMetadataManager.replay, ModernGroup, ConsumerGroup.
"""

from collections import Counter
from collections.abc import Iterator

from warmlog.broker.groups.consumer.effects import Row
from warmlog.broker.groups.consumer.stored.holding import JOINED, Current, Holding
from warmlog.broker.groups.consumer.stored.subscriptions import Subscriptions
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, MemberMemory, partitions_size
from warmlog.broker.groups.modern.target import FIRST, FIRST_TARGET, NO_TARGET, Target
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.consumer_group_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    PartitionMetadata,
    PartitionMetadataKey,
    RegexKey,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
    TargetEpochKey,
    TargetKey,
)

#: Types of keys, in an order in which Kafka can read their tombstones.
DELETION = (CurrentKey, TargetKey, TargetEpochKey, MemberKey, RegexKey, PartitionMetadataKey, EpochKey)


class StoredGroup:
    """The state described by a group's records."""

    def __init__(self, group_id: str) -> None:
        """Start without records."""
        self.group_id = group_id
        self.subscriptions = Subscriptions()
        self.metadata: dict[str, MemberMetadata] = {}  # by member id, in the order of joining
        self.currents: dict[str, Current] = {}
        self.targets: dict[str, Target] = {}
        self.static: dict[str, str] = {}  # instance id to member id
        self.memory = MemberMemory()
        self.has_partition_metadata = False
        self._epoch: GroupEpoch | None = None
        self._target_epoch: TargetEpoch | None = None
        self._owners: dict[bytes, dict[int, str]] = {}  # topic id to partition to the member that has it
        self._stable: Counter[int] = Counter()  # stable members, by epoch

    # -- queries --

    @property
    def epoch(self) -> GroupEpoch:
        """The group's epoch and the hash of its topics."""
        return self._epoch or FIRST

    @property
    def has_epoch_record(self) -> bool:
        """Whether there is a record of the epoch, unlike in a new group."""
        return self._epoch is not None

    @property
    def target_epoch(self) -> TargetEpoch:
        """The epoch of the target assignment, and the time of its computation."""
        return self._target_epoch or FIRST_TARGET

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state."""
        if not self.metadata:
            return ConsumerGroupState.EMPTY
        target_epoch = self.target_epoch.epoch
        if self.epoch.epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        is_stable = self._stable[target_epoch] == len(self.metadata)
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    def current(self, member_id: str) -> Current:
        """Return a member's current assignment; an empty one in epoch 0 if there is no record."""
        return self.currents.get(member_id, JOINED)

    def target(self, member_id: str) -> Target:
        """Return a member's target."""
        return self.targets.get(member_id, NO_TARGET)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that has a partition, or still has to give it up."""
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def orphans(self) -> list[str]:
        """Return members that have records but no declaration.

        A log has such members if it ends between an undone removal and its correction.
        """
        return [member_id for member_id in {**self.currents, **self.targets} if member_id not in self.metadata]

    def set_holder(self, member_id: str, holder: str) -> None:
        """Count a member's memory for this holder from now on."""
        if self.memory.holder(member_id) != holder:
            self._leave_indexes(member_id)
            self.memory.set_holder(member_id, holder)
            self._enter_indexes(member_id)

    def rows(self) -> Iterator[Row]:
        """Yield the records that describe the group."""
        group = self.group_id
        if self._epoch is not None:
            yield EpochKey(group), self._epoch
        if self.has_partition_metadata:
            yield PartitionMetadataKey(group), PartitionMetadata()
        for member_id, metadata in self.metadata.items():
            yield MemberKey(group, member_id), metadata
        if self._target_epoch is not None:
            yield TargetEpochKey(group), self._target_epoch
        for member_id, target in self.targets.items():
            yield TargetKey(group, member_id), target.value
        for member_id, current in self.currents.items():
            yield CurrentKey(group, member_id), current.value
        for regex, resolved in self.subscriptions.resolved.items():
            yield RegexKey(group, regex), resolved

    def record_keys(self) -> list[ConsumerGroupKey]:
        """Return the keys of all records that may exist, in an order in which Kafka can read their tombstones."""
        group = self.group_id
        keys: list[ConsumerGroupKey] = []
        keys += [CurrentKey(group, member_id) for member_id in (self.metadata | self.currents)]
        keys += [TargetKey(group, member_id) for member_id in (self.metadata | self.targets)]
        keys.append(TargetEpochKey(group))
        keys += [MemberKey(group, member_id) for member_id in self.metadata]
        keys += [RegexKey(group, regex) for regex in self.subscriptions.resolved]
        keys += [PartitionMetadataKey(group), EpochKey(group)]
        return keys

    # -- changes --

    def apply(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> ConsumerGroupValue | None:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """
        before: ConsumerGroupValue | None
        match key, value:
            case CurrentKey(), CurrentAssignment() | None:
                before = self._set_current(key.member_id, value)
            case MemberKey(), MemberMetadata() | None:
                before = self._set_metadata(key.member_id, value)
            case TargetKey(), TargetAssignment() | None:
                before = self._set_target(key.member_id, value)
            case EpochKey(), GroupEpoch() | None:
                before, self._epoch = self._epoch, value
            case TargetEpochKey(), TargetEpoch() | None:
                before, self._target_epoch = self._target_epoch, value
            case RegexKey(), ResolvedRegex() | None:
                before = self.subscriptions.resolve(key.regex, value)
            case PartitionMetadataKey(), PartitionMetadata() | None:
                before = PartitionMetadata() if self.has_partition_metadata else None
                self.has_partition_metadata = value is not None
            case _:
                raise TypeError(f"{value!r} is no value of {key!r}")
        return before

    def reindex(self) -> None:
        """Rebuild the indexes of static members and owners, after all records were applied.

        In a log with undone changes, records may contradict each other until the last ones.
        """
        self.static = {metadata.instance_id: key for key, metadata in self.metadata.items() if metadata.instance_id}
        self._owners.clear()
        for member_id, current in self.currents.items():
            for holding in (current.assigned, current.to_revoke):
                self._own(member_id, holding)

    def _set_metadata(self, member_id: str, value: MemberMetadata | None) -> MemberMetadata | None:
        before = self.metadata.get(member_id)
        self._leave_indexes(member_id)
        if before is not None:
            self.subscriptions.remove(before)
            if self.static.get(before.instance_id or "") == member_id:
                del self.static[before.instance_id or ""]
        if value is None:
            self.metadata.pop(member_id, None)
            self.memory.forget_holder(member_id)
        else:
            self.metadata[member_id] = value
            self.subscriptions.add(value)
            if value.instance_id:
                self.static[value.instance_id] = member_id
        self._enter_indexes(member_id)
        return before

    def _set_current(self, member_id: str, value: CurrentAssignment | None) -> CurrentAssignment | None:
        before = self.currents.pop(member_id, None) if value is None else self.currents.get(member_id)
        self._leave_stable(member_id, before)
        if before is not None:
            for holding in (before.assigned, before.to_revoke):
                self._release(member_id, holding)
        after = None
        if value is not None:
            after = self.currents[member_id] = Current.of(value)
            for holding in (after.assigned, after.to_revoke):
                self._own(member_id, holding)
        self._enter_stable(member_id, after)
        self._resize(member_id, _current_size(after) - _current_size(before))
        return None if before is None else before.value

    def _set_target(self, member_id: str, value: TargetAssignment | None) -> TargetAssignment | None:
        before = self.targets.pop(member_id, None) if value is None else self.targets.get(member_id)
        after = None
        if value is not None:
            after = self.targets[member_id] = Target.of(value)
        self._resize(member_id, _target_size(after) - _target_size(before))
        return None if before is None else before.value

    # -- indexes --

    def _own(self, member_id: str, holding: Holding) -> None:
        for topic_id, partitions in holding.items():
            self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def _release(self, member_id: str, holding: Holding) -> None:
        for topic_id, partitions in holding.items():
            owners = self._owners.get(topic_id, {})
            for partition in partitions:
                if owners.get(partition) == member_id:
                    del owners[partition]
            if not owners:
                self._owners.pop(topic_id, None)

    def _leave_indexes(self, member_id: str) -> None:
        self._leave_stable(member_id, self.currents.get(member_id))
        self._resize(member_id, -self._size(member_id))

    def _enter_indexes(self, member_id: str) -> None:
        self._enter_stable(member_id, self.currents.get(member_id))
        self._resize(member_id, self._size(member_id))

    def _leave_stable(self, member_id: str, current: Current | None) -> None:
        if current is not None and member_id in self.metadata and current.is_reconciled_to(current.epoch):
            self._stable[current.epoch] -= 1
            if not self._stable[current.epoch]:
                del self._stable[current.epoch]

    def _enter_stable(self, member_id: str, current: Current | None) -> None:
        if current is not None and member_id in self.metadata and current.is_reconciled_to(current.epoch):
            self._stable[current.epoch] += 1

    def _resize(self, member_id: str, growth: int) -> None:
        metadata = self.metadata.get(member_id)
        if metadata is not None:
            self.memory.add(member_id, metadata.client_host, growth)

    def _size(self, member_id: str) -> int:
        metadata = self.metadata.get(member_id)
        if metadata is None:
            return 0
        texts = (metadata.instance_id, metadata.rack_id, metadata.client_id, metadata.regex, *metadata.topics)
        size = MEMBER_BYTES + len(member_id) + sum([len(text or "") for text in texts])
        size += NAME_BYTES * len(metadata.topics)
        if metadata.classic is not None:
            size += sum([len(each.name) + len(each.metadata) for each in metadata.classic.protocols])
        return size + _current_size(self.currents.get(member_id)) + _target_size(self.targets.get(member_id))


def _current_size(current: Current | None) -> int:
    return 0 if current is None else partitions_size(current.value.assigned) + partitions_size(current.value.to_revoke)


def _target_size(target: Target | None) -> int:
    return 0 if target is None else partitions_size(target.value.partitions)
