"""Lookups of times in many logs with few calls of worker threads."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.rig import START_MS, FailingDisk, Rig, rig
from warmlog.broker.api.errors import EXPECTED
from warmlog.broker.api.records import time_lookups
from warmlog.broker.api.records.time_lookups import MAX_CALLS, MAX_GROUP, Outcome, TimeLookups, TimeQuestion
from warmlog.broker.log.index.time import TimestampOffset
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import MAX_TIMESTAMP

RECORDS = 20
SETTINGS = ("log.index.interval.bytes=0",)
MANY = 3 * MAX_GROUP


class WatchedDisk(FailingDisk):
    """Calls `at_read` before each read of bytes, in the thread that reads. Creates no files while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.at_read: Callable[[], None] = lambda: None
        self.is_full = False

    def open(self, path: str, flags: int) -> int:
        if self.is_full and flags & os.O_CREAT:
            raise OSError(ENOSPC, "No space left on device")
        return super().open(path, flags)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.at_read()
        return super().pread(fd, size, position)


class Calls:
    """Counts the calls that look up times in worker threads, and how many of them there are at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.now = self.most = 0
        run_sync = trio.to_thread.run_sync

        async def counted(function: Any, *arguments: Any, **options: Any) -> Any:
            if function is not time_lookups._look_up_each:  # maintenance has threads, too
                return await run_sync(function, *arguments, **options)
            self.count += 1
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                return await run_sync(function, *arguments, **options)
            finally:
                self.now -= 1

        monkeypatch.setattr(trio.to_thread, "run_sync", counted)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, *SETTINGS, disk=WatchedDisk()) as bench:
        yield bench


async def filled(bench: Rig, name: str) -> Partition:
    """Create a partition with a record at each of `RECORDS` times."""
    partition = await bench.create(name)
    for number in range(RECORDS):
        append = partition.append(build_batch([(START_MS + number, None, b"v", ())]))
        bench.writer.write_queued()
        await append.wait()
    return partition


@pytest.fixture
async def partition(bench: Rig) -> Partition:
    return await filled(bench, "orders")


def questions(partition: Partition, numbers: Sequence[int]) -> list[TimeQuestion]:
    return [TimeQuestion(partition, START_MS + number) for number in numbers]


def offsets(outcomes: Sequence[Outcome]) -> list[int | None]:
    return [each.offset if isinstance(each, TimestampOffset) else None for each in outcomes]


async def test_outcomes_come_in_the_order_of_the_questions(partition: Partition) -> None:
    asked = questions(partition, [number * 7 % RECORDS for number in range(MANY)])
    outcomes = await TimeLookups().find(asked)
    assert [(each.timestamp, each.offset) for each in outcomes if isinstance(each, TimestampOffset)] == [
        (timestamp, timestamp - START_MS) for _, timestamp in asked
    ]


async def test_a_time_past_the_end_and_the_largest_one_stand_among_others(partition: Partition) -> None:
    asked = [*questions(partition, [3, RECORDS]), TimeQuestion(partition, MAX_TIMESTAMP), *questions(partition, [4])]
    assert offsets(await TimeLookups().find(asked)) == [3, None, RECORDS - 1, 4]


async def test_a_group_of_questions_takes_one_call(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_lookups, "GROUP_S", 60.0)
    calls = Calls(monkeypatch)
    await TimeLookups().find(questions(partition, [1] * MAX_GROUP))
    assert calls.count == 1
    await TimeLookups().find(questions(partition, [1] * MANY))
    assert calls.count == 1 + MANY / MAX_GROUP
    assert calls.most == MAX_CALLS
    await TimeLookups().find([])
    assert calls.count == 1 + MANY / MAX_GROUP


async def test_a_call_ends_when_its_time_is_up_and_the_rest_is_looked_up_in_others(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_lookups, "GROUP_S", 0.0)
    calls = Calls(monkeypatch)
    numbers = [number % RECORDS for number in range(MAX_GROUP + 1)]
    assert offsets(await TimeLookups().find(questions(partition, numbers))) == numbers
    assert calls.count == len(numbers)


async def test_an_error_is_the_outcome_of_its_own_question(bench: Rig, partition: Partition) -> None:
    removed = await filled(bench, "removed")
    await bench.partitions.delete("removed")
    asked = [TimeQuestion(each, START_MS + 5) for each in (partition, removed, partition)]
    outcomes = await TimeLookups().find(asked)
    assert offsets(outcomes) == [5, None, 5]
    assert isinstance(outcomes[1], EXPECTED)


async def test_an_error_keeps_no_frame_of_its_worker(bench: Rig, partition: Partition) -> None:
    def fail() -> None:
        raise OSError(EIO, "Input/output error")

    bench.disk.at_read = fail
    (outcome,) = await TimeLookups().find(questions(partition, [5]))
    assert isinstance(outcome, OSError)
    assert outcome.__traceback__ is None


@asynccontextmanager
async def with_corrupt_index(directory: Path) -> AsyncIterator[tuple[Rig, Partition, Partition]]:
    """Yield a partition whose time index was altered before it was opened, and an intact one."""
    async with rig(directory, *SETTINGS) as bench:
        for name in ("damaged", "intact"):
            await filled(bench, name)
    index = directory / "damaged-0" / f"{0:020}.timeindex"
    content = bytearray(index.read_bytes())
    content[5 * 12 + 11] ^= 1  # the offset of the seventh record: the first has no entry
    index.write_bytes(content)
    async with rig(directory, *SETTINGS, disk=WatchedDisk()) as bench:
        damaged, intact = (bench.partitions.get(name, 0) for name in ("damaged", "intact"))
        assert damaged is not None
        assert intact is not None
        yield bench, damaged, intact


async def test_a_corrupt_index_is_rebuilt_and_every_time_is_found(tmp_path: Path) -> None:
    async with with_corrupt_index(tmp_path) as (_, damaged, intact):
        asked = [TimeQuestion(each, START_MS + number) for number in range(RECORDS) for each in (damaged, intact)]
        assert offsets(await TimeLookups().find(asked)) == [number for number in range(RECORDS) for _ in range(2)]
        assert (damaged.log.active_base_offset, intact.log.active_base_offset) == (RECORDS, 0), "only one was sealed"


async def test_an_index_that_cannot_be_rebuilt_is_the_outcome_of_its_own_question(tmp_path: Path) -> None:
    async with with_corrupt_index(tmp_path) as (bench, damaged, intact):
        bench.disk.is_full = True  # so that the active segment cannot be sealed
        asked = [TimeQuestion(each, START_MS + 6) for each in (intact, damaged, intact)]
        outcomes = await TimeLookups().find(asked)
    assert offsets(outcomes) == [6, None, 6]
    assert isinstance(outcomes[1], StorageError)


async def test_a_cancelled_request_ends_its_call_after_the_present_lookup(bench: Rig, partition: Partition) -> None:
    reads = 0

    def cancel() -> None:
        nonlocal reads
        reads += 1
        trio.from_thread.run_sync(scope.cancel)

    await TimeLookups().find(questions(partition, [5]))  # which checks the indexes
    with trio.CancelScope() as scope:
        bench.disk.at_read = cancel
        await TimeLookups().find(questions(partition, [5] * MAX_GROUP))
    assert scope.cancelled_caught
    assert 0 < reads < MAX_GROUP
