"""Corrupt indexes of the active segment: it is sealed, and they are rebuilt, while appends and fetches go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Destination, Partition, StorageError
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

START_MS = 1_700_000_000_000
RECORDS = 100


def batch(number: int, *, size: int = 100) -> bytes:
    return build_batch([(START_MS + number, None, bytes(size), ())])


class Rig:
    """A reopened log of one segment, of which an index entry was altered while it was closed."""

    def __init__(self, directory: Path, nursery: trio.Nursery, suffix: str) -> None:
        self.metrics = Metrics()
        self.writer = Writer(nursery=nursery, metrics=self.metrics, loop_write_max_bytes=64 << 10)
        self._directory = directory / "t-0"
        log = self._open()
        for number in range(RECORDS):
            log.appends.append(batch(number))
        log.close()
        self.index = self._directory / f"{0:020}{suffix}"
        self.sound = self.index.read_bytes()
        self._flip()
        self.log = self._open(recovery_point=RECORDS)
        self.partition = Partition(self.log, self.writer)

    def _open(self, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            self._directory,
            topic="t",
            partition=0,
            config=LogConfig(index_interval_bytes=512, segment_index_bytes=4096),
            files=OpenFiles(),
            clock=lambda: START_MS,
            random=Random(0),
            clean=True,
            recovery_point=recovery_point,
        )

    def _flip(self) -> None:
        """Alter one bit of the third entry: a position, or a time."""
        content = bytearray(self.sound)
        content[3 * 8 - 1 if self.index.suffix == ".index" else 2 * 12 + 7] ^= 1
        self.index.write_bytes(content)

    def append(self, number: int, *, size: int = 100) -> None:
        self.partition.append(batch(number, size=size))
        self.writer.write_queued()

    async def read(self, offset: int) -> int:
        """Return the first offset that a fetch gets from here on."""
        while True:
            found = self.partition.read(offset, 100, min_one_batch=True)
            if found is not None and found.slice is not None:
                return next(records_in(found.slice.read_all(), from_offset=offset)).offset
            await self.rebuilt()

    async def rebuilt(self) -> None:
        await self.partition.rebuilt(IndexCorruptError(0, "an entry"))

    def rolls(self) -> float:
        return self.metrics.rolls["index_corrupt"].value


@asynccontextmanager
async def rig(directory: Path, suffix: str = ".index") -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery, suffix)
        yield made
        await made.partition.retire()


async def test_every_offset_is_read_though_a_bit_of_the_active_index_is_flipped(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        assert [await made.read(offset) for offset in range(RECORDS)] == list(range(RECORDS))
        assert (made.log.segment_count, made.rolls()) == (2, 1)
        assert made.index.read_bytes() == made.sound
        made.append(RECORDS)
        assert await made.read(RECORDS) == RECORDS


async def test_times_are_found_though_a_bit_of_the_active_time_index_is_flipped(tmp_path: Path) -> None:
    async with rig(tmp_path, ".timeindex") as made:
        with pytest.raises(IndexCorruptError):
            [made.log.reads.offset_for_time(START_MS + number) for number in range(RECORDS)]
        await made.rebuilt()
        found = [made.log.reads.offset_for_time(START_MS + number) for number in range(RECORDS)]
        assert [each and each.offset for each in found] == list(range(RECORDS))
        assert made.index.read_bytes() == made.sound


async def test_an_append_that_is_being_written_makes_the_next_one_roll(tmp_path: Path) -> None:
    """A partition that is never quiet is never rolled early."""
    async with rig(tmp_path) as made:
        made.append(RECORDS, size=100_000)  # by a worker
        with pytest.raises(IndexCorruptError):
            [made.log.reads.read(offset, 100) for offset in range(RECORDS)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.rebuilt)
            await trio.lowlevel.checkpoint()
            made.append(RECORDS + 1, size=100_000)
        assert made.log.segment_count == 2
        assert [await made.read(offset) for offset in range(RECORDS + 2)] == list(range(RECORDS + 2))


async def test_an_append_that_is_queued_is_written_to_the_segment_before(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.partition.append(batch(RECORDS))
        await made.rebuilt()
        assert (made.log.active_base_offset, made.rolls()) == (RECORDS + 1, 1)
        assert [await made.read(offset) for offset in range(RECORDS + 1)] == list(range(RECORDS + 1))


async def test_a_log_that_is_paused_for_a_move_is_sealed_when_it_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The move cannot have the log while somebody is inside, and gives up."""
    del autojump_clock
    async with rig(tmp_path) as made:
        target = str(tmp_path / "other")
        with made.partition.inside():
            async with trio.open_nursery() as nursery:
                to = Destination(target, SpaceStatus(target), lambda: None, lambda: None)
                nursery.start_soon(made.partition.relocate, made.log.begin_move(target), to)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(made.rebuilt)
        assert (made.log.segment_count, made.rolls()) == (2, 1)
        assert [await made.read(offset) for offset in range(RECORDS)] == list(range(RECORDS))


async def test_the_next_plan_rolls_once_where_that_is_asked_for(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.log.rolls.request()
        for number in range(3):
            append = made.partition.append(batch(RECORDS + number))
            made.writer.write_queued()
            await append.wait()
        assert (made.log.segment_count, made.log.active_base_offset, made.rolls()) == (2, RECORDS, 1)


async def test_a_log_that_has_failed_is_not_sealed(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.log.fail("for a test")
        await made.rebuilt()
        with pytest.raises(StorageError):
            await made.rebuilt()
