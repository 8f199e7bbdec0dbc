"""Query the kernel for the residency of file ranges, and choose a method whose answers are correct here.

| method    | query                                            | per MiB | answer                                     |
|-----------|--------------------------------------------------|---------|--------------------------------------------|
| cachestat | the number of cached pages (Linux 6.5)           | 1 us    | a count that includes pages still in flight |
| nowait    | read with RWF_NOWAIT                             | 96 us   | exact, up to the first missing byte        |
| off       | none: everything counts as resident              | 0       | for demonstration                          |

A page that is still being read counts as cached. So if cachestat finds all pages of a large range, its last byte is
read with RWF_NOWAIT, too. This is not done first, because RWF_NOWAIT starts to read missing pages (and the kernel's
read-ahead, if enabled), which then count as cached before they are resident.
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

from warmlog.protocol.records.codec import compiled

# Cachestat's query in one call (`_page_cache.pyx`): the length up to which the count alone is trusted, descriptor,
# position, length. None if it was not built.
compiled_missing_pages: Callable[[int, int, int, int], int] | None = None
if compiled:
    with suppress(ImportError):
        from warmlog.broker.log.io._page_cache import missing_pages as compiled_missing_pages

logger = logging.getLogger(__name__)

MethodName: TypeAlias = Literal["cachestat", "nowait", "off"]

SYS_CACHESTAT = 451  # the same number on every architecture
PROBE_FILE = ".residency-probe"
PROBE_PAGES = 16
COPY_BYTES = 256 << 10  # per RWF_NOWAIT read, so that the buffer stays in the processor's cache
SMALL_BYTES = 16 << 10  # ranges up to this size trust cachestat alone: a second query would slow small fetches down


class Method(Protocol):
    """A way to query residency."""

    name: MethodName

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the number of pages of a range that are not resident, or an upper bound. Raises OSError."""


class Off:
    """No queries."""

    name: MethodName = "off"

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return 0."""
        del fd, position, length
        return 0


class Nowait:
    """Reads with RWF_NOWAIT: exact if the file system supports the flag."""

    name: MethodName = "nowait"

    def __init__(self) -> None:
        self._buffer = bytearray(COPY_BYTES)  # threads may share it: its content is never used
        self._whole = memoryview(self._buffer)

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the number of pages from the first missing byte on."""
        end = position + length
        while position < end:
            wanted = min(COPY_BYTES, end - position)
            copied = self._copy(fd, position, wanted)
            if copied < wanted:
                return pages_of(position + copied, end - position - copied)
            position += copied
        return 0

    def lacks_byte(self, fd: int, position: int) -> bool:
        """Return whether one byte is not resident. Keeps the GIL: releasing it costs as much as the call."""
        if _preadv2 is None:
            return not self._copy(fd, position, 1)
        return _preadv2(fd, _ONE_BYTE, 1, position, os.RWF_NOWAIT) != 1

    def _copy(self, fd: int, position: int, wanted: int) -> int:
        try:
            return os.preadv(fd, (self._whole[:wanted],), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0


class _Arguments(local):
    """The arguments and results of cachestat, one set per thread."""

    def __init__(self) -> None:
        self.range = (ctypes.c_uint64 * 2)()  # offset, length
        self.counts = (ctypes.c_uint64 * 5)()  # cached, dirty, in writeback, evicted, recently evicted
        self.range_address = ctypes.addressof(self.range)
        self.counts_address = ctypes.addressof(self.counts)


class Cachestat:
    """Queries the page cache. Keeps the GIL: the call takes a microsecond and never blocks."""

    name: MethodName = "cachestat"

    def __init__(self, syscall: Callable[..., int] | None = None) -> None:
        """`syscall` replaces libc's in tests."""
        self._arguments = _Arguments()
        self._syscall = syscall or _syscall()
        self._nowait: Nowait | None = Nowait()

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the exact number. Raises OSError if the kernel lacks or forbids the call."""
        nowait = self._nowait
        arguments = self._arguments
        checked = arguments.range
        checked[0], checked[1] = position, length
        if self._syscall(SYS_CACHESTAT, fd, arguments.range_address, arguments.counts_address, 0):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        missing = pages_of(position, length) - int(arguments.counts[0])
        if missing > 0 or nowait is None or length <= SMALL_BYTES:
            return max(0, missing)
        return int(nowait.lacks_byte(fd, position + length - 1))

    def without_nowait(self) -> "Cachestat":
        """Stop using RWF_NOWAIT, which the file system does not support; return self."""
        self._nowait = None
        return self


class CompiledCachestat(Cachestat):
    """Cachestat by one compiled call that creates no objects; only if it was built."""

    def __init__(self) -> None:
        super().__init__()
        self._trust_count_up_to(SMALL_BYTES)

    def without_nowait(self) -> "Cachestat":
        """Stop using RWF_NOWAIT, which the file system does not support; return self."""
        self._trust_count_up_to(sys.maxsize)
        return super().without_nowait()

    def _trust_count_up_to(self, size: int) -> None:
        assert compiled_missing_pages is not None, "the caller has checked that it was built"
        # assigned to the instance, so that a query runs no Python code
        self.missing_pages = partial(compiled_missing_pages, size)  # type: ignore[method-assign]


def _syscall() -> Callable[..., int]:
    syscall = ctypes.PyDLL(None, use_errno=True).syscall
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    syscall.restype = ctypes.c_long
    return syscall


def _libc_preadv2() -> Callable[..., int] | None:
    """Return libc's preadv2, preferably with 64-bit positions; None if it has none."""
    libc = ctypes.PyDLL(None)
    preadv2: Callable[..., int] | None = getattr(libc, "preadv64v2", None) or getattr(libc, "preadv2", None)
    if preadv2 is not None:
        preadv2.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int]  # type: ignore[attr-defined]
        preadv2.restype = ctypes.c_ssize_t  # type: ignore[attr-defined]
    return preadv2


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_preadv2 = _libc_preadv2()
_target = ctypes.create_string_buffer(1)  # threads may share it: its content is never used
_iovec = _Iovec(ctypes.addressof(_target), 1)
_ONE_BYTE = ctypes.addressof(_iovec)


def pages_of(position: int, length: int) -> int:
    """Return the number of pages that a range touches."""
    return (position + length - 1) // PAGESIZE - position // PAGESIZE + 1 if length > 0 else 0


# -- the choice --------------------------------------------------------------------------------------------------------


class UntrueAnswerError(Exception):
    """A method gave a wrong answer."""


def choose_method(wanted: str, directories: Iterable[str], *, syscall: Callable[..., int] | None = None) -> Method:
    """Return the method to use: with "auto" the first whose answers are correct in all of these directories.

    A configured method with wrong answers is not used either: a wrong gate is worse than none. The choice and its
    reason are logged. Blocking.
    """
    if wanted == "off":
        logger.warning("residency gate: off (warmlog.gate); a cold read blocks the event loop")
        return Off()
    paths = list(directories)
    is_built = compiled_missing_pages is not None and syscall is None
    cachestat = CompiledCachestat() if is_built else Cachestat(syscall)
    candidates: list[Method] = [Nowait()] if wanted == "nowait" else [cachestat, Nowait()]
    for method in candidates:
        if _is_correct(method, paths):
            logger.info("residency gate: %s", method.name)
            return method
    logger.warning("residency gate: off, because no method gives true answers here; a cold read blocks the event loop")
    return Off()


def _is_correct(method: Method, directories: Iterable[str]) -> bool:
    """Return whether the method's answers are correct in all directories; those that cannot be written are skipped."""
    for directory in directories:
        try:
            _check(method, directory)
        except UntrueAnswerError as error:
            logger.warning("residency gate: %s cannot be used in %s: %s", method.name, directory, error)
            return False
        except OSError as error:
            logger.warning("residency gate: cannot test %s in %s: %s", method.name, directory, error)
    return True


def _check(method: Method, directory: str) -> None:
    """Write a file, evict it, read one page, and query its residency each time. Raises UntrueAnswerError, OSError."""
    fd = os.open(os.path.join(directory, PROBE_FILE), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(os.path.join(directory, PROBE_FILE))
        size = PROBE_PAGES * PAGESIZE
        os.write(fd, b"\1" * size)
        if isinstance(method, Cachestat) and not _supports_nowait(fd):
            method.without_nowait()
        if _missing(method, fd, 0, size):
            raise UntrueAnswerError("it reports pages just written as missing")
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        _check_evicted(method, fd, size)
        os.pread(fd, PAGESIZE, PAGESIZE)
        if _missing(method, fd, PAGESIZE, PAGESIZE):
            raise UntrueAnswerError("it reports a page just read as missing")
    finally:
        os.close(fd)


def _check_evicted(method: Method, fd: int, size: int) -> None:
    """Check that the method sees the evicted pages, if mincore reports any: memory file systems evict none."""
    evicted = missing_by_mincore(fd, size)
    if evicted and isinstance(method, Cachestat) and _missing(method, fd, 0, size) != evicted:
        raise UntrueAnswerError("it reports pages just evicted as resident")


def missing_by_mincore(fd: int, size: int) -> int:
    """Count the missing pages in a file's first `size` bytes by mapping them: exact, but too slow for fetches.

    The file must be open for reading and writing. Raises OSError.
    """
    with mmap(fd, size) as mapping:
        start = ctypes.c_char.from_buffer(mapping)
        pages = (ctypes.c_ubyte * pages_of(0, size))()
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(start)), size, pages)
        del start
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return sum(not page & 1 for page in pages)


def _missing(method: Method, fd: int, position: int, length: int) -> int:
    try:
        return method.missing_pages(fd, position, length)
    except OSError as error:
        raise UntrueAnswerError(error.strerror or str(error)) from None


def _supports_nowait(fd: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return True
