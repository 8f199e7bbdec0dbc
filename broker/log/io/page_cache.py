"""How the kernel is asked what of a file is in memory, and which way of asking is to be believed.

Owns: the ways, and the choice among them at a start. Must not know: who asks, or what is done about the answer
(`residency`).

| method    | asks                                             | a MiB | knows                                     |
|-----------|--------------------------------------------------|-------|-------------------------------------------|
| cachestat | the page cache for the number of pages (6.5)     | 1 us  | the number, not which are still being read |
| nowait    | for the bytes, if they are there (RWF_NOWAIT)    | 96 us | exactly, up to the first that is missing  |
| off       | nobody: everything counts as resident            | 0     | nothing: for demonstration                |

A page that is being read counts as cached. So where cachestat finds all pages of a large range, its last byte is asked
for by RWF_NOWAIT, too. That is not done first: for what is missing, RWF_NOWAIT starts the reading (and with it the
kernel's read-ahead, where that is on), and then it is there and not there.
"""

import ctypes
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from mmap import PAGESIZE, mmap
from threading import local
from typing import Literal, Protocol, TypeAlias

from protocol.records.codec import compiled

# Cachestat's question in one call (`_asking.pyx`): up to which length the answer is believed, file, position, length.
# None where it was not built.
ask: Callable[[int, int, int, int], int] | None = None
if compiled:
    with suppress(ImportError):
        from broker.log.io._page_cache import missing_pages as ask

logger = logging.getLogger(__name__)

MethodName: TypeAlias = Literal["cachestat", "nowait", "off"]

SYS_CACHESTAT = 451  # the same number on every architecture
PROBE_FILE = ".residency-probe"
PROBE_PAGES = 16
COPY_BYTES = 256 << 10  # one RWF_NOWAIT read: its target stays in the processor's cache
SMALL_BYTES = 16 << 10  # up to here cachestat is believed: asking twice would be felt in small fetches


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
