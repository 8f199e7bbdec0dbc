"""Duplicates in the queue of a partition: they are answered after their originals, and as these are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.broker.partitions.test_partition import Rig
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import NoSpaceError, OutOfOrderSequenceError
from warmlog.broker.partitions.appends.errors import EarlierBatchRefusedError
from warmlog.broker.partitions.partition import StorageError
from warmlog.protocol.records.builder import build_batch

LARGE = 100_000  # written by a worker


def batch(sequence: int, size: int = 10) -> bytes:
    rows = [(1_700_000_000_000, None, b"v" * size, ())]
    return build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=sequence)


@asynccontextmanager
async def rig(directory: Path, **config: object) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery, LogConfig(**config))  # type: ignore[arg-type]
        yield made
        await made.partition.retire()
        made.partition.log.close()


async def test_a_duplicate_of_what_is_being_written_waits_for_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        partition, writer = it.partition, it.writer
        first = partition.append(batch(0, LARGE))
        writer.write_queued()  # a worker has it now
        again = partition.append(batch(0, LARGE))
        writer.write_queued()
        assert not first.done
        assert not again.done
        await again.wait()
        assert first.done
        assert (first.error, again.error, again.planned.base_offset) == (None, None, 0)
        assert it.stored() == [(0, 0)]
        assert (await it.append(b"x")).planned.base_offset == 1


@pytest.mark.parametrize("size", [10, LARGE])
async def test_a_duplicate_fails_with_its_original(tmp_path: Path, size: int) -> None:
    async with rig(tmp_path) as it:
        partition, writer = it.partition, it.writer
        it.disk.write_error = 28
        first, again = partition.append(batch(0, size)), partition.append(batch(0, size))
        writer.write_queued()
        await first.wait()
        await again.wait()
        assert isinstance(first.error, StorageError)
        assert isinstance(again.error, StorageError)
        once_more = partition.append(batch(0, size))
        writer.write_queued()
        await once_more.wait()
        assert once_more.error is None
        assert not once_more.planned.is_duplicate
        assert it.stored() == [(0, 0)]


async def test_a_duplicate_waits_for_the_sync_of_its_original(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as it:
        partition, writer = it.partition, it.writer
        first = partition.append(batch(0))
        writer.write_queued()
        again = partition.append(batch(0))
        writer.write_queued()
        assert partition.log.offsets.log_end_offset == 1
        assert not again.done
        await again.wait()
        assert first.done
        assert partition.log.durability.recovery_point == 1


async def test_a_duplicate_fails_where_its_original_could_not_be_synced(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=1) as it:
        partition, writer = it.partition, it.writer
        first = partition.append(batch(0))
        it.disk.sync_error = 5
        writer.write_queued()
        again = partition.append(batch(0))
        writer.write_queued()
        await first.wait()
        await again.wait()
        assert isinstance(first.error, StorageError)
        assert isinstance(again.error, StorageError)


async def test_duplicates_and_new_batches_of_one_pipeline_keep_their_order(tmp_path: Path) -> None:
    async with rig(tmp_path, segment_bytes=400) as it:  # with rolls in between
        partition, writer = it.partition, it.writer
        appends = [partition.append(batch(sequence, 100)) for sequence in (0, 1, 1, 2, 0, 3, 4, 3, 5)]
        writer.write_queued()
        for append in appends:
            await append.wait()
            assert append.error is None
        assert [append.planned.base_offset for append in appends] == [0, 1, 1, 2, 0, 3, 4, 3, 5]
        assert it.stored() == [(at, at) for at in range(6)]


async def test_a_gap_just_after_a_refusal_is_not_the_fault_of_the_producer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rig(tmp_path) as it:
        partition = it.partition
        partition.append(batch(0))
        partition.appends.gaps.note_refusal()
        with pytest.raises(EarlierBatchRefusedError):
            partition.append(batch(2))
        await trio.sleep(2)
        with pytest.raises(OutOfOrderSequenceError):
            partition.append(batch(2))
        partition.append(batch(1))
        assert not partition.append(batch(2)).error


async def test_a_batch_that_is_decompressed_behind_a_gap_just_after_a_refusal_is_sent_again(tmp_path: Path) -> None:
    async with rig(tmp_path, message_timestamp_type="LogAppendTime", compression_type="gzip") as it:
        partition = it.partition
        await partition.append(batch(0, LARGE)).wait()
        partition.appends.gaps.note_refusal()
        behind = partition.append(batch(2, LARGE))
        await behind.wait()
        assert isinstance(behind.error, EarlierBatchRefusedError)


async def test_an_unknown_producer_begins_with_its_first_batch_just_after_a_refusal(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rig(tmp_path) as it:
        partition = it.partition
        partition.appends.gaps.note_refusal()
        with pytest.raises(EarlierBatchRefusedError):
            partition.append(batch(1))
        partition.append(batch(0))
        partition.append(batch(1))


async def test_a_log_that_forgot_a_producer_takes_any_of_its_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rig(tmp_path) as it:
        it.partition.appends.gaps.note_refusal()
        await trio.sleep(2)
        it.partition.append(batch(7))


async def test_a_batch_behind_one_for_which_there_was_no_room_is_sent_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        partition = it.partition
        partition.append(batch(0))
        partition.log.appends.space_status.is_short = True
        with pytest.raises(NoSpaceError):
            partition.append(batch(1))
        partition.log.appends.space_status.is_short = False
        with pytest.raises(EarlierBatchRefusedError):
            partition.append(batch(2))


async def test_a_copy_is_taken_at_once_although_a_flush_is_due(tmp_path: Path) -> None:
    async with rig(tmp_path, flush_messages=2) as it:
        for offset in range(5):
            copied = build_batch([(1_700_000_000_000, None, b"v", ())], base_offset=offset)
            assert it.partition.appends.copy_at_once(copied, None)
        assert it.partition.log.offsets.log_end_offset == 5
