"""Read files while recording which pages were resident before, and restore the page cache afterwards.

| method    | reports                    | trusted                                                                |
|-----------|----------------------------|------------------------------------------------------------------------|
| cachestat | a page count (Linux 6.5)   | if it agrees with mincore: it does not see pages of overlay files      |
| mincore   | single pages, by a mapping | for files one owns or may write: others are reported as all resident   |

RWF_NOWAIT, the fallback of the residency gate, cannot be used here: it starts reading missing pages.

Invariants:
1. Files are opened for reading only, regardless of the flags.
2. The residency of a page is recorded before it is first read, and the record stays: a page that was missing counts as
   cold, however often it is read afterwards.
3. `restore` evicts the pages that were missing before, so that a second run reports the same. Pages that others have
   mapped or written in the meantime stay.
4. For one thread, which may block.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from mmap import PAGESIZE
from typing import Protocol

from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.page_cache import Cachestat, MethodName, pages_of

TRIED_PAGES = 64  # pages of a file's start on which both methods must agree
MAP_FAILED = ctypes.c_void_p(-1).value


class UnknownResidencyError(Exception):
    """No method reports the residency of a file; `str()` is the reason, in one line."""


class ResidencyQuery(Protocol):
    """A query that does not change the page cache."""

    @property
    def name(self) -> str:
        """Name of the system call."""

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the number of pages of a range that are not resident. Raises OSError."""


class Mincore:
    """Queries a mapping of the range that is never touched. Not for the event loop: mapping takes locks."""

    name = "mincore"

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap, self._mincore = libc.mmap, libc.munmap, libc.mincore
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        self._mmap.restype = ctypes.c_void_p
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the exact number; pages past the end of the file are missing. Raises OSError."""
        count = pages_of(position, length)
        start, size = position // PAGESIZE * PAGESIZE, count * PAGESIZE
        if not count:
            return 0
        address = self._mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
        if address == MAP_FAILED:
            raise _last_error()
        pages = ctypes.create_string_buffer(count)
        try:
            if self._mincore(address, size, pages):
                raise _last_error()
        finally:
            self._munmap(address, size)
        return sum(not page & 1 for page in pages.raw)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def choose_query(fd: int, size: int, candidates: Iterable[ResidencyQuery] | None = None) -> ResidencyQuery:
    """Return the query to use for a file of `size` bytes. Raises UnknownResidencyError.

    `candidates` replaces cachestat and mincore in tests.
    """
    cachestat, mincore = candidates or (Cachestat().without_nowait(), Mincore())
    tried = min(size, TRIED_PAGES * PAGESIZE)
    counted, reason = _tried(cachestat, fd, tried)
    seen, other_reason = _tried(mincore, fd, tried) if _may_query(fd) else (None, "the file belongs to another user")
    if counted is not None and (seen is None or counted <= seen or _tried(cachestat, fd, tried)[0] == seen):
        return cachestat
    if seen is not None:
        return mincore
    raise UnknownResidencyError(f"cachestat: {reason}; mincore: {other_reason}")


def _tried(query: ResidencyQuery, fd: int, size: int) -> tuple[int | None, str]:
    try:
        return query.missing_pages(fd, 0, size), ""
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def _may_query(fd: int) -> bool:
    """Return whether mincore reports the true residency of a file, which it does only for owners and writers."""
    is_owner = os.geteuid() in {0, os.fstat(fd).st_uid}
    return is_owner or os.access(f"/proc/self/fd/{fd}", os.W_OK)


class ObservedFile:
    """The recorded residency of one file; `restore` closes it."""

    def __init__(self, disk: Disk, fd: int, path: str) -> None:
        """Keep a duplicate of `fd`."""
        self.path = path
        self.size = disk.size(fd)
        self.query: ResidencyQuery | None = None
        self.reason: str | None = None  # why there is no query
        self._disk = disk
        self._fd = os.dup(fd)
        self._was_missing: dict[int, bool] = {}  # by page
        self._read: dict[int, None] = {}  # pages in the order in which they were first read
        self._read_since: dict[int, None] = {}
        try:
            self.query = choose_query(fd, self.size)
        except UnknownResidencyError as unknown:
            self.reason = str(unknown)

    def record(self, position: int, length: int) -> range:
        """Record the residency of a range, unless it was recorded before; return its pages."""
        end = min(position + length, max(self.size, self._disk.size(self._fd)))
        pages = range(position // PAGESIZE, position // PAGESIZE + pages_of(position, end - position))
        if self.query is not None:
            for first, last in runs(page for page in pages if page not in self._was_missing):
                self._record_run(self.query, first, last - first + 1)
        return pages

    def _record_run(self, query: ResidencyQuery, first: int, count: int) -> None:
        """Record a run of pages by bisection: a run that is all resident or all missing takes one query."""
        missing = query.missing_pages(self._fd, first * PAGESIZE, count * PAGESIZE)
        if missing in {0, count}:
            self._was_missing.update(dict.fromkeys(range(first, first + count), missing > 0))
            return
        half = count // 2
        self._record_run(query, first, half)
        self._record_run(query, first + half, count - half)

    def will_read(self, position: int, length: int) -> None:
        """Record a range that is about to be read."""
        pages = dict.fromkeys(self.record(position, length))
        self._read |= pages
        self._read_since |= pages

    def has_read(self, position: int, length: int) -> bool:
        """Return whether all of a range has been read through this object."""
        return all(page in self._read for page in self.record(position, length))

    def take_read(self) -> list[int]:
        """Return the pages read since the last call, each once, in the order of the first read."""
        pages, self._read_since = list(self._read_since), {}
        return pages

    def missing(self, pages: Iterable[int]) -> list[int] | None:
        """Return those pages that were missing when they were first recorded; None without a query."""
        if self.query is None:
            return None
        return [page for page in pages if self._was_missing.get(page)]

    def restore(self) -> None:
        """Evict the pages that were read here and missing before."""
        for first, last in runs(sorted(page for page in self._read if self._was_missing.get(page))):
            self._disk.drop_cached(self._fd, first * PAGESIZE, (last - first + 1) * PAGESIZE)
        self._disk.close(self._fd)


def runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of adjacent pages; `pages` increase."""
    first = last = None
    for page in pages:
        if first is None or last is None:
            first = last = page
        elif page == last + 1:
            last = page
        else:
            yield first, last
            first = last = page
    if first is not None and last is not None:
        yield first, last


class ObservedDisk(Disk):
    """Real files, opened for reading, whose residency is recorded before they are read."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], ObservedFile] = {}
        self._by_fd: dict[int, ObservedFile] = {}

    def open(self, path: str, flags: int) -> int:
        """Open a file for reading, without the kernel's read-ahead."""
        fd = super().open(path, os.O_RDONLY | flags & os.O_DIRECTORY)
        if flags & os.O_DIRECTORY:
            return fd
        self.advise_random(fd)
        stat = os.fstat(fd)
        identity = stat.st_dev, stat.st_ino
        if identity not in self._files:
            self._files[identity] = ObservedFile(self, fd, path)
        self._by_fd[fd] = self._files[identity]
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor; the record stays."""
        self._by_fd.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Record the range, then read."""
        self.opened(fd).will_read(position, size)
        return super().pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Record the range, then read."""
        self.opened(fd).will_read(position, len(buffer))
        return super().read_into(fd, buffer, position)

    def opened(self, fd: int) -> ObservedFile:
        """Return the record of an open file."""
        return self._by_fd[fd]

    def file(self, path: str) -> ObservedFile:
        """Return the record of a file by path, opening it if necessary. Raises OSError."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self._by_fd[fd]
        finally:
            self.close(fd)

    @property
    def files(self) -> list[ObservedFile]:
        """The records of all files opened, in that order."""
        return list(self._files.values())

    def restore(self) -> None:
        """Restore the page cache; call it once, when all descriptors and mappings are closed."""
        for file in self._files.values():
            file.restore()
        self._files.clear()


class ObservingMethod:
    """A method of the residency gate that answers from an `ObservedDisk`: pages read through it are resident.

    Without a query all other pages count as missing, so they are read with pread before they are touched.
    """

    name: MethodName = "cachestat"

    def __init__(self, disk: ObservedDisk) -> None:
        self._disk = disk

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Return the number of pages that must be read before they are touched."""
        file = self._disk.opened(fd)
        if file.has_read(position, length):
            return 0
        missing = file.missing(file.record(position, length))
        return pages_of(position, length) if missing is None else len(missing)
