"""Topologies fitted to topics (Kafka's InternalTopicManagerTest, ConfiguredTopologyTest), and endpoints' partitions."""

import pytest

from tests.broker.groups.streams.topics import ExistingTopics, subtopology
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.groups.streams.tasks import Tasks
from warmlog.broker.groups.streams.topology.configured import (
    MAX_TASKS,
    ConfiguredTopology,
    configure,
    required_topics,
)
from warmlog.broker.groups.streams.topology.endpoints import endpoint_partitions
from warmlog.broker.groups.streams.topology.problems import InvalidTopologyError
from warmlog.protocol.kafka.messages.groups.streams import (
    Endpoint,
    InternalTopic,
    KeyValue,
    NamedTopicPartitions,
    Subtopology,
    Topology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    DescribedSubtopology,
)
from warmlog.protocol.request import NewTopic

HASH = 42
COMPACTED = KeyValue(key="cleanup.policy", value="compact")
FIRST = subtopology("0", "source1", writes="repartition", changelogs=["changelog1 cleanup.policy=compact"])
SECOND = Subtopology(
    subtopology_id="1",
    sources=("source2",),
    repartition_sources=(InternalTopic(topic="repartition", replication_factor=3),),
    changelogs=(InternalTopic(topic="changelog2"),),
    copartition_groups=subtopology("1", copartitioned=[((0,), (0,))]).copartition_groups,
)
TOPOLOGY = Topology(epoch=3, subtopologies=(FIRST, SECOND))
SOURCES = {"source1": 2, "source2": 2}
INTERNAL = {"repartition": 2, "changelog1": 2, "changelog2": 2}


def configured(*subtopologies: Subtopology, **counts: int) -> ConfiguredTopology:
    return configure(Topology(epoch=0, subtopologies=subtopologies), ExistingTopics(counts), HASH)


def test_missing_internal_topics_are_to_be_created_with_their_settings() -> None:
    topology = configure(TOPOLOGY, ExistingTopics({**SOURCES, "changelog2": 2}), HASH)
    assert topology.missing == (
        NewTopic(name="changelog1", partitions=2, replication_factor=-1, configs={"cleanup.policy": "compact"}),
        NewTopic(name="repartition", partitions=2, replication_factor=3),
    )
    assert topology.problem == (
        Status.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: changelog1, repartition",
    )
    assert not topology.is_ready
    assert topology.subtopologies is not None
    assert [each.number_of_tasks for each in topology.subtopologies.values()] == [2, 2]


def test_a_topology_with_too_many_tasks_is_not_ready() -> None:
    counts = {"source1": MAX_TASKS - 1, "source2": 1}
    first, second = subtopology("0", "source1"), subtopology("1", "source2")
    assert configured(first, second, **counts).is_ready
    topology = configured(first, second, **{**counts, "source2": 2})
    assert topology.problem == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "The topology has 20,001 tasks; at most 20,000 are supported.",
    )


def test_a_topology_whose_topics_exist_is_ready() -> None:
    topology = configure(TOPOLOGY, ExistingTopics({**SOURCES, **INTERNAL}), HASH)
    assert topology.is_ready
    assert (topology.epoch, topology.metadata_hash, topology.missing) == (3, HASH, ())
    assert topology.subtopologies is not None
    assert [each.described(name) for name, each in topology.subtopologies.items()] == [
        DescribedSubtopology(
            subtopology_id="0",
            sources=("source1",),
            repartition_sinks=("repartition",),
            changelogs=(InternalTopic(topic="changelog1", partitions=2, configs=(COMPACTED,)),),
        ),
        DescribedSubtopology(
            subtopology_id="1",
            sources=("source2",),
            changelogs=(InternalTopic(topic="changelog2", partitions=2),),
            repartition_sources=(InternalTopic(topic="repartition", partitions=2, replication_factor=3),),
        ),
    ]


def test_only_subtopologies_with_changelogs_are_stateful() -> None:
    topology = configured(subtopology("0", "s"), subtopology("1", "s", changelogs=["c"]), s=1, c=1)
    assert topology.subtopologies is not None
    assert {name: each.is_stateful for name, each in topology.subtopologies.items()} == {"0": False, "1": True}


def test_missing_source_topics_are_named_up_to_three() -> None:
    topology = configured(subtopology("0", "s e d c b a"), s=1)
    assert topology.problem == (
        Status.MISSING_SOURCE_TOPICS,
        "Source topics a, b, c and 2 additional topics are missing.",
    )
    assert topology.subtopologies is None


@pytest.mark.parametrize(
    ("counts", "detail"),
    [
        pytest.param(
            {**SOURCES, **INTERNAL, "changelog1": 5},
            "Existing topic changelog1 has different number of partitions: expected 2, found 5",
            id="existing changelog",
        ),
        pytest.param(
            {**SOURCES, **INTERNAL, "repartition": 3, "changelog2": 3},
            "Existing topic repartition has different number of partitions: expected 2, found 3",
            id="existing repartition topic",
        ),
    ],
)
def test_existing_internal_topics_with_other_numbers_are_incorrectly_partitioned(
    counts: dict[str, int], detail: str
) -> None:
    topology = configure(TOPOLOGY, ExistingTopics(counts), HASH)
    assert topology.problem == (Status.INCORRECTLY_PARTITIONED_TOPICS, detail)
    assert topology.missing == ()


@pytest.mark.parametrize(
    ("subtopologies", "message"),
    [
        pytest.param([subtopology("0", "s"), subtopology("0", "s")], "unique", id="two with one id"),
        pytest.param([subtopology("0", "s", copartitioned=[((1,), ())])], "does not have", id="beyond sources"),
        pytest.param([subtopology("0", "s", copartitioned=[((-1,), ())])], "does not have", id="negative index"),
        pytest.param([subtopology("0", "s", copartitioned=[((), (0,))])], "does not have", id="beyond repartition"),
        pytest.param([subtopology("0", "s", writes="r"), subtopology("1", reads="r:-2")], "at least 1", id="negative"),
    ],
)
def test_topologies_that_make_no_sense_are_invalid(subtopologies: list[Subtopology], message: str) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        configured(*subtopologies, s=1)


def test_sources_and_internal_topics_are_required() -> None:
    assert required_topics(TOPOLOGY) == {*SOURCES, *INTERNAL}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(2, 5, {"a": (0, 1), "b": (0, 1, 2, 3, 4)}, id="different numbers"),
        pytest.param(3, 3, {"a": (0, 1, 2), "b": (0, 1, 2)}, id="equal numbers"),
    ],
)
def test_an_endpoint_has_the_partitions_of_its_tasks_that_topics_have(
    a: int, b: int, expected: dict[str, tuple[int, ...]]
) -> None:
    subtopologies = configured(subtopology("0", "a b"), a=a, b=b).subtopologies
    assert subtopologies is not None
    found = endpoint_partitions(
        Endpoint(host="here", port=80),
        Tasks(active={"0": (0, 1, 2, 3, 4)}),
        subtopologies,
        ExistingTopics({"a": a, "b": b}),
    )
    assert {each.topic: each.partitions for each in found.active} == expected
    assert found.standby == ()


def test_an_endpoint_has_standby_and_warmup_tasks_together_and_no_empty_topics() -> None:
    subtopologies = configured(subtopology("0", "a b"), subtopology("1", "c"), a=1, b=9, c=9).subtopologies
    assert subtopologies is not None
    tasks = Tasks(active={"gone": (0,)}, standby={"0": (1, 5)}, warmup={"0": (3,), "1": (0,)})
    topics = ExistingTopics({"a": 1, "b": 9})
    found = endpoint_partitions(Endpoint(host="here", port=80), tasks, subtopologies, topics)
    assert found.active == ()
    assert found.standby == (NamedTopicPartitions(topic="b", partitions=(1, 3, 5)),)
