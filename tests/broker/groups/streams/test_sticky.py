"""The assignor `sticky`, with the rows of Kafka's StickyTaskAssignorTest."""

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from tests.broker.groups.streams.assigning import (
    Group,
    Size,
    check,
    member,
    moved,
    random_group,
    sizes,
    tasks,
)
from warmlog.broker.groups.streams.assignor.sticky import TaskMember, assign_tasks
from warmlog.broker.groups.streams.tasks import Tasks

SEEDS = range(300)
#: Lines of Python, each of them below 0.1 us unless it calls a function in C.
MAX_LINES = 10_000
Members = Mapping[str, TaskMember]


def load(assigned: Mapping[str, Tasks], *member_ids: str) -> int:
    return sum(
        len(partitions)
        for member_id in member_ids
        for each in (assigned[member_id].active, assigned[member_id].standby)
        for partitions in each.values()
    )


@pytest.mark.parametrize(
    ("members", "subtopologies", "replicas", "loads"),
    [
        pytest.param(
            {"1": "p1", "2": "p2", "3": "p3"}, "0:3", 0, {"1": 1, "2": 1, "3": 1}, id="a task for each process"
        ),
        pytest.param(
            {"1a": "p1", "1b": "p1", "2a": "p2", "2b": "p2", "3a": "p3", "3b": "p3"},
            "0:3 1:3",
            0,
            dict.fromkeys(["1a", "1b", "2a", "2b", "3a", "3b"], 1),
            id="evenly across members",
        ),
        pytest.param({"1": "p1", "2a": "p2", "2b": "p2"}, "0:3", 0, {"1": 1, "2a": 1, "2b": 1}, id="by capacity"),
        pytest.param({"1": "p1", "2a": "p2", "2b": "p2"}, "0:3 1:3 2:3 3:3", 0, {"1": 4, "2a": 4, "2b": 4}, id="more"),
        pytest.param(
            {each: f"p{each}" for each in "123456"}, "0:3s", 1, dict.fromkeys("123456", 1), id="active and standby"
        ),
        pytest.param(
            {each: f"p{each}" for each in "123"}, "0:3s", 2, dict.fromkeys("123", 3), id="several replicas of each"
        ),
        pytest.param({"1": "p1"}, "0:10s", 3, {"1": 10}, id="no process for replicas"),
        pytest.param({"1": "p1", "2": "p2"}, "0:4s", 5, {"1": 4, "2": 4}, id="fewer processes than replicas"),
    ],
)
def test_tasks_are_spread_by_load(
    members: Mapping[str, str], subtopologies: str, replicas: int, loads: Mapping[str, int]
) -> None:
    group = Group({each: member(process) for each, process in members.items()}, sizes(subtopologies), replicas)
    assigned = group.assign()
    check(group, assigned)
    assert {each: load(assigned, each) for each in members} == loads


@pytest.mark.parametrize(
    ("members", "subtopologies", "kept"),
    [
        pytest.param(
            {"1": member("p1", "0:0"), "2": member("p2", "0:1")},
            "0:3",
            {"1": "0:0", "2": "0:1"},
            id="active tasks stay",
        ),
        pytest.param(
            {"2": member("p2", "0:1"), "3": member("p1", "0:2")}, "0:3", {"2": "0:1", "3": "0:2"}, id="at other members"
        ),
        pytest.param(
            {"1": member("p1", "0:0"), "2": member("p2", "0:2"), "3": member("p3", "0:1"), "4": member("p4")},
            "0:3",
            {"1": "0:0", "2": "0:2", "3": "0:1"},
            id="more members than tasks",
        ),
        pytest.param(
            {"1": member("p1", "", "0:2"), "2": member("p2", "", "0:1"), "3": member("p3", "", "0:0")},
            "0:3",
            {"1": "0:2", "2": "0:1", "3": "0:0"},
            id="standby tasks become active",
        ),
        pytest.param(
            {"1": member("p1", "0:0", "0:1"), "2a": member("p2", "0:2", "0:1"), "2b": member("p2")},
            "0:3",
            {"1": "0:0", "2a": "0:2", "2b": "0:1"},
            id="by capacity with several standby tasks",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1"), "2": member("p2", "0:2,3")},
            "0:6",
            {"1": "0:0,1", "2": "0:2,3"},
            id="tasks are added",
        ),
        pytest.param(
            {"1": member("p1", "0:1,2"), "2": member("p2", "0:0,3"), "3": member("p3")},
            "0:6",
            {"1": "0:1,2", "2": "0:0,3", "3": "0:4,5"},
            id="tasks and a process are added",
        ),
        pytest.param(
            {
                "1": member("p1", "0:1 1:2,3", "0:0 1:1 2:0,1,3"),
                "2": member("p2", "0:0 1:1 2:2", "0:1,2,3 1:0,2,3 2:0,1,3"),
                "bounced1": member("b1", "", "2:0,1,3"),
                "bounced2": member("b2", "", "0:2,3 1:0"),
            },
            "0:4 1:4 2:4",
            {"1": "0:1 1:2,3", "2": "0:0 1:1 2:2", "bounced1": "2:0,1,3", "bounced2": "0:2,3 1:0"},
            id="processes restart",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1,2,6"), "2": member("p2", "", "0:3,4,5"), "new": member("p3")},
            "0:7",
            {"1": "0:0,1,2", "2": "0:3,4"},
            id="a process restarts and one is new",
        ),
        pytest.param(
            {"1": member("p1", offsets={"0:0": 5}), "2": member("p2", offsets={"0:0": 9, "0:1": 1})},
            "0:2",
            {"2": "0:0"},
            id="to the highest offset",
        ),
        pytest.param(
            {"1": member("p1", offsets={"0:0": 9}), "2": member("p2", "", "0:0")},
            "0:2",
            {"2": "0:0"},
            id="to a standby task rather than to an offset",
        ),
    ],
)
def test_active_tasks_stay_with_their_state(members: Members, subtopologies: str, kept: Mapping[str, str]) -> None:
    group = Group(members, sizes(subtopologies))
    assigned = group.assign()
    check(group, assigned)
    for member_id, text in kept.items():
        for name, partitions in tasks(text).items():
            assert set(partitions) <= set(assigned[member_id].active.get(name, ()))


@pytest.mark.parametrize(
    ("members", "subtopologies", "moves", "loads"),
    [
        pytest.param(
            {"1": member("p1", "0:0,2"), "2": member("p2", "0:1"), "3": member("p3")},
            "0:3",
            1,
            {"1": 1, "2": 1, "3": 1},
            id="to a new process",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1,2,3,4,5 1:0"), "2": member("p2")},
            "0:6 1:1",
            3,
            {"1": 4, "2": 3},
            id="half of them",
        ),
        pytest.param(
            {"1": member("p1"), "2": member("p2"), "3": member("p3", "0:0,1,2,3"), "4": member("p4")},
            "0:4",
            3,
            {"1": 1, "2": 1, "3": 1, "4": 1},
            id="to all new processes",
        ),
        pytest.param(
            {"1": member("p1"), "2": member("p2"), "3": member("p3", "0:0,1,2,3")},
            "0:4",
            2,
            {"1": 1, "2": 1, "3": 2},
            id="more tasks than members",
        ),
        pytest.param(
            {"2": member("p2", "0:0,2,3"), "3a": member("p3"), "3b": member("p3")},
            "0:4",
            2,
            {"2": 2, "3a": 1, "3b": 1},
            id="by capacity",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1,2"), "2": member("p2", "0:3,4,5"), "3": member("p3")},
            "0:6",
            2,
            {"1": 2, "2": 2, "3": 2},
            id="none between those that stay",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1 1:0,1"), "2": member("p2")}, "0:2 1:2", 2, {"1": 2, "2": 2}, id="in ranges"
        ),
    ],
)
def test_few_tasks_move(members: Members, subtopologies: str, moves: int, loads: Mapping[str, int]) -> None:
    group = Group(members, sizes(subtopologies))
    assigned = group.assign()
    check(group, assigned)
    assert {each: load(assigned, each) for each in members} == loads
    assert moved(group, assigned) == moves


@pytest.mark.parametrize(
    ("members", "subtopologies", "expected"),
    [
        pytest.param(
            {"1": member("p1", "", "0:0"), "2": member("p2", "", "0:1")},
            "0:2s",
            {"1": ("0:0", "0:1"), "2": ("0:1", "0:0")},
            id="not where the active task is",
        ),
        pytest.param(
            {"1": member("p1", "0:0", "0:1"), "2": member("p2", "0:1", "0:0"), "3": member("p3")},
            "0:2s",
            {"1": ("0:0", "0:1"), "2": ("0:1", "")},
            id="as before, below the quota",
        ),
        pytest.param(
            {"1": member("p1", "0:0,1 1:0,1"), "2": member("p2")},
            "0:2s 1:2s",
            {"1": ("0:0 1:0", "0:1 1:1"), "2": ("0:1 1:1", "0:0 1:0")},
            id="in ranges, where the active tasks were",
        ),
        pytest.param(
            {"1": member("p1"), "2": member("p2")},
            "0:2s 1:2s",
            {"1": ("0:0 1:0", "0:1 1:1"), "2": ("0:1 1:1", "0:0 1:0")},
            id="in ranges from the start",
        ),
    ],
)
def test_standby_tasks_are_at_other_processes(
    members: Members, subtopologies: str, expected: Mapping[str, tuple[str, str]]
) -> None:
    group = Group(members, sizes(subtopologies), 1)
    assigned = group.assign()
    check(group, assigned)
    wanted = {each: Tasks(active=tasks(pair[0]), standby=tasks(pair[1])) for each, pair in expected.items()}
    assert {each: assigned[each] for each in expected} == wanted


def test_tasks_without_state_have_no_standby_tasks() -> None:
    group = Group({"1": member("p1"), "2": member("p2")}, sizes("0:2 1:2s"), 1)
    assigned = group.assign()
    assert {name for each in assigned.values() for name in each.standby} == {"1"}


def test_a_group_without_members_has_no_assignment() -> None:
    assert Group({}, sizes("0:3")).assign() == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_any_group_has_each_task_once(seed: int) -> None:
    group = random_group(seed)
    check(group, group.assign())


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_assigned_does_not_depend_on_the_order_of_members(seed: int) -> None:
    group = random_group(seed)
    reverse = group._replace(members=dict(reversed(group.members.items())))
    assert group.assign() == reverse.assign()


@pytest.mark.parametrize(
    ("processes", "threads", "subtopologies"), [(1, 1, 1), (1000, 1, 1), (1, 1000, 1000), (30, 30, 10)]
)
def test_assigning_many_tasks_yields_often(processes: int, threads: int, subtopologies: int) -> None:
    names = [f"{number:04}" for number in range(subtopologies)]
    group = Group(
        {f"m{p}-{t}": TaskMember(f"p{p}") for p in range(processes) for t in range(threads)},
        {name: Size(10_000 // subtopologies, True) for name in names},
        1,
    )
    assert longest_step(group) <= MAX_LINES
    assert longest_step(group.assigned()) <= MAX_LINES


def longest_step(group: Group) -> int:
    """Return the most lines of Python between two yields."""
    lines = most = 0

    def count(_: FrameType, event: str, __: Any) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return count

    steps = assign_tasks(*group)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in steps:
            most, lines = max(most, lines), 0
    finally:
        sys.settrace(before)
    return max(most, lines)
