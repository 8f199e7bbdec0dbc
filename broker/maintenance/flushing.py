"""Flushing by time: fsync logs whose unflushed records are older than `flush.ms`.

Source: kafka.log.LogManager.flushDirtyLogs.
"""

from collections.abc import Iterable

import trio

from warmlog.broker.maintenance.pieces import in_pieces
from warmlog.broker.partitions.appends.log_flushes import LogFlushes
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.settings.settings import MAX_FLUSH_CHECK_MS, MIN_FLUSH_CHECK_MS
from warmlog.protocol.records.record import MAX_INT64


class Flushing:
    """Finds and flushes due logs; `interval_ms` is `log.flush.scheduler.interval.ms`, MAX_INT64 if it is not set."""

    def __init__(self, partitions: Iterable[Partition], *, interval_ms: int) -> None:
        self._partitions = partitions
        self._interval_ms = interval_ms

    async def interval_s(self) -> float:
        """Return the time until the next check. By default it depends on the smallest `flush.ms` of any log."""
        if self._interval_ms < MAX_INT64:
            return self._interval_ms / 1000
        least_ms = MAX_INT64
        async for piece in in_pieces(self._partitions):
            least_ms = min(least_ms, *[partition.log.config.flush_ms for partition in piece])
        return min(max(least_ms, MIN_FLUSH_CHECK_MS), MAX_FLUSH_CHECK_MS) / 1000

    async def begin_due(self) -> None:
        """Begin to flush the logs that have unflushed records and were last flushed at least `flush.ms` ago.

        Each data directory has its own round, and this method does not wait for them: a slow disk delays no other.
        """
        now = trio.current_time()
        due: dict[DiskWorkers, list[LogFlushes]] = {}
        async for piece in in_pieces(self._partitions):
            for partition in piece:
                if _is_due(partition, now):
                    due.setdefault(partition.disk, []).append(partition.appends.flushes)
        for disk, flushes in due.items():
            disk.flush_by_time(flushes)


def _is_due(partition: Partition, now: float) -> bool:
    log = partition.log
    flush_ms = log.config.flush_ms
    if flush_ms == MAX_INT64:  # the default
        return False
    is_dirty = log.durability.recovery_point < log.offsets.log_end_offset and not log.failed
    return is_dirty and now - partition.flushed_at >= flush_ms / 1000
