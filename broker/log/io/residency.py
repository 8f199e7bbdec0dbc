"""Is it in memory? Asked before anything is touched that might wait for a disk.

Owns: the rule who may wait, what was just found, and the count of pages that were not there. Must not know: how the
kernel is asked (`asking`), who reads what is missing (it is told which ranges are being read), trio, metrics.

A page that is being read counts as cached, and whoever touches it waits for the disk. So ranges that a worker reads now
are not resident, whatever the kernel says (`busy`).

Invariants:
1. In the thread that must not wait (`gated`), what is missing raises ColdReadError, whose `job` a worker runs before
   the same is tried again. Any other thread reads what is missing with pread, which gives up the GIL and turns an
   I/O error into an exception: a fault inside a mapping does neither, and an error there ends the process.
2. What any thread reads here is known while it is being read, page by page: a page counts as being read as a whole.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from threading import get_ident
from time import perf_counter
from typing import Literal, Protocol, TypeAlias

from broker.log.io.page_cache import Method, Off, pages_of

Place: TypeAlias = Literal["index", "time_index", "log"]

KNOWN_S = 0.01  # so long what was found in memory may be taken to be there: who comes often asks less often
AHEAD_BYTES = (1 << 20) + (64 << 10)  # what a fetch looks at before its reply, and what a scan passes on the way


class OpenFile(Protocol):
    """An open file, as far as it matters here."""

    fd: int

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`."""

    def read_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; how many bytes came."""

    def drop_cached(self, position: int, length: int) -> None:
        """Let go of a range's pages in memory."""

    def identity(self) -> tuple[int, int]:
        """What tells the file from others."""


class ColdReadError(Exception):
    """Something is not in memory, and this thread must not wait for it. No failure: `job` reads it, in a worker.

    `descriptor`, `position` and `length` say what is read meanwhile: it is not to be touched.
    """

    def __init__(
        self, job: Callable[[], object], descriptor: OpenFile | None = None, position: int = 0, length: int = 0
    ) -> None:
        super().__init__("not in memory")
        self.job = job
        self.descriptor = descriptor
        self.position = position
        self.length = length
        self.base_offset = -1  # of the segment, where one is read


def _page_end(position: int) -> int:
    """Where the page of the byte before a position ends."""
    return -(-position // PAGESIZE) * PAGESIZE


def _nothing_busy(descriptor: OpenFile, position: int, length: int) -> bool:
    del descriptor, position, length
    return False


Seen: TypeAlias = tuple[OpenFile, int, int, float]  # file, start, end, till when


class Residency:
    """What a broker's logs ask. Made with `Off`, it answers that all is there, at once.

    `is_on`: whether anything is asked at all. `cold_pages` counts those that were not there when asked for.
    """

    __slots__ = ("_ask", "_gated_thread", "_method", "_own_reads", "_seen", "busy", "cold_pages", "is_on")

    def __init__(
        self, *, method: Method | None = None, busy: Callable[[OpenFile, int, int], bool] = _nothing_busy
    ) -> None:
        """`busy` says whether some of a range is being read now."""
        self.cold_pages: dict[Place, int] = {"index": 0, "time_index": 0, "log": 0}
        self.busy = busy
        self.method = method or Off()
        self._gated_thread = 0
        self._seen: Seen | None = None  # just found to be in memory
        self._own_reads: list[tuple[tuple[int, int], int, int]] = []  # by `need`: file, start, end

    @property
    def method(self) -> Method:
        """The way to ask the kernel."""
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        self._method = method
        self._ask = method.missing_pages
        self.is_on = type(method) is not Off

    @contextmanager
    def gated(self) -> Iterator[None]:
        """Have this thread raise ColdReadError where it would wait, until the end of a block that awaits nothing."""
        self._gated_thread = get_ident()
        try:
            yield
        finally:
            self._gated_thread = 0

    def enter(self) -> None:
        """Begin what `gated` does, for the path of every fetch; `leave` must follow."""
        self._gated_thread = get_ident()
        self._seen = None

    def leave(self) -> None:
        """End it."""
        self._gated_thread = 0

    @property
    def must_not_wait(self) -> bool:
        """Whether this thread is the gated one, and there is a gate."""
        return self.is_on and self._gated_thread == get_ident()

    def is_resident(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Whether a range may be touched: the one question of who finds it in memory, as nearly all do.

        Where the answer is no, `need` says what is to be done. Raises OSError.
        """
        return not self._ask(descriptor.fd, position, length) and not self._is_being_read(descriptor, position, length)

    def missing_pages(self, descriptor: OpenFile, position: int, length: int, place: Place | None) -> int:
        """How many pages of a range must not be touched here. Raises OSError.

        Counted, where it is not none, as missing of `place`; None: they have been counted.
        """
        seen = self._seen  # once: another thread may have it by now
        if seen is not None and self._has_seen(seen, descriptor, position, length):
            return 0
        missing = self._ask(descriptor.fd, position, length)
        if not missing and self._is_being_read(descriptor, position, length):
            missing = pages_of(position, length)
        if missing and place is not None:
            self.cold_pages[place] += missing
        return missing

    def need(
        self, descriptor: OpenFile, position: int, length: int, place: Place, job: Callable[[], object] | None = None
    ) -> None:
        """Return when a range may be touched. Raises OSError, and ColdReadError in the gated thread.

        `job` is what a worker does about it, which comes here again and is counted then; None: it reads the range.
        """
        if not self.is_on:
            return
        must_not_wait = self.must_not_wait
        counted = None if must_not_wait and job is not None else place
        if not self.missing_pages(descriptor, position, length, counted):
            return
        if not must_not_wait:
            self._read(descriptor, position, length)
            return
        raise ColdReadError(job or _Read(descriptor, position, length), descriptor, position, length)

    def is_ahead_resident(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """As `is_resident`, for headers and the slice that begins with one: a single question, where both are there."""
        ahead = length + AHEAD_BYTES
        if not self.is_resident(descriptor, position, ahead):
            return False
        self._seen = descriptor, position, position + ahead, perf_counter() + KNOWN_S
        return True

    def _has_seen(self, seen: Seen, descriptor: OpenFile, position: int, length: int) -> bool:
        """Whether a range was just found to be in memory; that is good for the one slice that follows."""
        file, start, end, until = seen
        self._seen = None
        return file is descriptor and start <= position and position + length <= end and perf_counter() < until

    def _is_being_read(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Whether some of a range is on its way into memory, for who waits there or by who may wait."""
        if self._own_reads:
            identity, end = descriptor.identity(), _page_end(position + length)
            if any(file == identity and start < end and position < stop for file, start, stop in [*self._own_reads]):
                return True
        return self.busy(descriptor, position, length)

    def _read(self, descriptor: OpenFile, position: int, length: int) -> None:
        """Read a range in this thread, known as being read meanwhile: its pages count as cached from the start on."""
        reading = descriptor.identity(), position // PAGESIZE * PAGESIZE, _page_end(position + length)
        self._own_reads.append(reading)
        try:
            _Read(descriptor, position, length)()
        finally:
            self._own_reads.remove(reading)


class GatedFile:
    """A log file whose headers are read, on the way to a slice, where they are in memory; else ColdReadError is raised.

    The last thing asked for is what the slice begins with, so it is asked along with the slice. `passing`: what is read
    first is known to be only passed.
    """

    __slots__ = ("_descriptor", "_known_end", "_passing", "_residency")

    def __init__(self, residency: Residency, descriptor: OpenFile, *, passing: bool) -> None:
        self._residency = residency
        self._descriptor = descriptor
        self._passing = passing
        self._known_end = 0  # a scan goes forward: what was found to be in memory ends here

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at a position, none before those read last. Raises OSError, ColdReadError."""
        if position + size > self._known_end:
            self._find_in_memory(position, size)
        return self._descriptor.pread(size, position)

    def _find_in_memory(self, position: int, size: int) -> None:
        residency, descriptor = self._residency, self._descriptor
        if self._passing:
            self._passing = False
            is_there = residency.is_resident(descriptor, position, size)
        else:
            is_there = residency.is_ahead_resident(descriptor, position, size)
            self._known_end = position + size + AHEAD_BYTES if is_there else 0
        if not is_there:
            residency.need(descriptor, position, size, "log")


class _Read:
    """Reads a range, to have it in memory. Raises OSError, also where the file ends before it does."""

    __slots__ = ("_descriptor", "_length", "_position")

    def __init__(self, descriptor: OpenFile, position: int, length: int) -> None:
        self._descriptor = descriptor
        self._position = position
        self._length = length

    def __call__(self) -> None:
        came = len(self._descriptor.pread(self._length, self._position))
        if came < self._length:
            end = self._position + self._length
            raise OSError(errno.ENODATA, f"the file was cut: bytes {self._position + came} to {end - 1} are gone")
