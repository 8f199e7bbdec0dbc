"""Clients above their quotas get their reply at once, and are not read for the time that it names (KIP-219)."""

import select
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.clients import Running, batch, produce_request, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.sasl import LISTENERS, create_users, log_in
from warmlog.protocol.errors import ErrorCode

PAYLOAD = batch(b"x" * 20_000)
RATE = 1_000.0
NO_SESSION = {"session_id": 0, "session_epoch": -1}


@pytest.fixture
async def broker(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[Running]:
    """A broker whose time stands still until a test jumps."""
    async with running(tmp_path, {"log.retention.ms": "-1"}) as broker:
        yield broker
        mock_clock.rate = 1.0


async def set_quota(client: KafkaClient, key: str, value: float | None, *parts: tuple[str, str | None]) -> None:
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts or (("client-id", None),)]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None}]
    reply = await client.ask("AlterClientQuotas", entries=[{"entity": entity, "ops": ops}])
    assert reply["entries"][0]["error_code"] == ErrorCode.NONE, reply


async def send_produce(client: KafkaClient, records: bytes = PAYLOAD, acks: int = 1) -> None:
    partitions = [{"index": 0, "records": records}]
    await client.send(
        "Produce", 12, acks=acks, timeout_ms=1000, topic_data=[{"name": "t", "partition_data": partitions}]
    )


async def produce(client: KafkaClient, records: bytes = PAYLOAD) -> int:
    """Produce; return the throttle time of the reply."""
    await send_produce(client, records)
    reply = await client.reply()
    assert reply["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE
    throttle_ms: int = reply["throttle_time_ms"]
    return throttle_ms


async def fetch(client: KafkaClient, offset: int = 0, **fields: Any) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    given = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **NO_SESSION, **fields}
    return await client.ask("Fetch", 12, topics=[{"topic": "t", "partitions": [asked]}], **given)


def records_of(reply: dict[str, Any]) -> int:
    return sum(len(each["records"] or b"") for topic in reply["responses"] for each in topic["partitions"])


async def is_silent(client: KafkaClient, other: KafkaClient) -> bool:
    """Whether a client has got nothing although the broker was busy for another one."""
    for _ in range(3):
        await other.ask("ApiVersions", 0)
        await wait_all_tasks_blocked()
    return not select.select([client.stream.socket], [], [], 0)[0]


async def test_a_producer_above_its_quota_pauses_and_others_do_not(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(admin, "producer_byte_rate", RATE, ("client-id", "test"))
        throttle_ms = await produce(client)
        assert 10_000 < throttle_ms < 11_000
        await send_produce(client)
        assert await is_silent(client, admin)
        assert await produce(admin) == 0
        mock_clock.jump(throttle_ms / 1000 - 0.1)
        assert await is_silent(client, admin)
        mock_clock.jump(0.2)
        reply = await client.reply()
        assert reply["throttle_time_ms"] > 0


async def test_produces_that_are_sent_together_pause_after_the_first_too_many(
    broker: Running, mock_clock: MockClock
) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(admin, "producer_byte_rate", RATE)
        small = batch(b"x" * 4_000)
        for _ in range(6):
            await send_produce(client, small)
        throttled = [(await client.reply())["throttle_time_ms"] for _ in range(3)]
        assert throttled[:2] == [0, 0]
        assert 2_000 < throttled[2] < 3_000
        assert await is_silent(client, admin)
        mock_clock.jump(60)
        assert [(await client.reply())["throttle_time_ms"] for _ in range(2)] == [0, 0]


async def test_a_produce_to_many_partitions_is_charged_once(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        topics = [{"name": "t", "num_partitions": 600, "replication_factor": 1, "assignments": [], "configs": []}]
        await admin.ask("CreateTopics", topics=topics)
        await set_quota(admin, "producer_byte_rate", 10_000.0, ("client-id", "test"))
        partitions = [{"index": index, "records": batch(b"x" * 100)} for index in range(600)]
        await client.send(
            "Produce", 12, acks=1, timeout_ms=1000, topic_data=[{"name": "t", "partition_data": partitions}]
        )
        reply = await client.reply()
        assert {each["error_code"] for each in reply["responses"][0]["partition_responses"]} == {ErrorCode.NONE}
        size = 600 * len(batch(b"x" * 100))
        assert size / 10 < reply["throttle_time_ms"] + 10_000 < size / 10 * 1.1
        await client.send("ApiVersions", 0)
        assert await is_silent(client, admin)
        mock_clock.jump(60)
        await client.reply()


async def test_a_producer_that_wants_no_replies_pauses_too(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(admin, "producer_byte_rate", RATE)
        await send_produce(client, acks=0)
        client._asked.clear()  # it has no reply
        await client.send("ApiVersions", 0)
        assert await is_silent(client, admin)
        mock_clock.jump(60)
        await client.reply()


async def test_a_throttled_fetch_is_empty_and_its_records_come_afterwards(
    broker: Running, mock_clock: MockClock
) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        for _ in range(3):
            await produce(admin, batch(b"x" * 4_000))
        await set_quota(admin, "consumer_byte_rate", RATE)
        reply = await fetch(client)
        assert (records_of(reply), reply["throttle_time_ms"]) == (10_000, 0), "no more than ten windows at once"
        reply = await fetch(client, max_bytes=1)
        assert (reply["responses"], reply["error_code"]) == ((), ErrorCode.NONE)
        assert reply["throttle_time_ms"] > 2_000
        mock_clock.jump(60)
        reply = await fetch(client, 2)
        assert (records_of(reply), reply["throttle_time_ms"]) == (4_070, 0)


async def test_a_fetch_session_continues_after_a_throttled_fetch(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await produce(admin, batch(b"x" * 8_000))
        begun = await fetch(client, session_epoch=0)
        session = {"session_id": begun["session_id"], "topics": [], "max_wait_ms": 0, "min_bytes": 1}
        assert records_of(begun) > 8_000
        await set_quota(admin, "consumer_byte_rate", RATE)
        again = await client.ask("Fetch", 12, session_epoch=1, max_bytes=1 << 20, **session)
        assert (records_of(again), again["throttle_time_ms"]) == (records_of(begun), 0)
        throttled = await client.ask("Fetch", 12, session_epoch=2, max_bytes=1 << 20, **session)
        assert (throttled["responses"], throttled["session_id"]) == ((), begun["session_id"])
        assert throttled["throttle_time_ms"] > 0
        mock_clock.jump(60)
        later = await client.ask("Fetch", 12, session_epoch=3, max_bytes=1 << 20, **session)
        assert records_of(later) == records_of(begun)


async def test_a_fetch_of_many_partitions_is_throttled_as_a_whole(broker: Running, mock_clock: MockClock) -> None:
    """It is read in a task, in pieces."""
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        topics = [{"name": "t", "num_partitions": 600, "replication_factor": 1, "assignments": [], "configs": []}]
        await admin.ask("CreateTopics", topics=topics)
        records = batch(b"x" * 900)
        written = [{"index": index, "records": records} for index in range(600)]
        await admin.ask("Produce", 12, acks=1, timeout_ms=1000, topic_data=[{"name": "t", "partition_data": written}])
        await set_quota(admin, "consumer_byte_rate", RATE, ("client-id", "test"))
        asked = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in range(600)]
        fields = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "topics": [{"topic": "t", "partitions": asked}],
        }
        reply = await client.ask("Fetch", 12, **fields, **NO_SESSION)
        size = records_of(reply)
        assert (0 < size <= 10_000, reply["throttle_time_ms"]) == (True, 0)
        reply = await client.ask("Fetch", 12, **fields, **NO_SESSION)
        assert (reply["responses"], reply["throttle_time_ms"]) == ((), 2 * size - 10_000)
        mock_clock.jump(60)
        reply = await client.ask("Fetch", 12, **fields, **NO_SESSION)
        assert (records_of(reply), reply["throttle_time_ms"]) == (size, 0)


async def test_a_batch_above_the_quota_is_delivered(broker: Running) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        await client.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await produce(client)
        await set_quota(client, "consumer_byte_rate", RATE)
        reply = await fetch(client)
        assert records_of(reply) == len(PAYLOAD)
        assert reply["throttle_time_ms"] > 10_000


async def test_any_request_is_charged_for_its_time(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin, kafka_client(broker.addresses.kafka) as client:
        await set_quota(admin, "request_percentage", 1e-6, ("user", "ANONYMOUS"), ("client-id", "test"))
        reply = await client.ask("Metadata", topics=None)
        assert reply["throttle_time_ms"] == 1_000
        await client.send("ListGroups")
        assert await is_silent(client, admin)
        mock_clock.jump(1.1)
        assert (await client.reply())["throttle_time_ms"] == 1_000
        assert (await admin.ask("Metadata", topics=None))["throttle_time_ms"] == 0


async def test_native_clients_pause_too(broker: Running, mock_clock: MockClock) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin:
        client = await broker.connect()
        await client.create("t")
        await set_quota(admin, "producer_byte_rate", RATE, ("user", None))
        assert (await client.produce("t", PAYLOAD)).error is ErrorCode.NONE
        await client.send(produce_request("t", PAYLOAD))
        for _ in range(3):
            await admin.ask("ApiVersions", 0)
            await wait_all_tasks_blocked()
        assert isinstance(client.stream, trio.SocketStream)
        assert not select.select([client.stream.socket], [], [], 0)[0]
        mock_clock.jump(60)
        assert (await client.reply()).partitions[0].error is ErrorCode.NONE
        await set_quota(admin, "producer_byte_rate", None, ("user", None))
        await set_quota(admin, "consumer_byte_rate", RATE, ("user", None))
        mock_clock.jump(60)
        found = await client.fetch("t", 0)
        assert len(found.records) == len(PAYLOAD)
        mock_clock.jump(60)
        assert len((await client.fetch("t", 0)).records) == len(PAYLOAD)


async def test_a_pause_is_not_idleness(tmp_path: Path, mock_clock: MockClock) -> None:
    async with (
        running(tmp_path, {"connections.max.idle.ms": "1"}) as broker,
        kafka_client(broker.addresses.kafka) as client,
    ):
        await client.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(client, "producer_byte_rate", RATE)
        assert await produce(client) > 10_000
        for _ in range(5):
            await wait_all_tasks_blocked(0.01)  # longer than it may be idle
            mock_clock.jump(1.5)  # to the next check
        await wait_all_tasks_blocked()
        assert not select.select([client.stream.socket], [], [], 0)[0], "it would be readable if it were closed"
        mock_clock.rate = 1.0


@pytest.mark.parametrize("half", [True, False])
async def test_a_client_that_closes_during_its_pause_is_noticed(broker: Running, half: bool) -> None:
    async with kafka_client(broker.addresses.kafka, "admin") as admin:
        await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(admin, "producer_byte_rate", RATE, ("client-id", "test"))
        async with kafka_client(broker.addresses.kafka) as client:
            await produce(client)
            await client.send("ApiVersions", 0)
            if half:
                await client.stream.send_eof()
                assert (await client.reply())["error_code"] == ErrorCode.NONE
                assert await client.stream.receive_some() == b""


async def test_a_broker_stops_although_clients_pause(broker: Running) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        await client.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
        await set_quota(client, "producer_byte_rate", 1.0)
        assert await produce(client) > 10_000_000
        broker.stop.set()
        assert await client.stream.receive_some() == b""
        await broker.ended.wait()


async def test_the_quota_of_a_user_applies_to_who_has_logged_in_as_it(tmp_path: Path, mock_clock: MockClock) -> None:
    async with running(tmp_path, LISTENERS) as broker:
        await create_users(broker, "alice", "bob")
        address = broker.addresses.named["sasl"]
        async with (
            kafka_client(broker.addresses.named["open"], "admin") as admin,
            kafka_client(address) as alice,
            kafka_client(address) as also_alice,
            kafka_client(address) as bob,
        ):
            await admin.ask("Metadata", topics=[{"name": "t"}], allow_auto_topic_creation=True)
            await set_quota(admin, "producer_byte_rate", RATE, ("user", "alice"))
            await set_quota(admin, "request_percentage", 1e-6, ("user", "ANONYMOUS"), ("client-id", "test"))
            for client, user in ((alice, "alice"), (also_alice, "alice"), (bob, "bob")):
                assert (await client.ask("ApiVersions", 3))["throttle_time_ms"] == 0, "the user is not known yet"
                assert not (await log_in(client, user))["error_code"]
            assert await produce(bob) == 0
            assert await produce(alice) > 10_000
            assert await produce(also_alice) > 30_000, "they share the quota of their user"
            assert await produce(admin) == 0
            mock_clock.rate = 1.0
