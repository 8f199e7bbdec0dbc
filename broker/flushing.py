"""Syncs by time: logs are looked at every so often for those that were not synced for `flush.ms`.

Owns: which logs are due, and how often to look. Must not know how a log is synced, or who waits for that.

Source: kafka.log.LogManager.flushDirtyLogs.
"""

from collections.abc import Iterable

import trio

from broker.config import MAX_FLUSH_CHECK_MS, MIN_FLUSH_CHECK_MS
from broker.partition import Partition
from broker.writer import Writer
from protocol.records.record import MAX_INT64


class Flushing:
    """The rounds of one broker; `interval_ms` is `log.flush.scheduler.interval.ms`, MAX_INT64 where it is not set."""

    def __init__(self, partitions: Iterable[Partition], writer: Writer, *, interval_ms: int) -> None:
        self._partitions = partitions
        self._writer = writer
        self._interval_ms = interval_ms

    @property
    def interval_s(self) -> float:
        """When to look again: where the setting says nothing, as `Settings.flush_check_ms`, for the smallest of all."""
        if self._interval_ms < MAX_INT64:
            return self._interval_ms / 1000
        least_ms = min((partition.log.config.flush_ms for partition in self._partitions), default=MAX_INT64)
        return min(max(least_ms, MIN_FLUSH_CHECK_MS), MAX_FLUSH_CHECK_MS) / 1000

    async def flush_due(self) -> None:
        """Sync the logs that have something to sync and were last synced `flush.ms` ago, all in one round."""
        now = trio.current_time()
        due = [partition for partition in self._partitions if _is_due(partition, now)]
        if due:
            await self._writer.flush(due)


def _is_due(partition: Partition, now: float) -> bool:
    log = partition.log
    flush_ms = log.config.flush_ms
    if flush_ms == MAX_INT64:  # as it is by default, and a thousand logs are looked at quickly
        return False
    is_dirty = log.recovery_point < log.log_end_offset and not log.failed
    return is_dirty and now - partition.synced_at >= flush_ms / 1000
