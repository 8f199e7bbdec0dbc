"""Partitions that move to another data directory while they are written and read, through the Kafka listener."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import NoSpaceError
from warmlog.broker.maintenance.log_moves import LogMoves
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch

SLOW = {"replica.alter.log.dirs.io.max.bytes.per.second": "0"}
RECENT_MS = 1_700_000_000_000


class Mover:
    """A broker over two data directories, with a client of each protocol."""

    def __init__(self, root: Path, broker: Running, raw: RawClient, kafka: KafkaClient) -> None:
        self.first, self.second = root / "a", root / "b"
        self.broker = broker
        self.raw = raw
        self.kafka = kafka

    async def ask(self, path: Path | str, topic: str = "orders", partition: int = 0) -> ErrorCode:
        """Ask for a move."""
        topics = [{"name": topic, "partitions": [partition]}]
        reply = await self.kafka.ask("AlterReplicaLogDirs", dirs=[{"path": str(path), "topics": topics}])
        (answered,) = reply["results"]
        (one,) = answered["partitions"]
        assert (answered["topic_name"], one["partition_index"]) == (topic, partition)
        return ErrorCode(one["error_code"])

    async def replicas(self, topic: str = "orders") -> dict[tuple[str, bool], dict[str, Any]]:
        """What DescribeLogDirs tells of partition 0, by the directory's name and whether it is a future replica."""
        reply = await self.kafka.ask("DescribeLogDirs", topics=[{"topic": topic, "partitions": [0]}])
        return {
            (os.path.basename(directory["log_dir"]), one["is_future_key"]): one
            for directory in reply["results"]
            for named in directory["topics"]
            for one in named["partitions"]
        }

    async def until(self, *places: tuple[str, bool], topic: str = "orders") -> None:
        """Return when the partition lies in these places and no others."""

        async def is_there() -> bool:
            return set(await self.replicas(topic)) == set(places)

        await eventually(is_there)

    async def until_gone(self, path: Path, pattern: str) -> None:
        """Return when no file or directory of this name is there."""

        async def is_gone() -> bool:
            return not list(path.glob(pattern))

        await eventually(is_gone)

    async def move(self, path: Path, topic: str = "orders") -> None:
        """Move partition 0 and wait until it has."""
        assert await self.ask(path, topic) is ErrorCode.NONE
        await self.until((path.name, False), topic=topic)

    async def set_rate(self, rate: str) -> None:
        name = "replica.alter.log.dirs.io.max.bytes.per.second"
        change = {"name": name, "config_operation": 0, "value": rate}
        resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
        (reply,) = (await self.kafka.ask("IncrementalAlterConfigs", resources=[resource]))["responses"]
        assert reply["error_code"] == ErrorCode.NONE, reply

    async def all_offsets(self, topic: str = "orders") -> list[int]:
        """The base offsets of all batches that a consumer gets, one record each."""
        found: list[int] = []
        fetched = await self.raw.fetch(topic, 0)
        offset = fetched.log_start_offset if fetched.error else 0
        while True:
            fetched = await self.raw.fetch(topic, offset)
            assert fetched.error is ErrorCode.NONE, fetched
            data = bytes(fetched.records)
            position = 0
            while position + 61 <= len(data):
                size = 12 + int.from_bytes(data[position + 8 : position + 12])
                if position + size > len(data):
                    break
                found.append(int.from_bytes(data[position : position + 8]))
                position += size
            if not position:
                return found
            offset = found[-1] + 1


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when something holds, which nothing tells."""
    with trio.fail_after(60):
        while not await holds():  # noqa: ASYNC110  # nothing tells of it
            await trio.sleep(0.01)


@asynccontextmanager
async def mover(root: Path, settings: Mapping[str, object] | None = None) -> AsyncIterator[Mover]:
    for name in "ab":
        (root / name).mkdir(exist_ok=True)
    given = {
        "log.dirs": f"{root / 'a'},{root / 'b'}",
        "log.segment.delete.delay.ms": "0",
        "log.segment.bytes": "20000",
        "log.retention.ms": "-1",  # records here are of 2023
        **(settings or {}),
    }
    async with (
        running(root / "a", given) as broker,
        kafka_client(broker.addresses.kafka) as kafka,
    ):
        yield Mover(root, broker, await broker.connect(), kafka)


async def in_first(moving: Mover, name: str = "orders", **configs: str) -> None:
    """A topic of one partition, which lies in the first directory."""
    await moving.raw.create(name, **configs)
    if ("a", False) not in await moving.replicas(name):
        await moving.move(moving.first, name)


async def produce(moving: Mover, count: int, *, size: int = 1000, topic: str = "orders") -> None:
    for _ in range(count):
        outcome = await moving.raw.produce(topic, batch(b"v" * size))
        assert outcome.error is ErrorCode.NONE


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


async def test_a_partition_moves_with_all_of_its_records(tmp_path: Path) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving)
        await produce(moving, 50)
        before = await moving.all_offsets()
        await moving.move(moving.second)
        assert await moving.all_offsets() == before == list(range(50))
        await produce(moving, 50)
        assert await moving.all_offsets() == list(range(100))
        assert "orders-0" in names(moving.second)
        await moving.until_gone(moving.first, "orders-0*")
    async with mover(tmp_path) as moving:
        assert set(await moving.replicas()) == {("b", False)}
        assert await moving.all_offsets() == list(range(100))
        assert not (moving.second / "orders-0" / ".arrival").exists()


async def test_producers_and_consumers_go_on_while_a_partition_moves_back_and_forth(tmp_path: Path) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving, segment_bytes=str(1 << 20))
        await produce(moving, 20)
        is_over = trio.Event()
        produced, consumed = 20, 0

        async def keep_producing() -> None:
            nonlocal produced
            client = await moving.broker.connect()
            while not is_over.is_set():
                outcome = await client.produce("orders", batch(b"v" * 1000))
                assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, produced)
                produced += 1

        async def keep_consuming() -> None:
            nonlocal consumed
            client = await moving.broker.connect()
            while not is_over.is_set():
                fetched = await client.fetch("orders", consumed, max_wait_ms=50, max_bytes=5000)
                assert fetched.error is ErrorCode.NONE
                data = bytes(fetched.records)
                while len(data) >= 61 and len(data) >= (size := 12 + int.from_bytes(data[8:12])):
                    assert int.from_bytes(data[:8]) == consumed
                    consumed += 1
                    data = data[size:]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_producing)
            nursery.start_soon(keep_consuming)
            for path in (moving.second, moving.first) * 3:
                await moving.move(path)
            is_over.set()
        assert await moving.all_offsets() == list(range(produced))
        assert consumed > 20


async def test_a_move_under_way_is_told_as_a_future_replica_and_can_be_called_off(tmp_path: Path) -> None:
    async with mover(tmp_path, SLOW) as moving:
        await in_first(moving, segment_bytes=str(4 << 20))
        await produce(moving, 30, size=100_000)
        assert await moving.ask(moving.second) is ErrorCode.NONE
        await moving.until(("a", False), ("b", True))
        assert await moving.ask(moving.second) is ErrorCode.NONE, "it is on its way"
        future = (await moving.replicas())["b", True]
        assert future["offset_lag"] == 30
        assert future["partition_size"] < 30 * 100_000
        assert any(name.endswith("-future") for name in names(moving.second))
        assert await moving.ask(moving.first) is ErrorCode.NONE
        await moving.until(("a", False))
        await moving.until_gone(moving.second, "*-future")
        assert await moving.all_offsets() == list(range(30))


async def test_a_higher_rate_takes_effect_at_once(tmp_path: Path) -> None:
    async with mover(tmp_path, SLOW) as moving:
        await in_first(moving, segment_bytes=str(4 << 20))
        await produce(moving, 30, size=100_000)
        assert await moving.ask(moving.second) is ErrorCode.NONE
        await moving.until(("a", False), ("b", True))
        await moving.set_rate("1000000000")
        await moving.until(("b", False))
        assert await moving.all_offsets() == list(range(30))


async def test_a_stopped_broker_goes_on_with_its_moves_when_it_starts(tmp_path: Path) -> None:
    async with mover(tmp_path, SLOW) as moving:
        await in_first(moving, segment_bytes=str(4 << 20))
        await produce(moving, 30, size=100_000)
        assert await moving.ask(moving.second) is ErrorCode.NONE
        await moving.until(("a", False), ("b", True))
    assert any(name.endswith("-future") for name in names(tmp_path / "b"))
    async with mover(tmp_path) as moving:
        await moving.until(("b", False))
        assert await moving.all_offsets() == list(range(30))


async def test_a_stopped_broker_goes_on_with_moves_that_wait_for_others(tmp_path: Path) -> None:
    async with mover(tmp_path, SLOW) as moving:
        await in_first(moving, segment_bytes=str(4 << 20))
        await in_first(moving, "waiting")
        await produce(moving, 30, size=100_000)
        for name in "orders", "waiting":
            assert await moving.ask(moving.second, name) is ErrorCode.NONE
            await moving.until(("a", False), ("b", True), topic=name)
    async with mover(tmp_path) as moving:
        for name in "orders", "waiting":
            await moving.until(("b", False), topic=name)


async def test_copies_of_what_is_not_served_are_removed_by_a_start(tmp_path: Path) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving)
    (tmp_path / "b" / f"gone-0.{'0' * 32}-future").mkdir()
    (tmp_path / "a" / f"orders-0.{'0' * 32}-future").mkdir()
    async with mover(tmp_path) as moving:
        await moving.until_gone(tmp_path, "*/*-future")
        assert set(await moving.replicas()) == {("a", False)}


async def test_a_broker_starts_although_there_is_no_room_for_its_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving)
        await produce(moving, 3)
    (tmp_path / "b" / f"orders-0.{'0' * 32}-future").mkdir()

    def refuse(_: LogMoves, partition: Partition, target: DataDirectory) -> None:
        raise NoSpaceError(f"data directory {target.path} is full")

    monkeypatch.setattr(LogMoves, "begin", refuse)
    async with mover(tmp_path) as moving:
        await moving.until_gone(tmp_path, "*/*-future")
        assert await moving.all_offsets() == [0, 1, 2]

        async def is_reported() -> bool:  # after the copy is gone
            return "its move to" in caplog.text

        await eventually(is_reported)


async def test_what_cannot_be_moved_is_refused(tmp_path: Path) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving)
        long_name = "x" * 240
        await moving.raw.create(long_name)
        assert await moving.ask(tmp_path / "nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await moving.ask("") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await moving.ask(moving.second, "nope") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await moving.ask(moving.second, partition=3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await moving.ask(moving.second, long_name) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await moving.ask(moving.first) is ErrorCode.NONE
        assert set(await moving.replicas()) == {("a", False)}


async def test_a_topic_that_is_deleted_ends_its_move(tmp_path: Path) -> None:
    async with mover(tmp_path, SLOW) as moving:
        await in_first(moving, segment_bytes=str(4 << 20))
        await produce(moving, 30, size=100_000)
        assert await moving.ask(moving.second) is ErrorCode.NONE
        await moving.until(("a", False), ("b", True))
        reply = await moving.kafka.ask("DeleteTopics", 5, topic_names=["orders"], timeout_ms=10_000)
        assert reply["responses"][0]["error_code"] == ErrorCode.NONE
        await moving.until_gone(tmp_path, "*/orders-0*")


async def test_the_state_of_a_log_moves_with_it(tmp_path: Path) -> None:
    """Log start, idempotent producers, topic id, settings."""
    async with mover(tmp_path) as moving:
        await in_first(moving)
        await produce(moving, 40)
        numbered = build_batch([(RECENT_MS, b"k", b"v", ())], producer_id=7, producer_epoch=3, base_sequence=0)
        assert (await moving.raw.produce("orders", numbered)).base_offset == 40
        deleted = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 25}]}
        await moving.kafka.ask("DeleteRecords", topics=[deleted], timeout_ms=10_000)
        await moving.move(moving.second)
        again = await moving.raw.produce("orders", numbered)
        assert (again.base_offset, again.duplicate) == (40, True)
        assert (await moving.raw.fetch("orders", 24)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await moving.all_offsets() == list(range(25, 41))
        topic_id = (await moving.kafka.ask("Metadata", topics=None))["topics"][0]["topic_id"]
    async with mover(tmp_path) as moving:
        assert (await moving.raw.produce("orders", numbered)).duplicate is True
        assert await moving.all_offsets() == list(range(25, 41))
        assert (await moving.kafka.ask("Metadata", topics=None))["topics"][0]["topic_id"] == topic_id


async def test_times_are_found_and_retention_goes_on_where_a_log_has_moved(tmp_path: Path) -> None:
    settings = {"log.retention.check.interval.ms": "50", "log.initial.task.delay.ms": "0"}
    async with mover(tmp_path, settings) as moving:
        await in_first(moving)
        await produce(moving, 60)
        await moving.move(moving.second)
        query = {"name": "orders", "partitions": [{"partition_index": 0, "timestamp": RECENT_MS}]}
        reply = await moving.kafka.ask("ListOffsets", replica_id=-1, isolation_level=0, topics=[query])
        assert reply["topics"][0]["partitions"][0]["offset"] == 0
        change = {"name": "retention.bytes", "config_operation": 0, "value": "30000"}
        resource = {"resource_type": 2, "resource_name": "orders", "configs": [change]}
        await moving.kafka.ask("IncrementalAlterConfigs", resources=[resource])

        async def is_removed() -> bool:
            return (await moving.raw.fetch("orders", 0)).error is ErrorCode.OFFSET_OUT_OF_RANGE

        await eventually(is_removed)
        found = await moving.all_offsets()
        assert found == list(range(found[0], 60))

        async def are_few() -> bool:
            return len(list((moving.second / "orders-0").glob("*.log"))) < 4

        await eventually(are_few)  # files are renamed after the log start has moved


async def test_segments_that_come_and_go_while_a_log_is_copied_are_those_of_the_copy(tmp_path: Path) -> None:
    settings = {**SLOW, "log.retention.check.interval.ms": "50", "log.initial.task.delay.ms": "0"}
    async with mover(tmp_path, settings) as moving:
        await in_first(moving, segment_bytes=str(1 << 20))
        await produce(moving, 30, size=100_000)
        assert await moving.ask(moving.second) is ErrorCode.NONE
        await moving.until(("a", False), ("b", True))
        deleted = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 20}]}
        await moving.kafka.ask("DeleteRecords", topics=[deleted], timeout_ms=10_000)
        await produce(moving, 15, size=100_000)
        await moving.until_gone(moving.first, "orders-0/00000000000000000000.log")
        await moving.set_rate("1000000000")
        await moving.until(("b", False))
        assert await moving.all_offsets() == list(range(20, 45))
        bases = sorted(path.name for path in (moving.second / "orders-0").glob("*.log"))
        assert bases[0] != "00000000000000000000.log"


@pytest.mark.parametrize("flush", ["1", "9223372036854775807"])
async def test_many_producers_are_held_up_by_a_move_and_not_failed(tmp_path: Path, flush: str) -> None:
    async with mover(tmp_path) as moving:
        await in_first(moving, flush_messages=flush, segment_bytes=str(1 << 20))
        is_over = trio.Event()
        stored: list[int] = []

        async def keep_producing() -> None:
            client = await moving.broker.connect()
            while not is_over.is_set():
                outcome = await client.produce("orders", batch(b"v" * 5000))
                assert outcome.error is ErrorCode.NONE
                stored.append(outcome.base_offset)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(keep_producing)
            for path in (moving.second, moving.first, moving.second):
                await moving.move(path)
            is_over.set()
        assert sorted(stored) == list(range(len(stored)))
        assert await moving.all_offsets() == sorted(stored)
