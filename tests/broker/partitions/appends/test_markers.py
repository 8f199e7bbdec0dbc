"""Markers in the queue of a partition: their order, their failures, and the fetches that they wake."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.broker.log.producers.transactions import committed, marker, transactional
from tests.broker.partitions.test_partition import Rig
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import InvalidProducerEpochError
from warmlog.broker.partitions.appends.batch_opener import LOOP_BYTES
from warmlog.broker.partitions.partition import StorageError
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT, Codec
from warmlog.protocol.records.markers import Outcome

ABORT, COMMIT = Outcome.ABORT, Outcome.COMMIT


@asynccontextmanager
async def rig(directory: Path, **config: int) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery, LogConfig(**config))  # type: ignore[arg-type]
        yield made
        await made.partition.retire()
        made.partition.log.close()


def large(producer_id: int, sequence: int) -> bytes:
    """A compressed batch that a thread decompresses."""
    rows = [(1_700_000_000_000, None, bytes([i % 251, i // 251]) * 8, ()) for i in range(9000)]
    data = build_batch(
        rows,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
        compression=Codec.GZIP,
    )
    assert len(data) > LOOP_BYTES
    return data


async def test_a_marker_is_written_behind_the_batches_that_came_before_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        partition, guards = it.partition, it.partition.log.producers.guards
        first = partition.append(large(7, 0), guard=guards.open(7))
        ended = partition.append_marker(marker(7, COMMIT))
        again = partition.append_marker(marker(7, ABORT))
        last = partition.append(large(8, 0), guard=guards.open(8))
        aborted = partition.append_marker(marker(8, ABORT))
        it.writer.write_queued()
        for append in (first, ended, again, last, aborted):
            await append.wait()
            assert append.error is None
        bases = [append.planned.base_offset for append in (first, ended, again, last, aborted)]
        assert bases == [0, 9000, 9001, 9002, 18002]
        assert partition.log.offsets.last_stable_offset == 18003
        assert committed(partition.log) == list(range(9000))


async def test_a_refused_marker_behind_batches_fails_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        partition = it.partition
        first = partition.append(large(7, 0), guard=partition.log.producers.guards.open(7))
        stale = partition.append_marker(marker(7, COMMIT, epoch=-1))
        ended = partition.append_marker(marker(7, COMMIT))
        for append in (first, stale, ended):
            await append.wait()
        assert isinstance(stale.error, InvalidProducerEpochError)
        assert (first.error, ended.error) == (None, None)
        assert partition.log.offsets.last_stable_offset == 9001


async def test_a_marker_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        partition, writer = it.partition, it.writer
        partition.append(transactional(7, 0), guard=partition.log.producers.guards.open(7))
        writer.write_queued()
        it.disk.write_error = 28
        ended = partition.append_marker(marker(7, COMMIT))
        writer.write_queued()
        assert isinstance(ended.error, StorageError)
        assert (partition.log.offsets.last_stable_offset, partition.log.offsets.log_end_offset) == (0, 1)
        partition.append_marker(marker(7, COMMIT))
        writer.write_queued()
        assert partition.log.offsets.last_stable_offset == 2


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_marker_wakes_fetches_of_committed_records(tmp_path: Path, outcome: Outcome) -> None:
    async with rig(tmp_path) as it:
        partition, writer, woken = it.partition, it.writer, []
        waiter = FetchWaiter(1 << 20, lambda: woken.append(True))
        partition.append(transactional(7, 0), guard=partition.log.producers.guards.open(7))
        writer.write_queued()
        partition.enlist(waiter, committed=True)
        partition.append(transactional(7, 1))
        writer.write_queued()
        assert not woken
        partition.append_marker(marker(7, outcome))
        writer.write_queued()
        assert woken
        partition.dismiss(waiter)
