"""Numbers of partitions of internal topics, with the rows of Kafka's tests of the three classes that decide them."""

from collections.abc import Mapping

import pytest

from tests.broker.groups.streams.topics import subtopology
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.groups.streams.topology.partition_counts import (
    Copartitioning,
    changelog_counts,
    number_of_tasks,
    repartition_counts,
)
from warmlog.broker.groups.streams.topology.problems import InvalidTopologyError, TopicsError
from warmlog.protocol.kafka.messages.groups.streams import Subtopology

EXISTING = {"source1": 3, "source2": 3, "wide": 8}


def rows(**each: tuple[list[Subtopology], Mapping[str, int]]) -> pytest.MarkDecorator:
    ids = [name.replace("_", " ") for name in each]
    return pytest.mark.parametrize(("subtopologies", "expected"), each.values(), ids=ids)


@rows(
    fixed_by_the_application=(
        [subtopology("0", "source1 source2", writes="r1"), subtopology("1", reads="r1:4")],
        {"r1": 4},
    ),
    from_an_external_source=(
        [
            subtopology("0", "source1", reads="r2:2", writes="r1 flexible"),
            subtopology("1", reads="r1:4 flexible"),
        ],
        {"r1": 4, "r2": 2, "flexible": 3},
    ),
    from_a_repartition_topic=(
        [subtopology("0", "source1", reads="r1:4", writes="flexible"), subtopology("1", reads="flexible", writes="r1")],
        {"r1": 4, "flexible": 4},
    ),
    no_repartition_topics=([subtopology("0", "source1")], {}),
    against_the_order_of_subtopologies=(
        [
            subtopology("0", reads="c"),
            subtopology("1", reads="b", writes="c"),
            subtopology("2", reads="a", writes="b"),
            subtopology("3", "wide", writes="a"),
        ],
        {"a": 8, "b": 8, "c": 8},
    ),
    by_what_is_known_when_it_is_decided=(
        [
            subtopology("0", "source1", reads="late", writes="early"),
            subtopology("1", reads="early"),
            subtopology("2", "wide", writes="late"),
        ],
        {"early": 3, "late": 8},
    ),
)
def test_repartition_topics_have_as_many_partitions_as_their_busiest_source(
    subtopologies: list[Subtopology], expected: Mapping[str, int]
) -> None:
    assert repartition_counts(subtopologies, EXISTING.get) == expected


@pytest.mark.parametrize(
    ("subtopologies", "message"),
    [
        pytest.param([subtopology("0", reads="r", writes="r")], "There may be loops in the topology", id="loop"),
        pytest.param(
            [subtopology("0", reads="a", writes="b"), subtopology("1", reads="b", writes="a")], "loops", id="long loop"
        ),
        pytest.param([subtopology("0", writes="r")], "loops", id="no source"),
        pytest.param([subtopology("0", reads="r")], "never used as a sink topic", id="no sink"),
    ],
)
def test_repartition_topics_without_a_number_make_a_topology_invalid(
    subtopologies: list[Subtopology], message: str
) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        repartition_counts(subtopologies, EXISTING.get)


@pytest.mark.parametrize(
    ("counts", "fixed", "flexible", "expected"),
    [
        pytest.param({"s1": 2, "s2": 2, "r1": 10}, "", "r1", {"r1": 2}, id="as external topics"),
        pytest.param(
            {"r1": 1, "r2": 15, "r3": 5}, "", "r1 r2 r3", {"r1": 15, "r2": 15, "r3": 15}, id="only repartition topics"
        ),
        pytest.param({"r1": 10, "r2": 10}, "", "r1 r2", {"r1": 10, "r2": 10}, id="equal already"),
        pytest.param({"r1": 10, "r2": 10}, "r1 r2", "", {"r1": 10, "r2": 10}, id="fixed and equal"),
        pytest.param({"r1": 2, "s1": 2}, "r1", "", {"r1": 2}, id="fixed as the external topic"),
        pytest.param({"r1": 2, "r2": 5, "r3": 2}, "r1 r3", "r2", {"r1": 2, "r2": 2, "r3": 2}, id="as the fixed ones"),
        pytest.param({"s1": 2, "s2": 2}, "", "", {}, id="only external topics"),
        pytest.param({}, "", "", {}, id="none"),
    ],
)
def test_topics_of_a_copartition_group_have_the_same_number(
    counts: Mapping[str, int], fixed: str, flexible: str, expected: Mapping[str, int]
) -> None:
    assert Copartitioning(fixed.split(), flexible.split(), counts.get).enforced(counts) == expected


@pytest.mark.parametrize(
    ("counts", "fixed", "detail"),
    [
        pytest.param(
            {"s1": 2, "s2": 1},
            "",
            "Following topics do not have the same number of partitions: [{s1=2, s2=1}]",
            id="external topics",
        ),
        pytest.param(
            {"r1": 10, "r2": 5},
            "r1 r2",
            "Following topics do not have the same number of partitions: [{r1=10, r2=5}]",
            id="fixed topics",
        ),
        pytest.param(
            {"r1": 10, "s1": 2},
            "r1",
            "Number of partitions [10] of repartition topic [r1] doesn't match number of partitions [2] of the source "
            "topic.",
            id="a fixed and an external topic",
        ),
    ],
)
def test_copartitioned_topics_with_other_numbers_are_incorrectly_partitioned(
    counts: Mapping[str, int], fixed: str, detail: str
) -> None:
    with pytest.raises(TopicsError) as raised:
        Copartitioning(fixed.split(), [], counts.get).enforced(counts)
    assert raised.value.problem == (Status.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_a_copartitioned_topic_without_a_number_makes_a_topology_invalid() -> None:
    with pytest.raises(InvalidTopologyError, match="Number of partitions is not set for topic: s1"):
        Copartitioning([], [], {}.get).enforced(["s1"])


@rows(
    stateless=([subtopology("0", "source1", reads="r:5")], {}),
    of_its_own=([subtopology("0", "source1", changelogs=["changelog"])], {"changelog": 3}),
    source_as_changelog=([subtopology("0", "source1", changelogs=["source1"])], {"source1": 3}),
    both=(
        [subtopology("0", "source1", changelogs=["source1", "changelog"])],
        {"source1": 3, "changelog": 3},
    ),
    the_largest_source=([subtopology("0", "source1 wide", changelogs=["changelog"])], {"changelog": 8}),
    only_repartition_sources=([subtopology("0", reads="source2", changelogs=["changelog"])], {"changelog": 3}),
)
def test_changelogs_have_a_partition_for_each_task(
    subtopologies: list[Subtopology], expected: Mapping[str, int]
) -> None:
    assert changelog_counts(subtopologies, EXISTING.get) == expected


def test_a_subtopology_without_sources_is_invalid() -> None:
    with pytest.raises(InvalidTopologyError, match="No source topics found for subtopology 7"):
        number_of_tasks(subtopology("7", writes="r"), EXISTING.get)
