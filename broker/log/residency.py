"""Is it in memory? Asked before anything is touched that might wait for a disk.

Owns: the ways of asking the kernel, the choice among them, the rule who may wait, and the count of pages that were not
there. Must not know: who reads what is missing (it is told which ranges are being read), trio, metrics.

| method    | asks                                             | a MiB | knows                                     |
|-----------|--------------------------------------------------|-------|-------------------------------------------|
| cachestat | the page cache for the number of pages (6.5)     | 1 us  | the number, not which are still being read |
| nowait    | for the bytes, if they are there (RWF_NOWAIT)    | 96 us | exactly, up to the first that is missing  |
| off       | nobody: everything counts as resident            | 0     | nothing: for demonstration                |

A page that is being read counts as cached, and whoever touches it waits for the disk. So ranges that a worker reads now
are not resident, whatever the kernel says (`busy`); and where cachestat finds all pages of a large range, its last byte
is asked for by RWF_NOWAIT, too. That is not done first: for what is missing, RWF_NOWAIT starts the reading (and with it
the kernel's read-ahead, where that is on), and then it is there and not there.

Invariants:
1. In the thread that must not wait (`gated`), what is missing raises ColdReadError, whose `job` a worker runs before
   the same is tried again. Any other thread reads what is missing with pread, which gives up the GIL and turns an
   I/O error into an exception: a fault inside a mapping does neither, and an error there ends the process.
2. What any thread reads here is known while it is being read, page by page: a page counts as being read as a whole.
"""

import ctypes
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from mmap import PAGESIZE, mmap
from threading import get_ident, local
from time import perf_counter
from typing import Literal, Protocol, TypeAlias

from protocol.records.codec import compiled

# Cachestat's question in one call (`_asking.pyx`): up to which length the answer is believed, file, position, length.
# None where it was not built.
ask: Callable[[int, int, int, int], int] | None = None
if compiled:
    with suppress(ImportError):
        from broker.log._asking import missing_pages as ask

logger = logging.getLogger(__name__)

MethodName: TypeAlias = Literal["cachestat", "nowait", "off"]
Place: TypeAlias = Literal["index", "time_index", "log"]

SYS_CACHESTAT = 451  # the same number on every architecture
PROBE_FILE = ".residency-probe"
PROBE_PAGES = 16
COPY_BYTES = 256 << 10  # one RWF_NOWAIT read: its target stays in the processor's cache
KNOWN_S = 0.01  # so long what was found in memory may be taken to be there: who comes often asks less often
AHEAD_BYTES = (1 << 20) + (64 << 10)  # what a fetch looks at before its reply, and what a scan passes on the way
SMALL_BYTES = 16 << 10  # up to here cachestat is believed: asking twice would be felt in small fetches


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


class Method(Protocol):
    """A way to ask."""

    name: MethodName

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """How many pages of a range are not in memory; where that is not known, more than they are. Raises OSError."""


class Off:
    """Asks nobody."""

    name: MethodName = "off"

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Nothing is ever missing."""
        del fd, position, length
        return 0


class Nowait:
    """Has the kernel copy what is there: exact, wherever the file system knows the flag."""

    name: MethodName = "nowait"

    def __init__(self) -> None:
        self._buffer = bytearray(COPY_BYTES)  # threads may share it: nobody looks at what is in it
        self._whole = memoryview(self._buffer)

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """All pages from the first missing byte on."""
        end = position + length
        while position < end:
            wanted = min(COPY_BYTES, end - position)
            copied = self._copy(fd, position, wanted)
            if copied < wanted:
                return pages_of(position + copied, end - position - copied)
            position += copied
        return 0

    def lacks_byte(self, fd: int, position: int) -> bool:
        """Whether one byte is not there, asked without giving up the GIL: that costs as much as the call."""
        if _preadv2 is None:
            return not self._copy(fd, position, 1)
        return _preadv2(fd, _ONE_BYTE, 1, position, os.RWF_NOWAIT) != 1

    def _copy(self, fd: int, position: int, wanted: int) -> int:
        try:
            return os.preadv(fd, (self._whole[:wanted],), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0


class _Arguments(local):
    """What cachestat reads and writes: each thread has its own."""

    def __init__(self) -> None:
        self.range = (ctypes.c_uint64 * 2)()  # offset, length
        self.counts = (ctypes.c_uint64 * 5)()  # cached, dirty, in writeback, evicted, recently evicted
        self.range_address = ctypes.addressof(self.range)
        self.counts_address = ctypes.addressof(self.counts)


class Cachestat:
    """Has the kernel count. Without giving up the GIL: the call takes a microsecond and waits for nothing."""

    name: MethodName = "cachestat"

    def __init__(self, syscall: Callable[..., int] | None = None) -> None:
        """`syscall` stands in for libc's, in tests."""
        self._arguments = _Arguments()
        self._syscall = syscall or _syscall()
        self._nowait: Nowait | None = Nowait()

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Exactly those. Raises OSError where the kernel does not have the call or lets nobody make it."""
        nowait = self._nowait
        arguments = self._arguments
        asked = arguments.range
        asked[0], asked[1] = position, length
        if self._syscall(SYS_CACHESTAT, fd, arguments.range_address, arguments.counts_address, 0):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        missing = pages_of(position, length) - int(arguments.counts[0])
        if missing > 0 or nowait is None or length <= SMALL_BYTES:
            return max(0, missing)
        return int(nowait.lacks_byte(fd, position + length - 1))

    def without_nowait(self) -> "Cachestat":
        """The same, for a file system that does not know RWF_NOWAIT."""
        self._nowait = None
        return self


class CompiledCachestat(Cachestat):
    """The same, by one call that makes no objects; only where it was built."""

    def __init__(self) -> None:
        super().__init__()
        self._believe(SMALL_BYTES)

    def without_nowait(self) -> "Cachestat":
        """The same, for a file system that does not know RWF_NOWAIT."""
        self._believe(sys.maxsize)
        return super().without_nowait()

    def _believe(self, size: int) -> None:
        assert ask is not None, "whoever makes one has looked"
        self.missing_pages = partial(ask, size)  # type: ignore[method-assign]  # no step of Python on the way


def _syscall() -> Callable[..., int]:
    syscall = ctypes.PyDLL(None, use_errno=True).syscall
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    syscall.restype = ctypes.c_long
    return syscall


def _libc_preadv2() -> Callable[..., int] | None:
    """None where libc has none; the name for 64-bit positions first."""
    libc = ctypes.PyDLL(None)
    preadv2: Callable[..., int] | None = getattr(libc, "preadv64v2", None) or getattr(libc, "preadv2", None)
    if preadv2 is not None:
        preadv2.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int]  # type: ignore[attr-defined]
        preadv2.restype = ctypes.c_ssize_t  # type: ignore[attr-defined]
    return preadv2


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_preadv2 = _libc_preadv2()
_target = ctypes.create_string_buffer(1)  # threads may share it: nobody looks at what is in it
_iovec = _Iovec(ctypes.addressof(_target), 1)
_ONE_BYTE = ctypes.addressof(_iovec)


def pages_of(position: int, length: int) -> int:
    """How many pages a range lies on."""
    return (position + length - 1) // PAGESIZE - position // PAGESIZE + 1 if length > 0 else 0


def _page_end(position: int) -> int:
    """Where the page of the byte before a position ends."""
    return -(-position // PAGESIZE) * PAGESIZE


# -- the choice --------------------------------------------------------------------------------------------------------


class UntrueAnswerError(Exception):
    """A method said of a file what cannot be."""


def choose_method(wanted: str, directories: Iterable[str], *, syscall: Callable[..., int] | None = None) -> Method:
    """The method that is set, or with "auto" the first that tells the truth in each of these directories.

    One that is set and does not is given up, too: a gate that lies is worse than none. The log is told which and why.
    Blocking.
    """
    if wanted == "off":
        logger.warning("residency gate: off (warmlog.gate); a fetch of what is not in memory holds everybody up")
        return Off()
    places = list(directories)
    cachestat = CompiledCachestat() if ask is not None and syscall is None else Cachestat(syscall)
    candidates: list[Method] = [Nowait()] if wanted == "nowait" else [cachestat, Nowait()]
    for method in candidates:
        if _is_true(method, places):
            logger.info("residency gate: %s", method.name)
            return method
    logger.warning(
        "residency gate: off, since there is no way to ask; a fetch of what is not in memory holds everybody up"
    )
    return Off()


def _is_true(method: Method, places: Iterable[str]) -> bool:
    """Whether it tells the truth in all places; one that cannot be written to has troubles of its own."""
    for place in places:
        try:
            _try_out(method, place)
        except UntrueAnswerError as error:
            logger.warning("residency gate: %s cannot be used in %s: %s", method.name, place, error)
            return False
        except OSError as error:
            logger.warning("residency gate: not tried in %s: %s", place, error)
    return True


def _try_out(method: Method, directory: str) -> None:
    """Write a file, evict it, read one page of it, and ask each time. Raises UntrueAnswerError, OSError."""
    fd = os.open(os.path.join(directory, PROBE_FILE), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(os.path.join(directory, PROBE_FILE))
        size = PROBE_PAGES * PAGESIZE
        os.write(fd, b"\1" * size)
        if isinstance(method, Cachestat) and not _knows_nowait(fd):
            method.without_nowait()
        if _asked(method, fd, 0, size):
            raise UntrueAnswerError("it says that what was just written is not in memory")
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        _check_evicted(method, fd, size)
        os.pread(fd, PAGESIZE, PAGESIZE)
        if _asked(method, fd, PAGESIZE, PAGESIZE):
            raise UntrueAnswerError("it says that what was just read is not in memory")
    finally:
        os.close(fd)


def _check_evicted(method: Method, fd: int, size: int) -> None:
    """That it sees an eviction, if there was one: memory file systems keep everything, and then it is right."""
    evicted = missing_by_mincore(fd, size)
    if evicted and isinstance(method, Cachestat) and _asked(method, fd, 0, size) != evicted:
        raise UntrueAnswerError("it says that what was just evicted is in memory")


def missing_by_mincore(fd: int, size: int) -> int:
    """How many pages of a file's start are not in memory, by mapping it: exact and too dear for more than a trial.

    The file is open for reading and writing. Raises OSError.
    """
    with mmap(fd, size) as mapping:
        start = ctypes.c_char.from_buffer(mapping)
        pages = (ctypes.c_ubyte * pages_of(0, size))()
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(start)), size, pages)
        del start
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return sum(not page & 1 for page in pages)


def _asked(method: Method, fd: int, position: int, length: int) -> int:
    try:
        return method.missing_pages(fd, position, length)
    except OSError as error:
        raise UntrueAnswerError(error.strerror or str(error)) from None


def _knows_nowait(fd: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return True


# -- the gate ----------------------------------------------------------------------------------------------------------


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

    def need_scanned(self, descriptor: OpenFile, position: int, length: int) -> None:
        """As `need`, for headers on the way to a slice: one question for both, where all of both is in memory.

        In the gated thread only.
        """
        ahead = length + AHEAD_BYTES
        if self.is_resident(descriptor, position, ahead):
            self._seen = descriptor, position, position + ahead, perf_counter() + KNOWN_S
        else:
            self.need(descriptor, position, length, "log")

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
    """A log file whose bytes are read where they are in memory, and else ColdReadError is raised."""

    __slots__ = ("_descriptor", "_residency")

    def __init__(self, residency: Residency, descriptor: OpenFile) -> None:
        self._residency = residency
        self._descriptor = descriptor

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at a position. Raises OSError, ColdReadError."""
        self._residency.need_scanned(self._descriptor, position, size)
        return self._descriptor.pread(size, position)


@dataclass(frozen=True, slots=True)
class _Read:
    """Reads a range, to have it in memory. Raises OSError, also where the file ends before it does."""

    descriptor: OpenFile
    position: int
    length: int

    def __call__(self) -> None:
        came = len(self.descriptor.pread(self.length, self.position))
        if came < self.length:
            end = self.position + self.length
            raise OSError(errno.ENODATA, f"the file was cut: bytes {self.position + came} to {end - 1} are gone")
