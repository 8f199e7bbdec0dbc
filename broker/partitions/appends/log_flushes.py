"""Flushes of one log, and the appends that wait for them.

Invariants:
1. An append that awaits a flush is settled, or handed to the replication, once the recovery point is past it.
2. If a flush fails, the log and all appends that await a flush fail as well.
"""

import logging

import trio

from warmlog.broker.log.appends.durability import FlushPlan
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.append import Append, StorageError
from warmlog.broker.partitions.appends.log_tasks import LogTasks
from warmlog.broker.partitions.appends.replication import Replication
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.reads.waiters import WaitingFetches

logger = logging.getLogger(__name__)


class LogFlushes:
    """The flushes of one log. Belongs to the event loop."""

    def __init__(self, log: PartitionLog, disk: DiskWorkers, tasks: LogTasks, waiters: WaitingFetches) -> None:
        self.log = log
        self.disk = disk
        self.replication: Replication | None = None  # see `AppendQueue`
        self.is_switching = False  # flushes are suspended: the log is switching to its new directory
        self.flushed_at = trio.current_time()  # time of the last flush, or of opening
        self._tasks = tasks
        self._waiters = waiters
        self.waiting: list[Append] = []  # appends that await a flush

    def settle_later(self, group: list[Append]) -> None:
        """Flush the log, then settle these appends."""
        self.waiting += group
        self.disk.request_flush(self, len(group))

    def begin_flush(self) -> FlushPlan | None:
        """Return what to flush, or None if the log has failed or is moving. `flushed` must follow."""
        self._tasks.enter()
        return None if self.log.failed or self.is_switching else self.log.durability.begin_flush()

    def flushed(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Record the outcome of a flush that `begin_flush` began."""
        self.finish(plan, error)
        self._tasks.leave()

    def flush_shown(self) -> None:
        """Flush readable records, if only flushed records may be read."""
        if (
            self.log.durability.flush_messages == 1
            and self.log.durability.recovery_point < self.log.offsets.log_end_offset
        ):
            self.disk.request_flush(self)

    async def flushed_up_to(self, offset: int) -> None:
        """Flush the log, and wait until the recovery point has reached this offset, or the log has failed."""
        while self.log.durability.recovery_point < offset and not self.log.failed:
            self.disk.request_flush(self)
            await self._tasks.changed()

    def flush_recovered(self) -> None:
        """Flush, in the background, sealed segments that recovery checked and whose rolls had not flushed them.

        Compaction waits for this flush. Without it, the next recovery would check these segments again.
        """
        if self.log.recovery is not None and self.log.durability.recovery_point < self.log.active_base_offset:
            self._tasks.spawn(self._flush_recovered)

    async def _flush_recovered(self) -> None:
        with self._tasks.inside(), trio.CancelScope(shield=True):
            if self.log.failed or self.is_switching:
                return
            plan = self.log.durability.begin_flush()
            error: Exception | None = None
            try:
                await self.disk.keep_up(plan.sync)
            except OSError as failure:
                error = failure
            self.finish(plan, error)

    def finish(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Advance the recovery point and settle appends, or fail the log.

        The recovery point of a log that has failed in the meantime is not advanced: Linux reports a write error to one
        fsync only, and the next fsync succeeds.
        """
        log = self.log
        if error is not None:
            log.fail(error)
            logger.error("%s-%d: log failed: fsync: %s", log.topic, log.partition, error)
        if plan is not None and not log.failed:
            self._advance_recovery_point(plan)
        reason = error or "the log has failed"
        self._settle_flushed(StorageError(f"{log.topic}-{log.partition}: fsync failed: {reason}"))
        if log.failed:
            self._tasks.report_health()

    def _advance_recovery_point(self, plan: FlushPlan) -> None:
        log = self.log
        self.flushed_at = trio.current_time()
        shown, unflushed = log.offsets.high_watermark, log.durability.unflushed_bytes
        log.durability.finish_flush(plan)
        if self.replication is not None:
            self.replication.flushed()
        elif log.offsets.high_watermark > shown:
            self._waiters.grown(unflushed - log.durability.unflushed_bytes)

    def _settle_flushed(self, failure: StorageError) -> None:
        """Settle the appends that are flushed, or all of them with `failure` if the log has failed."""
        waiting, self.waiting = self.waiting, []
        flushed: list[Append] = []
        for append in waiting:
            if self.log.failed:
                append.settle(failure)
            elif append.planned.last_offset < self.log.durability.recovery_point:
                flushed.append(append)
            else:
                self.waiting.append(append)
        if self.replication is not None:
            self.replication.written(flushed)
        else:
            for append in flushed:
                append.settle()
        if self.waiting:
            self.disk.request_flush(self)
