"""Assignments in the forms used by decisions, and their conversion from and to records.

Source: Kafka's ConsumerGroupMember, MemberState, Utils.assignmentFromTopicPartitions.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.modern.target import topic_partitions
from warmlog.protocol.kafka.consumer_group_records import CurrentAssignment, HeldPartitions
from warmlog.protocol.kafka.messages.groups.consumer import AssignedPartitions, TopicPartitions

# By topic id and partition, the epoch in which the member got it. Without empty maps; replaced, never changed.
Holding: TypeAlias = Mapping[bytes, Mapping[int, int]]


class MemberState(IntEnum):
    """States of a member, as records have them (source: Kafka's MemberState)."""

    STABLE = 1  # it has its target in its epoch
    UNREVOKED_PARTITIONS = 2  # it has to give up partitions first, and stays in its epoch
    UNRELEASED_PARTITIONS = 3  # it is in the target's epoch, and waits for partitions that others have


KNOWN_STATES = frozenset(MemberState)


class Current(NamedTuple):
    """A member's current assignment: the record, and its partitions as maps."""

    value: CurrentAssignment
    assigned: Holding
    to_revoke: Holding

    @classmethod
    def of(cls, value: CurrentAssignment) -> "Current":
        """Read a record."""
        return cls(value, _holding(value.assigned, value.epoch), _holding(value.to_revoke, value.epoch))

    @property
    def epoch(self) -> int:
        """The member's epoch."""
        return self.value.epoch

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has its whole target of this epoch."""
        return self.value.epoch == epoch and self.value.state == MemberState.STABLE

    def partition_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which the member got a partition; None if it does not have it."""
        for holding in (self.assigned, self.to_revoke):
            epoch = holding.get(topic_id, _NOTHING).get(partition)
            if epoch is not None:
                return epoch
        return None


_NOTHING: Mapping[int, int] = {}


def _holding(topics: Iterable[HeldPartitions], member_epoch: int) -> Holding:
    """Convert the partitions of a record. Missing epochs are the member's."""
    holding: dict[bytes, dict[int, int]] = {}
    for each in topics:
        epochs = each.epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = (member_epoch,) * len(each.partitions)
        if each.partitions:
            holding.setdefault(each.topic_id, {}).update(zip(each.partitions, epochs, strict=True))
    return holding


def held_partitions(holding: Holding) -> tuple[HeldPartitions, ...]:
    """Return the partitions as a record has them, in order."""
    held = []
    for topic_id in sorted(holding):
        epochs = holding[topic_id]
        numbers = sorted(epochs)
        held.append(
            HeldPartitions(
                topic_id=topic_id, partitions=tuple(numbers), epochs=tuple([epochs[number] for number in numbers])
            )
        )
    return tuple(held)


def assigned_partitions(holding: Holding) -> AssignedPartitions:
    """Return the partitions as a response has them, in order."""
    return AssignedPartitions(partitions=topic_partitions(holding))


def owns_any(owned: Sequence[TopicPartitions] | None, holding: Holding) -> bool:
    """Return whether a member reports any of these partitions, or sends no report."""
    if owned is None:
        return True
    nothing: Mapping[int, int] = {}
    return any(
        partition in partitions
        for each in owned
        if (partitions := holding.get(each.topic_id, nothing))
        for partition in each.partitions
    )


def owns_only(owned: Sequence[TopicPartitions] | None, holding: Holding) -> bool:
    """Return whether a member sends a report that has only partitions of these."""
    if owned is None:
        return False
    return all(
        (partitions := holding.get(each.topic_id)) is not None and partitions.keys() >= set(each.partitions)
        for each in owned
    )


#: A member that has joined and has no assignment yet.
JOINED = Current.of(CurrentAssignment(epoch=0, previous_epoch=-1, state=MemberState.STABLE))
