"""The async edge of one log, on real files and with a disk that fails when told to."""

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from threading import Event

import pytest
import trio

from tests.broker.clients import batch
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.write_stalls import MEMORY_S, WriteStalls
from warmlog.broker.partitions.partition import Append, Partition, StorageError
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.markers import Outcome


class FailingDisk(Disk):
    """Writes and syncs raise the error that is set, once each time it is set. Writes wait for the gate."""

    def __init__(self) -> None:
        self.write_error = self.sync_error = 0
        self.defect: Exception | None = None
        self.syncs = 0
        self.writes: list[int] = []
        self.writing: Callable[[], None] = lambda: None
        self.gate = Event()
        self.gate.set()

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        self.gate.wait()
        self.writing()
        code, self.write_error = self.write_error, 0
        defect, self.defect = self.defect, None
        if code:
            raise OSError(code, os.strerror(code))
        if defect is not None:
            raise defect
        written = super().pwritev(fd, buffers, position)
        self.writes.append(written)
        return written

    def sync(self, fd: int) -> None:
        self.syncs += 1
        code, self.sync_error = self.sync_error, 0
        if code:
            raise OSError(code, os.strerror(code))
        super().sync(fd)


class Rig:
    """A partition, its writer and its disk."""

    def __init__(self, directory: Path, nursery: trio.Nursery, config: LogConfig) -> None:
        self.disk = FailingDisk()
        self.writer = Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=64 << 10)
        self._files = OpenFiles(disk=self.disk)
        self._directory = directory
        self._config = config
        self.partition = self.another("t")

    def another(self, topic: str) -> Partition:
        log = PartitionLog.open(
            self._directory / f"{topic}-0",
            topic=topic,
            partition=0,
            config=self._config,
            files=self._files,
            clock=lambda: 0,
            random=Random(0),
            clean=True,
        )
        return Partition(log, self.writer)

    async def append(self, *values: bytes) -> Append:
        append = self.partition.append(batch(*values))
        self.writer.write_queued()
        await append.wait()
        return append

    def stored(self) -> list[tuple[int, int]]:
        """(base offset, last offset) of each batch that can be read."""
        log = self.partition.log
        found, offset = [], log.offsets.log_start_offset
        while offset < log.offsets.log_end_offset:
            piece = self.partition.read(offset, 1 << 30, min_one_batch=True)
            assert piece is not None
            assert piece.slice is not None
            found += [(header.base_offset, header.last_offset) for _, header in headers(piece.slice.read_all())]
            offset = found[-1][1] + 1
        return found


@asynccontextmanager
async def rig(directory: Path, **config: int) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery, LogConfig(**config))  # type: ignore[arg-type]  # all given ones are numbers
        yield made
        await made.partition.retire()


async def test_a_retired_partition_takes_no_records(tmp_path: Path) -> None:
    """Whoever still has it would write into a log that is being closed."""
    async with rig(tmp_path) as made:
        await made.partition.retire()
        with pytest.raises(NotLeaderError, match="is no longer served"):
            made.partition.append(batch(b"late"))
        with pytest.raises(NotLeaderError):
            made.partition.append_marker(TransactionMarker(7, 0, 0, Outcome.ABORT))


async def test_small_appends_that_came_together_go_out_in_one_write(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        appends = [made.partition.append(batch(b"x")) for _ in range(10)]
        made.writer.write_queued()
        assert all(append.done for append in appends)
        assert len(made.disk.writes) == 1
        assert made.stored() == [(i, i) for i in range(10)]


async def test_an_append_is_not_readable_before_it_is_written(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        append = made.partition.append(batch(b"x"))
        assert not append.done
        assert made.stored() == []
        made.writer.write_queued()
        assert made.stored() == [(0, 0)]


async def test_large_appends_are_written_by_a_worker_and_what_comes_meanwhile_follows_in_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        large = made.partition.append(batch(b"x" * 200_000))
        made.writer.write_queued()
        assert not large.done
        small = [made.partition.append(batch(b"y")) for _ in range(3)]
        made.writer.write_queued()
        assert not any(append.done for append in small)
        for append in [large, *small]:
            await append.wait()
        assert made.stored() == [(0, 0), (1, 1), (2, 2), (3, 3)]


async def test_by_default_an_append_of_256_kib_is_written_in_its_turn_and_a_larger_one_by_a_worker(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as made:
        made.writer.loop_write_max_bytes = Settings().warmlog_loop_write_max_bytes
        overhead = len(batch(bytes(200_000))) - 200_000
        for size, is_written in ((262_144, True), (262_145, False)):
            append = made.partition.append(batch(bytes(size - overhead)))
            made.writer.write_queued()
            assert append.done is is_written, size
            await append.wait()
            assert size in made.disk.writes


async def test_while_a_disk_stalls_a_worker_writes_everything_above_64_kib(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.writer.loop_write_max_bytes = 1 << 18
        now, sleeps = [100.0], [0]
        stalls = WriteStalls(clock=lambda: now[0], switches=lambda: sleeps[0])
        made.partition.appends.flushes.disk.stalls = stalls

        async def appended(size: int) -> bool:
            append = made.partition.append(batch(bytes(size)))
            made.writer.write_queued()
            is_written = append.done
            await append.wait()
            assert append.error is None
            return is_written

        def stall() -> None:
            now[0] += 0.1
            sleeps[0] += 1

        def preempt() -> None:
            now[0] += 0.1

        made.disk.writing = preempt
        assert await appended(100_000)
        made.disk.writing = stall
        assert await appended(60_000), "small writes are not measured"
        assert await appended(100_000), "the stall is noticed in this one"
        assert not await appended(100_000)
        assert await appended(60_000)
        now[0] += MEMORY_S
        assert await appended(100_000), "it is tried again after a while"
        now[0] += MEMORY_S / 2
        assert not await appended(100_000), "a worker's stall counts as well"
        now[0] += MEMORY_S - 0.3
        made.disk.writing = lambda: None
        assert not await appended(100_000)
        now[0] += 0.4
        assert await appended(100_000)
        assert await appended(100_000)


async def test_large_appends_of_a_turn_share_the_loops_limit(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.writer.loop_write_max_bytes = 1 << 18
        others = [made.another(f"t{number}") for number in range(5)]
        sizes = (150_000, 60_000, 100_000, 70_000, 60_000)
        for _ in range(2):
            appends = [other.append(batch(bytes(size))) for other, size in zip(others, sizes, strict=True)]
            made.writer.write_queued()
            assert [append.done for append in appends] == [True, True, True, False, True]
            for append in appends:
                await append.wait()
                assert append.error is None
        for other in others:
            await other.retire()


async def test_a_copy_is_written_at_once_or_left_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.writer.loop_write_max_bytes = 1 << 18
        other, written = made.another("copy"), []
        for size in (10, 60_000, 100_000, 150_000, 150_000, 300_000, 60_000):
            offset = (await made.append(bytes(size))).planned.base_offset
            piece = made.partition.read(offset, 1 << 20, min_one_batch=True)
            assert piece is not None
            assert piece.slice is not None
            records = piece.slice.read_all()
            written.append(other.appends.copy_at_once(records, None))
            if not written[-1]:
                assert other.log.offsets.log_end_offset == offset
                append = other.appends.append_copy(records, None)
                assert append is not None
                made.writer.write_queued()
                await append.wait()
                assert append.error is None
            assert other.log.offsets.log_end_offset == offset + 1
        assert written == [True, True, False, False, False, False, True]
        await other.retire()


async def test_segments_roll_in_the_middle_of_a_queue(tmp_path: Path) -> None:
    one = len(batch(b"x" * 100))
    async with rig(tmp_path, segment_bytes=one * 3) as made:
        appends = [made.partition.append(batch(b"x" * 100)) for _ in range(10)]
        made.writer.write_queued()
        for append in appends:
            await append.wait()
            assert append.error is None
        assert made.stored() == [(i, i) for i in range(10)]
        assert made.partition.log.segment_count == 4


@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_full_disk_refuses_what_is_queued_and_the_log_goes_on_when_there_is_room(
    tmp_path: Path, size: int
) -> None:
    async with rig(tmp_path) as made:
        await made.append(b"before")
        made.disk.write_error = errno.ENOSPC
        refused = [made.partition.append(batch(b"x" * size)) for _ in range(3)]
        made.writer.write_queued()
        for append in refused:
            await append.wait()
            assert "No space left" in str(append.error)
        assert made.stored() == [(0, 0)]
        assert (await made.append(b"after")).planned.base_offset == 1
        assert made.stored() == [(0, 0), (1, 1)]


async def test_a_full_disk_is_told_once_and_not_for_every_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that tries again at once wrote a thousand lines a second, onto the full disk."""
    async with rig(tmp_path) as made:
        for _ in range(100):
            made.disk.write_error = errno.ENOSPC
            assert (await made.append(b"x")).error is not None
        assert [record.message for record in caplog.records] == ["t-0: No space left on device; 1 appends rejected"]
        await made.append(b"room again")
        await made.append(b"and again")
        assert [record.message for record in caplog.records[1:]] == [
            "t-0: accepting appends again; 99 more were rejected"
        ]


async def test_any_other_write_error_puts_the_log_out_of_service_for_appends_and_not_for_reads(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.append(b"before")
        made.disk.write_error = errno.EIO
        assert (await made.append(b"x")).error is not None
        with pytest.raises(LogFailedError, match=r"has failed: .*Input/output error"):
            made.partition.append(batch(b"y"))
        assert made.stored() == [(0, 0)]


async def test_with_flush_messages_1_an_append_is_settled_by_its_sync(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as made:
        append = made.partition.append(batch(b"x"))
        made.writer.write_queued()
        assert not append.done
        await append.wait()
        assert made.disk.syncs >= 1
        assert made.partition.log.durability.recovery_point == 1


async def test_appends_that_wait_for_a_sync_share_one(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as made:
        await made.append(b"warm up")  # the first sync of a new log is also one of its directory and indexes
        before = made.disk.syncs
        appends = []
        for _ in range(32):
            appends.append(made.partition.append(batch(b"x")))
            made.writer.write_queued()
        for append in appends:
            await append.wait()
        assert made.disk.syncs - before <= 4


async def test_a_failed_sync_fails_who_waits_for_it_and_puts_the_log_out_of_service(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as made:
        await made.append(b"before")
        made.disk.sync_error = errno.EIO
        assert "fsync failed" in str((await made.append(b"x")).error)
        syncs = made.disk.syncs
        with pytest.raises(LogFailedError):
            made.partition.append(batch(b"y"))
        made.partition.disk.flush_by_time([made.partition.appends.flushes])
        await made.partition.appends.settled()
        assert made.disk.syncs == syncs  # never tried again on the same file


async def test_a_sync_that_fails_on_one_log_settles_the_others(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as made:
        other = made.another("u")
        await made.append(b"before")
        made.disk.sync_error = errno.EIO
        first, second = made.partition.append(batch(b"x")), other.append(batch(b"y"))
        made.writer.write_queued()
        await first.wait()
        await second.wait()
        assert first.error is not None
        assert second.error is None
        await other.retire()


async def test_a_waiter_is_woken_when_enough_bytes_have_come(tmp_path: Path) -> None:
    size = len(batch(b"x"))
    async with rig(tmp_path) as made:
        woken = trio.Event()
        waiter = FetchWaiter(size * 2, woken.set)
        made.partition.enlist(waiter)
        await made.append(b"x")
        assert not woken.is_set()
        await made.append(b"x")
        await woken.wait()
        made.partition.dismiss(waiter)


class Leaving:
    """A waiter that is dismissed as soon as it is woken, as a share-partition is that closes."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_woken = False

    def grown(self, size: int) -> None:
        """Nothing."""

    def moved(self) -> None:
        """Nothing."""

    def wake(self) -> None:
        self.is_woken = True
        self.partition.dismiss(self)


@pytest.mark.parametrize("committed", [False, True])
async def test_waiters_may_be_dismissed_while_all_are_woken(tmp_path: Path, committed: bool) -> None:
    async with rig(tmp_path) as made:
        waiters = [Leaving(made.partition) for _ in range(3)]
        for waiter in waiters:
            made.partition.enlist(waiter, committed=committed)
        await made.partition.retire()
        assert all(waiter.is_woken for waiter in waiters)


async def test_a_damaged_index_is_rebuilt_and_then_the_reader_is_woken(tmp_path: Path) -> None:
    one = len(batch(b"x" * 100))
    async with rig(tmp_path, segment_bytes=one * 20, index_interval_bytes=one) as made:
        for _ in range(50):
            await made.append(b"x" * 100)
        await made.partition.retire()
        made.partition.log.close()
        for index in (tmp_path / "t-0").glob("*.index"):
            index.write_bytes(b"\xff" * index.stat().st_size)
        made.partition = made.another("t")
        woken = trio.Event()
        waiter = FetchWaiter(1, woken.set)
        made.partition.enlist(waiter)
        assert made.partition.read(5, 1000, min_one_batch=True) is None
        await woken.wait()
        found = made.partition.read(5, one, min_one_batch=True)
        assert found is not None
        assert found.slice is not None
        assert [header.base_offset for _, header in headers(found.slice.read_all())] == [5]


async def test_a_slice_can_be_read_after_its_log_is_deleted(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.append(b"keep me")
        found = made.partition.read(0, 1000, min_one_batch=True)
        assert found is not None
        assert found.slice is not None
        await made.partition.retire()
        made.partition.log.delete()
        assert b"keep me" in found.slice.read_all()


async def test_a_defect_while_writing_is_the_failure_of_one_log_and_who_waits_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        for size in (1, 200_000):  # on the loop, and in a worker
            broken, sound = made.another(f"broken{size}"), made.another(f"sound{size}")
            made.disk.defect = ArithmeticError("a defect")
            appends = [partition.append(batch(b"x" * size)) for partition in (broken, sound)]
            made.writer.write_queued()
            for append in appends:
                await append.wait()
            failed = [append.error is not None for append in appends]
            assert sorted(failed) == [False, True]  # workers come in any order
            assert [broken.log.failed, sound.log.failed] == failed


async def test_a_sync_that_succeeds_after_another_one_failed_moves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.append(b"x")
        plan = made.partition.appends.flushes.begin_flush()
        assert plan is not None
        made.partition.log.fail("the sync of a rolled segment failed")
        made.partition.appends.flushes.flushed(plan, None)
        assert made.partition.log.durability.recovery_point == 0


async def test_who_waits_for_a_sync_of_a_log_that_failed_meanwhile_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as made:
        append = made.partition.append(batch(b"x"))
        made.writer.write_queued()
        made.partition.log.fail("the sync of a rolled segment failed")
        await append.wait()
        assert "the log has failed" in str(append.error)


async def test_retiring_waits_for_rolls_and_syncs_and_a_cancelled_broker_for_its_writes(tmp_path: Path) -> None:
    async with rig(tmp_path, segment_bytes=1000, flush_messages=1) as made:
        appends = [made.partition.append(batch(b"x" * 600)) for _ in range(4)]
        made.writer._nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await made.partition.retire()
        assert all(append.done and append.error is None for append in appends)
        assert made.partition.log.durability.recovery_point == 4
        assert all(segment.synced for segment in made.partition.log._state.segments.snapshot[:-1])
        made.partition.log.close()


async def test_an_index_that_cannot_be_rebuilt_is_refused_for_a_while_instead_of_tried_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, segment_bytes=1000) as made:
        for _ in range(3):
            await made.append(b"x" * 600)
        await made.partition.appends.settled()
        damaged = made.partition.log._state.segments.first
        tries = []

        def fails(*_: object) -> None:
            tries.append(1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("warmlog.broker.log.recovery.index_repair.rebuild_indexes", fails)
        damaged.forget_indexes()
        os.truncate(damaged.path(".index"), 3)
        assert made.partition.read(0, 1 << 20, min_one_batch=True) is None
        await made.partition.appends.settled()
        for _ in range(3):
            with pytest.raises(StorageError, match="index of segment 0"):
                made.partition.read(0, 1 << 20, min_one_batch=True)
        assert len(tries) == 1


async def test_a_roll_moves_the_recovery_point_to_the_new_segment(tmp_path: Path) -> None:
    async with rig(tmp_path, segment_bytes=1000) as made:
        for _ in range(3):
            await made.append(b"x" * 600)
        await made.partition.appends.settled()
        assert made.partition.log.durability.recovery_point == 2
        assert made.partition.log.durability.unflushed_bytes < 1000
