"""One log as the event loop uses it: appends, reads, waiting fetches, index rebuilds, reopening and moves.

`append_queue` implements appends, and `log_tasks` the rules of concurrent use.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple

import trio

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.errors import IndexCorruptError, LogError, LogFailedError
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.log.moving import LogMove, MovedLog
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import Origin, TransactionMarker
from warmlog.broker.log.recovery.reopen import Reopened
from warmlog.broker.log.segments.segment import LOOKUP_FAULTS, Segment
from warmlog.broker.log.segments.tail import RollReason
from warmlog.broker.metadata.topic import INTERNAL_TOPICS
from warmlog.broker.partitions.appends.append import Append, StorageError
from warmlog.broker.partitions.appends.append_queue import LOCAL, AppendQueue
from warmlog.broker.partitions.appends.log_tasks import LogTasks
from warmlog.broker.partitions.appends.replication import Replication
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.broker.partitions.reads.waiters import Waiter, WaitingFetches
from warmlog.protocol.errors import ProtocolError

__all__ = ["Append", "Destination", "Partition", "StorageError"]

logger = logging.getLogger(__name__)

UNREADABLE_LOG_INTERVAL_S: Final = 10.0  # interval between lines about an unreadable log, as consumers retry constantly
NOT_READABLE: Final = -1
MAX_PAUSE_S: Final = 5.0  # longest time that producers wait for a move that cannot switch over
REBUILD_INTERVAL_S: Final = 10.0  # interval between attempts to rebuild an index: each reads the whole segment


class Destination(NamedTuple):
    """The data directory that a log moves to, and its space status.

    `write_checkpoints` writes the directory's checkpoints including the log, in a worker thread; `moved` is called when
    the log is served from there.
    """

    data_directory: str
    space_status: SpaceStatus
    write_checkpoints: Callable[[], None]
    moved: Callable[[], None]


class Partition:
    """One partition of a topic, served from one log. Belongs to the event loop."""

    def __init__(self, log: PartitionLog, writer: Writer) -> None:
        self.log = log
        self.topic = log.topic
        self.index = log.partition
        self.is_internal = log.topic in INTERNAL_TOPICS
        self.mirror_of: str | None = None  # the id of the cluster that the log follows; clients cannot write to it then
        self.data_directory = os.path.dirname(log.directory)
        self.is_unreadable = False  # a read has failed since startup
        self.is_of_deleted_topic = False  # its log is about to be removed; another topic may have its name
        self.readable_epoch = NOT_READABLE  # the leader epoch in which consumers may read this copy
        self._writer = writer
        self._metrics = writer.metrics
        self.waiters = WaitingFetches(log)
        self._tasks = LogTasks(log, writer)
        self.appends = AppendQueue(log, writer, writer.workers(self.data_directory), self._tasks, self.waiters)
        self._residency = log.residency
        self.page_faults = log.page_faults
        self._rebuilding: set[int] = set()  # base offsets of segments whose indexes are being rebuilt
        self._rebuilt_at: dict[int, float] = {}  # time of the last attempt for each, by trio's clock
        self._next_unreadable_log_at = -math.inf

    @property
    def on_health(self) -> Callable[[], None] | None:
        """Called when the log has failed, and again when it was rebuilt and may have lost records at its end."""
        return self._tasks.on_health

    @on_health.setter
    def on_health(self, on_health: Callable[[], None] | None) -> None:
        self._tasks.on_health = on_health

    @property
    def leader_epoch(self) -> int:
        """Return the leader epoch for clients: the leader's while consumers may read this copy, else the log's."""
        return self.log.epochs.current if self.readable_epoch == NOT_READABLE else self.readable_epoch

    def let_read(self, leader_epoch: int) -> None:
        """Allow consumers to read this copy in a leader epoch; NOT_READABLE ends this."""
        if leader_epoch != self.readable_epoch:
            self.readable_epoch = leader_epoch
            self.wake_all()  # fetches with another epoch are refused

    @property
    def disk(self) -> DiskWorkers:
        """Return the worker threads of the log's data directory."""
        return self.appends.flushes.disk

    @property
    def flushed_at(self) -> float:
        """Return when the log was last flushed, or opened, by trio's clock."""
        return self.appends.flushes.flushed_at

    @property
    def replication(self) -> Replication | None:
        """The replicas of the partition while this broker leads it and there are several; else None."""
        return self.appends.replication

    @replication.setter
    def replication(self, replication: Replication | None) -> None:
        self.appends.replicate(replication)

    # -- append --

    def append(
        self,
        records: bytes | memoryview,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
        replicas_ms: int = LOCAL,
        source: Hashable = None,
    ) -> Append:
        """Queue batches for the end of the log; see `AppendQueue.append`."""
        return self.appends.append(records, origin, guard, replicas_ms, source)

    def append_marker(self, marker: TransactionMarker, replicas_ms: int = LOCAL) -> Append:
        """Queue the marker that ends a transaction; see `AppendQueue.append_marker`."""
        return self.appends.append_marker(marker, replicas_ms)

    async def roll(self) -> bool:
        """Begin a new segment although no append requires it; see `AppendQueue.roll`."""
        return await self.appends.roll()

    # -- exclusive use --

    def inside(self) -> AbstractContextManager[None]:
        """Keep the log open and in place while the block uses it in a worker thread."""
        return self._tasks.inside()

    @property
    def is_rearranging(self) -> bool:
        """Whether a task removes or replaces segments."""
        return self._tasks.is_rearranging

    def rearranging(self) -> AbstractContextManager[trio.CancelScope | None]:
        """Allow the block to remove or replace segments; see `LogTasks.rearranging`."""
        return self._tasks.rearranging()

    def interrupt_rearranging(self) -> None:
        """Cancel the task that removes or replaces segments, if any: a compaction may take minutes."""
        self._tasks.cancel_rearranging()

    # -- configuration --

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings of the log.

        If `flush.messages` becomes 1, records that consumers could already read are flushed; if it was 1, records that
        await a flush become readable.
        """
        log, shown = self.log, self.log.offsets.high_watermark
        log.reconfigure(config)
        if self.replication is not None:
            self.replication.reconfigured()
        self.waiters.moved()
        if log.offsets.high_watermark > shown:
            self.wake_all()
        self.appends.flushes.flush_shown()

    def advance_start(self, offset: int) -> bool:
        """Advance the log start offset, as `LogTruncation.advance_start` does, and notify waiting fetches."""
        stable = self.log.offsets.last_stable_offset
        moved = self.log.truncation.advance_start(offset)
        if moved:
            self.waiters.moved()
        if self.log.offsets.last_stable_offset > stable:  # the records of the open transaction so far have been deleted
            self.waiters.wake()
        return moved

    # -- read --

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool,
        committed: bool = False,
        to_log_end: bool = False,
    ) -> LogRead | None:
        """Return a slice from `offset` up to the high watermark, or None while a corrupt index is rebuilt.

        With `committed`, up to the last stable offset, with the aborted transactions of the slice. With `to_log_end`,
        for followers, up to the log end.

        Raises OffsetOutOfRangeError, OSError, StorageError for an index that could not be rebuilt, and ColdReadError if
        the lookup needs pages that are not resident: run its job in a thread, and read again.
        """
        started = time.perf_counter()
        log, residency, faults = self.log, self._residency, self.page_faults
        residency.enter()
        faults.begin()
        try:
            end = log.offsets.last_stable_offset if committed else log.offsets.high_watermark
            if to_log_end:
                end = log.offsets.log_end_offset
            result = log.reads.read(
                offset, max_bytes, isolation_end=end, min_one_batch=min_one_batch, with_aborted=committed
            )
        except IndexCorruptError as error:
            self.rebuild(error)
            return None
        except ColdReadError as cold:
            if cold.base_offset in self._rebuilding:
                return None
            raise
        else:
            if result.section is not None:
                faults.end(LOOKUP_FAULTS[result.section])
        finally:
            residency.leave()
            faults.leave()
        if result.section is not None:
            self._metrics.lookups[result.section].add()
            self._metrics.lookup_seconds.observe(time.perf_counter() - started)
        return result

    def is_in_memory(self, piece: FileSlice, length: int) -> bool:
        """Return whether the first `length` bytes of a slice are resident; the slice records it. Raises OSError."""
        if self._residency.missing_pages(piece.descriptor, piece.position, length, "log"):
            return False
        piece.warm_length = length
        return True

    def cannot_read(self, error: Exception) -> None:
        """Mark the log unreadable and log a rate-limited error."""
        self.is_unreadable = True
        self._metrics.log_read_errors.add()
        now = trio.current_time()
        if now >= self._next_unreadable_log_at:
            self._next_unreadable_log_at = now + UNREADABLE_LOG_INTERVAL_S
            logger.error("%s-%d: cannot read the log: %s", self.topic, self.index, error)

    def enlist(self, waiter: Waiter, *, committed: bool = False, to_log_end: bool = False) -> None:
        """Notify a waiter of new records and other changes, until `dismiss`.

        Records count when they become readable: for consumers, with `committed` for readers of committed records, with
        `to_log_end` for followers.
        """
        self.waiters.enlist(waiter, committed=committed, to_log_end=to_log_end)

    def dismiss(self, waiter: Waiter) -> None:
        """Stop notifying a waiter."""
        self.waiters.dismiss(waiter)

    def wake_all(self) -> None:
        """Wake every waiting fetch, because the partition is being retired or has failed."""
        self.waiters.wake()

    # -- index rebuilds --

    async def rebuilt(self, damage: IndexCorruptError) -> None:
        """Rebuild the indexes of a segment and wait for the end. Raises StorageError, as `rebuild`."""
        self.rebuild(damage)
        while damage.base_offset in self._rebuilding:
            await self._tasks.changed()

    def rebuild(self, damage: IndexCorruptError) -> None:
        """Rebuild the indexes of a segment in the background, unless that is in progress. Seals the active segment.

        Raises StorageError if an attempt failed recently.
        """
        base_offset = damage.base_offset
        if base_offset in self._rebuilding:
            return
        if trio.current_time() < self._rebuilt_at.get(base_offset, -math.inf) + REBUILD_INTERVAL_S:
            raise StorageError(f"{self.topic}-{self.index}: {damage}")
        self._rebuilding.add(base_offset)
        logger.warning("%s-%d: %s; rebuilding it", self.topic, self.index, damage)
        self._tasks.spawn(partial(self._rebuild_in_worker, base_offset))

    async def _rebuild_in_worker(self, base_offset: int) -> None:
        try:
            await self._seal(base_offset)
            await self.disk.keep_up(partial(self.log.reads.rebuild_indexes, base_offset))
        except (OSError, LogError, ProtocolError) as error:
            logger.warning(
                "%s-%d: cannot rebuild the indexes of segment %d: %s", self.topic, self.index, base_offset, error
            )
        finally:
            self._rebuilding.discard(base_offset)
            self._rebuilt_at[base_offset] = trio.current_time()
            self.wake_all()

    async def _seal(self, base_offset: int) -> None:
        """Wait until a segment is sealed and its files are trimmed. Raises OSError, LogFailedError.

        The active segment is sealed by an early roll, or by the next append if appends keep arriving.
        """
        log = self.log
        if log.active_base_offset == base_offset:
            log.rolls.request()
        while log.is_untrimmed(base_offset):
            if log.failed:
                raise LogFailedError(f"{self.topic}-{self.index} has failed")
            self.appends.write_queued()
            if log.active_base_offset != base_offset or self.appends.is_writing or self.appends.is_paused:
                await self._tasks.changed()
            elif await self.roll():
                self._metrics.rolls[RollReason.INDEX_CORRUPT.value].add()

    # -- reopening --

    async def reopen(self) -> Reopened | None:
        """Rebuild the end of a failed log, in a worker thread; None if another task rearranges its segments.

        A cancelled call stops unless it is nearly done. Raises OSError, LogError, ProtocolError, and leaves the log as
        it was.
        """
        self._tasks.report_health()
        reopened = None
        with self.rearranging() as scope:
            if scope is not None:
                reopened = await self._reopen()
            else:
                self.interrupt_rearranging()
        return reopened

    async def _reopen(self) -> Reopened:
        await self.appends.settled(among=1)
        log = self.log
        reopened = await trio.to_thread.run_sync(log.begin_reopening().make, trio.from_thread.check_cancelled)
        log.finish_reopening(reopened)
        if reopened.reason is not None:
            assign_epoch(log, records_lost=True)
        self._made_durable()
        self._tasks.report_health()
        self.wake_all()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(reopened.close_replaced)
            try:
                await trio.to_thread.run_sync(log.durability.checkpoint_epochs)
            except OSError as error:  # appends are accepted nevertheless: batches also contain their epochs
                logger.warning("%s-%d: cannot write the leader epochs: %s", self.topic, self.index, error)
        return reopened

    def _made_durable(self) -> None:
        """Record that the whole log has been synced."""
        self.appends.flushes.flushed_at = trio.current_time()
        if self.replication is not None:
            self.replication.flushed()

    # -- moving --

    async def relocate(self, move: LogMove, to: Destination) -> MovedLog | None:
        """Switch over to the copy that a move has made; None if that is not possible yet.

        Appends are queued in the meantime. Raises OSError, and leaves the log where it was.
        """
        moved: MovedLog | None = None
        old: Sequence[Segment] = ()
        appends = self.appends
        with self.rearranging() as scope:
            if scope is not None:
                appends.is_paused = True
                try:
                    if await self._has_settled():
                        with trio.CancelScope(shield=True):
                            moved, old = await self._switch(move, to)
                finally:
                    appends.is_paused = appends.flushes.is_switching = False
                    appends.write_queued()
                    self._tasks.wake()
            if moved is not None:
                self._made_durable()
                self.wake_all()
                with trio.CancelScope(shield=True):
                    await self.disk.keep_up(partial(_close_each, old))
        return moved

    async def _has_settled(self) -> bool:
        """Wait until no other task uses the log; return False if that takes too long, or the log has failed."""
        while self.appends.is_writing:
            await self._tasks.changed()
        with trio.move_on_after(MAX_PAUSE_S) as waiting:
            await self.appends.settled(among=1)
        return not waiting.cancelled_caught and not self.log.failed

    async def _switch(self, move: LogMove, to: Destination) -> tuple[MovedLog, Sequence[Segment]]:
        """Complete the copy and serve it; return the old segments, to be closed."""
        self.appends.flushes.is_switching = True
        disk = self._writer.workers(to.data_directory)
        moved = await disk.write(partial(move.complete, self.log.end_of_move(), to.write_checkpoints))
        old = self.log.finish_move(moved, to.space_status)
        self.data_directory, self.appends.flushes.disk = to.data_directory, disk
        to.moved()
        return moved, old

    # -- end --

    async def retire(self) -> None:
        """Finish pending work and wake waiting fetches, before the partition is deleted or the broker stops.

        No task uses the log afterwards, so it can be closed and its files renamed.
        """
        self._tasks.retire()
        await self.appends.settled()
        self.wake_all()


def _close_each(segments: Sequence[Segment]) -> None:
    """Close segments in a worker thread."""
    for segment in segments:
        segment.close()
