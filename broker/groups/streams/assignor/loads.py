"""The loads of members and processes while tasks are assigned."""

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from warmlog.broker.groups.streams.tasks import TaskId

T = TypeVar("T")


class LeastFirst(Generic[T]):
    """A heap that resolves ties as Java's PriorityQueue does.

    The position in the heap decides which of several equally loaded members gets a task, and Python's heap moves
    elements differently.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[float, T]] = ()) -> None:
        """Begin with items in ascending order of their loads, which is a valid heap."""
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, load: float, item: T) -> None:
        """Add an item as the last leaf, and sift it up above items with a greater load."""
        entries = self._entries
        entry = (load, item)
        entries.append(entry)
        index = len(entries) - 1
        while index:
            parent = (index - 1) >> 1
            if load >= entries[parent][0]:
                break
            entries[index] = entries[parent]
            index = parent
        entries[index] = entry

    def pop(self) -> T:
        """Remove an item with the least load. The last leaf is sifted down from the root below smaller loads."""
        entries = self._entries
        last = entries.pop()
        if not entries:
            return last[1]
        least = entries[0][1]
        size, index, child = len(entries), 0, 1
        while child < size:
            if child + 1 < size and entries[child][0] > entries[child + 1][0]:
                child += 1
            if last[0] <= entries[child][0]:
                break
            entries[index] = entries[child]
            index, child = child, 2 * child + 1
        entries[index] = last
        return least


class Owner(NamedTuple):
    """A member with a task or its state, and the member's process."""

    process: "Process"
    member_id: str

    @property
    def assigned(self) -> int:
        """The number of tasks assigned to the member so far."""
        return self.process.counts[self.member_id]


class Keeper(NamedTuple):
    """A member with the state of a task: it has a standby task of it, or reports an offset of it."""

    has_no_standby: bool
    negative_offset: int
    owner: Owner

    def rank(self) -> tuple[bool, int]:
        """Return the sort key that puts preferred members first."""
        return self.has_no_standby, self.negative_offset


class Process:
    """A process: its members, in order, and their assigned tasks. Its load is the number of tasks per member.

    No task is assigned twice within a process, as active or standby task.
    """

    __slots__ = ("_by_load", "_tasks", "active", "counts", "load", "standby")

    def __init__(self, member_ids: Sequence[str]) -> None:
        self.counts = dict.fromkeys(member_ids, 0)  # of active and standby tasks
        # By member and subtopology.
        self.active: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in member_ids}
        self.standby: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in member_ids}
        self.load = 0.0
        self._tasks: set[TaskId] = set()
        self._by_load: LeastFirst[str] | None = None

    def has(self, task: TaskId) -> bool:
        """Return whether a task is assigned to a member of the process."""
        return task in self._tasks

    def give(self, member_id: str, task: TaskId, *, is_active: bool) -> int:
        """Assign a task to a member; return its number of tasks."""
        self._by_load = None
        return self._give(member_id, task, is_active=is_active)

    def give_to_least_loaded(self, task: TaskId, *, is_active: bool) -> int:
        """Assign a task to a member with the fewest tasks; return its number of tasks."""
        by_load = self._by_load
        if by_load is None:
            by_load = self._by_load = self._members_by_load()
        member_id = by_load.pop()
        count = self._give(member_id, task, is_active=is_active)
        by_load.push(count, member_id)
        return count

    def _members_by_load(self) -> LeastFirst[str]:
        if not self._tasks:
            return LeastFirst((0, each) for each in self.counts)
        by_load: LeastFirst[str] = LeastFirst()
        for each, count in self.counts.items():
            by_load.push(count, each)
        return by_load

    def _give(self, member_id: str, task: TaskId, *, is_active: bool) -> int:
        subtopology_id, partition = task
        (self.active if is_active else self.standby)[member_id].setdefault(subtopology_id, []).append(partition)
        self._tasks.add(task)
        count = self.counts[member_id] = self.counts[member_id] + 1
        self.load = len(self._tasks) / len(self.counts)
        return count
