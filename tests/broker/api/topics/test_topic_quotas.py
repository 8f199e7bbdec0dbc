"""controller_mutation_rate: who creates and deletes too many partitions is refused, or pauses (KIP-599)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from tests.broker.api.topics.test_topics import topic
from tests.broker.clients import Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.test_quotas import set_quota
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID

NONE, EXCEEDED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
async def broker(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[Running]:
    """A broker whose time stands still until a test jumps, where a client may create eleven partitions at once."""
    async with running(tmp_path) as broker:
        async with kafka_client(broker.addresses.kafka, "admin") as admin:
            await set_quota(admin, "controller_mutation_rate", 1.0, ("client-id", "test"))
        yield broker
        mock_clock.rate = 1.0


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def ask(client: KafkaClient, api: str, version: int, **fields: Any) -> tuple[list[int], int]:
    """Return the errors of a reply, and its throttle time."""
    reply = await client.ask(api, version, timeout_ms=1000, **fields)
    results = reply.get("topics") or reply.get("responses") or reply.get("results")
    return [each["error_code"] for each in results], reply["throttle_time_ms"]


async def test_topics_are_created_until_the_tokens_are_overdrawn(client: KafkaClient, mock_clock: MockClock) -> None:
    made = await ask(client, "CreateTopics", 7, topics=[topic("a", 4), topic("b", 10), topic("c", 1), topic("a", 0)])
    assert made[0] == [ErrorCode.INVALID_REQUEST, NONE, NONE]
    assert made[1] == 0
    made = await ask(client, "CreateTopics", 7, topics=[topic("d", 1), topic("e", 1)])
    assert made == ([NONE, EXCEEDED], 1_000)
    mock_clock.jump(1.0)
    assert await ask(client, "CreateTopics", 7, topics=[topic("e", 3)]) == ([NONE], 0)


async def test_partitions_that_are_added_and_deleted_count(client: KafkaClient, mock_clock: MockClock) -> None:
    assert await ask(client, "CreateTopics", 7, topics=[topic("a", 10)]) == ([NONE], 0)
    grown = [{"name": "a", "count": 13, "assignments": None}]
    assert await ask(client, "CreatePartitions", 3, topics=grown) == ([NONE], 0)
    named = [{"name": "a", "topic_id": NO_TOPIC_ID}]
    assert await ask(client, "DeleteTopics", 6, topics=named) == ([EXCEEDED], 2_000)
    mock_clock.jump(2.0)
    grown = [{"name": "a", "count": 14, "assignments": None}]
    assert await ask(client, "CreatePartitions", 3, topics=grown) == ([NONE], 0)
    assert await ask(client, "CreatePartitions", 3, topics=grown) == ([ErrorCode.INVALID_PARTITIONS], 0)
    grown = [{"name": "a", "count": 15, "assignments": None}]
    assert await ask(client, "CreatePartitions", 3, topics=grown) == ([EXCEEDED], 1_000)
    mock_clock.jump(1.0)
    assert await ask(client, "DeleteTopics", 6, topics=named) == ([NONE], 0)
    assert await ask(client, "DeleteTopics", 6, topics=named) == ([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], 0)


async def test_older_clients_are_served_and_pause(client: KafkaClient, mock_clock: MockClock) -> None:
    assert await ask(client, "CreateTopics", 5, topics=[topic("a", 13)]) == ([NONE], 2_000)
    mock_clock.jump(2.1)
    assert await ask(client, "DeleteTopics", 4, topic_names=["a"]) == ([NONE], 12_900)
    mock_clock.jump(13.0)
    assert await ask(client, "CreateTopics", 5, topics=[topic("a", 1)]) == ([NONE], 900)


async def test_topics_that_are_created_on_first_use_count(
    broker: Running, client: KafkaClient, mock_clock: MockClock
) -> None:
    for number in range(11):
        reply = await client.ask("Metadata", topics=[{"name": f"t{number}"}], allow_auto_topic_creation=True)
        assert reply["throttle_time_ms"] == 0
    reply = await client.ask("Metadata", topics=[{"name": "t11"}], allow_auto_topic_creation=True)
    assert (reply["topics"][0]["error_code"], reply["throttle_time_ms"]) == (NONE, 1_000)
    mock_clock.jump(1.1)
    native = await broker.connect()
    assert (await native.produce("t12", batch(b"one"))).error is NONE
    reply = await client.ask("Metadata", topics=[{"name": "t13"}], allow_auto_topic_creation=True)
    assert reply["throttle_time_ms"] == 1_900, "the native client has the same id"
