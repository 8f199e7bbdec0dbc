"""Read cold pages in worker threads: a read-ahead that is fair among consumers.

    consumer A   |piece|piece|piece|  \
    consumer B   |piece|               }->  round robin  ->  threads  ->  page cache
    consumer C   |lookup|             /

A piece is the part of a file that one read covers; a lookup is work that reads scattered pages (an index, some batch
headers). The bytes read are discarded: the goal is to have them in the page cache, from which sendfile sends them.

Invariants:
1. At most `threads` reads run at a time, and at most `ahead_bytes` of a file are read for a consumer beyond the bytes
   that it waits for.
2. Bytes that are queued or being read are read once: a second request waits for the first one's piece. If a lookup, or
   a read that began before the request, fails, the request reads again, because the disk may have recovered.
3. A range being read is `busy`, and the residency gate reports it as cold: the kernel already counts its pages as
   cached.
4. When a consumer disconnects, its queued reads are cancelled, except those that others wait for.
5. Everything runs on the event loop, except `_Reading.run`, and `is_busy`, which only reads.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from errno import ENODATA
from functools import partial
from mmap import PAGESIZE
from time import perf_counter
from typing import NamedTuple

import trio

from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import ColdReadError, OpenFile, Residency
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.reads.drop_behind import DropBehind

IDLE_S = 60.0  # far longer than a consumer takes to process a response
MAX_ROUNDS = 3  # attempts to read evicted pages again: then there is too little memory to keep them


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The number of threads, the size of one read, and the read-ahead per consumer in bytes."""

    threads: int
    piece_bytes: int
    ahead_bytes: int
    drop_passed: bool  # whether to drop pages read for lagging consumers once they were sent


class ReadStatistics(NamedTuple):
    """The numbers of running and queued reads."""

    running: int
    queued: int


class _Reading:
    """One unit of work for a thread: reading bytes [start, end) of a file, or a lookup in that range."""

    __slots__ = (
        "_event", "consumer", "descriptor", "end", "error", "is_forgotten", "is_started", "start", "waiters", "work",
    )  # fmt: skip

    def __init__(self, consumer: Hashable, descriptor: OpenFile | None, start: int, end: int) -> None:
        self.consumer = consumer
        self.descriptor = descriptor
        self.start = start
        self.end = end
        self.work: Callable[[], object] | None = None
        self.error: Exception | None = None
        self.waiters = 0
        self.is_started = False
        self.is_forgotten = False  # its consumer has disconnected
        self._event = trio.Event()

    def run(self, buffer: memoryview) -> int:
        """Read in a worker thread; return the number of bytes. Raises OSError (also if the file was truncated)."""
        if self.work is not None:
            self.work()
            return self.end - self.start
        assert self.descriptor is not None, "a piece belongs to a file"
        position = self.start
        while position < self.end:
            count = self.descriptor.read_into(buffer[: self.end - position], position)
            if not count:
                raise OSError(ENODATA, f"the file was truncated: bytes {position} to {self.end - 1} are missing")
            position += count
        return self.end - self.start

    def finish(self) -> None:
        """Wake the waiters."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the read has ended; `error` has its outcome."""
        await self._event.wait()


class ReadAhead:
    """The readers of one broker. A consumer is any hashable object: a connection's session."""

    def __init__(self, *, nursery: trio.Nursery, residency: Residency, metrics: Metrics, limits: ReadLimits) -> None:
        self.residency = residency
        self.limits = limits
        self.passed = DropBehind()
        self._metrics = metrics
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(limits.threads)
        self._buffers: list[memoryview] = []  # one per thread used so far
        self._queues: OrderedDict[Hashable, deque[_Reading]] = OrderedDict()  # the first consumer is served next
        self._files: dict[tuple[int, int], list[_Reading]] = {}  # queued and running reads, by file
        self._running = 0
        residency.busy = self.is_busy

    def statistics(self) -> ReadStatistics:
        """Return the numbers of running and queued reads."""
        return ReadStatistics(self._running, sum(map(len, self._queues.values())))

    # -- reads in progress --

    def is_busy(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Return whether pages of a range are being read or queued."""
        if not self._files:
            return False
        start, end = position // PAGESIZE * PAGESIZE, -(-(position + length) // PAGESIZE) * PAGESIZE
        return bool(self._overlapping(descriptor, start, end))

    def _overlapping(self, descriptor: OpenFile, start: int, end: int) -> list[_Reading]:
        reads = self._files.get(descriptor.identity(), ())
        return [reading for reading in tuple(reads) if reading.start < end and start < reading.end]

    # -- requests --

    async def look_up(self, consumer: Hashable, cold: ColdReadError) -> None:
        """Run a lookup in a worker thread, and wait for it.

        Raises what the lookup raises: OSError, LogError, ProtocolError.
        """
        reading = _Reading(consumer, cold.descriptor, cold.position, cold.position + cold.length)
        reading.work = cold.job
        self._enqueue(reading)
        await self._wait(consumer, reading)

    async def bring(self, consumer: Hashable, piece: FileSlice, position: int, length: int) -> bool:
        """Read `length` bytes of a slice's file from `position` on, and begin to read ahead in the slice.

        Returns False if the pages are evicted immediately. Raises OSError, also if the file ends early.
        """
        descriptor, wanted_end = piece.descriptor, position + length
        slice_end = piece.position + piece.length
        ahead_end = min(slice_end, max(wanted_end, position + self.limits.ahead_bytes))
        for attempt in range(MAX_ROUNDS):
            for reading, is_earlier in self._ask(consumer, descriptor, position, ahead_end):
                if reading.start < wanted_end:
                    is_others = reading.work is not None or (is_earlier and not attempt)
                    await self._wait(consumer, reading, ignore_error=is_others)
            self.passed.follow(consumer, descriptor, position)
            if not self.residency.missing_pages(descriptor, position, length, None):
                return True
        return False

    async def run(self) -> None:
        """Close files that consumers no longer read, until cancelled."""
        while True:
            await trio.sleep(IDLE_S)
            self.passed.close_idle()

    def forget(self, consumer: Hashable) -> None:
        """Cancel the reads of a consumer that has disconnected."""
        self._withdraw(consumer)
        for readings in self._files.values():  # running reads are not cancelled
            for reading in readings:
                reading.is_forgotten = reading.is_forgotten or reading.consumer == consumer
        self._drop(self.passed.forget(consumer))

    def begun(self, consumer: Hashable, piece: FileSlice) -> None:
        """Record that a slice is being sent to a consumer, which has thus consumed everything before it.

        The slice itself is kept: it may end inside a batch, which is fetched again, and the lookup of the next slice
        reads the header of its last complete batch.
        """
        if self.passed:
            self._drop(self.passed.passed(consumer, piece.descriptor, piece.position))

    def sent(self, consumer: Hashable, piece: FileSlice) -> None:
        """Record that a slice was sent; it is consumed if the file ends with it. Raises OSError."""
        end = piece.position + piece.length
        if self.passed and self.passed.knows(piece.descriptor) and end == piece.descriptor.size():
            self._drop(self.passed.passed(consumer, piece.descriptor, end))

    def _ask(self, consumer: Hashable, descriptor: OpenFile, start: int, end: int) -> list[tuple[_Reading, bool]]:
        """Return the reads that cover a range, and whether each had already started; queue missing ones."""
        size, readings = self.limits.piece_bytes, list[tuple[_Reading, bool]]()
        missing_pages = self.residency.method.missing_pages
        while start < end:
            stop = min(end, (start // size + 1) * size)
            overlapping = self._overlapping(descriptor, start, stop)
            readings += [(reading, reading.is_started) for reading in overlapping]
            if not overlapping and missing_pages(descriptor.fd, start, stop - start):
                reading = _Reading(consumer, descriptor, start, stop)
                self._enqueue(reading)
                readings.append((reading, False))
            start = stop
        return readings

    async def _wait(self, consumer: Hashable, reading: _Reading, *, ignore_error: bool = False) -> None:
        """Wait for a read. Raises its error unless `ignore_error`; then the missing pages are detected later."""
        reading.waiters += 1
        is_fine = False
        try:
            await reading.wait()
            if reading.error is not None and not ignore_error:
                raise reading.error
            is_fine = True
        finally:
            reading.waiters -= 1
            if not is_fine:
                self._withdraw(consumer)

    # -- scheduling --

    def _enqueue(self, reading: _Reading) -> None:
        if reading.descriptor is not None:
            self._files.setdefault(reading.descriptor.identity(), []).append(reading)
        self._queues.setdefault(reading.consumer, deque()).append(reading)
        self._start_more()

    def _start_more(self) -> None:
        while self._running < self.limits.threads and self._queues:
            consumer, queue = next(iter(self._queues.items()))
            reading = queue.popleft()
            if queue:
                self._queues.move_to_end(consumer)
            else:
                del self._queues[consumer]
            self._running += 1
            reading.is_started = True
            self._nursery.start_soon(self._read, reading)

    async def _read(self, reading: _Reading) -> None:
        buffer = self._buffers.pop() if self._buffers else memoryview(bytearray(self.limits.piece_bytes))
        began_at = perf_counter()
        try:
            with trio.CancelScope(shield=True):
                count = await trio.to_thread.run_sync(partial(reading.run, buffer), limiter=self._limiter)
        except Exception as error:  # noqa: BLE001  # raised in the waiters
            reading.error = error
        else:
            self._metrics.cold_read_bytes.add(count)
            self._metrics.cold_read_seconds.observe(perf_counter() - began_at)
            self._note_brought(reading)
        self._buffers.append(buffer)
        self._running -= 1
        self._done(reading)
        self._start_more()

    def _note_brought(self, reading: _Reading) -> None:
        is_piece = reading.work is None and not reading.is_forgotten
        if self.limits.drop_passed and is_piece and reading.descriptor is not None:
            self.passed.brought(reading.consumer, reading.descriptor, reading.start, reading.end)

    def _done(self, reading: _Reading) -> None:
        if reading.descriptor is not None:
            identity = reading.descriptor.identity()
            left = self._files[identity]
            left.remove(reading)
            if not left:
                del self._files[identity]
        reading.finish()

    def _withdraw(self, consumer: Hashable) -> None:
        """Cancel a consumer's queued reads that have no waiters."""
        queue = self._queues.pop(consumer, None)
        if queue is None:
            return
        kept = deque(reading for reading in queue if reading.waiters)
        for reading in queue:
            if not reading.waiters:
                self._done(reading)
        if kept:
            self._queues[consumer] = kept

    def _drop(self, ranges: list[tuple[OpenFile, int, int]]) -> None:
        """Drop pages from the page cache, in a worker thread: it may wait for pending writes."""
        if ranges:
            self._nursery.start_soon(self._drop_in_worker, ranges)

    async def _drop_in_worker(self, ranges: list[tuple[OpenFile, int, int]]) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_drop_all, ranges, limiter=self._limiter)


def _drop_all(ranges: list[tuple[OpenFile, int, int]]) -> None:
    for descriptor, start, end in ranges:
        descriptor.drop_cached(start, end - start)
