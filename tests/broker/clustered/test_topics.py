"""Topics of a cluster, created, grown and deleted at any broker."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clustered.three_brokers import IDS, LIMIT_S, NONE, Cluster, three_brokers, topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID


def counted(name: str, partitions: int, factor: int) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": (),
        "configs": (),
    }


async def grow(cluster: Cluster, name: str, count: int, *assigned: tuple[int, ...]) -> int:
    assignments = [{"broker_ids": ids} for ids in assigned] or None
    asked = [{"name": name, "count": count, "assignments": assignments}]
    reply = await cluster.clients[1].ask("CreatePartitions", topics=asked, timeout_ms=10_000)
    (found,) = reply["results"]
    return int(found["error_code"])


async def test_a_topic_is_known_at_once_to_the_broker_that_created_it(cluster: Cluster) -> None:
    for at in IDS:
        assert await cluster.create(counted(f"t{at}", 4, 3), at=at) == [NONE]
        found = (await cluster.described(f"t{at}", at=at))["partitions"]
        assert [set(one["replica_nodes"]) for one in found] == [set(IDS)] * 4
        assert {one["leader_id"] for one in found} == set(IDS)


async def test_replicas_are_where_the_client_wants_them(cluster: Cluster) -> None:
    assert await cluster.create(topic("t", [(3, 1), (2, 3)])) == [NONE]
    found = (await cluster.described("t"))["partitions"]
    assert [(one["leader_id"], one["replica_nodes"]) for one in found] == [(3, (3, 1)), (2, (2, 3))]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (counted("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (counted("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", [(1, 9)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", [(1, 1)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", [(1, 2), (1,)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=["more replicas than brokers", "no replica", "unknown broker", "twice on a broker", "unequal numbers"],
)
async def test_impossible_replicas_are_refused(cluster: Cluster, asked: dict[str, Any], error: ErrorCode) -> None:
    assert await cluster.create(asked, counted("good", 1, 3)) == [error, NONE]


async def test_a_dead_broker_gets_the_replicas_that_are_too_many_for_the_others(cluster: Cluster) -> None:
    await cluster.stop(3)
    await cluster.until_known([1, 2])
    assert await cluster.create(counted("t", 4, 3), topic("u", [(3, 1, 2)]), topic("v", [(3,)])) == [
        NONE,
        NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    for one in [*(await cluster.described("t"))["partitions"], *(await cluster.described("u"))["partitions"]]:
        assert set(one["replica_nodes"]) == {1, 2, 3}
        assert (set(one["isr_nodes"]), set(one["offline_replicas"])) == ({1, 2}, {3})
        assert one["leader_id"] in {1, 2}
    assert await grow(cluster, "t", 5) == NONE
    assert await cluster.create(counted("w", 1, 4)) == [ErrorCode.INVALID_REPLICATION_FACTOR]


async def test_the_topics_of_coordinators_are_created_while_a_broker_is_dead(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, {"offsets.topic.replication.factor": 3}) as cluster:
        await cluster.stop(3)
        await cluster.until_known([1, 2])
        asked = {"key_type": 0, "coordinator_keys": ("g",)}
        with trio.fail_after(LIMIT_S):
            while True:
                reply = await cluster.clients[1].ask("FindCoordinator", **asked)
                if reply["coordinators"][0]["error_code"] == NONE:
                    break
        found = (await cluster.described("__consumer_offsets"))["partitions"]
        assert all(set(one["isr_nodes"]) == {1, 2} and set(one["replica_nodes"]) == {1, 2, 3} for one in found)


async def test_topics_have_the_default_number_of_replicas(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, {"default.replication.factor": 2}) as cluster:
        assert await cluster.create(counted("kafka", 1, -1)) == [NONE]
        await (await cluster.brokers[2].connect()).create("native")
        asked = [{"name": "first use", "topic_id": NO_TOPIC_ID}, {"name": "used", "topic_id": NO_TOPIC_ID}]
        reply = await cluster.clients[1].ask("Metadata", topics=asked, allow_auto_topic_creation=True)
        assert [one["error_code"] for one in reply["topics"]] == [ErrorCode.INVALID_TOPIC_EXCEPTION, NONE]
        for name in ("kafka", "native", "used"):
            found = await cluster.until(name, lambda one: True)
            assert len(found["replica_nodes"]) == 2


async def test_a_default_that_is_too_large_fails_only_topics_that_use_it(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, {"default.replication.factor": 4}) as cluster:
        too_large = ErrorCode.INVALID_REPLICATION_FACTOR
        assert await cluster.create(counted("a", 1, 3), counted("b", 1, -1), counted("c", 2, -1)) == [
            NONE,
            too_large,
            too_large,
        ]
        asked = [{"name": "used", "topic_id": NO_TOPIC_ID}]
        reply = await cluster.clients[1].ask("Metadata", topics=asked, allow_auto_topic_creation=True)
        assert [one["error_code"] for one in reply["topics"]] == [too_large]


async def test_a_topic_that_another_broker_has_created_exists(cluster: Cluster) -> None:
    assert await cluster.create(counted("t", 1, 3), at=1) == [NONE]
    await cluster.until("t", lambda one: True, at=2)
    assert await cluster.create(counted("t", 1, 3), at=2) == [ErrorCode.TOPIC_ALREADY_EXISTS]


async def test_new_partitions_have_as_many_replicas_as_those_that_exist(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    assert await grow(cluster, "t", 3) == NONE
    assert [len(one["replica_nodes"]) for one in (await cluster.described("t"))["partitions"]] == [2, 2, 2]
    assert await grow(cluster, "t", 4, (3, 1)) == NONE
    assert (await cluster.partition("t", 3))["replica_nodes"] == (3, 1)


@pytest.mark.parametrize("assigned", [(1,), (1, 9), (2, 2)], ids=["too few", "unknown broker", "twice on a broker"])
async def test_impossible_replicas_of_new_partitions_are_refused(cluster: Cluster, assigned: tuple[int, ...]) -> None:
    await cluster.create(topic("t", [(1, 2)]))
    assert await grow(cluster, "t", 2, assigned) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert len((await cluster.described("t"))["partitions"]) == 1


async def test_a_topic_is_deleted_everywhere(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await cluster.until("t", lambda one: True, at=3)
    asked = [{"name": "t", "topic_id": NO_TOPIC_ID}]
    reply = await cluster.clients[2].ask("DeleteTopics", topics=asked, timeout_ms=10_000)
    assert [one["error_code"] for one in reply["responses"]] == [NONE]
    assert (await cluster.described("t", at=2))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await cluster.create(topic("t", [(1, 2, 3)]), at=2) == [NONE]
