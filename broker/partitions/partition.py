"""The async edge of one log: appends queue here and wait for their write, fetches wait here for data.

Owns: the queue of planned appends of each log, who writes them (the loop or a worker), which of them wait for a sync,
and the wake-up of waiting fetches. Must not know: requests, wire formats, sockets.

Invariants:
1. One write per log at a time; what comes meanwhile queues in order and goes out together in the next write.
2. A write of more than `loop_write_max_bytes`, or one that needs a new segment, runs in a worker; the log is planned
   and committed on the loop only.
3. When a write fails, everything queued behind it fails too, since it was planned on top of it; the log is cut back to
   where it was.
4. An `Append` is settled exactly once: committed (and, where `flush.messages` asks for it, synced), or failed.
5. Appends are planned in the order in which they came, also where some must be opened first.
6. What runs in the background is finished even if the broker is cancelled, and fails for its own log only.
7. Waiting fetches are woken when the high watermark moves: with the write, or, where `flush.messages` is 1, the sync.
   Fetches of committed records are woken when the last stable offset moves.
"""

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import trio

from broker.log.append import Buffer, RollReason
from broker.log.config import LogConfig
from broker.log.directory.disk_reserve import Room
from broker.log.errors import IndexCorruptError, LogError, LogFailedError
from broker.log.io.disk import is_out_of_room
from broker.log.io.files import FileSlice
from broker.log.io.residency import ColdReadError
from broker.log.moving import LogMove, MovedLog
from broker.log.partition_log import FlushPlan, LogRead, PartitionLog, PlannedAppend
from broker.log.recovery.reopen import Reopened
from broker.log.segment import LOOKUP_FAULTS, Segment
from broker.partitions.refusal_log import RefusalLog
from broker.partitions.waiters import Waiter
from broker.partitions.writer import Writer
from protocol.errors import ProtocolError
from protocol.records.validation import NeedsReencodingError

logger = logging.getLogger(__name__)

MAX_GROUP_BYTES = 8 << 20  # one write: large enough for the disk, small enough that a worker comes back in milliseconds
UNREADABLE_PAUSE_S = 10.0  # between two lines about a log that cannot be read: who fetches tries again and again
MAX_PAUSE_S = 5.0  # producers wait so long at most for a move that cannot have the log
REBUILD_PAUSE_S = 10.0  # an index that cannot be mended is tried again at leisure: each try reads its whole segment


class StorageError(Exception):
    """A log could not be written or synced; what was asked is not stored. The client's KAFKA_STORAGE_ERROR."""


class Destination(NamedTuple):
    """The data directory that a log moves to: its path and its room.

    `write_checkpoints` writes its checkpoints as they are with the log, in a worker; `moved` is told when it is there.
    """

    data_directory: str
    room: Room
    write_checkpoints: Callable[[], None]
    moved: Callable[[], None]


class Append:
    """One append on its way: settled when it is written (and synced, where that was asked for) or has failed."""

    __slots__ = ("_notify", "done", "error", "partition", "planned")

    planned: PlannedAppend  # its place; what is refused while it is opened never gets one

    def __init__(self, partition: "Partition") -> None:
        self.partition = partition
        self.done = False
        self.error: Exception | None = None  # one of those that `Partition.append` raises, or a StorageError
        self._notify: Callable[[], None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """Take the outcome, and call back whoever asked for that."""
        self.done = True
        self.error = error
        if self._notify is not None:
            self._notify()

    def notify(self, settled: Callable[[], None]) -> None:
        """Call back when this is settled, at once if it is. Only the most recently registered callback is called.

        It is called in the middle of a commit, so it must only take note.
        """
        if self.done:
            settled()
        else:
            self._notify = settled

    async def wait(self) -> None:
        """Return when settled; `error` says how it went. Replaces the callback of `notify`."""
        if not self.done:
            event = trio.Event()
            self.notify(event.set)
            await event.wait()


class Partition:
    """One log as the broker's tasks use it. All methods belong to the loop."""

    def __init__(self, log: PartitionLog, writer: Writer) -> None:
        self.log = log
        self.topic = log.topic
        self.index = log.partition
        self._writer = writer
        self.data_directory = os.path.dirname(log.directory)
        self.disk = writer.workers(self.data_directory)
        self._metrics = writer.metrics
        self._queue: list[Append] = []
        self._unopened: list[tuple[Append, bytes | memoryview]] = []  # and what came after them
        self._opening = 0  # so many of these, from the first on, are in a thread
        self._queued_bytes = 0
        self._must_roll = False
        self._writing = False
        self._is_paused = False  # nothing may be written: the log is about to move
        self._is_leaving = False  # nor synced: it is taking its new place
        self._is_roll_announced = False
        self._awaiting_flush: list[Append] = []
        self._refusals = RefusalLog(f"{log.topic}-{log.partition}")
        self._waiters: set[Waiter] = set()
        self._committed_waiters: set[Waiter] = set()
        self._stable_end = log.last_stable_offset  # as the waiters know it
        self._was_stable = log.last_stable_offset == log.high_watermark
        self.synced_at = trio.current_time()  # or opened
        self._rebuilding: set[int] = set()  # base offsets of segments whose indexes are being made anew
        self._rebuilt_at: dict[int, float] = {}  # when each was last tried, by trio's clock
        self._retired = False
        self._residency = log.residency
        self.page_faults = log.page_faults
        self.is_unreadable = False  # some of it could not be read since the start
        self._tell_unreadable_at = -math.inf
        self._rearranging: trio.CancelScope | None = None  # of who removes or replaces segments
        self._running = 0  # tasks and syncs that are inside the log
        self._progress = trio.lowlevel.ParkingLot()  # who waits for the log to be left alone

    # -- append --

    def append(self, records: bytes | memoryview) -> Append:
        """Queue batches for the end of the log.

        They are checked and have their offsets at once; written by the next `write_queued`. Large compressed ones are
        opened by a thread first, and have both later, as all that come before that is done; then an Append can fail as
        this does.

        Raises what PartitionLog.plan raises: ProtocolError for bytes that are refused, LogFailedError for a failed log.
        """
        append = Append(self)
        if self._unopened:
            self._unopened.append((append, records))
            return append
        try:
            planned = append.planned = self.log.plan(records)
        except NeedsReencodingError:
            opened = self._writer.opener.open_now(self.log, records)
            if opened is None:
                self._unopened.append((append, records))
                self._running += 1
                self._writer.opener.enlist(self)
                return append
            planned = append.planned = self.log.plan(opened, reencoded=True)
        if not self._queue and not self._writing:
            self._writer.enlist(self)
        self._queue.append(append)
        self._queued_bytes += planned.size
        if planned.roll is not None:
            self._must_roll = True
        return append

    def next_unopened(self, max_bytes: int) -> list[Buffer]:
        """Return the first batches that a thread must open, at least one; `opened` follows."""
        batches: list[Buffer] = []
        size = 0
        for _, records in self._unopened:
            size += len(records)
            if batches and size > max_bytes:
                break
            batches.append(records)
        self._opening = len(batches)
        return batches

    def opened(self, outcomes: Sequence[Buffer | Exception]) -> bool:
        """Plan what was opened, and let it be written; tell whether more waits to be opened."""
        for (append, _), outcome in zip(self._unopened[: self._opening], outcomes, strict=True):
            self._append_opened(append, outcome)
        del self._unopened[: self._opening]  # not before: what comes has to wait for its turn
        self._opening = 0
        self.write_queued()
        if not self._unopened:
            self._left()
        return bool(self._unopened)

    def _append_opened(self, append: Append, opened: Buffer | Exception) -> None:
        """Queue batches that were opened, or settle with what is wrong with them."""
        error = opened if isinstance(opened, Exception) else self._plan_opened(append, opened)
        if error is None:
            self._queue.append(append)
            self._queued_bytes += append.planned.size
            self._must_roll |= append.planned.roll is not None
        elif isinstance(error, (ProtocolError, LogError)):
            append.settle(error)
        else:  # a defect: nothing is planned, and whoever waits is told
            append.settle(StorageError(f"{self.topic}-{self.index}: {error}"))

    def _plan_opened(self, append: Append, opened: Buffer) -> Exception | None:
        try:
            append.planned = self.log.plan(opened, reencoded=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, it concerns this append
            return error
        return None

    def write_queued(self) -> None:
        """Write the queue: at once if it is small, else by a task."""
        if self._writing or self._is_paused or not self._queue:
            return
        if self._must_roll or self._queued_bytes > self._writer.loop_write_max_bytes:
            self._writing = True
            self._spawn(self._drain)
            return
        group = self._take_queue()
        planned = [append.planned for append in group]
        try:
            self.log.write(planned)
            self.log.commit(planned)
        except Exception as error:  # noqa: BLE001  # a defect, too, is one log's own: who waits is told
            self._fail(group, error)
        else:
            self._committed(group)

    async def settled(self, *, among: int = 0) -> None:
        """Return when nothing is queued, no worker is inside the log, and nobody waits for a sync.

        `among`: so many are inside who wait for that themselves.
        """
        self.write_queued()
        while self._running > among or self._awaiting_flush:
            await self._progress.park()
            self.write_queued()

    async def _drain(self) -> None:
        """Write group after group until the queue is empty."""
        try:
            while self._queue and not self._is_paused:
                group = self._take_group()
                try:
                    await self._write_in_worker(group)
                except Exception as error:  # noqa: BLE001  # as above
                    self._fail(group, error)
                else:
                    self._committed(group)
        finally:
            self._writing = False

    def _spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        self._running += 1
        self._writer.spawn(partial(self._run, run))

    async def _run(self, run: Callable[[], Awaitable[None]]) -> None:
        """The error boundary of the background: a failure is this log's own."""
        try:
            await run()
        except Exception as error:
            self.log.fail(error)
            logger.exception("%s-%d: out of service", self.topic, self.index)
        finally:
            self._left()

    def _left(self) -> None:
        """A task or a sync is out of the log."""
        self._running -= 1
        self._progress.unpark_all()

    async def _write_in_worker(self, group: list[Append]) -> None:
        planned = [append.planned for append in group]
        if planned[0].roll is not None:
            await self._roll(planned[0])
        await self.disk.write(partial(self.log.write, planned))
        self.log.commit(planned)

    async def _roll(self, planned: PlannedAppend) -> None:
        segment = await self.disk.write(partial(self.log.prepare_roll, planned))
        plan = self.log.begin_flush()  # all that lies before the new segment
        sealed = self.log.commit_roll(segment)
        assert planned.roll is not None
        self._metrics.rolls[planned.roll.value].add()
        self._spawn(partial(self._finish_roll, sealed, plan))

    async def _announce_roll(self) -> None:
        """Sync now what a roll would have to wait for."""
        with suppress(OSError):  # then the roll tries again, and reports it
            await self.disk.keep_up(self.log.announce_roll)

    async def _finish_roll(self, sealed: Segment, plan: FlushPlan) -> None:
        """Trim and sync what was rolled, and move the recovery point to the new segment: a recovery begins there."""
        error: Exception | None = None
        try:
            await self.disk.keep_up(partial(_finish, self.log, sealed, plan))
        except Exception as failure:  # noqa: BLE001  # it is told to who waits for this log
            error = failure
        self._synced(plan, error)

    async def roll(self) -> bool:
        """Begin a new segment though no append asks for it; whether it did.

        Not while appends come: they may be planned for the old segment. Raises OSError.
        """
        if self._writing or self._is_paused or self._queue or self.log.failed:
            return False
        with self.inside(), trio.CancelScope(shield=True):
            self._writing = True  # what comes meanwhile is queued
            try:
                prepared = await self.disk.write(self.log.prepare_early_roll)
                is_quiet = not self._queue
                if is_quiet:
                    plan = self.log.begin_flush()
                    sealed = self.log.commit_early_roll(prepared)
                else:
                    await self.disk.write(prepared.forget)
            finally:
                self._writing = False
                self.write_queued()
            if is_quiet:
                await self._finish_roll(sealed, plan)
        return is_quiet

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Keep the log where it is while a worker is in it: who retires the partition waits."""
        self._running += 1
        try:
            yield
        finally:
            self._left()

    @property
    def is_rearranging(self) -> bool:
        """Whether somebody removes or replaces segments."""
        return self._rearranging is not None

    @contextmanager
    def rearranging(self) -> Iterator[trio.CancelScope | None]:
        """Be the one that removes or replaces segments; None if somebody else is at it, or the partition is going.

        It is cancelled when the partition is to go, which waits for the end.
        """
        if self._rearranging is not None or self._retired:
            yield None
            return
        with self.inside(), trio.CancelScope() as scope:
            self._rearranging = scope
            try:
                yield scope
            finally:
                self._rearranging = None

    def _take_queue(self) -> list[Append]:
        group, self._queue = self._queue, []
        self._queued_bytes = 0
        self._must_roll = False
        return group

    def _take_group(self) -> list[Append]:
        """The head of the queue that one write can take: a roll begins a new group, and a group is bounded."""
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
        if not self._is_roll_announced and log.is_roll_near:
            self._is_roll_announced = True
            self._spawn(self._announce_roll)
        if log.log_end_offset - log.recovery_point >= log.flush_messages or self._awaiting_flush:
            self._awaiting_flush += group  # behind others, too: it may be a duplicate of one of them
            self.disk.request_flush(self, len(group))
        else:
            for append in group:
                append.settle()
        if not log.shows_synced_only:
            first, last = group[0].planned, group[-1].planned
            self._tell_growth(last.position + last.size - first.position)

    def _tell_growth(self, size: int) -> None:
        """Report to waiters that the high watermark has moved by `size` bytes."""
        for waiter in self._waiters:
            waiter.grown(size)
        log = self.log
        before, self._stable_end = self._stable_end, log.last_stable_offset
        was_stable, self._was_stable = self._was_stable, self._stable_end == log.high_watermark
        if self._committed_waiters:
            self._tell_stable(size, has_moved=self._stable_end > before, was_stable=was_stable and self._was_stable)

    def _tell_stable(self, size: int, *, has_moved: bool, was_stable: bool) -> None:
        """Report to the waiters for committed records: `size` says something only where no transaction is open."""
        for waiter in self._committed_waiters:
            if was_stable:
                waiter.grown(size)
            elif has_moved:
                waiter.wake()
            else:
                waiter.moved()  # the high watermark, which a fetch session reports

    def _fail(self, group: list[Append], error: Exception) -> None:
        """Refuse what was to be written. An error that is not the disk's is ours: nobody knows what the log holds."""
        self.log.abandon()
        failed = group + self._take_queue()
        reason = StorageError(f"{self.topic}-{self.index}: {getattr(error, 'strerror', None) or error}")
        is_full = isinstance(error, OSError) and is_out_of_room(error)
        if not is_full or not self.log.room.ran_out(len(failed)):  # else the disk's watch tells, once for all logs
            self._refusals.report(reason, len(failed))
        if not isinstance(error, OSError):
            self.log.fail(error)
            logger.error("%s-%d: out of service", self.topic, self.index, exc_info=error)
        for append in failed:
            append.settle(reason)

    # -- sync --

    def begin_flush(self) -> FlushPlan | None:
        """Return what a sync of the log has to do; None if it has failed, or moves. `flushed` must follow."""
        self._running += 1
        return None if self.log.failed or self._is_leaving else self.log.begin_flush()

    def flushed(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Take the outcome of a sync that `begin_flush` began."""
        self._synced(plan, error)
        self._left()

    def _synced(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Move the recovery point and settle who waited, or put the log out of service.

        The recovery point of a log that has failed meanwhile stays: Linux tells one sync of a failure, and the next
        one nothing.
        """
        if error is not None:
            self.log.fail(error)
            logger.error("%s-%d: fsync failed, the log is out of service: %s", self.topic, self.index, error)
        if plan is not None and not self.log.failed:
            self._finish_flush(plan)
        self._settle_synced(
            StorageError(f"{self.topic}-{self.index}: fsync failed: {error or 'the log is out of service'}")
        )

    def _finish_flush(self, plan: FlushPlan) -> None:
        """What was synced is durable; where readers had to wait for that, they are told."""
        log = self.log
        self.synced_at = trio.current_time()
        shown, unflushed = log.high_watermark, log.unflushed_bytes
        log.finish_flush(plan)
        if log.high_watermark > shown:
            self._tell_growth(unflushed - log.unflushed_bytes)

    def reconfigure(self, config: LogConfig) -> None:
        """Take new settings of the log.

        Where `flush.messages` becomes 1, what readers could see before is synced now; where it was 1, they see at once
        what waits for its sync.
        """
        log, shown = self.log, self.log.high_watermark
        log.reconfigure(config)
        self._tell_moved()
        if log.high_watermark > shown:
            self.wake_all()
        if log.shows_synced_only and log.recovery_point < log.log_end_offset:
            self.disk.request_flush(self)

    def advance_start(self, offset: int) -> bool:
        """Let the log begin at `offset`, as `PartitionLog.advance_start` does; its fetchers are told."""
        stable = self.log.last_stable_offset
        moved = self.log.advance_start(offset)
        if moved:
            self._tell_moved()
        if self.log.last_stable_offset > stable:  # what was read so far of the open transaction has been deleted
            self.wake_all()
        return moved

    def _tell_moved(self) -> None:
        for waiters in (self._waiters, self._committed_waiters):
            for waiter in waiters:
                waiter.moved()

    def _settle_synced(self, failure: StorageError) -> None:
        """Settle the appends that are synced, or all of them with `failure` if the log has failed."""
        waiting, self._awaiting_flush = self._awaiting_flush, []
        for append in waiting:
            if self.log.failed:
                append.settle(failure)
            elif append.planned.last_offset < self.log.recovery_point:
                append.settle()
            else:
                self._awaiting_flush.append(append)
        if self._awaiting_flush:
            self.disk.request_flush(self)

    # -- fetch --

    def read(self, offset: int, max_bytes: int, *, min_one_message: bool, committed: bool = False) -> LogRead | None:
        """A slice from `offset` up to the high watermark, or None while a damaged index is rebuilt.

        `committed`: up to the last stable offset, with the aborted transactions of the slice.

        Raises OffsetOutOfRangeError, OSError, StorageError for an index that could not be rebuilt, and ColdReadError
        where the way to the slice is not in memory: have its job done by a thread and read again.
        """
        started = time.perf_counter()
        log, residency, faults = self.log, self._residency, self.page_faults
        residency.enter()
        faults.begin()
        try:
            end = log.last_stable_offset if committed else log.high_watermark
            found = log.read(
                offset, max_bytes, isolation_end=end, min_one_message=min_one_message, with_aborted=committed
            )
        except IndexCorruptError as error:
            self.rebuild(error)
            return None
        except ColdReadError as cold:
            if cold.base_offset in self._rebuilding:
                return None
            raise
        else:
            if found.section is not None:
                faults.end(LOOKUP_FAULTS[found.section])  # of a scan's end there is nothing left to count
        finally:
            residency.leave()
            faults.leave()
        if found.section is not None:
            self._metrics.lookups[found.section].add()
            self._metrics.lookup_seconds.observe(time.perf_counter() - started)
        return found

    def is_in_memory(self, piece: FileSlice, length: int) -> bool:
        """Whether the first `length` bytes of a slice are; the slice remembers it. Raises OSError."""
        if self._residency.missing_pages(piece.descriptor, piece.position, length, "log"):
            return False
        piece.warm_length = length
        return True

    def cannot_read(self, error: Exception) -> None:
        """Mark the log as one that could not be read, and tell so now and then; others go on, and so do its appends."""
        self.is_unreadable = True
        self._metrics.log_read_errors.add()
        now = trio.current_time()
        if now >= self._tell_unreadable_at:
            self._tell_unreadable_at = now + UNREADABLE_PAUSE_S
            logger.error("%s-%d: cannot be read: %s", self.topic, self.index, error)

    async def rebuilt(self, damage: IndexCorruptError) -> None:
        """Wait until the indexes of a segment were rebuilt. Raises StorageError as `rebuild`."""
        self.rebuild(damage)
        while damage.base_offset in self._rebuilding:
            await self._progress.park()

    def rebuild(self, damage: IndexCorruptError) -> None:
        """Rebuild the indexes of a segment in a worker, once. An active one is sealed before.

        Raises StorageError if that was tried just now, in vain.
        """
        base_offset = damage.base_offset
        if base_offset in self._rebuilding:
            return
        if trio.current_time() < self._rebuilt_at.get(base_offset, -math.inf) + REBUILD_PAUSE_S:
            raise StorageError(f"{self.topic}-{self.index}: {damage}")
        self._rebuilding.add(base_offset)
        logger.warning("%s-%d: %s; rebuilding it", self.topic, self.index, damage)
        self._spawn(partial(self._rebuild_in_worker, base_offset))

    async def _rebuild_in_worker(self, base_offset: int) -> None:
        try:
            await self._seal(base_offset)
            await self.disk.keep_up(partial(self.log.rebuild_indexes, base_offset))
        except (OSError, LogError, ProtocolError) as error:
            logger.warning("%s-%d: segment %d: index not rebuilt: %s", self.topic, self.index, base_offset, error)
        finally:
            self._rebuilding.discard(base_offset)
            self._rebuilt_at[base_offset] = trio.current_time()
            self.wake_all()

    async def _seal(self, base_offset: int) -> None:
        """Return when a segment is sealed and its files are trimmed. Raises OSError, LogFailedError.

        The active one is sealed by an early roll, or by that of the next append where appends keep coming.
        """
        log = self.log
        if log.active_base_offset == base_offset:
            log.request_roll()
        while log.is_untrimmed(base_offset):
            if log.failed:
                raise LogFailedError(f"{self.topic}-{self.index} is out of service")
            self.write_queued()
            if log.active_base_offset != base_offset or self._writing or self._is_paused:
                await self._progress.park()
            elif await self.roll():
                self._metrics.rolls[RollReason.INDEX_CORRUPT.value].add()

    def enlist(self, waiter: Waiter, *, committed: bool = False) -> None:
        """Wake this waiter when the log grows, until `dismiss`; `committed`: when the last stable offset moves."""
        (self._committed_waiters if committed else self._waiters).add(waiter)

    def dismiss(self, waiter: Waiter) -> None:
        """Stop waking this waiter."""
        self._waiters.discard(waiter)
        self._committed_waiters.discard(waiter)

    def wake_all(self) -> None:
        """Have every waiting fetch look again: the partition is going away, or has failed."""
        self._stable_end = self.log.last_stable_offset  # it may have gone back
        self._was_stable = self._stable_end == self.log.high_watermark
        for waiters in (self._waiters, self._committed_waiters):
            for waiter in waiters:
                waiter.wake()

    # -- reopening --

    async def reopen(self) -> Reopened | None:
        """Make the end of a failed log anew, in a worker; None if somebody rearranges its segments.

        Cancelled, it gives up unless it is nearly done. Raises OSError, LogError, ProtocolError: then the log is as it
        was.
        """
        reopened = None
        with self.rearranging() as scope:
            if scope is not None:
                reopened = await self._reopen()
            elif self._rearranging is not None:
                self._rearranging.cancel()  # a compaction may take minutes, and producers wait
        return reopened

    async def _reopen(self) -> Reopened:
        await self.settled(among=1)
        log = self.log
        reopened = await trio.to_thread.run_sync(log.begin_reopening().make, trio.from_thread.check_cancelled)
        log.finish_reopening(reopened)
        self.synced_at = trio.current_time()
        self.wake_all()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(reopened.let_go)
            try:
                await trio.to_thread.run_sync(log.checkpoint_epochs)
            except OSError as error:  # it is in service again all the same, and batches tell their epochs, too
                logger.warning("%s-%d: leader epochs not written: %s", self.topic, self.index, error)
        return reopened

    # -- moving --

    async def relocate(self, move: LogMove, to: Destination) -> MovedLog | None:
        """Let the copy that a move has made take the place of the log; None if it cannot yet.

        Writes wait meanwhile; what comes is planned and queued. Raises OSError: then the log is where it was.
        """
        moved: MovedLog | None = None
        old: Sequence[Segment] = ()
        with self.rearranging() as scope:
            if scope is not None:
                self._is_paused = True
                try:
                    if await self._has_settled():
                        with trio.CancelScope(shield=True):
                            moved, old = await self._take_copy(move, to)
                finally:
                    self._is_paused = self._is_leaving = False
                    self.write_queued()
                    self._progress.unpark_all()
            if moved is not None:
                self.synced_at = trio.current_time()
                self.wake_all()
                with trio.CancelScope(shield=True):
                    await self.disk.keep_up(partial(_close_each, old))
        return moved

    async def _has_settled(self) -> bool:
        """Wait until nobody else is inside the log; False if that takes too long, or if the log has failed."""
        while self._writing:
            await self._progress.park()
        with trio.move_on_after(MAX_PAUSE_S) as waiting:
            await self.settled(among=1)
        return not waiting.cancelled_caught and not self.log.failed

    async def _take_copy(self, move: LogMove, to: Destination) -> tuple[MovedLog, Sequence[Segment]]:
        """Complete the copy and serve it from now on; returns the old segments, to be closed."""
        self._is_leaving = True
        disk = self._writer.workers(to.data_directory)
        moved = await disk.write(partial(move.complete, self.log.end_of_move(), to.write_checkpoints))
        old = self.log.finish_move(moved, to.room)
        self.data_directory, self.disk = to.data_directory, disk
        to.moved()
        return moved, old

    # -- end --

    async def retire(self) -> None:
        """Finish what is under way and wake who waits; for a partition that is deleted or a broker that stops.

        Nobody is inside the log afterwards, so that it can be closed and its files be moved.
        """
        self._retired = True
        if self._rearranging is not None:
            self._rearranging.cancel()
        await self.settled()
        self.wake_all()


def _close_each(segments: Sequence[Segment]) -> None:
    """Worker: close segments that are the log's no more."""
    for segment in segments:
        segment.close()


def _finish(log: PartitionLog, sealed: Segment, plan: FlushPlan) -> None:
    """Worker: the end of a roll."""
    log.finish_roll(sealed)
    plan.sync()
