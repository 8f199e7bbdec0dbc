"""Partitions that follow those of another broker."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from random import Random

import trio

from tests.broker.clients import Running, batch, running
from tests.broker.kafka_client import kafka_client
from tests.broker.replication.copies import filled
from tests.protocol.records.handmade import batch as handmade_batch
from tests.protocol.records.handmade import record
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER, RECOVERY_POINTS
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.replication.following.fetcher import Step
from warmlog.broker.replication.following.replica import BATCHES_PER_PIECE, PartitionReplica, pieces
from warmlog.broker.replication.peers.peer import open_cluster
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchedPartition, KafkaFetchPartition
from warmlog.protocol.records.batch import stamp
from warmlog.protocol.records.compression import Codec, compress

SETTINGS = {"log.segment.bytes": 1000, "log.index.interval.bytes": 100, "num.partitions": 1}
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)
KEY = ("orders", 0)


class Watched:
    """A replica that tells when it has taken a result. Compiled classes cannot be subclassed."""

    def __init__(self, replica: PartitionReplica) -> None:
        self.took = trio.Event()
        self.topic, self.topic_id, self.partition = replica.topic, replica.topic_id, replica.partition
        self._replica = replica

    @property
    def problem(self) -> str | None:
        return self._replica.problem

    @property
    def throttled_s(self) -> float:
        return self._replica.throttled_s

    async def position(self, leader_epoch: int) -> KafkaFetchPartition | None:
        return await self._replica.position(leader_epoch)

    def take_at_once(self, found: KafkaFetchedPartition) -> KafkaFetchPartition | None:
        position = self._replica.take_at_once(found)
        if position is not None:
            self._tell()
        return position

    async def take(self, found: KafkaFetchedPartition) -> Step:
        step = await self._replica.take(found)
        self._tell()
        return step

    def _tell(self) -> None:
        self.took.set()
        self.took = trio.Event()


class Here:
    """The partition that copies, in a data directory of its own."""

    def __init__(self, root: Path, nursery: trio.Nursery) -> None:
        self.directory = DataDirectory.open(root, node_id=2)
        self.path = Path(self.directory.partition_path("orders-0"))
        log = PartitionLog.open(
            self.path,
            topic="orders",
            partition=0,
            config=CONFIG,
            files=OpenFiles(),
            clock=lambda: 0,
            random=Random(0),
            recovery_point=self.directory.recovery_points.get(KEY, 0),
            log_start_offset=self.directory.log_starts.get(KEY, 0),
            high_watermark=self.directory.high_watermarks.get(KEY, 0),
            clean=self.directory.was_clean,
        )
        self.log = log
        self.replica: Watched | None = None
        self.partition = Partition(log, Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=64 << 10))

    async def checkpoint(self, _: str) -> None:
        await trio.to_thread.run_sync(self.directory.write_checkpoints, [self.log])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the result of a fetch after which something is true."""
        assert self.replica is not None
        with trio.fail_after(30):
            while not condition():
                await self.replica.took.wait()


@asynccontextmanager
async def copying(root: Path, broker: Running, *, fetches: bool = True) -> AsyncIterator[Here]:
    """A partition that follows `orders-0` of a broker; closed cleanly at the end."""
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with trio.open_nursery() as nursery, open_cluster([(host, int(port))], random=Random(1)) as cluster:
        here = Here(root, nursery)
        topic_id = cluster.view.topics["orders"].topic_id
        here.replica = Watched(PartitionReplica(here.partition, topic_id, cluster, here.checkpoint))
        async with filled(cluster, here.replica) if fetches else nullcontext():
            yield here
        await here.partition.retire()
        here.log.close()
        here.directory.write_checkpoints([here.log])
        here.directory.mark_clean()
        here.directory.close()


def files(directory: Path) -> dict[str, bytes]:
    """Its segments and their indexes."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name[:20].isdigit()}


def batches(directory: Path) -> bytes:
    return b"".join(data for name, data in files(directory).items() if name.endswith(".log"))


async def test_a_copy_has_the_same_files_as_its_source(tmp_path: Path) -> None:
    async with running(tmp_path / "source", SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        for number in range(20):
            await native.produce("orders", batch(b"%d" % number * 60, b"x" * number))
        async with copying(tmp_path / "copy", broker) as here:
            await here.until(lambda: here.log.offsets.high_watermark == 40)
            await native.produce("orders", batch(b"late"))
            await here.until(lambda: here.log.offsets.high_watermark == 41)
            assert here.log.segment_count > 3
    assert files(tmp_path / "copy" / "orders-0") == files(tmp_path / "source" / "orders-0")


async def test_batches_without_a_largest_timestamp_are_decompressed_by_a_worker_and_copied(tmp_path: Path) -> None:
    """As sarama up to 1.45.0 compresses them, and some brokers store them."""
    source = tmp_path / "source"
    async with running(source, SETTINGS) as broker:
        await (await broker.connect()).create("orders")
    block = compress(Codec.GZIP, b"".join(record(offset_delta=at, timestamp_delta=at) for at in range(3)))
    fields = {"attributes": Codec.GZIP, "record_count": 3, "max_timestamp": -1, "leader_epoch": 0}
    odd = b"".join(handmade_batch(block, base_offset=offset, **fields) for offset in (0, 3))
    (source / "orders-0" / f"{0:020}.log").write_bytes(odd)
    (source / CLEAN_MARKER).unlink()
    (source / RECOVERY_POINTS).unlink()
    async with running(source, SETTINGS) as broker, copying(tmp_path / "copy", broker) as here:
        await here.until(lambda: here.log.offsets.high_watermark == 6)
        found = here.log.reads.offset_for_time(1002)
        assert found is not None
        assert (found.timestamp, found.offset) == (1002, 2)
    assert batches(tmp_path / "copy" / "orders-0") == odd


async def test_consumers_of_a_copy_are_woken_by_as_many_bytes_as_they_wait_for(tmp_path: Path) -> None:
    async with running(tmp_path / "source", SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        one = batch(b"v" * 100)
        await native.produce("orders", one)
        async with copying(tmp_path / "copy", broker) as here:
            await here.until(lambda: here.log.offsets.high_watermark == 1)
            woken_at: list[int] = []
            waiter = FetchWaiter(3 * len(one), lambda: woken_at.append(here.log.offsets.high_watermark))
            here.partition.enlist(waiter)
            for end in (2, 3, 4):
                await native.produce("orders", one)
                await here.until(lambda end=end: here.log.offsets.high_watermark == end)
            assert woken_at == [4]


async def test_a_copy_resumes_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path / "source", SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        for end in (5, 10, 15):
            for _ in range(5):
                await native.produce("orders", batch(b"v" * 100))
            async with copying(tmp_path / "copy", broker) as here:
                assert here.log.offsets.high_watermark == end - 5
                await here.until(lambda here=here, end=end: here.log.offsets.high_watermark == end)
    assert files(tmp_path / "copy" / "orders-0") == files(tmp_path / "source" / "orders-0")


async def test_a_copy_truncates_what_its_source_has_lost(tmp_path: Path) -> None:
    """The source is set back to a moment before, as by a power cut, and continues with other records."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    async with running(source, SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        for _ in range(5):
            await native.produce("orders", batch(b"kept" * 20))
        shutil.copytree(source, tmp_path / "before", ignore=shutil.ignore_patterns("*.tmp"))
        for _ in range(9):
            await native.produce("orders", batch(b"lost" * 30))
        async with copying(copy, broker) as here:
            await here.until(lambda: here.log.offsets.high_watermark == 14)
    shutil.rmtree(source)
    (tmp_path / "before").rename(source)
    async with running(source, SETTINGS) as broker:
        native = await broker.connect()
        for _ in range(3):
            await native.produce("orders", batch(b"new" * 30))
        async with copying(copy, broker) as here:
            await here.until(lambda: here.log.offsets.log_end_offset == 8 and here.log.offsets.high_watermark == 8)
            assert here.log.epochs.entries == ((0, 0), (1, 5))
    logs = [
        {name: data for name, data in files(at / "orders-0").items() if name.endswith(".log")} for at in (source, copy)
    ]
    assert b"".join(logs[0].values()) == b"".join(logs[1].values())


async def delete_records(broker: Running, offset: int) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        asked = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}]
        await client.ask("DeleteRecords", topics=asked, timeout_ms=1000)


async def test_a_copy_starts_anew_where_its_source_begins(tmp_path: Path) -> None:
    async with running(tmp_path / "source", SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        for _ in range(5):
            await native.produce("orders", batch(b"1" * 100, b"2"))
        async with copying(tmp_path / "copy", broker) as here:
            await here.until(lambda: here.log.offsets.high_watermark == 10)
        for _ in range(5):
            await native.produce("orders", batch(b"3" * 100, b"4"))
        await delete_records(broker, 13)
        async with copying(tmp_path / "copy", broker) as here:
            await here.until(lambda: here.log.offsets.high_watermark == 20 and here.log.offsets.log_start_offset == 13)
            assert here.log.old_segments.first_base_offset == 12, "the batch that holds the first record is whole"


# -- bad input ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def alone(root: Path) -> AsyncIterator[tuple[Here, PartitionReplica]]:
    """A replica whose leader is played by the test."""
    async with trio.open_nursery() as nursery, running(root / "source") as broker:
        host, port = broker.addresses.kafka.rsplit(":", 1)
        async with open_cluster([(host, int(port))], random=Random(1)) as cluster:
            here = Here(root / "copy", nursery)
            replica = PartitionReplica(here.partition, NO_TOPIC_ID, cluster, here.checkpoint)
            await replica.position(3)
            yield here, replica
            await here.partition.retire()
            here.log.close(clean=False)
            here.directory.close()


def fetched(data: bytes = b"", **how: object) -> KafkaFetchedPartition:
    return KafkaFetchedPartition(topic="orders", partition=0, records=memoryview(data), **how)  # type: ignore[arg-type]


def at(offset: int, data: bytes) -> bytes:
    moved = bytearray(data)
    stamp(moved, base_offset=offset, leader_epoch=3)
    return bytes(moved)


async def test_what_does_not_fit_pauses_a_partition_and_tells_why(tmp_path: Path) -> None:
    async with alone(tmp_path) as (here, replica):
        good = at(0, batch(b"v", b"w"))
        assert await replica.take(fetched(good, high_watermark=2)) is Step.GO_ON
        bad = at(2, batch(b"x"))
        for data in (bad[:-1] + b"\1", good, b"\xff" * 100):
            assert await replica.take(fetched(data, high_watermark=3)) is Step.PAUSE
            assert replica.problem is not None
            assert (here.log.offsets.log_end_offset, here.log.offsets.high_watermark) == (2, 2)
        assert await replica.take(fetched(bad, high_watermark=3)) is Step.GO_ON
        assert (replica.problem, here.log.offsets.high_watermark) == (None, 3)


async def test_an_error_that_nothing_cures_ends_a_partition(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, replica):
        assert await replica.take(fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)) is Step.STOP
        assert replica.problem == "the leader refuses: TOPIC_AUTHORIZATION_FAILED"


async def test_records_above_the_leaders_high_watermark_are_not_shown(tmp_path: Path) -> None:
    async with alone(tmp_path) as (here, replica):
        await replica.take(fetched(at(0, batch(b"v", b"w", b"x")), high_watermark=1))
        assert (here.log.offsets.high_watermark, here.log.offsets.log_end_offset) == (1, 3)
        asked = await replica.position(3)
        assert asked is not None
        assert (asked.offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (3, 3, 3)


def test_records_are_taken_in_pieces_of_whole_batches() -> None:
    one = batch(b"value")
    records = memoryview(one * (2 * BATCHES_PER_PIECE) + batch(b"last") + one[:-1])
    found = list(pieces(records))
    assert b"".join(found) == records
    assert found[0] == found[1] == one * BATCHES_PER_PIECE
    assert found[2] == batch(b"last") + one[:-1]
    assert list(pieces(memoryview(b""))) == []
    assert list(pieces(memoryview(one * BATCHES_PER_PIECE))) == [one * BATCHES_PER_PIECE]


def test_what_follows_an_invalid_length_is_in_one_piece() -> None:
    one = batch(b"value")
    for length in (-1, 0, 48, 1 << 30):
        damaged = one[:8] + length.to_bytes(4, signed=True) + one[12:]
        records = memoryview(one * 3 + damaged + one * (2 * BATCHES_PER_PIECE))
        assert list(pieces(records)) == [records]


async def test_other_tasks_run_while_many_batches_are_taken(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery, running(tmp_path / "source", SETTINGS) as broker:
        native = await broker.connect()
        await native.create("orders")
        async with copying(tmp_path / "copy", broker, fetches=False) as here:  # would truncate: the source is empty
            assert here.replica is not None
            replica, turns = here.replica, 0
            records = bytearray(b"".join([batch(b"value")] * (10 * BATCHES_PER_PIECE)))
            size = len(records) // (10 * BATCHES_PER_PIECE)
            for number in range(10 * BATCHES_PER_PIECE):
                stamp(records, base_offset=number, leader_epoch=0, position=number * size)

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            nursery.start_soon(take_turns)
            found = KafkaFetchedPartition(topic="orders", partition=0, high_watermark=1000, records=memoryview(records))
            assert await replica.take(found) is Step.GO_ON
            assert turns >= 10
            assert here.log.offsets.log_end_offset == 10 * BATCHES_PER_PIECE
            nursery.cancel_scope.cancel()
