"""Appends to one log: planned and queued on the event loop, written in groups, flushed if settings require it.

Invariants:
1. A log has at most one write at a time. Appends that arrive during a write are queued in order and written together.
2. A write of more than `loop_write_max_bytes`, and one that rolls, runs in a worker thread. So does one of more than
   64 KiB if such writes of this turn exceed that limit together, or while the disk makes writers wait. Planning and
   committing happen on the event loop only.
3. If a write fails, all queued appends fail too, since they were planned on top of it; the log is truncated to its end
   before the write.
4. An `Append` is settled exactly once: committed (and flushed, if `flush.messages` requires it), or failed.
5. Appends of one source (a connection) are planned in the order of their arrival, even if some of them must be
   decompressed first; a marker is planned after all appends that came before it.
6. Waiting fetches are notified when the high watermark advances: after a write, or after its flush if `flush.messages`
   is 1, or when followers fetch.
7. With `replication`, an append with acks=all is settled when the high watermark covers it.
"""

import logging
from collections.abc import Hashable
from functools import partial
from typing import Final

import trio

from warmlog.broker.log.appends.planned import Buffer, PlannedAppend
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.io.disk import is_out_of_space
from warmlog.broker.log.io.shared_writes import FileWrite
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.copies import LargestTimestamps
from warmlog.broker.log.producers.transactions import Origin, TransactionMarker
from warmlog.broker.partitions.appends.append import Append, StorageError
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.lanes import Lanes
from warmlog.broker.partitions.appends.log_flushes import LogFlushes
from warmlog.broker.partitions.appends.log_tasks import LogTasks
from warmlog.broker.partitions.appends.refusal_log import RefusalLog
from warmlog.broker.partitions.appends.replication import Replication
from warmlog.broker.partitions.appends.roll_tasks import RollTasks
from warmlog.broker.partitions.appends.sequence_gaps import SequenceGaps
from warmlog.broker.partitions.appends.writer import Queued, Writer
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.disks.write_stalls import ALWAYS_ON_LOOP_BYTES, STALL_IN_THREAD_S
from warmlog.broker.partitions.reads.waiters import WaitingFetches
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.validation import NeedsReencodingError

logger = logging.getLogger(__name__)

LOCAL: Final = -1  # used as the time to wait for replicas: acks=1
MAX_GROUP_BYTES: Final = 8 << 20  # per write: efficient for the disk, and milliseconds for a worker


class AppendQueue(Queued):
    """The appends and rolls of one log, and the `waiters` to notify of new records. Belongs to the event loop."""

    def __init__(
        self, log: PartitionLog, writer: Writer, disk: DiskWorkers, tasks: LogTasks, waiters: WaitingFetches
    ) -> None:
        self.log = log
        self.page_faults = log.page_faults
        self.flushes = LogFlushes(log, disk, tasks, waiters)
        self.gaps = SequenceGaps(log)
        self.is_writing = False
        self.is_paused = False  # writes are suspended: the log is about to move
        self.replication: Replication | None = None  # while this broker leads the partition, with several replicas
        self._writer = writer
        self._tasks = tasks
        self._waiters = waiters
        self._queue: list[Append] = []
        self._queued_bytes = 0
        self._begun: tuple[list[Append], list[PlannedAppend], FileWrite] | None = None  # the write in progress
        self._must_roll = False
        self._lanes = Lanes(log, self, writer.opener, tasks)
        self._rolls = RollTasks(log, self.flushes, tasks, writer.metrics)
        self._refusals = RefusalLog(f"{log.topic}-{log.partition}")
        self._refusal: Exception | None = None  # fail the queue with it after the current write

    def replicate(self, replication: Replication | None) -> None:
        """Settle appends by a replication from now on; None: by writes."""
        self.replication = self.flushes.replication = replication

    # -- append --

    def append(
        self,
        records: bytes | memoryview,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
        replicas_ms: int = LOCAL,
        source: Hashable = None,
    ) -> Append:
        """Queue batches of a source for the end of the log.

        They are validated and get their offsets immediately, and are written by the next `write_queued`. Large
        compressed batches are first decompressed by a thread; these, and the appends behind them, are validated later,
        and errors that this method would raise are then the outcome of the Append.

        A transaction may begin only with a `guard` that `Producers.guards` returned before the coordinator was queried,
        and that no marker has invalidated since.

        `replicas_ms`: acks=all, with the time to wait for replicas once it is written; LOCAL: acks=1.

        Raises what LogAppends.plan raises: ProtocolError for invalid batches, LogFailedError for a failed log. Raises
        NotLeaderError, NotEnoughReplicasError, EarlierBatchRefusedError.
        """
        append = self._begin(replicas_ms)
        if self._lanes.holds(source):
            self._lanes.add(append, records, origin, guard, source)
            return append
        try:
            if origin is Origin.CLIENT:
                self.gaps.check_beginning(records)
            planned = self._plan(records, origin, guard)
        except LogError as error:
            raise self.gaps.reason(error) from None
        if planned is None:
            self._lanes.add(append, records, origin, guard, source)
            return append
        append.planned = planned
        if not self._queue and not self.is_writing:
            self._writer.enlist(self)
        self._enqueue(append)
        return append

    def _begin(self, replicas_ms: int) -> Append:
        """Return an append that is not planned yet. Raises NotLeaderError, NotEnoughReplicasError."""
        if self._tasks.is_retired:  # the log may be closed: the broker is stopping, or the partition was deleted
            raise NotLeaderError(f"{self.log.topic}-{self.log.partition} is no longer served")
        if self.replication is None or replicas_ms < 0:
            return Append(self.log)
        return self.replication.begin_append(replicas_ms)

    def _plan(self, records: bytes | memoryview, origin: Origin, guard: int) -> PlannedAppend | None:
        """Plan batches; return None if a thread must decompress them first."""
        try:
            return self.log.appends.plan(records, origin=origin, guard=guard)
        except NeedsReencodingError:
            opened = self._writer.opener.open_now(self.log, records)
            return None if opened is None else self.log.appends.plan(opened, reencoded=True, origin=origin, guard=guard)

    def append_marker(self, marker: TransactionMarker, replicas_ms: int = LOCAL) -> Append:
        """Queue the marker that ends a transaction, behind all appends that came before it.

        No other method appends control batches. `replicas_ms` as for `append`. Raises what LogAppends.plan_marker
        raises; behind batches that are decompressed first, the Append fails with that error instead. Raises
        NotLeaderError, NotEnoughReplicasError.
        """
        append = self._begin(replicas_ms)
        if not self._lanes.are_empty:
            self._lanes.add_marker(append, marker)
            return append
        append.planned = self.log.appends.plan_marker(marker)
        if not self._queue and not self.is_writing:
            self._writer.enlist(self)
        self._enqueue(append)
        return append

    def append_copy(
        self, records: bytes | memoryview, leader_epoch: int | None, timestamps: LargestTimestamps | None = None
    ) -> Append | None:
        """Queue batches fetched from the leader; return the last of the appends, None if no batch is whole.

        If it fails, earlier ones may have succeeded. Clients must not append in the meantime. Raises what
        LogAppends.plan_copy raises.
        """
        assert self._lanes.are_empty, "clients do not append to a copy"
        append = None
        for planned in self.log.appends.plan_copy(records, leader_epoch, timestamps):
            append = Append(self.log)
            append.planned = planned
            if not self._queue and not self.is_writing:
                self._writer.enlist(self)
            self._enqueue(append)
        return append

    def copy_at_once(self, records: bytes | memoryview, leader_epoch: int | None) -> bool:
        """Append batches fetched from the leader if that needs no waiting; return whether they were written.

        If not, nothing was changed, and `append_copy` has to be called: another write is in progress, the write is
        large or rolls, or it failed. Raises what LogAppends.plan_copy raises.
        """
        log = self.log
        limit = min(ALWAYS_ON_LOOP_BYTES, self._writer.loop_write_max_bytes)
        if self.is_writing or self.is_paused or self._queue or len(records) > limit:
            return False
        plans = log.appends.plan_copy(records, leader_epoch)
        if len(plans) != 1 or plans[0].roll is not None:
            log.appends.abandon()
            return False
        append = Append(log)
        append.planned = plans[0]
        self._enqueue(append)
        self.write_queued()
        # without an error, it may be waiting for a flush
        return append.error is None and log.offsets.log_end_offset > append.planned.last_offset

    def _enqueue(self, append: Append) -> None:
        planned = append.planned
        self._queue.append(append)
        self._queued_bytes += planned.size
        if planned.roll is not None:
            self._must_roll = True

    def append_opened(self, append: Append, opened: Buffer | Exception, origin: Origin, guard: int) -> None:
        """Plan and queue decompressed batches, or settle their append with the error."""
        error: Exception | None = opened if isinstance(opened, Exception) else None
        if not isinstance(opened, Exception):
            try:
                append.planned = self.log.appends.plan(opened, reencoded=True, origin=origin, guard=guard)
            except Exception as failure:  # noqa: BLE001  # any error concerns this append only
                error = self.gaps.reason(failure).with_traceback(None)  # it refers to this stack frame: a cycle
        self._enqueue_or_settle(append, error)

    def append_waiting_marker(self, append: Append, marker: TransactionMarker) -> None:
        """Plan and queue a marker, or settle its append with an error."""
        error: Exception | None = None
        try:
            append.planned = self.log.appends.plan_marker(marker)
        except Exception as failure:  # noqa: BLE001  # as in `append_opened`
            error = self.gaps.reason(failure).with_traceback(None)
        self._enqueue_or_settle(append, error)

    def _enqueue_or_settle(self, append: Append, error: Exception | None) -> None:
        if error is None:
            self._enqueue(append)
        elif isinstance(error, (ProtocolError, LogError)):
            append.settle(error)
        else:  # a defect: nothing was planned
            append.settle(StorageError(f"{self.log.topic}-{self.log.partition}: {error}"))

    # -- write --

    def write_queued(self) -> None:
        """Write the queue: here if it is small, else in a background task."""
        if self.begin_write():
            self.end_write()

    def begin_write(self) -> bool:
        """Begin to write the queue if it is small, and return True: `end_write` must follow.

        Otherwise a background task writes it.
        """
        if self.is_writing or self.is_paused or not self._queue:
            return False
        if self._must_roll or not self._fits_loop(self._queued_bytes):
            self.is_writing = True
            self._tasks.spawn(self._drain)
            return False
        group = self._take_queue()
        planned = [append.planned for append in group]
        try:
            to_file = self.log.appends.begin_write(planned, self._writer.writes)
        except Exception as error:  # noqa: BLE001  # a defect, too, fails this log only
            self._fail(group, error)
            return False
        self.is_writing = True
        self._begun = group, planned, to_file
        return True

    def end_write(self) -> None:
        """End the write that has begun, and settle its appends."""
        begun, self._begun = self._begun, None
        assert begun is not None
        group, planned, to_file = begun
        try:
            self._end_on_loop(_size_of(group), to_file)
            self.log.appends.commit(planned)
        except Exception as error:  # noqa: BLE001  # as in `begin_write`
            self.is_writing = False
            self._fail(group, error)
        else:
            self.is_writing = False
            if self._queue:  # appends that arrived during the write
                self._writer.enlist(self)
            self._committed(group)
        if self._refusal is not None:
            self._drop_refused()

    def _fits_loop(self, size: int) -> bool:
        return self._writer.fits_loop(size, self.flushes.disk.stalls)

    def _end_on_loop(self, size: int, to_file: FileWrite) -> None:
        appends, writes = self.log.appends, self._writer.writes
        if size <= ALWAYS_ON_LOOP_BYTES:
            appends.end_write(to_file, writes)
        else:
            self.flushes.disk.stalls.measure(size, partial(appends.end_write, to_file, writes))

    async def settled(self, *, among: int = 0) -> None:
        """Wait until nothing is queued or awaits a flush, and only `among` tasks, which wait here, use the log."""
        self.write_queued()
        while self._tasks.running > among or self.flushes.waiting:
            await self._tasks.changed()
            self.write_queued()

    async def quiet(self) -> None:
        """Wait until nothing is queued or being written. Flushes and other tasks may still use the log."""
        self.write_queued()
        while self.is_writing or self._queue or not self._lanes.are_empty:
            await self._tasks.changed()
            self.write_queued()

    async def _drain(self) -> None:
        """Write groups until the queue is empty."""
        try:
            self._drop_refused()
            while self._queue and not self.is_paused:
                group = self._take_group()
                try:
                    await self._write_in_worker(group)
                except Exception as error:  # noqa: BLE001  # as in `write_queued`
                    self._fail(group, error)
                else:
                    self._committed(group)
                self._drop_refused()
        finally:
            self.is_writing = False

    async def _write_in_worker(self, group: list[Append]) -> None:
        planned = [append.planned for append in group]
        if planned[0].roll is not None:
            await self._rolls.begin(planned[0])
        disk, write = self.flushes.disk, partial(self.log.appends.write, planned)
        await disk.write(partial(disk.stalls.measure, _size_of(group), write, STALL_IN_THREAD_S))
        self.log.appends.commit(planned)

    def _take_queue(self) -> list[Append]:
        group, self._queue = self._queue, []
        self._queued_bytes = 0
        self._must_roll = False
        return group

    def _take_group(self) -> list[Append]:
        """Take the head of the queue for one write: of limited size, and with a roll only at its beginning."""
        size = count = 0
        for append in self._queue:
            if count and (append.planned.roll is not None or size + append.planned.size > MAX_GROUP_BYTES):
                break
            size += append.planned.size
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        self._queued_bytes -= size
        self._must_roll = any(append.planned.roll is not None for append in self._queue)
        return group

    def _committed(self, group: list[Append]) -> None:
        log = self.log
        if self._refusals.is_active:
            self._refusals.end()
        self._rolls.announce_if_near()
        replication = self.replication
        if replication is not None:
            replication.appended(_size_of(group))
        if (
            log.offsets.log_end_offset - log.durability.recovery_point >= log.durability.flush_messages
            or self.flushes.waiting
        ):
            self.flushes.settle_later(group)  # also behind others, as it may be a duplicate of one of them
        elif replication is not None:
            replication.written(group)
        else:
            for append in group:
                append.settle()
        if log.offsets.shows_all and not self._waiters.is_empty:
            self._waiters.grown(_size_of(group))

    def _fail(self, group: list[Append], error: Exception) -> None:
        """Fail a group and all queued appends. An error other than the disk's also fails the log."""
        log = self.log
        log.appends.abandon()
        failed = group + self._take_queue()
        reason = StorageError(f"{log.topic}-{log.partition}: {getattr(error, 'strerror', None) or error}")
        is_full = isinstance(error, OSError) and is_out_of_space(error)
        # the disk check logs a full disk, once for all logs
        if not is_full or not log.appends.space_status.ran_out(len(failed)):
            self._refusals.report(reason, len(failed))
        if not isinstance(error, OSError):
            log.fail(error)
            logger.error("%s-%d: log failed", log.topic, log.partition, exc_info=error)
        self.gaps.note_refusal()
        for append in failed:
            append.settle(reason)
        if log.failed:
            self._tasks.report_health()

    def refuse_queued(self, reason: Exception) -> None:
        """Fail all appends that are not written yet, because this broker no longer leads the partition.

        One write may be in progress: wait until everything is `settled` before the log is used otherwise.
        """
        self._lanes.settle_all(reason)
        self._refusal = reason
        self.gaps.note_refusal()
        if not self.is_writing:
            self._drop_refused()

    def _drop_refused(self) -> None:
        """Fail the queue if `refuse_queued` requested that."""
        reason, self._refusal = self._refusal, None
        if reason is not None and self._queue:
            self.log.appends.abandon()
            for append in self._take_queue():
                append.settle(reason)

    # -- roll --

    async def roll(self) -> bool:
        """Begin a new segment although no append requires it; return whether that was possible.

        It is impossible while appends arrive, as they may be planned for the old segment. Raises OSError.
        """
        if self.is_writing or self.is_paused or self._queue or self.log.failed:
            return False
        with self._tasks.inside(), trio.CancelScope(shield=True):
            self.is_writing = True  # appends that arrive are queued
            try:
                prepared = await self.flushes.disk.write(self.log.rolls.prepare_early)
                is_quiet = not self._queue
                if is_quiet:
                    plan = self.log.durability.begin_flush()
                    sealed = self.log.rolls.commit_early(prepared)
                else:
                    await self.flushes.disk.write(prepared.forget)
            finally:
                self.is_writing = False
                self._drop_refused()
                self.write_queued()
            if is_quiet:
                await self._rolls.finish(sealed, plan)
        return is_quiet


def _size_of(group: list[Append]) -> int:
    """Return the bytes that a write has added."""
    first, last = group[0].planned, group[-1].planned
    return last.position + last.size - first.position
