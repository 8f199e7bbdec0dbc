"""Groups for the assignor of tasks: in a short notation, and random ones.

Tasks are written as "0:0,1 1:3": subtopology and partitions. Subtopologies are written as "0:3 1:2s", with the number
of their tasks; "s" stands for state.
"""

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warmlog.broker.groups.streams.assignor.sticky import TaskMember, assign_tasks
from warmlog.broker.groups.streams.tasks import TaskId, TaskMap, Tasks, task_ids, task_map

# Java's hash maps keep one letter each of these in order: of 12 or fewer members of a process, of 64 processes.
PROCESSES, MEMBERS_OF_PROCESS = 0x4000, 12
STEP = 64


@dataclass(frozen=True)
class Size:
    """A subtopology, as the assignor sees it."""

    number_of_tasks: int
    is_stateful: bool = False


class Group(NamedTuple):
    members: Mapping[str, TaskMember]
    subtopologies: Mapping[str, Size]
    standby_replicas: int = 0

    def assign(self) -> dict[str, Tasks]:
        return finished(assign_tasks(*self))

    def assigned(self) -> "Group":
        """Return the group with the tasks that it assigns now."""
        tasks = self.assign()
        return self._replace(
            members={each: member._replace(tasks=tasks[each]) for each, member in self.members.items()}
        )


def finished(steps: Generator[None, None, dict[str, Tasks]]) -> dict[str, Tasks]:
    """Drive the assignor to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: dict[str, Tasks] = end.value
            return result


def sizes(text: str) -> dict[str, Size]:
    pairs = (each.split(":") for each in text.split())
    return {name: Size(int(count.rstrip("s")), count.endswith("s")) for name, count in pairs}


def tasks(text: str) -> TaskMap:
    return task_map(
        TaskId(name, int(partition))
        for name, _, numbers in (each.partition(":") for each in text.split())
        for partition in numbers.split(",")
    )


def member(
    process_id: str, active: str = "", standby: str = "", offsets: Mapping[str, int] | None = None
) -> TaskMember:
    """Return a member; `offsets` by task, as "0:3"."""
    by_task = {next(task_ids(tasks(text))): offset for text, offset in (offsets or {}).items()}
    return TaskMember(process_id, Tasks(active=tasks(active), standby=tasks(standby)), by_task)


def check(group: Group, assigned: Mapping[str, Tasks]) -> None:
    """Each task is active once; replicas are of tasks with a state, at processes that lack the task otherwise."""
    assert assigned.keys() == group.members.keys()
    expected = {
        TaskId(name, index) for name, size in group.subtopologies.items() for index in range(size.number_of_tasks)
    }
    active = [task for each in assigned.values() for task in task_ids(each.active)]
    assert sorted(active) == sorted(expected)
    by_process: dict[str, list[TaskId]] = {}
    replicas: dict[TaskId, int] = {}
    for member_id, each in assigned.items():
        assert not each.warmup
        mine = by_process.setdefault(group.members[member_id].process_id, [])
        mine += task_ids(each.active)
        for task in task_ids(each.standby):
            mine.append(task)
            replicas[task] = replicas.get(task, 0) + 1
    assert all(len(mine) == len(set(mine)) for mine in by_process.values())
    possible = min(group.standby_replicas, len(by_process) - 1)
    stateful = {task for task in expected if group.subtopologies[task.subtopology_id].is_stateful}
    assert replicas == (dict.fromkeys(stateful, possible) if possible else {})


def moved(group: Group, assigned: Mapping[str, Tasks]) -> int:
    """Return how many active tasks members get that they do not have."""
    return sum(
        len(set(task_ids(each.active)) - set(task_ids(group.members[member_id].tasks.active)))
        for member_id, each in assigned.items()
    )


def random_group(seed: int) -> Group:
    """Return a group in the middle of its life: processes came and went, tasks were added, some report offsets."""
    dice = random.Random(seed)
    subtopologies = {
        str(number): Size(dice.randint(1, 12), dice.random() < 0.6) for number in range(dice.randint(1, 5))
    }
    replicas = dice.choice([0, 0, 1, 1, 2, 3])
    shape = [dice.choice([1, 1, 1, 2, 3]) for _ in range(dice.randint(1, 10))]
    group = _labelled([[TaskMember("")] * count for count in shape], subtopologies, replicas)
    for _ in range(dice.randint(0, 3)):
        processes: dict[str, list[TaskMember]] = {}
        for each in group.assigned().members.values():
            if dice.random() < 0.85:
                processes.setdefault(each.process_id, []).append(each)
        alive = list(processes.values()) or [[TaskMember("")]]
        for _ in range(dice.choice([0, 0, 1, 2])):
            alive.insert(dice.randint(0, len(alive)), [TaskMember("")] * dice.randint(1, 3))
        alive = [[_reporting(dice, each, subtopologies) for each in members] for members in alive]
        group = _labelled(alive, subtopologies, replicas)
    grown = {
        name: Size(size.number_of_tasks + dice.choice([0, 0, 0, 2]), size.is_stateful)
        for name, size in subtopologies.items()
    }
    return group._replace(subtopologies=grown)


def _reporting(dice: random.Random, member: TaskMember, subtopologies: Mapping[str, Size]) -> TaskMember:
    """Return a member that may report offsets of tasks that it has, and of others whose state it may have kept."""
    if dice.random() < 0.5:
        return member
    every = [TaskId(name, index) for name, size in subtopologies.items() for index in range(size.number_of_tasks)]
    kept = dice.sample(every, dice.randint(0, len(every)) // 3)
    return member._replace(offsets={task: dice.randint(0, 9) for task in [*kept, *task_ids(member.tasks.standby)]})


def _labelled(processes: list[list[TaskMember]], subtopologies: Mapping[str, Size], standby_replicas: int) -> Group:
    members = {
        chr(PROCESSES + STEP * (1 + number) + index): member._replace(process_id=chr(PROCESSES + number))
        for number, each in enumerate(processes)
        for index, member in enumerate(each)
    }
    return Group(members, subtopologies, standby_replicas)
