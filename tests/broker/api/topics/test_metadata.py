"""Metadata and what the cluster is, through the Kafka listener. The verdicts are Kafka 4.3.1's, looked up there."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.api.topics.metadata import MetadataApi
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CONTROL_BIT
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch

NONE = ErrorCode.NONE
STRANGER, OTHER = b"x" * 16, b"y" * 16


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def topics(client: KafkaClient, *asked: str | bytes, create: bool = False) -> list[dict[str, Any]]:
    wanted = [
        {"name": one, "topic_id": NO_TOPIC_ID} if isinstance(one, str) else {"name": None, "topic_id": one}
        for one in asked
    ]
    reply = await client.ask("Metadata", topics=wanted, allow_auto_topic_creation=create)
    return list(reply["topics"])


async def test_topics_are_created_on_first_use_each_that_may_be(client: KafkaClient) -> None:
    found = await topics(client, "a", "b", "a b", "x" * 250, "", create=True)
    assert [(one["error_code"], len(one["partitions"])) for one in found] == [
        (NONE, 1),
        (NONE, 1),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    assert found[0]["topic_id"] not in {NO_TOPIC_ID, found[1]["topic_id"]}


async def test_topics_are_not_created_where_the_client_does_not_want_it(client: KafkaClient) -> None:
    found = await topics(client, "a", "a b")
    assert [one["error_code"] for one in found] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert (await client.ask("Metadata", topics=None))["topics"] == ()


async def test_topics_are_not_created_where_the_broker_does_not_want_it(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false"}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        (found,) = await topics(client, "a", create=True)
        assert found["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_brokers_own_topics_are_marked_and_not_created_on_first_use(client: KafkaClient) -> None:
    found = await topics(client, "__consumer_offsets", "__transaction_state", "mine", create=True)
    assert [(one["error_code"], one["is_internal"]) for one in found] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (NONE, False),
    ]


async def test_every_unknown_id_is_answered_as_one(client: KafkaClient) -> None:
    (made,) = await topics(client, "a", create=True)
    found = await topics(client, STRANGER, made["topic_id"], OTHER, create=True)
    by_id = {one["topic_id"]: (one["error_code"], one["name"]) for one in found}
    assert by_id == {
        STRANGER: (ErrorCode.UNKNOWN_TOPIC_ID, None),
        OTHER: (ErrorCode.UNKNOWN_TOPIC_ID, None),
        made["topic_id"]: (NONE, "a"),
    }
    assert len(found) == 3


async def test_an_empty_list_asks_for_all_topics_in_version_0_only(client: KafkaClient) -> None:
    await topics(client, "b", "a", create=True)
    for version in range(14):
        asked = () if version == 0 else None
        reply = await client.ask("Metadata", version, topics=asked)
        assert [one["name"] for one in reply["topics"]] == ["a", "b"]
        if version:
            assert (await client.ask("Metadata", version, topics=()))["topics"] == ()


async def test_what_is_told_changes_with_the_topic(broker: Running, client: KafkaClient) -> None:
    """The description of a topic is kept between requests."""
    (before,) = await topics(client, "a", create=True)
    assert await topics(client, "a") == [before]
    await client.ask("CreatePartitions", topics=[{"name": "a", "count": 3, "assignments": None}], validate_only=False)
    (grown,) = await topics(client, "a")
    assert [one["partition_index"] for one in grown["partitions"]] == [0, 1, 2]
    assert grown["topic_id"] == before["topic_id"]
    await client.ask("DeleteTopics", topics=[{"name": "a", "topic_id": NO_TOPIC_ID}], timeout_ms=0)
    assert (await topics(client, "a"))[0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (again,) = await topics(client, "a", create=True)
    assert again["topic_id"] != before["topic_id"]
    assert len(again["partitions"]) == 1


async def test_what_was_told_of_topics_that_are_gone_is_forgotten(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    apis: list[MetadataApi] = []
    made = MetadataApi._describe
    monkeypatch.setattr(MetadataApi, "_describe", lambda api, *of: (apis.append(api), made(api, *of))[1])
    for number in range(20):
        name = f"topic-{number}"
        await topics(client, name, create=True)
        await client.ask("DeleteTopics", topics=[{"name": name, "topic_id": NO_TOPIC_ID}], timeout_ms=0)
    assert len(apis[-1]._cache) <= 2


async def test_who_asks_is_told_that_everything_is_allowed(client: KafkaClient) -> None:
    await topics(client, "a", create=True)
    reply = await client.ask(
        "Metadata",
        10,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert reply["cluster_authorized_operations"] == 8096
    assert reply["topics"][0]["topic_authorized_operations"] == 3576


async def test_the_cluster_is_one_broker_at_the_address_it_was_reached_by(broker: Running, client: KafkaClient) -> None:
    host, port = broker.addresses.kafka.rsplit(":", 1)
    reply = await client.ask("DescribeCluster", endpoint_type=1, include_cluster_authorized_operations=True)
    (one,) = reply["brokers"]
    assert (one["broker_id"], one["host"], one["port"], one["is_fenced"]) == (1, host, int(port), False)
    assert (reply["error_code"], reply["controller_id"], reply["cluster_authorized_operations"]) == (NONE, 1, 8096)
    metadata = await client.ask("Metadata", topics=())
    assert metadata["cluster_id"] == reply["cluster_id"] != ""


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_a_broker_has_no_other_endpoints(client: KafkaClient, endpoint_type: int, error: ErrorCode) -> None:
    reply = await client.ask("DescribeCluster", endpoint_type=endpoint_type)
    assert (reply["error_code"], reply["brokers"]) == (error, ())


async def test_nothing_moves_between_brokers(client: KafkaClient) -> None:
    reply = await client.ask("ListPartitionReassignments", topics=None, timeout_ms=0)
    assert (reply["error_code"], reply["topics"]) == (NONE, ())


# -- what produce refuses for its topic --


async def produced(client: KafkaClient, topic: str, acks: int = 1, records: bytes | None = None) -> int:
    partition = {"index": 0, "records": records or batch(b"x")}
    data = {"name": topic, "partition_data": [partition]}
    reply = await client.ask("Produce", 9, transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[data])
    return int(reply["responses"][0]["partition_responses"][0]["error_code"])


async def test_only_the_admin_client_writes_to_the_brokers_own_topics(broker: Running, client: KafkaClient) -> None:
    assert await produced(client, "__consumer_offsets") == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = {
        "name": "__consumer_offsets",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    await client.ask("CreateTopics", topics=[asked])
    assert await produced(client, "__consumer_offsets") == ErrorCode.INVALID_TOPIC_EXCEPTION
    async with kafka_client(broker.addresses.kafka, "__admin_client") as admin:
        assert await produced(admin, "__consumer_offsets") == NONE


@pytest.mark.parametrize("topic", ["orders", "__consumer_offsets", "__transaction_state"])
async def test_no_client_appends_control_batches(broker: Running, topic: str) -> None:
    control = build_batch([(0, b"\0\0\0\0", b"\0\0\0\0\0\0", ())], attributes=CONTROL_BIT)
    marker = marker_batch(7, 0, EndMarker(Outcome.COMMIT, 0, 0))
    async with kafka_client(broker.addresses.kafka, "__admin_client") as admin:
        asked = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        await admin.ask("CreateTopics", topics=[asked])
        assert await produced(admin, topic, records=control) == ErrorCode.INVALID_RECORD
        assert await produced(admin, topic, records=marker) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await produced(admin, topic) == NONE


async def test_a_topic_that_asks_for_more_replicas_than_it_has_takes_appends_with_acks_all(
    broker: Running, client: KafkaClient
) -> None:
    await (await broker.connect()).create("orders", min_insync_replicas="2")
    assert await produced(client, "orders", acks=-1) == NONE
    assert await produced(client, "orders", acks=1) == NONE
