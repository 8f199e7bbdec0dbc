"""The async edge of one log: appends queue here and wait for their write, fetches wait here for data.

Owns: the queue of planned appends of each log, who writes them (the loop or a worker), the round of fsync that appends
share, and the wake-up of waiting fetches. Must not know: requests, wire formats, sockets.

Invariants:
1. One write per log at a time; what comes meanwhile queues in order and goes out together in the next write.
2. A write of more than `loop_write_max_bytes`, or one that needs a new segment, runs in a worker; the log is planned
   and committed on the loop only.
3. When a write fails, everything queued behind it fails too, since it was planned on top of it; the log is cut back to
   where it was.
4. An `Append` is settled exactly once: committed (and, where `flush.messages` asks for it, synced), or failed.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import trio

from broker.log.errors import IndexCorruptError
from broker.log.partition_log import FlushPlan, LogRead, PartitionLog, PlannedAppend
from broker.log.segment import Segment
from broker.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_GROUP_BYTES = 8 << 20  # one write: large enough for the disk, small enough that a worker comes back in milliseconds
MAX_WRITE_THREADS = 8  # two keep a disk busy; more let one slow directory not hold up the others


class StorageError(Exception):
    """A log could not be written or synced; what was asked is not stored. The client's KAFKA_STORAGE_ERROR."""


class Append:
    """One append on its way: settled when it is written (and synced, where that was asked for) or has failed."""

    __slots__ = ("_event", "done", "error", "partition", "planned")

    def __init__(self, partition: "Partition", planned: PlannedAppend) -> None:
        self.partition = partition
        self.planned = planned
        self.done = False
        self.error: StorageError | None = None
        self._event: trio.Event | None = None

    def settle(self, error: StorageError | None = None) -> None:
        """Tell who waits that it is over."""
        self.done = True
        self.error = error
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return when settled; `error` says how it went."""
        if not self.done:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()


class FetchWaiter:
    """One waiting fetch.

    Woken when the partitions it is enlisted with have grown by so many bytes, or one of them has changed otherwise.
    """

    __slots__ = ("_event", "_missing_bytes")

    def __init__(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self._event = trio.Event()

    def grown(self, size: int) -> None:
        """Count bytes that became readable."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self._event.set()

    def wake(self) -> None:
        """Look again, whatever has come."""
        self._event.set()

    async def wait(self) -> None:
        """Return when enough has come."""
        await self._event.wait()


class Writer:
    """What all partitions of a broker share for writing.

    The nursery and threads of their background writes, and the rounds of fsync.

    `write_queued()` is called by whoever has queued appends, once it has queued all it has: so appends that came
    together go out together.
    """

    def __init__(self, *, nursery: trio.Nursery, metrics: Metrics, loop_write_max_bytes: int) -> None:
        self.metrics = metrics
        self.loop_write_max_bytes = loop_write_max_bytes
        self._nursery = nursery
        self._threads = trio.CapacityLimiter(MAX_WRITE_THREADS)
        self._queued: list[Partition] = []
        self._due: dict[Partition, None] = {}
        self._flushing = False
        self._last_client: object = None

    def enlist(self, partition: "Partition") -> None:
        """Remember a partition whose queue is to be written."""
        self._queued.append(partition)

    def is_shared(self, client: object) -> bool:
        """Whether the last one to come here was another client: then it is worth a turn of the loop before writing.

        What others have received in this turn goes out in the same write, and the replies leave one after the other,
        which wakes a sleeping peer once (32 connections with 4 requests in flight: a fifth more requests/s). A client
        that is alone does not wait.
        """
        last, self._last_client = self._last_client, client
        return last is not client and last is not None

    def write_queued(self) -> None:
        """Write what is queued: small writes at once, others by a task. Never waits."""
        queued = self._queued
        if queued:
            self._queued = []
            for partition in queued:
                partition.write_queued()

    def spawn(self, run: Callable[[], object]) -> None:
        """Run an async function in the background until the broker stops."""
        self._nursery.start_soon(run)  # type: ignore[arg-type]  # partials of coroutine functions

    async def in_worker(self, work: Callable[[], object]) -> None:
        """Run what only waits for the disk in a worker."""
        await trio.to_thread.run_sync(work, limiter=self._threads)

    def request_flush(self, partition: "Partition") -> None:
        """Sync a partition's log in the next round.

        One round at a time: who comes during one shares the next (group commit).
        """
        self._due[partition] = None
        if not self._flushing:
            self._flushing = True
            self.spawn(self._flush_rounds)

    async def flush(self, partitions: Iterable["Partition"]) -> None:
        """Sync these now, as one round of their own."""
        await self._flush_round(list(partitions))

    async def _flush_rounds(self) -> None:
        try:
            while self._due:
                due, self._due = list(self._due), {}
                await self._flush_round(due)
        finally:
            self._flushing = False

    async def _flush_round(self, partitions: Sequence["Partition"]) -> None:
        plans = [(partition, partition.log.begin_flush()) for partition in partitions if not partition.log.failed]
        started = time.perf_counter()
        errors = await trio.to_thread.run_sync(_sync_all, [plan for _, plan in plans], limiter=self._threads)
        self.metrics.fsync_seconds.observe(time.perf_counter() - started)
        for (partition, plan), error in zip(plans, errors, strict=True):
            partition.flushed(plan, error)


def _sync_all(plans: Sequence[FlushPlan]) -> list[OSError | None]:
    """Worker: sync one log after the other; an error is that log's own."""
    errors: list[OSError | None] = []
    for plan in plans:
        try:
            plan.sync()
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors


class Partition:
    """One log as the broker's tasks use it. All methods belong to the loop."""

    def __init__(self, log: PartitionLog, writer: Writer) -> None:
        self.log = log
        self.topic = log.topic
        self.index = log.partition
        self._writer = writer
        self._metrics = writer.metrics
        self._queue: list[Append] = []
        self._queued_bytes = 0
        self._must_roll = False
        self._writing = False
        self._awaiting_flush: list[Append] = []
        self._waiters: set[FetchWaiter] = set()
        self._rebuilding: set[int] = set()  # base offsets of segments whose indexes are being made anew
        self._idle = trio.Event()

    # -- append --

    def append(self, records: bytes | memoryview) -> Append:
        """Queue batches for the end of the log.

        They are checked and have their offsets at once; written by the next `write_queued`.

        Raises what PartitionLog.plan raises: ProtocolError for bytes that are refused, LogFailedError for a log that is
        out of service.
        """
        planned = self.log.plan(records)
        append = Append(self, planned)
        if not self._queue and not self._writing:
            self._writer.enlist(self)
        self._queue.append(append)
        self._queued_bytes += planned.size
        if planned.roll is not None:
            self._must_roll = True
        return append

    def write_queued(self) -> None:
        """Write the queue: at once if it is small, else by a task."""
        if self._writing or not self._queue:
            return
        if self._must_roll or self._queued_bytes > self._writer.loop_write_max_bytes:
            self._writing = True
            self._idle = trio.Event()
            self._writer.spawn(self._drain)
            return
        group = self._take_queue()
        planned = [append.planned for append in group]
        try:
            self.log.write(planned)
            self.log.commit(planned)
        except OSError as error:
            self._fail(group, error)
        else:
            self._committed(group)

    async def settled(self) -> None:
        """Return when nothing is queued or being written."""
        while self._writing or self._queue:
            self.write_queued()
            if self._writing:
                await self._idle.wait()

    async def _drain(self) -> None:
        """Write group after group until the queue is empty."""
        try:
            while self._queue:
                group = self._take_group()
                try:
                    await self._write_in_worker(group)
                except OSError as error:
                    self._fail(group, error)
                else:
                    self._committed(group)
        finally:
            self._writing = False
            self._idle.set()

    async def _write_in_worker(self, group: list[Append]) -> None:
        planned = [append.planned for append in group]
        if planned[0].roll is not None:
            await self._roll(planned[0])
        await self._writer.in_worker(partial(self.log.write, planned))
        self.log.commit(planned)

    async def _roll(self, planned: PlannedAppend) -> None:
        segment = await trio.to_thread.run_sync(self.log.prepare_roll, planned)
        sealed = self.log.commit_roll(segment)
        assert planned.roll is not None
        self._metrics.rolls[planned.roll.value].add()
        self._writer.spawn(partial(self._finish_roll, sealed))

    async def _finish_roll(self, sealed: Segment) -> None:
        try:
            await self._writer.in_worker(partial(self.log.finish_roll, sealed))
        except OSError:
            logger.exception("%s-%d: a rolled segment could not be trimmed and synced", self.topic, self.index)

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
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self._awaiting_flush += group
            self._writer.request_flush(self)
        else:
            for append in group:
                append.settle()
        if self._waiters:
            first, last = group[0].planned, group[-1].planned
            for waiter in self._waiters:
                waiter.grown(last.position + last.size - first.position)

    def _fail(self, group: list[Append], error: OSError) -> None:
        self.log.abandon()
        failed = group + self._take_queue()
        reason = StorageError(f"{self.topic}-{self.index}: {error.strerror or error}")
        logger.error("%s; %d appends refused", reason, len(failed))
        for append in failed:
            append.settle(reason)

    def flushed(self, plan: FlushPlan, error: OSError | None) -> None:
        """Take the outcome of a sync: move the recovery point and settle who waited, or put the log out of service."""
        if error is None:
            self.log.finish_flush(plan)
        else:
            self.log.fail(error)
            logger.error("%s-%d: fsync failed, the log is out of service: %s", self.topic, self.index, error)
        waiting, self._awaiting_flush = self._awaiting_flush, []
        for append in waiting:
            if error is not None:
                append.settle(StorageError(f"{self.topic}-{self.index}: fsync failed: {error.strerror}"))
            elif append.planned.last_offset < self.log.recovery_point:
                append.settle()
            else:
                self._awaiting_flush.append(append)
        if self._awaiting_flush:
            self._writer.request_flush(self)

    # -- fetch --

    def read(self, offset: int, max_bytes: int, *, min_one_message: bool) -> LogRead | None:
        """A slice from `offset` up to the high watermark, or None while a damaged index is rebuilt.

        Raises OffsetOutOfRangeError, OSError.
        """
        started = time.perf_counter()
        log = self.log
        try:
            found = log.read(offset, max_bytes, isolation_end=log.high_watermark, min_one_message=min_one_message)
        except IndexCorruptError as error:
            self._rebuild(error)
            return None
        if found.section is not None:
            self._metrics.lookups[found.section].add()
            self._metrics.lookup_seconds.observe(time.perf_counter() - started)
        return found

    def _rebuild(self, damage: IndexCorruptError) -> None:
        """Make the indexes of a segment anew in a worker, once."""
        if damage.base_offset not in self._rebuilding:
            self._rebuilding.add(damage.base_offset)
            logger.warning("%s-%d: %s; rebuilding it", self.topic, self.index, damage)
            self._writer.spawn(partial(self._rebuild_in_worker, damage.base_offset))

    async def _rebuild_in_worker(self, base_offset: int) -> None:
        try:
            await self._writer.in_worker(partial(self.log.rebuild_indexes, base_offset))
        except OSError:
            logger.exception("%s-%d: the index of segment %d could not be rebuilt", self.topic, self.index, base_offset)
        finally:
            self._rebuilding.discard(base_offset)
            self.wake_all()

    def enlist(self, waiter: FetchWaiter) -> None:
        """Wake this waiter when the log grows, until `dismiss`."""
        self._waiters.add(waiter)

    def dismiss(self, waiter: FetchWaiter) -> None:
        """Stop waking this waiter."""
        self._waiters.discard(waiter)

    def wake_all(self) -> None:
        """Have every waiting fetch look again: the partition is going away, or has failed."""
        for waiter in self._waiters:
            waiter.wake()

    # -- end --

    async def retire(self) -> None:
        """Finish what is queued and wake who waits; for a partition that is deleted or a broker that stops."""
        with suppress(StorageError):
            await self.settled()
        self.wake_all()
