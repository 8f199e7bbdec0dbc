"""The stored state of a share group, with indexes. Only records change it, so loading and deciding agree.

Invariants:
1. Every index can be computed from the records.
2. Applying the value that a key had before restores the state.

Source: Kafka's GroupMetadataManager.replay, ShareGroup, ShareGroupMember.
"""

from collections import Counter
from typing import NamedTuple

from warmlog.broker.groups.modern.assignment import Assignment
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, partitions_size
from warmlog.broker.groups.modern.stored_members import KeyKinds, StoredMembers
from warmlog.broker.groups.modern.subscribed_topics import SubscribedTopics
from warmlog.broker.groups.modern.target import FIRST, NO_TARGET, Target
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


class StoredShareGroup(StoredMembers[ShareMemberMetadata, ShareCurrent, Target, GroupEpoch]):
    """The state described by a group's records."""

    keys = KeyKinds(ShareEpochKey, ShareTargetEpochKey, ShareMemberKey, ShareTargetKey, ShareCurrentKey)

    def __init__(self, group_id: str) -> None:
        """Start without records."""
        super().__init__(group_id, FIRST, JOINED, NO_TARGET)
        self.topics = SubscribedTopics()
        self.states = NO_STATES
        self.version = 0  # increases with each change of members, targets and states
        self._has_states_record = False
        self._sharing: dict[bytes, Counter[int]] = {}  # by topic id and partition, how many targets have it

    # -- queries --

    @property
    def is_stored(self) -> bool:
        """Whether the group exists by a stored record."""
        return super().is_stored or self._has_states_record

    @property
    def state(self) -> ShareGroupState:
        """The group's state."""
        return ShareGroupState.STABLE if self.metadata else ShareGroupState.EMPTY

    def is_shared(self, topic_id: bytes, partitions: frozenset[int]) -> bool:
        """Return whether exactly these partitions of a topic are in the target assignment."""
        return self._sharing.get(topic_id, Counter()).keys() == partitions

    @property
    def states_size(self) -> int:
        """The estimated bytes that the known partitions hold."""
        value = self.states.value
        return partitions_size((*value.initializing, *value.initialized)) + NAME_BYTES * len(value.deleting)

    def _last_rows(self) -> list[Row]:
        return [(SharePartitionsKey(self.group_id), self.states.value)] if self._has_states_record else []

    def _last_keys(self) -> list[ShareGroupKey]:
        return [SharePartitionsKey(self.group_id), ShareEpochKey(self.group_id)]

    # -- changes --

    def apply(self, key: ShareGroupKey, value: ShareGroupValue | None) -> ShareGroupValue | None:
        """Set, or with None delete, the value of a key. Returns the previous value.

        Raises TypeError if the value is not of the key's type.
        """
        before: ShareGroupValue | None
        self.version += 1
        match key, value:
            case ShareCurrentKey(), ShareCurrentAssignment() | None:
                current = self._set_current(key.member_id, None if value is None else ShareCurrent.of(value))
                before = None if current is None else current.value
            case ShareMemberKey(), ShareMemberMetadata() | None:
                before = self._set_metadata(key.member_id, value)
                self.topics.count(() if before is None else before.topics, -1)
                self.topics.count(() if value is None else value.topics, 1)
            case ShareTargetKey(), TargetAssignment() | None:
                before = self._apply_target(key.member_id, value)
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

    def _apply_target(self, member_id: str, value: TargetAssignment | None) -> TargetAssignment | None:
        after = None if value is None else Target.of(value)
        before = self._set_target(member_id, after)
        self._share(before, -1)
        self._share(after, 1)
        return None if before is None else before.value

    # -- indexes --

    def _share(self, target: Target | None, change: int) -> None:
        """Add a member to (1), or remove it from (-1), each partition of a target."""
        for topic_id, numbers in (NO_TARGET if target is None else target).partitions.items():
            counts = self._sharing.setdefault(topic_id, Counter())
            for partition in numbers:
                counts[partition] += change
                if not counts[partition]:
                    del counts[partition]
            if not counts:
                del self._sharing[topic_id]

    def _size(self, member_id: str, metadata: ShareMemberMetadata) -> int:
        texts = (member_id, metadata.rack_id or "", metadata.client_id, *metadata.topics)
        size = MEMBER_BYTES + sum([len(text) for text in texts]) + NAME_BYTES * len(metadata.topics)
        size += partitions_size(self.current(member_id).value.assigned)
        return size + partitions_size(self.target(member_id).value.partitions)
