"""Read a partition of a coordinator's topic from its start to its end.

Invariants:
1. Reading does not hold the event loop: a worker reads and decompresses, the loop processes `PIECE` records at a time.
2. Records are not used before the high watermark covers them: until then another broker that lacks the end of the log
   may become leader, and clients would have seen state that was never stored.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorLoaderImpl.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

import trio

from warmlog.broker.coordinator.replay import Replay
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.reads.waiters import FetchWaiter
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.reader import Record, decode_batch

READ_BYTES = 1 << 20  # bytes per read: some thousands of records, a few ms in the worker
MAX_BATCH_OPENED = 128 << 20  # bytes of a batch, all of whose records are needed at the same time
PIECE = 500  # records processed between two checkpoints: half a millisecond

Loaded: TypeAlias = list[tuple[BatchHeader, list[Record]]]


def _any(_: Record) -> bool:
    return True


async def read_partition(
    partition: Partition, *, end: int | None = None, takes: Callable[[Record], bool] = _any
) -> Replay:
    """Read a partition to its current end, or up to an offset, and wait until the high watermark covers that.

    `takes`: which records to replay, besides control records. Records of an unreadable batch are skipped and reported.
    Raises OSError, LogError, StorageError, and CorruptBatchError for a damaged batch.
    """
    replay = Replay(partition.log.offsets.log_end_offset if end is None else end)
    async with aclosing(batches_of(partition, replay.end)) as batches:
        async for header, batch in batches:
            records = batch if takes is _any or header.is_control else [each for each in batch if takes(each)]
            for start in range(0, len(records), PIECE):
                replay.take(header, records[start : start + PIECE])
                await trio.lowlevel.checkpoint()
    await until_replicated(partition, replay.end)
    return replay


async def until_replicated(partition: Partition, end: int) -> None:
    """Wait until the high watermark has reached an offset."""
    while partition.log.offsets.high_watermark < end:
        await _change_of(partition)


async def _change_of(partition: Partition) -> None:
    """Wait until the high watermark has moved, or anything else has changed."""
    changed = trio.Event()
    waiter = FetchWaiter(1, changed.set)
    partition.enlist(waiter)
    try:
        await changed.wait()
    finally:
        partition.dismiss(waiter)


async def batches_of(partition: Partition, end: int) -> AsyncGenerator[tuple[BatchHeader, list[Record]], None]:
    """Yield every batch below `end`, control batches included."""
    offset = partition.log.offsets.log_start_offset
    while offset < end:
        try:
            read = partition.read(offset, READ_BYTES, min_one_batch=True, to_log_end=True)
        except ColdReadError as cold:
            await trio.to_thread.run_sync(cold.job)
            continue
        if read is None:  # its index is being rebuilt
            await _change_of(partition)
            continue
        if read.slice is None:
            return
        loaded = await trio.to_thread.run_sync(_load, read.slice, partition.log)
        if not loaded:
            raise StorageError(f"no batch can be read at offset {offset}")
        for header, records in loaded:
            yield header, records
            offset = header.next_offset


def _load(part: FileSlice, log: PartitionLog) -> Loaded:
    """Read a slice, and check and decompress its complete batches. Blocks: runs in a worker."""
    data = part.read_all()
    loaded: Loaded = []
    for position, header in headers(data):
        verify_crc(data, position, header)
        try:
            loaded.append((header, decode_batch(data, position, header, max_decompressed_size=MAX_BATCH_OPENED)))
        except ProtocolError as error:
            log.reads.note_unreadable("coordinator", header.base_offset, error)
            loaded.append((header, []))
    return loaded
