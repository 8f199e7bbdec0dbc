"""Idempotent producers as clients of the Kafka listener see them."""

from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.stored_topics import stored_topics
from warmlog.broker.transactions.producer_ids import BLOCK_SIZE
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT

NOW_MS = 1_700_000_000_000
NO_TIME = -1


def batch(producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, attributes: int = 0) -> bytes:
    rows = [(NOW_MS + i, None, b"%d" % (sequence + i), ()) for i in range(count)]
    return build_batch(
        rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, attributes=attributes
    )


async def init(client: KafkaClient, version: int | None = None, **fields: Any) -> dict[str, Any]:
    return await client.ask("InitProducerId", version, **{"transactional_id": None, **fields})


async def create(client: KafkaClient, name: str, **configs: str) -> None:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
    reply = await client.ask("CreateTopics", topics=[topic], timeout_ms=1000)
    assert reply["topics"][0]["error_code"] == ErrorCode.NONE


async def produce(client: KafkaClient, topic: str, records: bytes) -> tuple[ErrorCode, int, int]:
    """(error, base offset, log append time)."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    reply = await client.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
    found = reply["responses"][0]["partition_responses"][0]
    return ErrorCode(found["error_code"]), found["base_offset"], found["log_append_time_ms"]


async def describe(client: KafkaClient, topic: str, partition: int = 0) -> dict[str, Any]:
    reply = await client.ask("DescribeProducers", topics=[{"name": topic, "partition_indexes": [partition]}])
    found: dict[str, Any] = reply["topics"][0]["partitions"][0]
    return found


async def test_each_who_asks_gets_an_id_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        found = [await init(client, version) for version in range(6)]
        assert [(each["producer_id"], each["producer_epoch"]) for each in found] == [(at, 0) for at in range(6)]
        again = await init(client, producer_id=3, producer_epoch=7)  # only with a transactional id would it be fenced
        assert (again["error_code"], again["producer_id"], again["producer_epoch"]) == (ErrorCode.NONE, 6, 0)
        broker.stop.set()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert (await init(client))["producer_id"] == BLOCK_SIZE
        broker.stop.set()


async def test_many_ids_take_one_commit_a_block(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        for _ in range(BLOCK_SIZE + 1):
            await client.send("InitProducerId", transactional_id=None)
        ids = [(await client.reply())["producer_id"] for _ in range(BLOCK_SIZE + 1)]
        assert ids == list(range(BLOCK_SIZE + 1))
        broker.stop.set()
    with stored_topics(tmp_path) as stored:
        assert stored.image.producer_ids.next_id == 2 * BLOCK_SIZE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": 3}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 3}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], code: ErrorCode) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        reply = await init(client, **fields)
        assert (reply["error_code"], reply["producer_id"], reply["producer_epoch"]) == (code, -1, -1)
        broker.stop.set()


async def test_a_new_id_is_above_those_that_logs_know_already(tmp_path: Path) -> None:
    async with running(tmp_path, {"producer.id.expiration.ms": 1 << 50}) as broker:
        async with kafka_client(broker.addresses.kafka) as client:
            await create(client, "words")
            await produce(client, "words", batch(41, 0))
        broker.stop.set()
    (tmp_path / "metadata.sqlite").unlink()  # as where the directory came from another broker
    async with running(tmp_path, {"producer.id.expiration.ms": 1 << 50}) as broker:
        async with kafka_client(broker.addresses.kafka) as client:
            await create(client, "words")
            assert (await init(client))["producer_id"] == 42
        broker.stop.set()


async def test_an_id_that_a_client_made_up_is_no_reason_to_give_none(tmp_path: Path) -> None:
    # There was no larger one to give, so every producer that asked got an unknown error.
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        for producer_id in (41, (1 << 63) - 1):
            error, _, _ = await produce(client, "words", batch(producer_id, 0))
            assert error is ErrorCode.NONE
        assert (await init(client))["producer_id"] == 42
        broker.stop.set()


async def test_a_batch_sent_again_is_answered_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        assert await produce(client, "words", batch(7, 0, 3)) == (ErrorCode.NONE, 0, NO_TIME)
        assert await produce(client, "words", batch(7, 3, 2)) == (ErrorCode.NONE, 3, NO_TIME)
        assert await produce(client, "words", batch(7, 0, 3)) == (ErrorCode.NONE, 0, NO_TIME)
        assert await produce(client, "words", batch(7, 5)) == (ErrorCode.NONE, 5, NO_TIME)
        broker.stop.set()


async def test_the_time_of_an_append_is_told_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words", message_timestamp_type="LogAppendTime")
        first = await produce(client, "words", batch(7, 0, 3))
        assert first[2] > NOW_MS
        assert await produce(client, "words", batch(7, 0, 3)) == first
        broker.stop.set()


async def test_a_batch_of_a_transaction_that_is_not_named_refuses_the_whole_request(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        await create(client, "others")
        data = [
            {"name": name, "partition_data": [{"index": 0, "records": batch(7, 0, attributes=bits)}]}
            for name, bits in (("words", 0), ("others", TRANSACTIONAL_BIT))
        ]
        reply = await client.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
        found = [
            (one["error_code"], one["base_offset"], one["log_start_offset"])
            for topic in reply["responses"]
            for one in topic["partition_responses"]
        ]
        assert found == [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)] * 2
        assert await produce(client, "words", batch(7, 0)) == (ErrorCode.NONE, 0, NO_TIME)
        broker.stop.set()


async def test_several_batches_for_one_partition_are_refused_with_nothing_stored(tmp_path: Path) -> None:
    plain = build_batch([(NOW_MS, None, b"x", ())])
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        data = [{"name": "words", "partition_data": [{"index": 0, "records": plain + plain}]}]
        reply = await client.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
        found = reply["responses"][0]["partition_responses"][0]
        assert (found["error_code"], found["log_start_offset"]) == (ErrorCode.INVALID_RECORD, -1)
        assert (await produce(client, "words", plain + plain[:50]))[0] == ErrorCode.CORRUPT_MESSAGE
        assert await produce(client, "words", plain) == (ErrorCode.NONE, 0, NO_TIME)
        broker.stop.set()


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (batch(7, 4, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (batch(7, 0, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # it ends elsewhere
        (batch(7, 3, epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (batch(7, 3, epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (
            batch(7, 3, epoch=2, attributes=TRANSACTIONAL_BIT),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (batch(7, 3, epoch=2) + batch(7, 4, epoch=2), ErrorCode.INVALID_RECORD),
    ],
    ids=["gap", "another end", "older epoch", "newer epoch", "no transaction", "two batches"],
)
async def test_what_does_not_follow_is_refused_with_kafkas_code(
    tmp_path: Path, records: bytes, code: ErrorCode
) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        await produce(client, "words", batch(7, 0, 3, epoch=2))
        assert (await produce(client, "words", records))[:2] == (code, -1)
        assert await produce(client, "words", batch(7, 3, epoch=2)) == (ErrorCode.NONE, 3, NO_TIME)
        broker.stop.set()


async def test_the_producers_of_a_partition_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        assert (await describe(client, "words"))["active_producers"] == ()
        await produce(client, "words", batch(7, 10, 3, epoch=2))
        found = await describe(client, "words")
        assert found["error_code"] == ErrorCode.NONE
        assert found["active_producers"] == (
            {
                "producer_id": 7,
                "producer_epoch": 2,
                "last_sequence": 12,
                "last_timestamp": NOW_MS + 2,
                "coordinator_epoch": -1,
                "current_txn_start_offset": -1,
            },
        )
        assert (await describe(client, "words", 1))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(client, "nothing"))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(client, "a b"))["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        broker.stop.set()


async def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    settings = {"producer.id.expiration.ms": 1000, "producer.id.expiration.check.interval.ms": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        await produce(client, "words", batch(7, 10))  # its records are of the year 2023
        while (await describe(client, "words"))["active_producers"]:
            pass
        assert await produce(client, "words", batch(7, 10)) == (ErrorCode.NONE, 1, NO_TIME)
        broker.stop.set()
