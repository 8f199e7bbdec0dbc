"""The residency gate: check that file ranges are in memory before touching them, so that the event loop never blocks.

A page that is being read counts as cached, and a thread that touches it waits for the disk. So ranges that a worker is
reading count as not resident, even if the kernel reports otherwise (`busy`).

Invariants:
1. In the thread that must not wait (`gated`), a missing range raises ColdReadError, whose `job` a worker runs before
   the operation is retried. Other threads read missing ranges with pread, which releases the GIL and turns an I/O error
   into an exception: a fault inside a mapping does neither, and an I/O error there kills the process.
2. Ranges are registered while any thread reads them here, rounded to whole pages.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from threading import get_ident
from time import perf_counter
from typing import Final, Literal, Protocol, TypeAlias

from warmlog.broker.log.io.page_cache import Method, Off, pages_of

PageKind: TypeAlias = Literal["index", "time_index", "log"]

KNOWN_S: Final = 0.01  # a positive answer is trusted this long, which saves frequent readers queries
AHEAD_BYTES: Final = (1 << 20) + (64 << 10)  # queried with a header: the slice of a fetch, and the scan before it


class OpenFile(Protocol):
    """The part of `files.Descriptor` used here."""

    fd: int

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`."""

    def read_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; return the number of bytes read."""

    def drop_cached(self, position: int, length: int) -> None:
        """Evict a range from the page cache."""

    def identity(self) -> tuple[int, int]:
        """Return the file's device and inode."""


class ColdReadError(Exception):
    """A range is not resident, and this thread must not wait. Not a failure: a worker runs `job`, which reads it.

    `descriptor`, `position` and `length` are the range being read, which must not be touched.
    """

    def __init__(
        self, job: Callable[[], object], descriptor: OpenFile | None = None, position: int = 0, length: int = 0
    ) -> None:
        super().__init__("not in memory")
        self.job = job
        self.descriptor = descriptor
        self.position = position
        self.length = length
        self.base_offset = -1  # of the segment, if one is read


def _page_end(position: int) -> int:
    """Return the end of the page that holds the byte before a position."""
    return -(-position // PAGESIZE) * PAGESIZE


def _nothing_busy(descriptor: OpenFile, position: int, length: int) -> bool:
    del descriptor, position, length
    return False


Seen: TypeAlias = tuple[OpenFile, int, int, float]  # file, start, end, expiry


class Residency:
    """The residency gate of a broker's logs. With method `Off` (`is_on` is false), everything counts as resident.

    `cold_pages` counts the pages that were not resident when they were needed.
    """

    __slots__ = ("_ask", "_gated_thread", "_method", "_own_reads", "_seen", "busy", "cold_pages", "is_on")

    def __init__(
        self, *, method: Method | None = None, busy: Callable[[OpenFile, int, int], bool] = _nothing_busy
    ) -> None:
        """`busy` returns whether a part of a range is being read."""
        self.cold_pages: dict[PageKind, int] = {"index": 0, "time_index": 0, "log": 0}
        self.busy = busy
        self.method = method or Off()
        self._gated_thread = 0
        self._seen: Seen | None = None  # ranges just checked to be resident
        self._own_reads: list[tuple[tuple[int, int], int, int]] = []  # reads of `need`: file, start, end

    @property
    def method(self) -> Method:
        """The way to query the kernel."""
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        self._method = method
        self._ask = method.missing_pages
        self.is_on = type(method) is not Off

    @contextmanager
    def gated(self) -> Iterator[None]:
        """Make this thread raise ColdReadError instead of waiting, inside a block without `await`."""
        self._gated_thread = get_ident()
        try:
            yield
        finally:
            self._gated_thread = 0

    def enter(self) -> None:
        """Begin a gated section without a context manager, for the hot path; `leave` must follow."""
        self._gated_thread = get_ident()
        self._seen = None

    def leave(self) -> None:
        """End the gated section."""
        self._gated_thread = 0

    @property
    def must_not_wait(self) -> bool:
        """Whether the gate is on and this thread is the gated one."""
        return self.is_on and self._gated_thread == get_ident()

    def is_resident(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Return whether a range may be touched; if not, call `need`. Raises OSError."""
        return not self._ask(descriptor.fd, position, length) and not self._is_being_read(descriptor, position, length)

    def missing_pages(self, descriptor: OpenFile, position: int, length: int, kind: PageKind | None) -> int:
        """Return the number of pages of a range that must not be touched. Raises OSError.

        They are added to the cold pages of `kind`; None: they have been counted already.
        """
        seen = self._seen  # read once: another thread may clear it
        if seen is not None and self._has_seen(seen, descriptor, position, length):
            return 0
        missing = self._ask(descriptor.fd, position, length)
        if not missing and self._is_being_read(descriptor, position, length):
            missing = pages_of(position, length)
        if missing and kind is not None:
            self.cold_pages[kind] += missing
        return missing

    def need(
        self, descriptor: OpenFile, position: int, length: int, kind: PageKind, job: Callable[[], object] | None = None
    ) -> None:
        """Ensure that a range is resident. Raises OSError, and ColdReadError in the gated thread.

        `job` is the work for a worker, which calls this method again and counts the cold pages then; None: read the
        range.
        """
        if not self.is_on:
            return
        must_not_wait = self.must_not_wait
        counted = None if must_not_wait and job is not None else kind
        if not self.missing_pages(descriptor, position, length, counted):
            return
        if not must_not_wait:
            self._read(descriptor, position, length)
            return
        raise ColdReadError(job or _Read(descriptor, position, length), descriptor, position, length)

    def is_ahead_resident(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Check a header and the slice that begins with it in a single query; as `is_resident` otherwise."""
        ahead = length + AHEAD_BYTES
        if not self.is_resident(descriptor, position, ahead):
            return False
        self._seen = descriptor, position, position + ahead, perf_counter() + KNOWN_S
        return True

    def _has_seen(self, seen: Seen, descriptor: OpenFile, position: int, length: int) -> bool:
        """Return whether a range was just checked to be resident. Valid once, for the slice that follows."""
        file, start, end, until = seen
        self._seen = None
        return file is descriptor and start <= position and position + length <= end and perf_counter() < until

    def _is_being_read(self, descriptor: OpenFile, position: int, length: int) -> bool:
        """Return whether a part of a range is being read, here or by a worker."""
        if self._own_reads:
            identity, end = descriptor.identity(), _page_end(position + length)
            if any(file == identity and start < end and position < stop for file, start, stop in [*self._own_reads]):
                return True
        return self.busy(descriptor, position, length)

    def _read(self, descriptor: OpenFile, position: int, length: int) -> None:
        """Read a range in this thread, and register it: its pages count as cached from the beginning of the read."""
        reading = descriptor.identity(), position // PAGESIZE * PAGESIZE, _page_end(position + length)
        self._own_reads.append(reading)
        try:
            _Read(descriptor, position, length)()
        finally:
            self._own_reads.remove(reading)


class GatedFile:
    """A log file for the header scan of a fetch: reads resident bytes, raises ColdReadError for others.

    The last header is where the slice begins, so the slice is queried together with the header. `passing`: the first
    header read is known to be skipped by the scan.
    """

    __slots__ = ("_descriptor", "_known_end", "_passing", "_residency")

    def __init__(self, residency: Residency, descriptor: OpenFile, *, passing: bool) -> None:
        self._residency = residency
        self._descriptor = descriptor
        self._passing = passing
        self._known_end = 0  # end of the range known to be resident: a scan only moves forward

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at a position, which never decreases. Raises OSError, ColdReadError."""
        if position + size > self._known_end:
            self._check(position, size)
        return self._descriptor.pread(size, position)

    def _check(self, position: int, size: int) -> None:
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
    """Reads a range to make it resident. Raises OSError, also if the file ends before the range."""

    __slots__ = ("_descriptor", "_length", "_position")

    def __init__(self, descriptor: OpenFile, position: int, length: int) -> None:
        self._descriptor = descriptor
        self._position = position
        self._length = length

    def __call__(self) -> None:
        came = len(self._descriptor.pread(self._length, self._position))
        if came < self._length:
            end = self._position + self._length
            raise OSError(errno.ENODATA, f"the file was truncated: bytes {self._position + came} to {end - 1} are gone")
