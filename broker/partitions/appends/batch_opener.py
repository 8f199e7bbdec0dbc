"""Decompress and validate compressed batches before they are appended: small ones on the loop, others in threads.

Like Kafka, the broker decompresses every batch that a producer sends (`docs/formats.md`). A small batch takes some ten
microseconds, less than passing it to a thread. A large one may expand to 128 MiB, regardless of its header.

Invariants:
1. Between two writes the event loop opens batches for about `LOOP_SECONDS` at most, each of at most `LOOP_OPENED_BYTES`
   decompressed.
2. At most `MAX_THREADS` threads open batches, for all partitions together, each for about `JOB_SECONDS` at a time, or
   for one batch.
3. Batches of one source (a connection) to one partition are opened in order, by one thread at a time. `FairOrder`
   decides between sources: one whose batches take long does not delay others.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

import trio

from warmlog.broker.log.appends.planned import Buffer
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.fair_order import FairOrder, Work
from warmlog.protocol.errors import CompressionError, ProtocolError
from warmlog.protocol.records.reencode import Reencoding

logger = logging.getLogger(__name__)

MAX_THREADS = 2  # CPU-bound, and each may hold a decompressed block of the maximum size
JOB_BYTES = 1 << 20  # compressed bytes per turn of a thread: milliseconds
JOB_SECONDS = 0.01  # then a thread returns unopened batches, also in the middle of an append
LOOP_BYTES = 8 << 10  # compressed; well compressed data expands to up to eight times as much
LOOP_OPENED_BYTES = 64 << 10  # 40 us for lz4, 60 us for zstd, 0.2 ms for gzip
LOOP_SECONDS = 0.001

Outcome = Buffer | Exception  # the batches as stored, or the reason for rejecting them


class Lane(Protocol):
    """The appends of one source to one partition whose batches wait to be opened."""

    @property
    def log(self) -> PartitionLog:
        """The partition's log."""

    def next_unopened(self, max_bytes: int) -> Sequence[Reencoding]:
        """Return the first waiting appends, at least one; `opened` follows."""

    def opened(self, outcomes: Sequence[Outcome]) -> bool:
        """Receive the outcomes of those that were opened, possibly none; return whether more are waiting."""


class BatchOpener:
    """Opens batches for all partitions. Belongs to the event loop."""

    def __init__(self, spawn: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Use `spawn` to run async functions in the background to their end."""
        self.loop_bytes = LOOP_BYTES
        self._spawn = spawn
        self._limiter = trio.CapacityLimiter(MAX_THREADS)
        self._waiting: FairOrder[Lane] = FairOrder()
        self._threads = 0
        self._stopped: Exception | None = None
        self._spent_s = 0.0  # on the event loop, since the last write

    def open_now(self, log: PartitionLog, records: Buffer) -> Buffer | None:
        """Return batches in stored form if that is quick, else None; then `enlist` the partition.

        Raises the ProtocolErrors of `protocol.records.reencode.reencode_batches`, except CompressionError.
        """
        if len(records) > self.loop_bytes or self._spent_s >= LOOP_SECONDS or not log.appends.keeps_codecs:
            return None
        began = perf_counter()
        try:
            return log.appends.reencoding(records, max_decompressed_size=LOOP_OPENED_BYTES).run(lambda: False)
        except Exception as error:
            if isinstance(error, ProtocolError) and not isinstance(error, CompressionError):
                raise
            return None  # damaged, too large for the event loop, or a defect: a thread reports it
        finally:
            self._spent_s += perf_counter() - began

    def written(self) -> None:
        """Reset the time budget: the opened batches are being written."""
        self._spent_s = 0.0

    def enlist(self, source: Hashable, lane: Lane) -> None:
        """Open the waiting batches of a lane in threads. The lane must not be enlisted already."""
        self._waiting.add(source, lane)
        if self._threads < MAX_THREADS:
            self._threads += 1
            self._spawn(self._work)

    def stop(self, reason: Exception) -> None:
        """Stop opening batches: all waiting and future ones are rejected."""
        self._stopped = reason

    async def _work(self) -> None:
        try:
            while self._waiting:
                if self._stopped is None:
                    await self._open_some()
                else:
                    self._reject(self._stopped)
        finally:
            self._threads -= 1

    def _reject(self, reason: Exception) -> None:
        work = self._waiting.take()
        while work.item.opened([reason] * len(work.item.next_unopened(JOB_BYTES))):
            pass
        self._waiting.served(work, 0.0)

    async def _open_some(self) -> None:
        """Open batches of the next lanes in a thread."""
        group: list[Work[Lane]] = []
        jobs: list[tuple[PartitionLog, Sequence[Reencoding]]] = []
        size = 0
        while self._waiting and size < JOB_BYTES:
            work = self._waiting.take()
            batches = work.item.next_unopened(JOB_BYTES - size)
            size += sum(each.size for each in batches)
            group.append(work)
            jobs.append((work.item.log, batches))
        results: Sequence[tuple[Sequence[Outcome], float]]
        try:
            results = await trio.to_thread.run_sync(partial(_open_all, jobs), limiter=self._limiter)
        except Exception as error:  # a defect, or no thread could be started: nothing was planned yet
            logger.exception(
                "unexpected error while validating compressed batches; rejecting %d", sum(len(each) for _, each in jobs)
            )
            results = [([error] * len(batches), 0.0) for _, batches in jobs]
        for work, (outcomes, seconds) in zip(group, results, strict=True):
            has_more = work.item.opened(outcomes)
            self._waiting.served(work, seconds)
            if has_more:
                self._waiting.add(work.source, work.item)


def _open_all(jobs: Sequence[tuple[PartitionLog, Sequence[Reencoding]]]) -> list[tuple[list[Outcome], float]]:
    """Open batches of several lanes in a worker thread, at least one batch, until JOB_SECONDS have passed.

    Return the outcomes of the appends that are done, and the seconds that each lane took. An error affects its own
    append only.
    """
    results: list[tuple[list[Outcome], float]] = []
    ends_at = perf_counter() + JOB_SECONDS
    for log, batches in jobs:
        outcomes: list[Outcome] = []
        since = perf_counter()
        for reencoding in batches:
            if (results or outcomes) and perf_counter() > ends_at:
                break
            outcome = _open(log, reencoding, lambda: perf_counter() > ends_at)
            if outcome is None:
                break
            outcomes.append(outcome)
        results.append((outcomes, perf_counter() - since))
    return results


def _open(log: PartitionLog, reencoding: Reencoding, is_over: Callable[[], bool]) -> Outcome | None:
    try:
        return reencoding.run(is_over)
    except ProtocolError as error:
        return _alone(error)
    except Exception as error:
        logger.exception(
            "%s-%d: unexpected error while validating a compressed batch; rejecting it", log.topic, log.partition
        )
        return _alone(error)


def _alone(error: Exception) -> Exception:
    """Strip an error's traceback and context, which would keep decompressed blocks in memory."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
