"""Tasks of streams groups: partitions of subtopologies, as values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class TaskId(NamedTuple):
    """A task: a partition of a subtopology."""

    subtopology_id: str
    partition: int


#: Partitions by subtopology, in ascending order; no empty ones.
TaskMap: TypeAlias = Mapping[str, tuple[int, ...]]
NO_TASKS: TaskMap = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a member: active ones, replicas of states, and replicas being restored."""

    active: TaskMap = field(default_factory=lambda: NO_TASKS)
    standby: TaskMap = field(default_factory=lambda: NO_TASKS)
    warmup: TaskMap = field(default_factory=lambda: NO_TASKS)

    def __bool__(self) -> bool:
        """Return whether there is a task."""
        return bool(self.active or self.standby or self.warmup)


NOTHING = Tasks()


def task_map(tasks: Iterable[tuple[str, int]]) -> TaskMap:
    """Group tasks by subtopology."""
    partitions: dict[str, set[int]] = {}
    for subtopology_id, partition in tasks:
        partitions.setdefault(subtopology_id, set()).add(partition)
    return {subtopology_id: tuple(sorted(partitions[subtopology_id])) for subtopology_id in sorted(partitions)}


def task_ids(tasks: TaskMap) -> Iterator[TaskId]:
    """Iterate over tasks one by one, in the order of the map."""
    for subtopology_id, partitions in tasks.items():
        for partition in partitions:
            yield TaskId(subtopology_id, partition)
