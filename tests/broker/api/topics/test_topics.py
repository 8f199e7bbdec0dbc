"""Topics created, grown and deleted through the Kafka listener. The verdicts are Kafka 4.3.1's, looked up there."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID

NONE = ErrorCode.NONE
STRANGER = b"x" * 16


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assigned: Mapping[int, tuple[int, ...]] | None = None,
    **configs: Any,
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": i, "broker_ids": ids} for i, ids in (assigned or {}).items()],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


async def create(client: KafkaClient, *topics: dict[str, Any], validate_only: bool = False) -> list[dict[str, Any]]:
    reply = await client.ask("CreateTopics", topics=topics, validate_only=validate_only)
    assert [one["name"] for one in reply["topics"]] == list(dict.fromkeys(one["name"] for one in topics))
    return list(reply["topics"])


async def partition_count(client: KafkaClient, name: str) -> int:
    asked = [{"name": name, "topic_id": NO_TOPIC_ID}]
    reply = await client.ask("Metadata", topics=asked, allow_auto_topic_creation=False)
    return len(reply["topics"][0]["partitions"])


async def id_of(client: KafkaClient, name: str) -> bytes:
    reply = await client.ask("Metadata", topics=[{"name": name, "topic_id": NO_TOPIC_ID}])
    found: bytes = reply["topics"][0]["topic_id"]
    return found


async def test_a_topic_is_created_as_asked_for_and_told_with_its_settings(client: KafkaClient) -> None:
    (made,) = await create(client, topic("orders", 3, retention_ms=" 77 "))
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (NONE, 3, 1)
    assert made["topic_id"] == await id_of(client, "orders")
    configs = {one["name"]: (one["value"], one["config_source"], one["read_only"]) for one in made["configs"]}
    assert configs["retention.ms"] == ("77", 1, False)
    assert configs["flush.ms"] == (str((1 << 63) - 1), 5, False)
    assert await partition_count(client, "orders") == 3


async def test_what_is_only_validated_is_judged_alike_and_not_made(client: KafkaClient) -> None:
    await create(client, topic("there"))
    made, there, bad = await create(
        client, topic("orders", 3), topic("there"), topic("bad", retention_ms="x"), validate_only=True
    )
    assert (made["error_code"], made["num_partitions"]) == (NONE, 3)
    assert there["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS
    assert bad["error_code"] == ErrorCode.INVALID_CONFIG
    assert await partition_count(client, "orders") == 0


async def test_defaults_are_the_brokers(tmp_path: Path) -> None:
    async with running(tmp_path, {"num.partitions": 4}) as broker, kafka_client(broker.addresses.kafka) as client:
        (made,) = await create(client, topic("orders", -1, -1))
        assert made["num_partitions"] == 4


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (topic("a", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("a", -5), ErrorCode.INVALID_PARTITIONS),
        (topic("a", 100_001), ErrorCode.POLICY_VIOLATION),
        (topic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a", 0, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a", 1, -1, {0: (1,)}), ErrorCode.INVALID_REQUEST),
        (topic("a", -1, 1, {0: (1,)}), ErrorCode.INVALID_REQUEST),
        (topic("a", -1, -1, {0: (99,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", -1, -1, {0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", -1, -1, {0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", -1, -1, {1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", -1, -1, {0: (1,), 2: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", -1, -1, {-1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", retention_ms=None), ErrorCode.INVALID_CONFIG),
        (topic("a", nonsense=None), ErrorCode.INVALID_CONFIG),
        (topic("a", 0, retention_ms="x"), ErrorCode.INVALID_CONFIG),
        (topic("a", retention_mss="5"), ErrorCode.INVALID_CONFIG),
        (topic("a", remote_storage_enable="true"), ErrorCode.INVALID_CONFIG),
        (topic("", 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a b", 0, retention_ms="x"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a.there"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a_there", 0, 7, retention_ms="x"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_is_refused_with_kafkas_code(
    client: KafkaClient, asked: dict[str, Any], error: ErrorCode
) -> None:
    await create(client, topic("a_there"))
    (refused,) = await create(client, asked)
    assert refused["error_code"] == error, refused
    assert refused["error_message"]
    assert (refused["num_partitions"], refused["replication_factor"], refused["configs"]) == (-1, -1, ())
    assert await partition_count(client, "a") == 0


async def test_an_unknown_setting_is_named_with_the_nearest_known(client: KafkaClient) -> None:
    (refused,) = await create(client, topic("a", retention_mss="5"))
    assert refused["error_message"] == "unknown topic setting 'retention.mss'; did you mean 'retention.ms'?"


async def test_an_assignment_that_holds_is_taken(client: KafkaClient) -> None:
    (made,) = await create(client, topic("orders", -1, -1, {1: (1,), 0: (1,)}))
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (NONE, 2, 1)


async def test_a_name_that_stands_twice_is_created_by_neither_and_the_others_are(client: KafkaClient) -> None:
    made = await create(client, topic("twice"), topic("once"), topic("twice", 3))
    assert [(one["name"], one["error_code"]) for one in made] == [("twice", ErrorCode.INVALID_REQUEST), ("once", NONE)]
    assert await partition_count(client, "twice") == 0


async def test_a_name_that_stands_twice_grows_in_neither_place_and_is_answered_once(client: KafkaClient) -> None:
    await create(client, topic("a"))
    asked = {"name": "a", "count": 4, "assignments": None}
    reply = await client.ask("CreatePartitions", topics=[asked, asked], timeout_ms=1000, validate_only=False)
    assert [(one["name"], one["error_code"]) for one in reply["results"]] == [("a", ErrorCode.INVALID_REQUEST)]
    assert await partition_count(client, "a") == 1


# -- more partitions --


async def grow(client: KafkaClient, name: str, count: int, *assigned: tuple[int, ...], **options: Any) -> int:
    assignments = [{"broker_ids": ids} for ids in assigned] or None
    asked = {"name": name, "count": count, "assignments": assignments}
    reply = await client.ask("CreatePartitions", topics=[asked], timeout_ms=1000, **{"validate_only": False, **options})
    (found,) = reply["results"]
    return int(found["error_code"])


async def test_a_topic_gets_more_partitions(client: KafkaClient) -> None:
    await create(client, topic("orders", 3))
    assert await grow(client, "orders", 5, validate_only=True) == NONE
    assert await partition_count(client, "orders") == 3
    assert await grow(client, "orders", 5) == NONE
    assert await grow(client, "orders", 7, (1,), (1,)) == NONE
    assert await partition_count(client, "orders") == 7


@pytest.mark.parametrize(
    ("name", "count", "assigned", "error"),
    [
        ("orders", 3, (), ErrorCode.INVALID_PARTITIONS),
        ("orders", 2, (), ErrorCode.INVALID_PARTITIONS),
        ("orders", 0, (), ErrorCode.INVALID_PARTITIONS),
        ("orders", -1, (), ErrorCode.INVALID_PARTITIONS),
        ("orders", 100_001, (), ErrorCode.POLICY_VIOLATION),
        ("none", 4, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 6, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 4, ((9,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 4, ((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 4, ((),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_what_is_no_growth_is_refused(
    client: KafkaClient, name: str, count: int, assigned: tuple[tuple[int, ...], ...], error: ErrorCode
) -> None:
    await create(client, topic("orders", 3))
    assert await grow(client, name, count, *assigned) == error
    assert await partition_count(client, "orders") == 3


# -- delete --


async def delete(client: KafkaClient, *topics: tuple[str | None, bytes]) -> list[int]:
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    reply = await client.ask("DeleteTopics", topics=asked, timeout_ms=1000)
    return [one["error_code"] for one in reply["responses"]]


async def test_topics_are_deleted_by_name_and_by_id(client: KafkaClient) -> None:
    await create(client, topic("a"), topic("b"))
    b = await id_of(client, "b")
    assert await delete(client, ("a", NO_TOPIC_ID), (None, b), (None, STRANGER), ("none", NO_TOPIC_ID)) == [
        NONE,
        NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert (await client.ask("Metadata", topics=None))["topics"] == ()


async def test_a_topic_that_is_named_twice_is_left_alone(client: KafkaClient) -> None:
    await create(client, topic("a"))
    a = await id_of(client, "a")
    for twice in ([("a", NO_TOPIC_ID)] * 2, [(None, a)] * 2, [("a", NO_TOPIC_ID), (None, a)]):
        assert await delete(client, *twice) == [ErrorCode.INVALID_REQUEST]
    assert await delete(client, ("a", a)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert await delete(client, (None, NO_TOPIC_ID)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await partition_count(client, "a") == 1


async def test_nothing_is_deleted_where_that_is_switched_off(tmp_path: Path) -> None:
    settings = {"delete.topic.enable": "false"}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, topic("a"))
        assert await delete(client, ("a", NO_TOPIC_ID)) == [ErrorCode.TOPIC_DELETION_DISABLED]
        assert await partition_count(client, "a") == 1


async def test_the_brokers_own_topics_can_be_deleted(client: KafkaClient) -> None:
    """Kafka allows it, too."""
    await create(client, topic("__consumer_offsets", 2))
    assert await delete(client, ("__consumer_offsets", NO_TOPIC_ID)) == [NONE]


async def test_a_request_for_too_many_partitions_is_refused_as_a_whole(client: KafkaClient) -> None:
    made = await create(client, topic("a", 6_000), topic("b", 4_001))
    assert {one["error_code"] for one in made} == {ErrorCode.POLICY_VIOLATION}
    made = await create(client, topic("c"), topic("d", -1, -1, dict.fromkeys(range(10000), (1,))))
    assert {one["error_code"] for one in made} == {ErrorCode.POLICY_VIOLATION}
    (made,) = await create(client, topic("a"), validate_only=True)
    assert made["error_code"] == NONE


async def test_a_topic_is_grown_by_one_request_to_a_bounded_size(client: KafkaClient) -> None:
    await create(client, topic("a"))
    asked = {"name": "a", "count": 10_001, "assignments": None}
    reply = await client.ask("CreatePartitions", topics=[asked], timeout_ms=1000, validate_only=False)
    assert reply["results"][0]["error_code"] == ErrorCode.POLICY_VIOLATION


async def test_metadata_of_too_many_topics_creates_none(client: KafkaClient) -> None:
    names = [{"name": f"new-{number}", "topic_id": NO_TOPIC_ID} for number in range(10_001)]
    reply = await client.ask("Metadata", topics=names, allow_auto_topic_creation=True)
    assert {one["error_code"] for one in reply["topics"]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
