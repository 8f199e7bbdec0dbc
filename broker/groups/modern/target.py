"""The computation of a group's target assignment: when it is due, and whether its outcome is used.

At most one computation runs. It belongs to the group's epoch at its beginning; members that joined later get nothing
from it, and those that left are skipped. If changes that it is based on could not be stored, it is discarded.

Source: Kafka's TargetAssignmentBuilder, GroupMetadataManager.maybeUpdateTargetAssignment; KIP-1263 (interval).
"""

from collections.abc import Collection, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from warmlog.broker.groups.automaton import Instant
from warmlog.broker.groups.modern.assignment import Assignment
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetAssignment, TargetEpoch
from warmlog.protocol.kafka.messages.groups.consumer import TopicPartitions
from warmlog.protocol.kafka.streams_group_records import StreamsGroupEpoch

NOTHING: Assignment = {}
# of a group without records, as if its topics were none
FIRST = GroupEpoch(epoch=1)
FIRST_TARGET = TargetEpoch(epoch=1)


class Epochs(Protocol):
    """The epochs of a group, for the computation of its target assignment."""

    @property
    def metadata(self) -> Collection[str]:
        """The ids of its members."""

    @property
    def epoch(self) -> GroupEpoch | StreamsGroupEpoch:
        """The group's epoch."""

    @property
    def target_epoch(self) -> TargetEpoch:
        """The epoch of the target assignment, and the time of its computation."""


class Computed(Protocol):
    """The input of a computation: the `Assign` effect of a kind of group."""

    @property
    def epoch(self) -> int:
        """The group's epoch."""


class Target(NamedTuple):
    """A member's target: the record, and its partitions as a map."""

    value: TargetAssignment
    partitions: Assignment

    @classmethod
    def of(cls, value: TargetAssignment) -> "Target":
        """Read a record."""
        return cls(value, {each.topic_id: frozenset(each.partitions) for each in value.partitions if each.partitions})


NO_TARGET = Target.of(TargetAssignment())
A = TypeVar("A", bound=Computed)


class TargetComputation(Generic[A]):
    """The running computation, if any."""

    __slots__ = ("_group", "_is_stale", "running")

    def __init__(self, group: Epochs) -> None:
        self._group = group
        self.running: A | None = None
        self._is_stale = False

    @property
    def is_running(self) -> bool:
        """Whether an `Assign` has no outcome yet."""
        return self.running is not None

    def is_due(self, interval_ms: int, now: Instant, *, single_member_waits: bool = False) -> bool:
        """Return whether to compute a target now. The first target of a group's first member does not wait.

        Unless `single_member_waits`, later ones of a group with a single member do not wait either.
        """
        group = self._group
        if self.running is not None or group.epoch.epoch <= group.target_epoch.epoch:
            return False
        since = group.target_epoch.timestamp_ms
        is_first = not since or (len(group.metadata) == 1 and not single_member_waits)
        return is_first or not since <= now.wall_ms < since + interval_ms

    def begin(self, computed: A) -> None:
        """Begin a computation."""
        self.running = computed
        self._is_stale = False

    def invalidate(self) -> None:
        """Discard the outcome of the running computation, which is based on undone changes."""
        self._is_stale = True

    def is_expected(self, epoch: int) -> bool:
        """Return whether the outcome for this epoch is used."""
        return self.running is not None and self.running.epoch == epoch and not self._is_stale

    def end(self) -> None:
        """End the computation, so that the next one may begin."""
        self.running = None


def changed_target(before: Assignment | None, computed: Assignment) -> TargetAssignment | None:
    """Return a member's new target, None if unchanged. `before`: None for a member without a target."""
    assignment = {topic_id: partitions for topic_id, partitions in computed.items() if partitions}
    return None if before is not None and before == assignment else target_of(assignment)


def target_of(assignment: Assignment) -> TargetAssignment:
    """Return a target assignment as a record, in order."""
    return TargetAssignment(partitions=topic_partitions(assignment))


def topic_partitions(assignment: Mapping[bytes, Collection[int]]) -> tuple[TopicPartitions, ...]:
    """Return partitions as records and responses have them, in order."""
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
        for topic_id, partitions in sorted(assignment.items())
        if partitions
    )
