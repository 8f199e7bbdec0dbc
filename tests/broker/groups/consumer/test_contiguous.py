"""The assignor `range`, with the rows of Kafka's RangeAssignorTest."""

import pytest

from tests.broker.groups.consumer.assigning import Row, assign, check_complete, random_group, written
from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.consumer.assignors.contiguous import assign_ranges
from warmlog.broker.groups.modern.assignment import Subscriber, TopicInfo

ROWS = [
    Row("one member without a topic", "T1:3", {"A": ("", "")}, {"A": ""}),
    Row(
        "two members, two topics",
        "T1:3 T3:2",
        {"A": ("T1 T3", ""), "B": ("T1 T3", "")},
        {"A": "T1:0,1 T3:0", "B": "T1:2 T3:1"},
    ),
    Row(
        "three members with different subscriptions",
        "T1:3 T2:3 T3:2",
        {"A": ("T1 T2", ""), "B": ("T3", ""), "C": ("T2 T3", "")},
        {"A": "T1:0,1,2 T2:0,1", "B": "T3:0", "C": "T2:2 T3:1"},
    ),
    Row(
        "more members than partitions",
        "T1:3 T3:2",
        {"A": ("T1 T3", ""), "B": ("T1 T3", ""), "C": ("T1 T3", "")},
        {"A": "T1:0 T3:0", "B": "T1:1 T3:1", "C": "T1:2"},
    ),
    Row(
        "a member is added to as many as partitions",
        "T1:2 T2:2",
        {"A": ("T1 T2", "T1:0 T2:0"), "B": ("T1 T2", "T1:1 T2:1"), "C": ("T1 T2", "")},
        {"A": "T1:0 T2:0", "B": "T1:1 T2:1", "C": ""},
    ),
    Row(
        "topics get a partition",
        "T1:4 T2:4",
        {"A": ("T1 T2", "T1:0,1 T2:0,1"), "B": ("T1 T2", "T1:2 T2:2")},
        {"A": "T1:0,1 T2:0,1", "B": "T1:2,3 T2:2,3"},
    ),
    Row(
        "a member is added",
        "T1:3 T2:3",
        {"A": ("T1 T2", "T1:0,1 T2:0,1"), "B": ("T1 T2", "T1:2 T2:2"), "C": ("T1 T2", "")},
        {"A": "T1:0 T2:0", "B": "T1:1 T2:1", "C": "T1:2 T2:2"},
    ),
    Row(
        "a member and a partition are added",
        "T1:4 T2:3",
        {"A": ("T1 T2", "T1:0,1 T2:0,1"), "B": ("T1 T2", "T1:2 T2:2"), "C": ("T1", "")},
        {"A": "T1:0,1 T2:0,1", "B": "T1:2 T2:2", "C": "T1:3"},
    ),
    Row(
        "a member is removed",
        "T1:3 T2:3",
        {"B": ("T1 T2", "T1:2 T2:2")},
        {"B": "T1:0,1,2 T2:0,1,2"},
    ),
    Row(
        "subscriptions change",
        "T1:3 T2:3 T3:2",
        {"A": ("T1", "T1:0,1,2 T2:0"), "B": ("T1 T2 T3", "T2:1"), "C": ("T2", "T2:2 T3:0,1")},
        {"A": "T1:0,1", "B": "T1:2 T2:0,1 T3:0,1", "C": "T2:2"},
    ),
    Row(
        "static members come first, by instance id",
        "T1:5",
        {"C": ("T1", "", "instance A"), "B": ("T1", ""), "A": ("T1", "", "instance C")},
        {"C": "T1:0,1", "B": "T1:4", "A": "T1:2,3"},
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_assignments_are_kafkas(row: Row) -> None:
    group = row.group()
    assert written(assign(assign_ranges, group), group.topics) == row.expected


@pytest.mark.parametrize("seed", range(100))
def test_each_partition_is_assigned_once_in_ranges_that_differ_by_one(seed: int) -> None:
    group = random_group(seed)
    assigned = assign(assign_ranges, group)
    check_complete(group, assigned)
    for topic_id, topic in group.topics.items():
        sizes = []
        for member_id, member in group.members.items():
            partitions = sorted(assigned[member_id].get(topic_id, ()))
            assert not partitions or partitions == list(range(partitions[0], partitions[-1] + 1))
            sizes += [len(partitions)] if topic_id in member.topics else []
        assert not sizes or max(sizes) - min(sizes) <= 1, topic


def test_topics_of_the_same_size_are_assigned_alike() -> None:
    topics = {bytes([number] * 16): TopicInfo(bytes([number] * 16), str(number), 7) for number in range(3)}
    members = {f"m{number}": Subscriber(topics=frozenset(topics), owned={}) for number in range(4)}
    for assignment in assign(assign_ranges, random_group(0)._replace(members=members, topics=topics)).values():
        assert len(set(assignment.values())) == 1


def test_a_static_member_has_the_same_partitions_under_another_id() -> None:
    topic = TopicInfo(b"\1" * 16, "t", 5)
    ids = {"first": "1", "second": "2", "third": "3"}
    members = {ids[name]: Subscriber(frozenset([topic.id]), {}, instance_id=name) for name in ids}
    again = {"9" if member_id == "1" else member_id: member for member_id, member in members.items()}
    topics = {topic.id: topic}
    before, after = (
        assign(assign_ranges, random_group(0)._replace(members=m, topics=topics)) for m in (members, again)
    )
    assert {"1": after["9"], "2": after["2"], "3": after["3"]} == before


def test_uniform_is_the_default() -> None:
    assert list(ASSIGNORS) == ["uniform", "range"]
