"""Tasks in the forms used by decisions, and their conversion from and to records.

Source: Kafka's StreamsGroupMember, MemberState, TasksTuple, TasksTupleWithEpochs (4.4).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.streams.tasks import NOTHING, TaskMap, Tasks
from warmlog.protocol.kafka.messages.groups.streams import TaskIds
from warmlog.protocol.kafka.streams_group_records import HeldTasks, StreamsCurrentAssignment, StreamsTarget

#: By subtopology and partition, the epoch in which the member got the task. No empty maps; replaced, never changed.
Active: TypeAlias = Mapping[str, Mapping[int, int]]
#: Partitions by subtopology. No empty sets; replaced, never changed.
Replicas: TypeAlias = Mapping[str, frozenset[int]]

_NO_EPOCHS: Mapping[int, int] = {}


class StreamsMemberState(IntEnum):
    """States of a member, as records have them (source: Kafka's MemberState)."""

    STABLE = 1  # it has its target in its epoch
    UNREVOKED_TASKS = 2  # it has to give up tasks first, and stays in its epoch
    UNRELEASED_TASKS = 3  # it is in the target's epoch, and waits for tasks that others have


KNOWN_STATES = frozenset(StreamsMemberState)


@dataclass(frozen=True, slots=True)
class Holding:
    """A member's tasks, by kind."""

    active: Active = field(default_factory=dict)
    standby: Replicas = field(default_factory=dict)
    warmup: Replicas = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is a task."""
        return bool(self.active or self.standby or self.warmup)


NONE_HELD = Holding()


class CurrentTasks(NamedTuple):
    """A member's current assignment: the record, and its tasks as maps."""

    value: StreamsCurrentAssignment
    assigned: Holding
    to_revoke: Holding

    @classmethod
    def of(cls, value: StreamsCurrentAssignment) -> "CurrentTasks":
        """Read a record."""
        epoch = value.epoch
        return cls(
            value,
            Holding(_active(value.active, epoch), _replicas(value.standby), _replicas(value.warmup)),
            Holding(
                _active(value.active_to_revoke, epoch),
                _replicas(value.standby_to_revoke),
                _replicas(value.warmup_to_revoke),
            ),
        )

    @property
    def epoch(self) -> int:
        """The member's epoch."""
        return self.value.epoch

    @property
    def tasks(self) -> Tasks:
        """The tasks that the member has and keeps."""
        value = self.value
        return Tasks(_map(value.active), _map(value.standby), _map(value.warmup))

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has its whole target of this epoch."""
        return self.value.epoch == epoch and self.value.state == StreamsMemberState.STABLE

    def task_epoch(self, subtopology_id: str, partition: int) -> int | None:
        """Return the epoch in which the member got an active task; None if it does not have it."""
        for holding in (self.assigned, self.to_revoke):
            epoch = holding.active.get(subtopology_id, _NO_EPOCHS).get(partition)
            if epoch is not None:
                return epoch
        return None


class TargetTasks(NamedTuple):
    """A member's target: the record, and its tasks."""

    value: StreamsTarget
    tasks: Tasks

    @classmethod
    def of(cls, value: StreamsTarget) -> "TargetTasks":
        """Read a record."""
        return cls(value, Tasks(_map(value.active), _map(value.standby), _map(value.warmup)))


def _map(tasks: Iterable[TaskIds | HeldTasks]) -> TaskMap:
    return {each.subtopology_id: each.partitions for each in tasks if each.partitions}


def _active(tasks: Iterable[HeldTasks], member_epoch: int) -> Active:
    """Convert active tasks of a record. Missing epochs are the member's."""
    active: dict[str, dict[int, int]] = {}
    for each in tasks:
        epochs = each.epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = (member_epoch,) * len(each.partitions)
        if each.partitions:
            active.setdefault(each.subtopology_id, {}).update(zip(each.partitions, epochs, strict=True))
    return active


def _replicas(tasks: Iterable[HeldTasks]) -> Replicas:
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks if each.partitions}


def current_assignment(
    epoch: int, previous_epoch: int, state: int, assigned: Holding, to_revoke: Holding
) -> StreamsCurrentAssignment:
    """Return a member's current assignment as a record, in order."""
    return StreamsCurrentAssignment(
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=state,
        active=_held_active(assigned.active),
        standby=_held(assigned.standby),
        warmup=_held(assigned.warmup),
        active_to_revoke=_held_active(to_revoke.active),
        standby_to_revoke=_held(to_revoke.standby),
        warmup_to_revoke=_held(to_revoke.warmup),
    )


def _held_active(active: Active) -> tuple[HeldTasks, ...]:
    held = []
    for subtopology_id in sorted(active):
        epochs = active[subtopology_id]
        numbers = tuple(sorted(epochs))
        if numbers:
            held.append(
                HeldTasks(
                    subtopology_id=subtopology_id,
                    partitions=numbers,
                    epochs=tuple([epochs[number] for number in numbers]),
                )
            )
    return tuple(held)


def _held(replicas: Replicas) -> tuple[HeldTasks, ...]:
    return tuple(
        HeldTasks(subtopology_id=subtopology_id, partitions=tuple(sorted(replicas[subtopology_id])))
        for subtopology_id in sorted(replicas)
        if replicas[subtopology_id]
    )


def task_ids_of(tasks: TaskMap) -> tuple[TaskIds, ...]:
    """Return tasks in the form of records and responses, in order."""
    return tuple(
        TaskIds(subtopology_id=subtopology_id, partitions=tasks[subtopology_id])
        for subtopology_id in sorted(tasks)
        if tasks[subtopology_id]
    )


def target_of(tasks: Tasks) -> StreamsTarget:
    """Return a member's target as a record, in order."""
    return StreamsTarget(
        active=task_ids_of(tasks.active), standby=task_ids_of(tasks.standby), warmup=task_ids_of(tasks.warmup)
    )


def owns_any(owned: Tasks | None, holding: Holding) -> bool:
    """Return whether a member reports any of these tasks, or sends no report."""
    if owned is None:
        return True
    return (
        _any(owned.active, holding.active) or _any(owned.standby, holding.standby) or _any(owned.warmup, holding.warmup)
    )


def _any(owned: TaskMap, held: Active | Replicas) -> bool:
    return any(number in numbers for each, numbers in held.items() if each in owned for number in owned[each])


def owns_only(owned: Tasks | None, holding: Holding) -> bool:
    """Return whether a member sends a report that has only tasks of these."""
    if owned is None:
        return False
    return (
        _only(owned.active, holding.active)
        and _only(owned.standby, holding.standby)
        and _only(owned.warmup, holding.warmup)
    )


def _only(owned: TaskMap, held: Active | Replicas) -> bool:
    return all((numbers := held.get(each)) is not None and all(n in numbers for n in owned[each]) for each in owned)


#: A member that has joined and has no assignment yet.
JOINED = CurrentTasks.of(StreamsCurrentAssignment(epoch=0, previous_epoch=0, state=StreamsMemberState.STABLE))
NO_TARGET = TargetTasks(StreamsTarget(), NOTHING)
