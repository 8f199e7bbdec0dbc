"""Partitions assigned by this broker and by Kafka's own assignors, for the same groups."""

from collections.abc import Mapping

import pytest

from interop.kafka_assignors import Question, ask
from tests.broker.groups.consumer.assigning import (
    Group,
    assign,
    check_complete,
    finished,
    imbalance,
    moved,
    random_group,
)
from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.modern.assignment import Assignment
from warmlog.broker.groups.share.assignor import assign_shared

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEEDS = range(200)


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return [random_group(seed) for seed in SEEDS]


def test_ranges_are_kafkas(groups: list[Group]) -> None:
    answers = ask(Question("range", group.members, group.topics) for group in groups)
    for group, answer in zip(groups, answers, strict=True):
        assert assign(ASSIGNORS["range"], group) == answer.assigned


def test_uniform_assignments_are_as_even_as_kafkas_and_move_no_more(groups: list[Group]) -> None:
    """A group with different subscriptions may move a partition more than Kafka's, which other groups make up for."""
    answers = ask(Question("uniform", group.members, group.topics) for group in groups)
    ours_moved = kafkas_moved = 0
    for group, answer in zip(groups, answers, strict=True):
        ours = assign(ASSIGNORS["uniform"], group)
        check_complete(group, answer.assigned)
        assert imbalance(ours) <= imbalance(answer.assigned)
        moves, kafkas = moved(group.members, ours), moved(group.members, answer.assigned)
        assert moves <= kafkas + (len({member.topics for member in group.members.values()}) > 1)
        ours_moved += moves
        kafkas_moved += kafkas
    assert ours_moved <= kafkas_moved


def test_shared_assignments_are_as_even_as_kafkas_and_move_no_more(groups: list[Group]) -> None:
    answers = ask(Question("simple", group.members, group.topics) for group in groups)
    ours_moved = kafkas_moved = 0
    for group, answer in zip(groups, answers, strict=True):
        partitions = {topic_id: frozenset(range(topic.partitions)) for topic_id, topic in group.topics.items()}
        ours = finished(assign_shared(group.members, partitions))
        subscribed = {topic_id for member in group.members.values() for topic_id in member.topics}
        assert shared(ours) == {(each, partition) for each in subscribed for partition in partitions[each]}
        assert shared(ours) >= shared(answer.assigned)
        if len({member.topics for member in group.members.values()}) == 1:
            assert imbalance(ours) <= imbalance(answer.assigned)
        ours_moved += moved(group.members, ours)
        kafkas_moved += moved(group.members, answer.assigned)
    assert ours_moved <= kafkas_moved


def shared(assigned: Mapping[str, Assignment]) -> set[tuple[bytes, int]]:
    """Return the partitions that a member has."""
    return {
        (topic_id, partition)
        for assignment in assigned.values()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    }
