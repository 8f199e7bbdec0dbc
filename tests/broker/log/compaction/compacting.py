"""Helpers for tests of compaction: logs of keyed records, one run, and what consumers read after it."""

from collections.abc import Iterator
from typing import Any

from warmlog.broker.log.compaction.run import CleanerLimits, Compaction, CompactionSummary
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.recovery.swap import Swap
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.compaction.offset_map import OffsetMap
from warmlog.protocol.records.reader import records_in

Bench = Any
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Pair = tuple[str | None, str | None]
Contents = list[tuple[int, str, str | None]]


def batch(pairs: list[Pair], *, timestamp: int = START_MS, **header: Any) -> bytes:
    rows = [
        (timestamp + at, None if key is None else key.encode(), None if value is None else value.encode(), ())
        for at, (key, value) in enumerate(pairs)
    ]
    return build_batch(rows, **header)


def limits(*, entries: int = 1000, io_buffer_bytes: int = 0) -> CleanerLimits:
    """Return limits under which one run maps `entries` keys."""
    return CleanerLimits(
        dedupe_buffer_bytes=entries * 10 * OffsetMap.ENTRY_SIZE,
        load_factor=0.1,
        io_buffer_bytes=io_buffer_bytes,
        max_bytes_per_second=1e300,
    )


def swap_steps(log: PartitionLog, swap: Swap) -> Iterator[str]:
    """Do a swap step by step; yield the name of each step after it."""
    cleaning = log.cleaning
    cleaning.prepare_swap(swap)
    yield "prepared"
    cleaning.commit_swap(swap)
    yield "committed"
    names = cleaning.finish_swap(swap)
    yield "finished"
    cleaning.end_swap(swap)
    yield "ended"
    log.old_segments.unlink(names)


def compact(log: PartitionLog, checkpoint: int | None = None, **room: int) -> CompactionSummary | None:
    """Compact once, as the broker does; return None if nothing can be cleaned."""
    log.durability.flush()
    cleanable = log.cleaning.find(checkpoint)
    if not cleanable.cleanable_bytes:
        return None
    run = Compaction(log.cleaning.job(cleanable, log.producers.capture(), limits(**room)), lambda _: None)
    for group in run.run():
        for _ in swap_steps(log, log.cleaning.plan_swap(group)):
            pass
    return run.summary()


def contents(log: PartitionLog) -> Contents:
    """Return all records as consumers read them: (offset, key, value)."""
    found: Contents = []
    offset = log.offsets.log_start_offset
    while offset < log.offsets.log_end_offset:
        piece = log.reads.read(offset, 700, min_one_batch=True).slice
        if piece is None:
            break
        data = piece.read_all()
        for record in records_in(data, from_offset=offset):
            value = None if record.value is None else record.value.decode()
            found.append((record.offset, (record.key or b"").decode(), value))
        offset = max(header.next_offset for _, header in headers(data))
    return found


def fill(log: PartitionLog, pairs: list[Pair], *, size: int = 1, **header: Any) -> None:
    """Append batches of `size` records."""
    for at in range(0, len(pairs), size):
        log.appends.append(batch(pairs[at : at + size], timestamp=START_MS + log.offsets.log_end_offset, **header))


def keyed(count: int, keys: int) -> list[Pair]:
    return [(f"k{at % keys}", f"v{at:03}") for at in range(count)]
