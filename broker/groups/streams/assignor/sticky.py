"""The assignor `sticky`: tasks stay with their members, or with their states, as far as loads stay equal.

1.  An active task stays with its member.
2.  Otherwise, it goes to a member that has its state: to one with a standby task of it or, failing that, to one that
    reports an offset of it, the higher the better; a less loaded one of these is preferred.
3.  Remaining tasks go, subtopology by subtopology, to processes with the fewest tasks per member, and in these to the
    member with the fewest tasks. So members of a new group have similar partitions of all subtopologies.
4.  A standby task goes to the member that had the active task, else to a member that has its state, as in 2, else to
    the least loaded process; never to a process that already has the task. If there are fewer processes than replicas,
    the remaining replicas are not assigned.

In 1, 2 and 4 a member gets tasks up to its quota: tasks divided by members, rounded up, and recomputed without the
members that have reached it. Racks and client tags are ignored, and there are no warm-up tasks.

Members and processes are considered in the order of their ids. Kafka uses the order of its hash maps; its assignments
are equal where the orders are.

Source: org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor, ProcessState (4.4.0).
"""

from bisect import insort
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from warmlog.broker.groups.modern.pace import Pace
from warmlog.broker.groups.streams.assignor.loads import Keeper, LeastFirst, Owner, Process
from warmlog.broker.groups.streams.tasks import NOTHING, TaskId, TaskMap, Tasks, task_ids

NO_OFFSETS: Mapping[TaskId, int] = MappingProxyType({})


class TaskMember(NamedTuple):
    """A member, as input of the assignor.

    `tasks`: its current tasks, not its target. `offsets`: the last reported ones (`StreamsGroupHeartbeat`) of its tasks
    and of states that it still keeps; they are not stored.
    """

    process_id: str
    tasks: Tasks = NOTHING
    offsets: Mapping[TaskId, int] = NO_OFFSETS


class Subtopology(Protocol):
    """A subtopology with the number of its tasks (`ConfiguredSubtopology`)."""

    @property
    def number_of_tasks(self) -> int:
        """The number of tasks, which are numbered from 0."""

    @property
    def is_stateful(self) -> bool:
        """Whether it has a changelog; stateless tasks have no standby tasks."""


def assign_tasks(
    members: Mapping[str, TaskMember], subtopologies: Mapping[str, Subtopology], standby_replicas: int = 0
) -> Generator[None, None, dict[str, Tasks]]:
    """Return the tasks of each member: each active task once, and up to `standby_replicas` standby tasks of it.

    `standby_replicas`: the group's `num.standby.replicas`. Yields at least every millisecond.
    """
    if not members:
        return {}
    return (yield from _Assignment(members, subtopologies, standby_replicas).assign())


class _Quota:
    """The number of tasks up to which a member keeps its own."""

    __slots__ = ("_members", "_tasks", "value")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.value = -(-tasks // members)

    def count(self, tasks: int) -> None:
        """Recompute the quota of the others if a member's number of tasks has reached it."""
        if tasks == self.value:
            self._members -= 1
            self._tasks -= tasks
            self.value = -(-self._tasks // self._members) if self._members else 0


class _Assignment:
    """The assignment of one group."""

    def __init__(
        self, members: Mapping[str, TaskMember], subtopologies: Mapping[str, Subtopology], standby_replicas: int
    ) -> None:
        self._members = members
        self._sizes: dict[str, int] = {each: subtopologies[each].number_of_tasks for each in sorted(subtopologies)}
        self._stateful = {each: size for each, size in self._sizes.items() if subtopologies[each].is_stateful}
        self._replicas = standby_replicas
        active = sum(self._sizes.values())
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + standby_replicas * sum(self._stateful.values()), len(members))
        self._processes: list[Process] = []
        self._actives: dict[TaskId, Owner] = {}
        self._keepers: dict[TaskId, list[Keeper]] = {}  # members with a task's state, in the order of preference
        self._pace = Pace()

    def assign(self) -> Generator[None, None, dict[str, Tasks]]:
        """Assign active tasks, then standby tasks."""
        yield from self._read()
        yield from self._assign_active()
        if self._replicas:
            yield from self._assign_standby()
        return (yield from self._assigned())

    def _read(self) -> Generator[None, None, None]:
        """Read which member has which task and belongs to which process."""
        in_order = sorted(self._members)
        by_process: dict[str, list[str]] = {}
        for member_id in in_order:
            by_process.setdefault(self._members[member_id].process_id, []).append(member_id)
            if self._pace.due():
                yield
        processes: dict[str, Process] = {}
        for process_id in sorted(by_process):
            processes[process_id] = Process(by_process[process_id])
            if self._pace.due(len(by_process[process_id])):
                yield
        self._processes = list(processes.values())
        for member_id in in_order:
            member = self._members[member_id]
            owner = Owner(processes[member.process_id], member_id)
            yield from self._read_tasks(member, owner)
            if self._pace.due():
                yield
        for keepers in self._keepers.values():
            keepers.sort(key=Keeper.rank)
            if self._pace.due(len(keepers)):
                yield

    def _read_tasks(self, member: TaskMember, owner: Owner) -> Generator[None, None, None]:
        """Record a member's tasks, and the tasks whose state it has."""
        for task in task_ids(member.tasks.active):
            self._actives[task] = owner
            if self._pace.due():
                yield
        standby: set[TaskId] = set()
        for task in task_ids(member.tasks.standby):
            standby.add(task)
            keeper = Keeper(False, -member.offsets.get(task, 0), owner)
            self._keepers.setdefault(task, []).append(keeper)
            if self._pace.due():
                yield
        for task, offset in member.offsets.items():
            if task not in standby:
                self._keepers.setdefault(task, []).append(Keeper(True, -offset, owner))
            if self._pace.due():
                yield

    def _assign_active(self) -> Generator[None, None, None]:
        rest: set[TaskId] = set()
        for task in _by_partition(self._sizes):
            if not self._keep_active(task, self._actives.get(task)):
                rest.add(task)
            if self._pace.due(4):
                yield
        if self._keepers:
            for task in _by_partition(self._sizes):
                if task in rest and self._keep_active(task, _least_loaded(self._keepers.get(task), None)):
                    rest.discard(task)
                if self._pace.due(4):
                    yield
        if rest:
            yield from self._give_active(rest)

    def _give_active(self, rest: Collection[TaskId]) -> Generator[None, None, None]:
        """Assign active tasks that no member keeps to the least loaded processes."""
        by_load = yield from self._by_load()
        for task in _by_subtopology(self._sizes):
            if task in rest:
                process = by_load.pop()
                self._count(process.give_to_least_loaded(task, is_active=True), is_active=True)
                by_load.push(process.load, process)
                if self._pace.due(10):
                    yield
            elif self._pace.due():
                yield

    def _keep_active(self, task: TaskId, owner: Owner | None) -> bool:
        """Assign an active task to a member that has it, unless the member has reached the quota of active tasks."""
        if owner is None or owner.assigned >= self._active_quota.value:
            return False
        self._count(owner.process.give(owner.member_id, task, is_active=True), is_active=True)
        return True

    def _assign_standby(self) -> Generator[None, None, None]:
        rest: dict[TaskId, int] = {}
        for task in _by_partition_reversed(self._stateful):
            kept = 0
            while kept < self._replicas and self._keep_standby(task):
                kept += 1
            if kept < self._replicas:
                rest[task] = self._replicas - kept
            if self._pace.due(4 + 4 * kept):
                yield
        by_load = yield from self._by_load()
        for task in _by_subtopology_reversed(self._stateful):
            if self._pace.due():
                yield
            for _ in range(rest.get(task, 0)):
                passed, is_given = self._give_standby(task, by_load)
                if self._pace.due(10 * passed):
                    yield
                if not is_given:
                    break

    def _keep_standby(self, task: TaskId) -> bool:
        """Assign a standby task to a member that had the task, if it may have it and is below its quota."""
        owner = self._actives.get(task)
        if owner is None or owner.process.has(task) or not self._is_below_quota(owner):
            owner = _least_loaded(self._keepers.get(task), task)
            if owner is None or not self._is_below_quota(owner):
                return False
        self._count(owner.process.give(owner.member_id, task, is_active=False), is_active=False)
        return True

    def _give_standby(self, task: TaskId, by_load: LeastFirst[Process]) -> tuple[int, bool]:
        """Assign a standby task to the least loaded process without the task.

        Returns how many processes were considered, and whether one was possible.
        """
        passed: list[Process] = []
        is_given = False
        while by_load and not is_given:
            process = by_load.pop()
            passed.append(process)
            if not process.has(task):
                self._count(process.give_to_least_loaded(task, is_active=False), is_active=False)
                is_given = True
        for process in reversed(passed):
            by_load.push(process.load, process)
        return len(passed), is_given

    def _is_below_quota(self, owner: Owner) -> bool:
        return owner.assigned < self._quota.value

    def _count(self, tasks: int, *, is_active: bool) -> None:
        """Record the number of tasks of a member that has just got one."""
        if is_active:
            self._active_quota.count(tasks)
        self._quota.count(tasks)

    def _by_load(self) -> Generator[None, None, LeastFirst[Process]]:
        by_load: LeastFirst[Process] = LeastFirst()
        for process in self._processes:
            by_load.push(process.load, process)
            if self._pace.due(4):
                yield
        return by_load

    def _assigned(self) -> Generator[None, None, dict[str, Tasks]]:
        assigned: dict[str, Tasks] = {}
        for process in self._processes:
            for member_id, active in process.active.items():
                assigned[member_id] = Tasks(active=_in_order(active), standby=_in_order(process.standby[member_id]))
                if self._pace.due(2 + process.counts[member_id] // 5):
                    yield
        return assigned


def _by_partition(sizes: Mapping[str, int]) -> Iterator[TaskId]:
    """Yield tasks by partition, those of one partition by subtopology."""
    having = list(sizes)
    for partition in range(max(sizes.values(), default=0)):
        having = [subtopology_id for subtopology_id in having if partition < sizes[subtopology_id]]
        for subtopology_id in having:
            yield TaskId(subtopology_id, partition)


def _by_partition_reversed(sizes: Mapping[str, int]) -> Iterator[TaskId]:
    by_size = sorted(sizes, key=sizes.__getitem__)
    having: list[str] = []
    for partition in reversed(range(max(sizes.values(), default=0))):
        while by_size and partition < sizes[by_size[-1]]:
            insort(having, by_size.pop())
        for subtopology_id in reversed(having):
            yield TaskId(subtopology_id, partition)


def _by_subtopology(sizes: Mapping[str, int]) -> Iterator[TaskId]:
    for subtopology_id, size in sizes.items():
        for partition in range(size):
            yield TaskId(subtopology_id, partition)


def _by_subtopology_reversed(sizes: dict[str, int]) -> Iterator[TaskId]:
    for subtopology_id, size in reversed(sizes.items()):
        for partition in reversed(range(size)):
            yield TaskId(subtopology_id, partition)


def _least_loaded(keepers: Sequence[Keeper] | None, task: TaskId | None) -> Owner | None:
    """Return the first member that has the state, or a later one if it and its process have a smaller load.

    With a task, members whose process has the task are skipped.
    """
    chosen: Owner | None = None
    for _, _, owner in keepers or ():
        if task is not None and owner.process.has(task):
            continue
        if chosen is None or (owner.process.load < chosen.process.load and owner.assigned < chosen.assigned):
            chosen = owner
    return chosen


def _in_order(tasks: Mapping[str, list[int]]) -> TaskMap:
    return {subtopology_id: tuple(sorted(tasks[subtopology_id])) for subtopology_id in sorted(tasks)}
