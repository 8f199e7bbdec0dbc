"""Plans for mirrored topics: what is done about each difference, and that a plan leaves nothing to plan."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.metadata.topic import Mirror, Topic
from warmlog.broker.mirror.plan import (
    Action,
    Configure,
    Create,
    Delete,
    Grow,
    RefusedTopic,
    SourceTopic,
    plan,
    usable_configs,
)
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID

SOURCE, OTHER = "source", "another"
ID, NEW_ID = bytes(15) + b"\1", bytes(15) + b"\2"
ORDERS = SourceTopic(name="orders", topic_id=ID, partitions=2, configs={"cleanup.policy": "compact"})
MIRRORED = Topic(
    name="orders",
    id=UUID(bytes=ID),
    partitions=2,
    configs={"cleanup.policy": "compact"},
    mirror=Mirror(cluster_id=SOURCE),
)


def planned(source: Sequence[SourceTopic], *here: Topic, deletes: bool = False) -> list[Action]:
    return list(plan(source, {topic.name: topic for topic in here}, cluster_id=SOURCE, deletes=deletes))


def test_a_new_topic_is_created_with_the_id_and_settings_of_the_source() -> None:
    assert planned([ORDERS]) == [Create(MIRRORED)]
    assert planned([ORDERS], MIRRORED) == []


def test_a_source_without_topic_ids_gets_a_topic_with_an_id_of_its_own() -> None:
    old = replace(ORDERS, topic_id=NO_TOPIC_ID)
    (created,) = planned([old])
    assert isinstance(created, Create)
    assert created.topic.id.bytes != NO_TOPIC_ID
    assert created.topic.mirror == Mirror(cluster_id=SOURCE, has_source_id=False)
    assert planned([old], created.topic) == []
    assert planned([ORDERS], created.topic) == []  # the source was upgraded, and has ids now


def test_partitions_and_settings_follow_the_source() -> None:
    changed = replace(ORDERS, partitions=5, configs={"retention.ms": "1"})
    assert planned([changed], MIRRORED) == [Grow("orders", 5), Configure("orders", {"retention.ms": "1"})]


@pytest.mark.parametrize(
    ("source", "here", "problem"),
    [
        (ORDERS, replace(MIRRORED, mirror=None), "is not a mirror"),
        (ORDERS, replace(MIRRORED, mirror=Mirror(cluster_id=OTHER)), "mirror of cluster another"),
        (replace(ORDERS, topic_id=NEW_ID), MIRRORED, "deleted and created again"),
        (replace(ORDERS, partitions=1), MIRRORED, "2 partitions here and 1 at the source"),
        (replace(ORDERS, partitions=0), None, "1 to 100,000 partitions"),
    ],
)
def test_what_cannot_be_mirrored_is_left_alone_and_told(source: SourceTopic, here: Topic | None, problem: str) -> None:
    (refusal,) = planned([source], *[] if here is None else [here])
    assert isinstance(refusal, RefusedTopic)
    assert problem in refusal.problem


@pytest.mark.parametrize("name", ["", "no/topic", "x" * 250])
def test_a_hostile_name_is_refused(name: str) -> None:
    (refusal,) = planned([replace(ORDERS, name=name)])
    assert isinstance(refusal, RefusedTopic)


def test_a_promoted_topic_is_independent() -> None:
    promoted = replace(MIRRORED, mirror=Mirror(cluster_id=SOURCE, promoted_at=(3, 4)))
    assert planned([replace(ORDERS, partitions=9, topic_id=NEW_ID)], promoted) == []
    assert planned([], promoted, deletes=True) == []


def test_a_topic_that_is_gone_is_deleted_if_that_is_asked_for() -> None:
    own, foreign = (
        replace(MIRRORED, name="own", mirror=None),
        replace(MIRRORED, name="x", mirror=Mirror(cluster_id=OTHER)),
    )
    assert planned([], MIRRORED, own, foreign, deletes=True) == [Delete("orders")]
    assert [type(action) for action in planned([], MIRRORED, own, foreign)] == [RefusedTopic]


def test_settings_that_this_broker_does_not_have_are_left_out_one_by_one() -> None:
    given_there = {
        "cleanup.policy": "compact",
        "from.the.future": "1",
        "remote.storage.enable": "true",
        "retention.ms": "x",
    }
    usable = usable_configs(given_there, Settings())
    assert usable.configs == {"cleanup.policy": "compact"}
    assert len(usable.problems) == 3
    for name, problem in zip(sorted(given_there)[1:], usable.problems, strict=True):
        assert name in problem


names = st.sampled_from(["a", "b", "c"])
source_topics = st.lists(
    st.builds(
        SourceTopic,
        name=names,
        topic_id=st.sampled_from([ID, NEW_ID, NO_TOPIC_ID]),
        partitions=st.integers(1, 4),
        configs=st.sampled_from([{}, {"retention.ms": "5"}]),
    ),
    unique_by=lambda topic: topic.name,
)


@given(st.lists(source_topics, min_size=1, max_size=6), st.booleans())
def test_after_a_plan_was_carried_out_only_refusals_are_left(states: list[list[SourceTopic]], deletes: bool) -> None:
    here: dict[str, Topic] = {}
    for source in states:
        refused = set()
        for action in plan(source, dict(here), cluster_id=SOURCE, deletes=deletes):
            match action:
                case Create(topic):
                    assert topic.name not in here
                    here[topic.name] = topic
                case Grow(name, count):
                    assert count > here[name].partitions
                    here[name] = replace(here[name], partitions=count)
                case Configure(name, configs):
                    here[name] = replace(here[name], configs=dict(configs))
                case Delete(name):
                    del here[name]
                case RefusedTopic(name, _):
                    refused.add(name)
        again = list(plan(source, here, cluster_id=SOURCE, deletes=deletes))
        assert {action.topic for action in again if isinstance(action, RefusedTopic)} == refused
        assert len(again) == len(refused)
        for topic in source:
            if topic.name not in refused:
                there = here[topic.name]
                assert (there.partitions, dict(there.configs)) == (topic.partitions, dict(topic.configs))
