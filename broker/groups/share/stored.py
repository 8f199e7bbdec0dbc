"""The stored state of a share group, with indexes. Only records change it, so loading and deciding agree.

Invariants:
1. Every index can be computed from the records.
2. Applying the value that a key had before restores the state.

Source: Kafka's GroupMetadataManager.replay, ShareGroup, ShareGroupMember.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from warmlog.broker.groups.modern.assignment import Assignment
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, MemberMemory, partitions_size
from warmlog.broker.groups.modern.subscribed_topics import SubscribedTopics
from warmlog.broker.groups.modern.target import FIRST, FIRST_TARGET, NO_TARGET, Target
from warmlog.broker.groups.share.effects import Row
from warmlog.broker.groups.share.partition_states import NO_STATES, PartitionStates
from warmlog.protocol.groups import ShareGroupState
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetAssignment, TargetEpoch
from warmlog.protocol.kafka.share_group_records import (
    ShareCurrentAssignment,
    ShareCurrentKey,
    ShareEpochKey,
    ShareGroupKey,
    ShareGroupValue,
    ShareMemberKey,
    ShareMemberMetadata,
    SharePartitions,
    SharePartitionsKey,
    ShareTargetEpochKey,
    ShareTargetKey,
)

STABLE = 1  # the only state of members in share groups (source: Kafka's MemberState)
#: Types of keys, in an order in which Kafka can read their tombstones.
DELETION = (
    ShareCurrentKey,
    ShareTargetKey,
    ShareTargetEpochKey,
    ShareMemberKey,
    SharePartitionsKey,
    ShareEpochKey,
)


class ShareCurrent(NamedTuple):
    """A member's current assignment: the record, and its partitions as a map."""

    value: ShareCurrentAssignment
    assigned: Assignment

    @classmethod
    def of(cls, value: ShareCurrentAssignment) -> "ShareCurrent":
        """Read a record."""
        return cls(value, {each.topic_id: frozenset(each.partitions) for each in value.assigned if each.partitions})

    @property
    def epoch(self) -> int:
        """The member's epoch."""
        return self.value.epoch


#: A member that has joined and has no assignment yet.
JOINED = ShareCurrent.of(ShareCurrentAssignment(epoch=0, previous_epoch=-1, state=STABLE))


class StoredShareGroup:
    """The state described by a group's records."""

    def __init__(self, group_id: str) -> None:
        """Start without records."""
        self.group_id = group_id
        self.topics = SubscribedTopics()
        self.metadata: dict[str, ShareMemberMetadata] = {}  # by member id, in the order of joining
        self.currents: dict[str, ShareCurrent] = {}
        self.targets: dict[str, Target] = {}
        self.states = NO_STATES
        self.memory = MemberMemory()
        self.version = 0  # increases with each change of members, targets and states
        self._has_states_record = False
        self._epoch: GroupEpoch | None = None
        self._target_epoch: TargetEpoch | None = None
        self._sharing: dict[bytes, Counter[int]] = {}  # by topic id and partition, how many targets have it

    # -- queries --

    @property
    def epoch(self) -> GroupEpoch:
        """The group's epoch and the hash of its topics."""
        return self._epoch or FIRST

    @property
    def is_stored(self) -> bool:
        """Whether the group exists by a stored record."""
        return self._epoch is not None or self._has_states_record

    @property
    def target_epoch(self) -> TargetEpoch:
        """The epoch of the target assignment, and the time of its computation."""
        return self._target_epoch or FIRST_TARGET

    @property
    def state(self) -> ShareGroupState:
        """The group's state."""
        return ShareGroupState.STABLE if self.metadata else ShareGroupState.EMPTY

    def current(self, member_id: str) -> ShareCurrent:
        """Return a member's current assignment; an empty one in epoch 0 if there is no record."""
        return self.currents.get(member_id, JOINED)

    def target(self, member_id: str) -> Target:
        """Return a member's target."""
        return self.targets.get(member_id, NO_TARGET)

    def is_shared(self, topic_id: bytes, partitions: frozenset[int]) -> bool:
        """Return whether exactly these partitions of a topic are in the target assignment."""
        return self._sharing.get(topic_id, Counter()).keys() == partitions

    def set_holder(self, member_id: str, holder: str) -> None:
        """Count a member's memory for this holder from now on."""
        if self.memory.holder(member_id) != holder:
            self._resize(member_id, -self._size(member_id))
            self.memory.set_holder(member_id, holder)
            self._resize(member_id, self._size(member_id))

    @property
    def states_size(self) -> int:
        """The estimated bytes that the known partitions hold."""
        value = self.states.value
        return partitions_size((*value.initializing, *value.initialized)) + NAME_BYTES * len(value.deleting)

    def rows(self) -> Iterator[Row]:
        """Yield the records that describe the group."""
        group = self.group_id
        if self._epoch is not None:
            yield ShareEpochKey(group), self._epoch
        for member_id, metadata in self.metadata.items():
            yield ShareMemberKey(group, member_id), metadata
        if self._target_epoch is not None:
            yield ShareTargetEpochKey(group), self._target_epoch
        for member_id, target in self.targets.items():
            yield ShareTargetKey(group, member_id), target.value
        for member_id, current in self.currents.items():
            yield ShareCurrentKey(group, member_id), current.value
        if self._has_states_record:
            yield SharePartitionsKey(group), self.states.value

    def record_keys(self) -> list[ShareGroupKey]:
        """Return the keys of all records that may exist, in an order in which Kafka can read their tombstones."""
        group = self.group_id
        keys: list[ShareGroupKey] = []
        keys += [ShareCurrentKey(group, member_id) for member_id in (self.metadata | self.currents)]
        keys += [ShareTargetKey(group, member_id) for member_id in (self.metadata | self.targets)]
        keys.append(ShareTargetEpochKey(group))
        keys += [ShareMemberKey(group, member_id) for member_id in self.metadata]
        keys += [SharePartitionsKey(group), ShareEpochKey(group)]
        return keys

    # -- changes --

    def apply(self, key: ShareGroupKey, value: ShareGroupValue | None) -> ShareGroupValue | None:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """
        before: ShareGroupValue | None
        self.version += 1
        match key, value:
            case ShareCurrentKey(), ShareCurrentAssignment() | None:
                before = self._set_current(key.member_id, value)
            case ShareMemberKey(), ShareMemberMetadata() | None:
                before = self._set_metadata(key.member_id, value)
            case ShareTargetKey(), TargetAssignment() | None:
                before = self._set_target(key.member_id, value)
            case ShareEpochKey(), GroupEpoch() | None:
                before, self._epoch = self._epoch, value
            case ShareTargetEpochKey(), TargetEpoch() | None:
                before, self._target_epoch = self._target_epoch, value
            case SharePartitionsKey(), SharePartitions() | None:
                before = self.states.value if self._has_states_record else None
                self.states = NO_STATES if value is None else PartitionStates.of(value)
                self._has_states_record = value is not None
            case _:
                raise TypeError(f"{value!r} is no value of {key!r}")
        return before

    def _set_metadata(self, member_id: str, value: ShareMemberMetadata | None) -> ShareMemberMetadata | None:
        before = self.metadata.get(member_id)
        self._resize(member_id, -self._size(member_id))
        if before is not None:
            self.topics.count(before.topics, -1)
        if value is None:
            self.metadata.pop(member_id, None)
            self.memory.forget_holder(member_id)
        else:
            self.metadata[member_id] = value
            self.topics.count(value.topics, 1)
        self._resize(member_id, self._size(member_id))
        return before

    def _set_current(self, member_id: str, value: ShareCurrentAssignment | None) -> ShareCurrentAssignment | None:
        before = self.currents.pop(member_id, JOINED) if value is None else self.current(member_id)
        if value is not None:
            self.currents[member_id] = ShareCurrent.of(value)
        growth = partitions_size(() if value is None else value.assigned) - partitions_size(before.value.assigned)
        self._resize(member_id, growth)
        return None if before is JOINED else before.value

    def _set_target(self, member_id: str, value: TargetAssignment | None) -> TargetAssignment | None:
        before = self.targets.pop(member_id, NO_TARGET) if value is None else self.target(member_id)
        after = NO_TARGET if value is None else Target.of(value)
        if value is not None:
            self.targets[member_id] = after
        self._count(before.partitions, -1)
        self._count(after.partitions, 1)
        self._resize(member_id, partitions_size(after.value.partitions) - partitions_size(before.value.partitions))
        return None if before is NO_TARGET else before.value

    # -- indexes --

    def _count(self, partitions: Mapping[bytes, frozenset[int]], change: int) -> None:
        """Add a member to (1), or remove it from (-1), each of these partitions."""
        for topic_id, numbers in partitions.items():
            counts = self._sharing.setdefault(topic_id, Counter())
            for partition in numbers:
                counts[partition] += change
                if not counts[partition]:
                    del counts[partition]
            if not counts:
                del self._sharing[topic_id]

    def _resize(self, member_id: str, growth: int) -> None:
        metadata = self.metadata.get(member_id)
        if metadata is not None:
            self.memory.add(member_id, metadata.client_host, growth)

    def _size(self, member_id: str) -> int:
        metadata = self.metadata.get(member_id)
        if metadata is None:
            return 0
        texts = (member_id, metadata.rack_id or "", metadata.client_id, *metadata.topics)
        size = MEMBER_BYTES + sum([len(text) for text in texts]) + NAME_BYTES * len(metadata.topics)
        size += partitions_size(self.current(member_id).value.assigned)
        return size + partitions_size(self.target(member_id).value.partitions)
