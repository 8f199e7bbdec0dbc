"""ListOffsets and OffsetForLeaderEpoch on the Kafka listener."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import Fetcher
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import DeleteTopicsRequest

LATEST, EARLIEST, MAX, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
T = 1_700_000_000_000


@pytest.fixture
async def native(broker: Running) -> RawClient:
    client = await broker.connect()
    await client.create("orders", partitions=2)
    await client.produce("orders", batch(b"a", b"b", b"c", timestamp=T))
    return client


@pytest.fixture
async def kafka(broker: Running, native: RawClient) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def list_offsets(kafka: KafkaClient, version: int, *timestamps: int, **options: Any) -> list[dict[str, Any]]:
    """One partition a time, each in a topic entry of its own."""
    topic, partition = options.pop("topic", "orders"), options.pop("partition", 0)
    epoch = options.pop("current_leader_epoch", -1)
    topics = tuple(
        {
            "name": topic,
            "partitions": ({"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch},),
        }
        for timestamp in timestamps
    )
    reply = await kafka.ask(
        "ListOffsets", version, **{"replica_id": -1, "isolation_level": 0, **options}, topics=topics
    )
    return [one for topic in reply["topics"] for one in topic["partitions"]]


def outcome(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["error_code"], found["offset"], found["timestamp"]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", range(1, 12))
async def test_ends_and_times(kafka: KafkaClient, version: int, isolation: int) -> None:
    wanted = {LATEST: (0, 3, -1), EARLIEST: (0, 0, -1), T: (0, 0, T), T + 1: (0, 1, T + 1), T + 9: (0, -1, -1)}
    for timestamp, expected in wanted.items():
        (found,) = await list_offsets(kafka, version, timestamp, isolation_level=isolation)
        assert outcome(found) == expected
        assert found["leader_epoch"] == (-1 if version < 4 or expected[1] < 0 else 0)


@pytest.mark.parametrize(
    ("timestamp", "first", "expected"),
    [
        (MAX, 7, (0, 2, T + 2)),
        (EARLIEST_LOCAL, 8, (0, 0, -1)),
        (LATEST_TIERED, 9, (0, -1, -1)),
        (PENDING_UPLOAD, 11, (0, -1, -1)),
        (-7, 99, ()),
        (-(1 << 63), 99, ()),
    ],
)
async def test_a_special_time_has_its_meaning_from_a_version_on(
    kafka: KafkaClient, timestamp: int, first: int, expected: tuple[int, int, int]
) -> None:
    for version in range(1, 12):
        (found,) = await list_offsets(kafka, version, timestamp)
        assert outcome(found) == (expected if version >= first else (ErrorCode.UNSUPPORTED_VERSION, -1, -1))


async def test_an_empty_partition_has_its_ends_in_the_current_epoch(kafka: KafkaClient) -> None:
    for timestamp, expected in ((EARLIEST, (0, 0)), (EARLIEST_LOCAL, (0, 0)), (LATEST, (0, 0)), (MAX, (-1, -1))):
        (found,) = await list_offsets(kafka, 11, timestamp, partition=1)
        assert (found["offset"], found["leader_epoch"]) == expected


@pytest.mark.parametrize("version", range(4, 12))
async def test_a_leader_epoch_that_is_not_known_is_refused(kafka: KafkaClient, version: int) -> None:
    for epoch, error in ((0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)):
        (found,) = await list_offsets(kafka, version, LATEST, current_leader_epoch=epoch)
        assert found["error_code"] == error


async def test_what_is_asked_twice_is_refused_once_and_the_rest_answered(kafka: KafkaClient) -> None:
    twice = await list_offsets(kafka, 11, LATEST, EARLIEST)
    assert [outcome(one) for one in twice] == [(ErrorCode.INVALID_REQUEST, -1, -1)]


async def test_unknown_partitions_are_told(kafka: KafkaClient) -> None:
    for topic, partition in (("orders", 2), ("orders", -1), ("nobody", 0), ("", 0)):
        (found,) = await list_offsets(kafka, 11, LATEST, topic=topic, partition=partition)
        assert outcome(found) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def end_of_epoch(kafka: KafkaClient, version: int, epoch: int, **options: Any) -> tuple[int, int, int]:
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **options}
    topic = asked.pop("topic", "orders")
    reply = await kafka.ask(
        "OffsetForLeaderEpoch", version, replica_id=-1, topics=({"topic": topic, "partitions": (asked,)},)
    )
    (found,) = reply["topics"][0]["partitions"]
    return found["error_code"], found["leader_epoch"], found["end_offset"]


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_end_of_an_epoch(kafka: KafkaClient, version: int) -> None:
    assert await end_of_epoch(kafka, version, 0) == (0, 0, 3)
    assert await end_of_epoch(kafka, version, 1) == (0, -1, -1)
    assert await end_of_epoch(kafka, version, -1) == (0, -1, -1)
    assert await end_of_epoch(kafka, version, 0, partition=1) == (0, 0, 0)  # nothing written, yet it is the epoch
    assert await end_of_epoch(kafka, version, 0, current_leader_epoch=0) == (0, 0, 3)
    unknown = (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert await end_of_epoch(kafka, version, 0, current_leader_epoch=1) == unknown
    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await end_of_epoch(kafka, version, 0, partition=2) == missing
    assert await end_of_epoch(kafka, version, 0, topic="nobody") == missing


async def test_a_deleted_topic_has_no_offsets(native: RawClient, kafka: KafkaClient) -> None:
    await native.ask(DeleteTopicsRequest(topics=("orders",)))
    (found,) = await list_offsets(kafka, 11, LATEST)
    assert found["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await end_of_epoch(kafka, 4, 0))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_older_leader_epoch_is_fenced_on_every_api_that_names_one(tmp_path: Path) -> None:
    """The broker was killed: its logs are in a new epoch, which a client learns from metadata."""
    async with running(tmp_path) as broker:
        native = await broker.connect()
        await native.create("orders")
        await native.produce("orders", batch(b"a", b"b", b"c"))
    (tmp_path / CLEAN_MARKER).unlink()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as kafka:
        native = await broker.connect()
        await native.produce("orders", batch(b"d"))
        (found,) = await list_offsets(kafka, 11, LATEST, current_leader_epoch=0)
        assert found["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
        (found,) = await list_offsets(kafka, 11, LATEST, current_leader_epoch=1)
        assert (found["offset"], found["leader_epoch"]) == (4, 1)
        (found,) = await list_offsets(kafka, 11, EARLIEST)
        assert (found["offset"], found["leader_epoch"]) == (0, 0)
        assert (await end_of_epoch(kafka, 4, 0, current_leader_epoch=0))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert await end_of_epoch(kafka, 4, 0, current_leader_epoch=1) == (0, 0, 3)
        assert await end_of_epoch(kafka, 4, 1) == (0, 1, 4)
        fetcher = await Fetcher.of(kafka, native, 18)
        told = await fetcher.fetch({("orders", 0): 0}, leader_epoch=0)
        assert told["orders", 0]["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
        told = await fetcher.fetch({("orders", 0): 0}, leader_epoch=1)
        assert told["orders", 0]["records"]


@pytest.mark.parametrize("version", [12, 13, 18])
async def test_a_fetch_is_told_where_its_last_epoch_ended_if_the_log_does_not_go_on_from_there(
    tmp_path: Path, version: int
) -> None:
    """The log has offsets 0 to 2 of epoch 0, and 3 of epoch 1."""
    async with running(tmp_path) as broker:
        native = await broker.connect()
        await native.create("orders")
        await native.produce("orders", batch(b"a", b"b", b"c"))
    (tmp_path / CLEAN_MARKER).unlink()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as kafka:
        native = await broker.connect()
        await native.produce("orders", batch(b"d"))
        fetcher = await Fetcher.of(kafka, native, version)
        none = {"epoch": -1, "end_offset": -1}

        async def fetch(offset: int, last_epoch: int) -> dict[str, Any]:
            fetcher.session_id, fetcher.epoch = 0, -1  # without a session
            told = await fetcher.fetch({("orders", 0): offset}, last_epoch=last_epoch)
            found: dict[str, Any] = told["orders", 0]
            return found

        for offset, epoch in ((0, 0), (3, 0), (3, 1), (0, -1)):
            found = await fetch(offset, epoch)
            assert found["records"]
            assert (found["error_code"], found["diverging_epoch"]) == (ErrorCode.NONE, none)
        for offset in (4, 500):
            found = await fetch(offset, 0)
            assert found["diverging_epoch"] == {"epoch": 0, "end_offset": 3}
            assert (found["error_code"], found["high_watermark"], found["records"]) == (ErrorCode.NONE, 4, b"")
        for offset, epoch in ((3, 2), (-1, 0), (500, 2)):
            found = await fetch(offset, epoch)
            assert (found["error_code"], found["diverging_epoch"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, none)

        fetcher.session_id = fetcher.epoch = 0
        await fetcher.fetch({("orders", 0): 4}, last_epoch=1)
        for _ in range(2):  # at once, and again until the client goes elsewhere
            told = await fetcher.fetch({("orders", 0): 4}, last_epoch=0, max_wait_ms=60_000)
            assert told["orders", 0]["diverging_epoch"] == {"epoch": 0, "end_offset": 3}
        told = await fetcher.fetch({}, max_wait_ms=60_000)
        assert told["orders", 0]["diverging_epoch"] == {"epoch": 0, "end_offset": 3}
