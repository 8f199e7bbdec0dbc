"""The stored state of a consumer group, with indexes. Only records change it, so loading and deciding agree.

Records may come in the order in which compaction leaves them: records of a member are kept before its subscription is
known, and a partition belongs to its last owner.

Invariants:
1. Every index can be computed from the records.
2. Applying the value that a key had before restores the state.

Source: Kafka's GroupMetadataManager.replay, ModernGroup, ConsumerGroup.
"""

from warmlog.broker.groups.consumer.effects import Row
from warmlog.broker.groups.consumer.stored.holding import JOINED, Current
from warmlog.broker.groups.consumer.stored.subscriptions import Subscriptions
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, partitions_size
from warmlog.broker.groups.modern.stored_members import KeyKinds, StoredMembers
from warmlog.broker.groups.modern.target import FIRST, NO_TARGET, Target
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


class StoredGroup(StoredMembers[MemberMetadata, Current, Target, GroupEpoch]):
    """The state described by a group's records."""

    keys = KeyKinds(EpochKey, TargetEpochKey, MemberKey, TargetKey, CurrentKey)

    def __init__(self, group_id: str) -> None:
        """Start without records."""
        super().__init__(group_id, FIRST, JOINED, NO_TARGET)
        self.subscriptions = Subscriptions()
        self.has_partition_metadata = False
        self._owners: dict[bytes, dict[int, str]] = {}  # topic id to partition to the member that has it

    # -- queries --

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state."""
        if not self.metadata:
            return ConsumerGroupState.EMPTY
        target_epoch = self.target_epoch.epoch
        if self.epoch.epoch > target_epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.STABLE if self.is_stable(target_epoch) else ConsumerGroupState.RECONCILING

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that has a partition, or still has to give it up."""
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def _first_rows(self) -> list[Row]:
        return [(PartitionMetadataKey(self.group_id), PartitionMetadata())] if self.has_partition_metadata else []

    def _last_rows(self) -> list[Row]:
        return [(RegexKey(self.group_id, regex), resolved) for regex, resolved in self.subscriptions.resolved.items()]

    def _last_keys(self) -> list[ConsumerGroupKey]:
        regexes = [RegexKey(self.group_id, regex) for regex in self.subscriptions.resolved]
        return [*regexes, PartitionMetadataKey(self.group_id), EpochKey(self.group_id)]

    # -- changes --

    def apply(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> ConsumerGroupValue | None:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """
        before: ConsumerGroupValue | None
        match key, value:
            case CurrentKey(), CurrentAssignment() | None:
                before = self._apply_current(key.member_id, value)
            case MemberKey(), MemberMetadata() | None:
                before = self._set_metadata(key.member_id, value)
                if before is not None:
                    self.subscriptions.remove(before)
                if value is not None:
                    self.subscriptions.add(value)
            case TargetKey(), TargetAssignment() | None:
                target = self._set_target(key.member_id, None if value is None else Target.of(value))
                before = None if target is None else target.value
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
        self._index_static()
        self._owners.clear()
        for member_id, current in self.currents.items():
            self._own(member_id, current)

    def _apply_current(self, member_id: str, value: CurrentAssignment | None) -> CurrentAssignment | None:
        before = self.currents.get(member_id)
        if before is not None:
            self._release(member_id, before)
        after = None if value is None else Current.of(value)
        self._set_current(member_id, after)
        if after is not None:
            self._own(member_id, after)
        return None if before is None else before.value

    # -- indexes --

    def _own(self, member_id: str, current: Current) -> None:
        for holding in (current.assigned, current.to_revoke):
            for topic_id, partitions in holding.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def _release(self, member_id: str, current: Current) -> None:
        for holding in (current.assigned, current.to_revoke):
            for topic_id, partitions in holding.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    def _stable_epoch(self, current: Current) -> int | None:
        return current.epoch if current.is_reconciled_to(current.epoch) else None

    def _instance(self, metadata: MemberMetadata) -> str | None:
        return metadata.instance_id

    def _size(self, member_id: str, metadata: MemberMetadata) -> int:
        texts = (metadata.instance_id, metadata.rack_id, metadata.client_id, metadata.regex, *metadata.topics)
        size = MEMBER_BYTES + len(member_id) + sum([len(text or "") for text in texts])
        size += NAME_BYTES * len(metadata.topics)
        if metadata.classic is not None:
            size += sum([len(each.name) + len(each.metadata) for each in metadata.classic.protocols])
        current = self.current(member_id).value
        size += partitions_size(current.assigned) + partitions_size(current.to_revoke)
        return size + partitions_size(self.target(member_id).value.partitions)
