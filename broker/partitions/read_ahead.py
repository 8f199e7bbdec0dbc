"""Reading what is not in memory, beside the loop: our own read-ahead, fair among consumers.

Owns: the threads that read, the queues of what they are to read, and who waits for it. Must not know: requests,
sockets, or what the bytes mean.

    consumer A   |piece|piece|piece|  \
    consumer B   |piece|               }->  a turn each  ->  threads  ->  page cache
    consumer C   |lookup|             /

A piece is a part of a file that one read takes; a lookup is work that reads here and there (an index, some headers).
The bytes themselves are thrown away: what counts is that they are in the page cache, from where sendfile takes them.

Invariants:
1. At most `threads` reads are under way, and at most `ahead_bytes` of a file are read for a consumer beyond what it
   waits for.
2. What is being read, or is queued, is read once: a second request for it waits for the first one's piece. It is not
   told the error of a read that had begun before it came, since the disk may have recovered, nor that of a lookup: it
   reads again.
3. What is being read is `busy`, and the residency gate lets nobody touch it: its pages count as cached already.
4. A consumer that goes takes what is queued for it along, but what others wait for.
5. Everything belongs to the loop but `_Reading.run`, and `is_busy`, which only looks.
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

from broker.log.io.files import FileSlice
from broker.log.io.residency import ColdReadError, OpenFile, Residency
from broker.metrics.registry import Metrics
from broker.partitions.drop_behind import PassedPages

IDLE_S = 60.0  # far longer than a consumer is busy with what it was sent
MAX_ROUNDS = 3  # of reading what is gone again: memory is so short that the sender has to do without


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Threads that read, the most that one read takes, and how far ahead of a consumer is read, in bytes."""

    threads: int
    piece_bytes: int
    ahead_bytes: int
    drop_passed: bool  # from memory, what was read for consumers that lag


class ReadStatistics(NamedTuple):
    """Reads under way, and those that wait for their turn."""

    running: int
    queued: int


class _Reading:
    """One turn of a thread: bytes [start, end) of a file, by reading them or by work that does."""

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
        self.is_forgotten = False  # its consumer has gone, and nobody will tell of it again
        self._event = trio.Event()

    def run(self, buffer: memoryview) -> int:
        """Read, in a thread; gives how many bytes. Raises OSError, also where the file was cut, or what work raises."""
        if self.work is not None:
            self.work()
            return self.end - self.start
        assert self.descriptor is not None, "a piece is of a file"
        position = self.start
        while position < self.end:
            count = self.descriptor.read_into(buffer[: self.end - position], position)
            if not count:
                raise OSError(ENODATA, f"the file was cut: bytes {position} to {self.end - 1} are gone")
            position += count
        return self.end - self.start

    def finish(self) -> None:
        """Tell who waits."""
        self._event.set()

    async def wait(self) -> None:
        """Return when it has ended; `error` says how."""
        await self._event.wait()


class ReadAhead:
    """The readers of one broker. A consumer is any object that can be a key: a connection's session."""

    def __init__(self, *, nursery: trio.Nursery, residency: Residency, metrics: Metrics, limits: ReadLimits) -> None:
        self.residency = residency
        self.limits = limits
        self.passed = PassedPages()
        self._metrics = metrics
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(limits.threads)
        self._buffers: list[memoryview] = []  # one for each thread that has ever read
        self._queues: OrderedDict[Hashable, deque[_Reading]] = OrderedDict()  # the first one has its turn
        self._files: dict[tuple[int, int], list[_Reading]] = {}  # what is queued or being read, by file
        self._running = 0
        residency.busy = self.is_busy

    def statistics(self) -> ReadStatistics:
        """What there is to do now."""
        return ReadStatistics(self._running, sum(map(len, self._queues.values())))

    # -- what is being read --

    def is_busy(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Whether some of a range's pages are being read, or are to be."""
        if not self._files:
            return False
        start, end = position // PAGESIZE * PAGESIZE, -(-(position + length) // PAGESIZE) * PAGESIZE
        return bool(self._overlapping(descriptor, start, end))

    def _overlapping(self, descriptor: OpenFile, start: int, end: int) -> list[_Reading]:
        found = self._files.get(descriptor.identity(), ())
        return [reading for reading in tuple(found) if reading.start < end and start < reading.end]

    # -- asking --

    async def look_up(self, consumer: Hashable, cold: ColdReadError) -> None:
        """Have a thread do what the loop must not, and return when it has.

        Raises what the work raises: OSError, LogError, ProtocolError.
        """
        reading = _Reading(consumer, cold.descriptor, cold.position, cold.position + cold.length)
        reading.work = cold.job
        self._enqueue(reading)
        await self._wait(consumer, reading)

    async def bring(self, consumer: Hashable, piece: FileSlice, position: int, length: int) -> bool:
        """Have `length` bytes of a slice's file in memory from `position` on, and begin to read on in the slice.

        False if they do not stay there. Raises OSError, also where the file ends before that.
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
        """Let go of files that consumers have left without a word, until cancelled."""
        while True:
            await trio.sleep(IDLE_S)
            self.passed.let_go_of_idle()

    def forget(self, consumer: Hashable) -> None:
        """A consumer has gone."""
        self._withdraw(consumer)
        for readings in self._files.values():  # those under way
            for reading in readings:
                reading.is_forgotten = reading.is_forgotten or reading.consumer == consumer
        self._drop(self.passed.forget(consumer))

    def begun(self, consumer: Hashable, piece: FileSlice) -> None:
        """A consumer is sent a slice: it has passed what lies before.

        Not the slice itself: that may end inside a batch, which is asked for again, and the way to what follows leads
        through the header of its last whole one.
        """
        if self.passed:
            self._drop(self.passed.passed(consumer, piece.descriptor, piece.position))

    def sent(self, consumer: Hashable, piece: FileSlice) -> None:
        """It has been sent all of it; which is passed, too, where the file ends with it. Raises OSError."""
        end = piece.position + piece.length
        if self.passed and self.passed.knows(piece.descriptor) and end == piece.descriptor.size():
            self._drop(self.passed.passed(consumer, piece.descriptor, end))

    def _ask(self, consumer: Hashable, descriptor: OpenFile, start: int, end: int) -> list[tuple[_Reading, bool]]:
        """Return the readings that bring in a range, and whether each had begun before; queue what is missing."""
        size, readings = self.limits.piece_bytes, list[tuple[_Reading, bool]]()
        missing_pages = self.residency.method.missing_pages
        while start < end:
            stop = min(end, (start // size + 1) * size)
            found = self._overlapping(descriptor, start, stop)
            readings += [(reading, reading.is_started) for reading in found]
            if not found and missing_pages(descriptor.fd, start, stop - start):
                reading = _Reading(consumer, descriptor, start, stop)
                self._enqueue(reading)
                readings.append((reading, False))
            start = stop
        return readings

    async def _wait(self, consumer: Hashable, reading: _Reading, *, ignore_error: bool = False) -> None:
        """Return when a reading has ended. Raises its error, unless told to ignore it: its pages are missing then."""
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

    # -- taking turns --

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
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told to who waits for this
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
        """Take out of the queue what nobody waits for."""
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
        """Let go of pages, in a worker: it may wait for a disk that is behind with its writing."""
        if ranges:
            self._nursery.start_soon(self._drop_in_worker, ranges)

    async def _drop_in_worker(self, ranges: list[tuple[OpenFile, int, int]]) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_drop_all, ranges, limiter=self._limiter)


def _drop_all(ranges: list[tuple[OpenFile, int, int]]) -> None:
    for descriptor, start, end in ranges:
        descriptor.drop_cached(start, end - start)
