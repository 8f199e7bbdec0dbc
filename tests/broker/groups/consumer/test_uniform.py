"""The assignor `uniform`, with the rows of Kafka's tests of its two builders."""

import sys
from collections.abc import Callable, Generator
from itertools import combinations
from types import FrameType
from typing import Any

import pytest

from tests.broker.groups.consumer.assigning import (
    Group,
    Row,
    assign,
    check_complete,
    finished,
    load,
    moved,
    random_group,
    written,
)
from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.consumer.assignors.uniform import assign_uniformly
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo

SEEDS = range(200)
#: Lines of Python, each of them below 0.1 us unless it calls a function in C.
MAX_LINES = 10_000

SAME = [
    Row("one member without a topic", "T1:3", {"A": ("", "")}, {"A": ""}),
    Row(
        "two members, two topics",
        "T3:2 T1:3",
        {"A": ("T1 T3", ""), "B": ("T1 T3", "")},
        {"A": "T3:0,1", "B": "T1:0,1,2"},
    ),
    Row(
        "more members than partitions",
        "T3:2",
        {"A": ("T3", ""), "B": ("T3", ""), "C": ("T3", "")},
        {"A": "", "B": "T3:0", "C": "T3:1"},
    ),
    Row(
        "unbalanced before",
        "T1:3 T2:3",
        {"A": ("T1 T2", "T1:0,1 T2:0,1"), "B": ("T1 T2", "T1:2 T2:2")},
        {"A": "T1:0,1 T2:0", "B": "T1:2 T2:1,2"},
    ),
    Row(
        "topics get partitions",
        "T2:5 T1:6",
        {"A": ("T1 T2", "T1:0,2 T2:0"), "B": ("T1 T2", "T1:1 T2:1,2")},
        {"A": "T2:0,3,4 T1:0,2", "B": "T2:1,2 T1:1,3,4,5"},
    ),
    Row(
        "a member is added",
        "T1:3 T2:3",
        {"A": ("T1 T2", "T1:0,2 T2:0"), "B": ("T1 T2", "T1:1 T2:1,2"), "C": ("T1 T2", "")},
        {"A": "T1:0,2", "B": "T1:1 T2:1", "C": "T2:0,2"},
    ),
    Row(
        "a member is removed",
        "T2:3 T1:3",
        {"A": ("T1 T2", "T1:0 T2:0"), "B": ("T1 T2", "T1:1 T2:1")},
        {"A": "T2:0,2 T1:0", "B": "T2:1 T1:1,2"},
    ),
    Row(
        "a topic is no longer subscribed to",
        "T1:2 T2:2",
        {"A": ("T2", "T1:0 T2:0"), "B": ("T2", "T1:1 T2:1")},
        {"A": "T2:0", "B": "T2:1"},
    ),
    Row(
        "balanced before",
        "T1:5",
        {"A": ("T1", "T1:0,3"), "B": ("T1", "T1:1"), "C": ("T1", "T1:2,4")},
        {"A": "T1:0,3", "B": "T1:1", "C": "T1:2,4"},
    ),
]
DIFFERENT = [
    Row(
        "two members, two topics",
        "T1:3 T3:6",
        {"A": ("T1 T3", ""), "B": ("T3", "")},
        {"A": "T1:0,1,2 T3:4", "B": "T3:0,1,2,3,5"},
    ),
    Row(
        "more members than partitions",
        "T1:2 T3:1",
        {"A": ("T3", ""), "B": ("T3", ""), "C": ("T1", "")},
        {"A": "T3:0", "B": "", "C": "T1:0,1"},
    ),
    Row(
        "unbalanced before",
        "T1:6 T2:4 T3:4",
        {
            "A": ("T1", "T1:0,1,2"),
            "B": ("T1 T2", "T1:3 T2:0"),
            "C": ("T1 T2 T3", "T1:4,5 T2:1,2,3 T3:0,1,2,3"),
        },
        {"A": "T1:0,1,2,5", "B": "T1:3 T2:0,1,2,3", "C": "T1:4 T3:0,1,2,3"},
    ),
    Row(
        "topics get partitions",
        "T1:6 T2:5 T3:3 T4:3",
        {"A": ("T1 T3", "T1:0,1,2,3 T3:0,1"), "B": ("T1 T2 T3 T4", "T2:0,1,2 T4:0,1,2")},
        {"A": "T1:0,1,2,3,4,5 T3:0,1,2", "B": "T2:0,1,2,3,4 T4:0,1,2"},
    ),
    Row(
        "a member and partitions are added",
        "T1:6 T2:7",
        {"A": ("T1", "T1:0,2 T2:0"), "B": ("T1 T2", "T1:1 T2:1,2"), "C": ("T1 T2", "")},
        {"A": "T1:0,2,3,4,5", "B": "T1:1 T2:1,2,6", "C": "T2:0,3,4,5"},
    ),
    Row(
        "a member is removed",
        "T1:3 T2:8 T3:3",
        {"A": ("T1 T3", "T1:0,1,2 T3:0,1"), "B": ("T2", "T2:3,4,5,6")},
        {"A": "T1:0,1,2 T3:0,1,2", "B": "T2:0,1,2,3,4,5,6,7"},
    ),
    Row(
        "a topic is no longer subscribed to",
        "T1:3 T2:5",
        {"A": ("T1", "T1:0,2 T2:1,3"), "B": ("T1 T2", "T1:1 T2:0,2,4")},
        {"A": "T1:0,1,2", "B": "T2:0,1,2,3,4"},
    ),
    Row("a member without a topic", "T1:3", {"A": ("T1", ""), "B": ("", "")}, {"A": "T1:0,1,2", "B": ""}),
]


@pytest.mark.parametrize("row", SAME, ids=lambda row: row.name)
def test_assignments_with_the_same_subscriptions_are_kafkas(row: Row) -> None:
    group = row.group()
    assert written(assign(assign_uniformly, group), group.topics) == row.expected


@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: row.name)
def test_assignments_with_different_subscriptions_are_kafkas(row: Row) -> None:
    group = row.group()
    assert written(assign(assign_uniformly, group), group.topics) == row.expected


@pytest.mark.parametrize("seed", SEEDS)
def test_each_partition_is_assigned_once(seed: int) -> None:
    group = random_group(seed)
    check_complete(group, assign(assign_uniformly, group))


def test_with_the_same_subscriptions_loads_differ_by_one_and_as_few_partitions_as_possible_move() -> None:
    groups = [group for group in map(random_group, SEEDS) if is_homogeneous(group)]
    assert len(groups) > len(SEEDS) // 3
    for group in groups:
        assigned = assign(assign_uniformly, group)
        loads = [load(assignment) for assignment in assigned.values()]
        assert max(loads) - min(loads) <= 1
        assert moved(group.members, assigned) == fewest_moves(group)


def is_homogeneous(group: Group) -> bool:
    return len({member.topics for member in group.members.values()}) == 1


def fewest_moves(group: Group) -> int:
    """Return how many partitions have to move at least: those that no member may keep."""
    subscription = next(iter(group.members.values())).topics
    total = sum(group.topics[topic_id].partitions for topic_id in subscription)
    least, extra = divmod(total, len(group.members))
    owned = [
        sum(len(partitions) for topic_id, partitions in member.owned.items() if topic_id in subscription)
        for member in group.members.values()
    ]
    with_extra = min(extra, sum(number > least for number in owned))
    return total - sum(min(number, least) for number in owned) - with_extra


@pytest.mark.parametrize("seed", SEEDS)
def test_loads_of_a_topics_subscribers_differ_by_one_unless_there_is_nothing_to_give(seed: int) -> None:
    group = random_group(seed)
    assigned = assign(assign_uniformly, group)
    for topic_id in group.topics:
        subscribers = [member_id for member_id, member in group.members.items() if topic_id in member.topics]
        for one, another in combinations(subscribers, 2):
            more, less = sorted((one, another), key=lambda member_id: load(assigned[member_id]), reverse=True)
            if topic_id in assigned[more]:
                assert load(assigned[more]) - load(assigned[less]) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_assignment_moves_nothing(seed: int) -> None:
    group = random_group(seed)
    assigned = assign(assign_uniformly, group)
    members = {member_id: member._replace(owned=assigned[member_id]) for member_id, member in group.members.items()}
    again = assign(assign_uniformly, Group(members, group.topics))
    assert again == assigned
    for member_id, assignment in again.items():
        for topic_id, partitions in assignment.items():
            assert partitions is assigned[member_id][topic_id]


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_the_order_of_members_and_topics_does_not_count(name: str, seed: int) -> None:
    group = random_group(seed)
    turned = Group(
        {
            member_id: member._replace(owned=dict(reversed(member.owned.items())))
            for member_id, member in reversed(group.members.items())
        },
        dict(reversed(group.topics.items())),
    )
    assert assign(ASSIGNORS[name], turned) == assign(ASSIGNORS[name], group)


@pytest.mark.parametrize("kinds", [1, 2])
def test_partitions_that_do_not_exist_or_have_two_owners_are_assigned_once(kinds: int) -> None:
    topic, other = (TopicInfo(bytes([number] * 16), str(number), 4) for number in (1, 2))
    owned = {topic.id: frozenset({0, 1, 9})}
    subscriptions = [frozenset([topic.id, other.id]), frozenset([topic.id])][:kinds]
    members = {f"m{number}": Subscriber(subscriptions[number % kinds], owned) for number in range(3)}
    group = Group(members, {topic.id: topic, other.id: other})
    check_complete(group, assign(assign_uniformly, group))


def lines_between_yields(steps: Generator[None, None, dict[str, Assignment]]) -> list[int]:
    """Drive an assignor and count the lines of Python that run from one yield to the next."""
    counts = [0]

    def count(_: FrameType, event: str, __: Any) -> Callable[..., Any]:
        if event == "line":
            counts[-1] += 1
        return count

    def yields() -> Generator[None, None, dict[str, Assignment]]:
        while True:
            before = sys.gettrace()
            sys.settrace(count)
            try:
                next(steps)
            except StopIteration as end:
                result: dict[str, Assignment] = end.value
                return result
            finally:
                sys.settrace(before)
            counts.append(0)
            yield

    finished(yields())
    return counts


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("kinds", [1, 5])
@pytest.mark.parametrize(
    ("member_count", "topic_count", "partitions"), [(300, 1, 20_000), (300, 300, 10), (2, 1, 50_000)]
)
def test_assignors_yield_after_a_bounded_amount_of_work(
    name: str, kinds: int, member_count: int, topic_count: int, partitions: int
) -> None:
    ids = [number.to_bytes(16, "big") for number in range(topic_count)]
    topics = {topic_id: TopicInfo(topic_id, topic_id.hex(), partitions) for topic_id in ids}
    members = {
        f"m{number:03}": Subscriber(frozenset(ids[number % kinds :] or ids), {}) for number in range(member_count)
    }
    first = finished(ASSIGNORS[name](members, topics))
    fewer = {member_id: member._replace(owned=first[member_id]) for member_id, member in list(members.items())[:-1]}
    for group in (members, fewer):
        counts = lines_between_yields(ASSIGNORS[name](group, topics))
        assert max(counts) <= MAX_LINES
