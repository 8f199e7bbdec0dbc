"""Compaction: run cleaner processes over the dirty logs, and swap in the segments they clean.

How records are filtered is in `broker.log.compaction.run`, when a log is due in `broker.log.compaction.cleanable`, and
which log is next in `broker.maintenance.dirty_logs`.

    loop     every `log.cleaner.backoff.ms`, and at once after a run: take the dirtiest log that is due
    child    build the offset map, clean a group of segments   (controlled over pipes; niced, throttled)
    worker, loop, worker   swap in the cleaned segment          (`broker.log.recovery.swap`)
    child    the next group ...
    worker   write cleaner-offset-checkpoint, once nothing is due, and with every other checkpoint

Invariants:
1. A log has at most one run at a time, and none while retention removes segments of it. Deleting a log cancels its run.
2. A log that cannot be cleaned is logged, counted and skipped until the next startup; other logs are cleaned.
3. The broker only renames files and replaces map entries. Memory and CPU are used by the child, which exits when
   nothing is dirty.

Source: kafka.log.LogCleaner, LogCleanerManager.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from warmlog.broker.log.compaction.run import CleanerLimits
from warmlog.broker.log.errors import LogError
from warmlog.broker.maintenance.cleaner_child import (
    ChildDiedError,
    CleanedGroup,
    CleanerChild,
    CompactionSummary,
    Failure,
)
from warmlog.broker.maintenance.dirty_logs import DirtyLogs, Due
from warmlog.broker.maintenance.file_removal import FileRemoval
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

MAX_DEATHS = 2  # consecutive child deaths over one log before the log is considered uncleanable


class UncleanableError(Exception):
    """A log cannot be cleaned, and retrying would not help."""


@dataclass(slots=True)
class CleanerStatistics:
    """Totals since startup."""

    runs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    running: int = 0
    last_run_seconds: float = 0.0
    heard_at: float = field(default_factory=time.monotonic)  # time of the last sign of life
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("damage", "disk", "death", "stuck"), 0))


class Cleaner:
    """Compacts logs; `run` it in a nursery that ends with the broker."""

    def __init__(self, partitions: Partitions, unlinking: FileRemoval, metrics: Metrics) -> None:
        self._partitions = partitions
        self._unlinking = unlinking
        self.statistics = CleanerStatistics()
        self.dirty = DirtyLogs(partitions, self._may_be_cleaned, self._mark_uncleanable)
        self.uncleanable: dict[Partition, str] = {}  # uncleanable logs, with the reason
        self._claimed: set[Partition] = set()  # by any child
        self._deaths: dict[Partition, int] = {}
        self._not_before: dict[Partition, float] = {}  # by trio's clock
        _declare(metrics, self)

    @property
    def _settings(self) -> Settings:
        return self._partitions.settings

    @property
    def is_on(self) -> bool:
        """Whether compaction is enabled."""
        return self._settings.log_cleaner_enable

    async def run(self) -> None:
        """Clean dirty logs, up to `log.cleaner.threads` at a time, until cancelled."""
        self._note_alive()
        if not self.is_on:
            return
        async with trio.open_nursery() as nursery:
            for _ in range(self._settings.log_cleaner_threads):
                nursery.start_soon(self._loop)

    async def _loop(self) -> None:
        while True:
            try:
                await self.clean_all()
            except (ChildDiedError, OSError) as error:
                logger.warning("%s; starting another cleaner when a log is due", error)
            except Exception:  # a defect must not end compaction permanently
                logger.exception("the cleaner failed; restarting it")
            await trio.sleep(max(1, self._settings.log_cleaner_backoff_ms) / 1000)

    async def clean_all(self) -> None:
        """Clean all logs that are due, dirtiest first. Raises ChildDiedError, OSError."""
        due = await self._claim()
        if due is None:
            return
        try:
            async with await CleanerChild.start() as child:
                self.statistics.running += 1
                try:
                    while due is not None and await self._clean(child, due):
                        self._claimed.discard(due.partition)
                        due = await self._claim()
                finally:
                    self.statistics.running -= 1
        finally:
            if due is not None:
                self._claimed.discard(due.partition)
            with trio.CancelScope(shield=True):
                await self._partitions.checkpoint()

    async def _claim(self) -> Due | None:
        """Take the dirtiest log that is due and not claimed by another child."""
        self._note_alive()
        self._forget_deleted()
        due = await self.dirty.take()
        if due is not None:
            self._claimed.add(due.partition)
        return due

    def _may_be_cleaned(self, partition: Partition) -> bool:
        return (
            partition.log.config.compacts
            and partition.log.segment_count > 1
            and partition not in self.uncleanable
            and partition not in self._claimed
            and not partition.is_rearranging
            and self._not_before.get(partition, 0) <= trio.current_time()
        )

    # -- one run -------------------------------------------------------------------------------------------------------

    async def _clean(self, child: CleanerChild, due: Due) -> bool:
        """Clean a log, and return whether the child can clean another one.

        Failures of the log are recorded. Raises ChildDiedError.
        """
        partition, began = due.partition, time.monotonic()
        with partition.rearranging() as scope:  # cancelled when the log is deleted
            if scope is None:
                return False
            try:
                summary = await self._run_job(child, due)
            except ChildDiedError as error:
                self._count_death(partition, error)
                raise
            except OSError as error:
                self._postpone(partition, error)
            except (UncleanableError, LogError, ProtocolError) as error:
                self._mark_uncleanable(partition, error)
            else:
                self._deaths.pop(partition, None)
                self._count(partition, summary, time.monotonic() - began)
        return child.is_idle

    async def _run_job(self, child: CleanerChild, due: Due) -> CompactionSummary:
        partition = due.partition
        log = partition.log
        producers = log.producers.capture()
        job = await trio.to_thread.run_sync(log.cleaning.job, due.cleanable, producers, self._limits())
        await child.begin(job)
        while True:
            reply = await child.receive()
            self._note_alive()
            if isinstance(reply, CleanedGroup):
                with trio.CancelScope(shield=True):
                    await self._swap(partition, reply)
                await child.go_on()
            elif isinstance(reply, CompactionSummary):
                self._partitions.note_cleaned(partition, reply.clean_offset)
                for batch in reply.unreadable:
                    log.reads.note_unreadable("compaction", batch.base_offset, batch.reason)
                return reply
            elif isinstance(reply, Failure):
                raise UncleanableError(reply.message) if reply.is_damage else OSError(reply.message)

    async def _swap(self, partition: Partition, group: CleanedGroup) -> None:
        """Swap in a cleaned group. Raises OSError if nothing was swapped, UncleanableError if only part of it was."""
        log = partition.log
        swap = log.cleaning.plan_swap(group)
        await trio.to_thread.run_sync(log.cleaning.prepare_swap, swap)
        log.cleaning.commit_swap(swap)
        try:
            names = await trio.to_thread.run_sync(log.cleaning.finish_swap, swap)
        except OSError as error:
            raise UncleanableError(f"cannot rename files: {error}") from error
        log.cleaning.end_swap(swap)
        self._unlinking.add(log, names)

    def _limits(self) -> CleanerLimits:
        """Return the share of memory and bandwidth of one child."""
        settings, share = self._settings, self._settings.log_cleaner_threads
        return CleanerLimits(
            dedupe_buffer_bytes=settings.log_cleaner_dedupe_buffer_size // share,
            load_factor=settings.log_cleaner_io_buffer_load_factor,
            io_buffer_bytes=settings.log_cleaner_io_buffer_size // share,
            max_bytes_per_second=settings.log_cleaner_io_max_bytes_per_second / share,
        )

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def _note_alive(self) -> None:
        self.statistics.heard_at = time.monotonic()

    def _count(self, partition: Partition, summary: CompactionSummary, seconds: float) -> None:
        statistics = self.statistics
        statistics.runs += 1
        statistics.read_bytes += summary.bytes_read + summary.map_bytes_read
        statistics.written_bytes += summary.bytes_written
        statistics.last_run_seconds = seconds
        logger.info(
            "%s-%d: compacted up to offset %d in %.2f s: kept %d of %d bytes and %d of %d records",
            partition.topic, partition.index, summary.clean_offset, seconds,
            summary.bytes_written, summary.bytes_read, summary.records_kept, summary.records_read,
        )  # fmt: skip

    def _count_death(self, partition: Partition, error: ChildDiedError) -> None:
        self.statistics.failures["stuck" if error.is_stuck else "death"] += 1
        deaths = self._deaths[partition] = self._deaths.get(partition, 0) + 1
        if deaths >= MAX_DEATHS:
            self._mark_uncleanable(partition, error)

    def _postpone(self, partition: Partition, error: OSError) -> None:
        """Skip a log for a while after a disk error (the disk may be full), so that others are cleaned."""
        self.statistics.failures["disk"] += 1
        backoff_s = max(1.0, self._settings.log_cleaner_backoff_ms / 1000)
        self._not_before[partition] = trio.current_time() + backoff_s
        logger.warning(
            "%s-%d: compaction failed, retrying in %g s: %s", partition.topic, partition.index, backoff_s, error
        )

    def _mark_uncleanable(self, partition: Partition, error: Exception) -> None:
        self.statistics.failures["damage"] += 1
        self.uncleanable[partition] = str(error)
        logger.error(
            "%s-%d: log cannot be compacted, skipping it until the next startup: %s",
            partition.topic, partition.index, error,
        )  # fmt: skip

    def _forget_deleted(self) -> None:
        """Drop the state of deleted partitions."""
        known: tuple[dict[Partition, Any], ...] = (self.uncleanable, self._deaths, self._not_before)
        for each in known:
            for partition in list(each):
                if self._partitions.local(partition.topic, partition.index) is not partition:
                    del each[partition]


def _declare(metrics: Metrics, cleaner: Cleaner) -> None:
    """Declare the metrics of compaction."""
    statistics = cleaner.statistics

    def value_of(read: Callable[[], float]) -> Callable[[], list[tuple[tuple[str, ...], float]]]:
        return lambda: [((), read())]

    counter, gauge = metrics.counter, metrics.gauge
    counter("warmlog_cleaner_runs_total", "Completed compactions of a log.", value_of(lambda: statistics.runs))
    counter("warmlog_cleaner_read_bytes_total", "Bytes read by compaction.", value_of(lambda: statistics.read_bytes))
    counter(
        "warmlog_cleaner_written_bytes_total",
        "Bytes written by compaction.",
        value_of(lambda: statistics.written_bytes),
    )
    counter(
        "warmlog_cleaner_failures_total",
        "Failed compactions, by reason.",
        lambda: [((reason,), count) for reason, count in statistics.failures.items()],
        ("reason",),
    )
    gauge("warmlog_cleaner_running", "Compactions running now.", value_of(lambda: statistics.running))
    gauge(
        "warmlog_cleaner_max_dirty_ratio", "Highest dirty ratio of any log.", value_of(lambda: cleaner.dirty.max_ratio)
    )
    gauge(
        "warmlog_cleaner_max_delay_seconds",
        "Longest time by which a log exceeds max.compaction.lag.ms.",
        value_of(lambda: cleaner.dirty.max_delay_ms / 1000),
    )
    gauge(
        "warmlog_cleaner_last_run_seconds",
        "Duration of the last compaction.",
        value_of(lambda: statistics.last_run_seconds),
    )
    gauge(
        "warmlog_cleaner_uncleanable_partitions",
        "Logs excluded from compaction because it failed.",
        value_of(lambda: len(cleaner.uncleanable)),
    )
    gauge(
        "warmlog_cleaner_heartbeat_age_seconds",
        "Time since the last sign of life of the cleaner; it is stuck if that is minutes longer than its backoff.",
        lambda: [((), time.monotonic() - statistics.heard_at)] if cleaner.is_on else [],
    )
