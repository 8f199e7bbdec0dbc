"""Files that are only looked at: which of their pages are in memory, told before they are read and left as it was.

Owns: the ways of asking that change nothing, the notes of what was there, and putting that back. Must not know what the
files hold, or why somebody looks.

| asked     | tells                        | is believed                                                       |
|-----------|------------------------------|-------------------------------------------------------------------|
| cachestat | how many pages (Linux 6.5)   | where it sees what mincore sees: over overlay files it is blind     |
| mincore   | which pages, by a mapping    | of files that one owns or may write: of others it says all is there |

RWF_NOWAIT, which the gate has for a fallback, is no way to look: it begins to read what it does not find.

Invariants:
1. Files are opened for reading, whatever is asked for.
2. A page is noted before it is first read, and the note stays: what was not there is known as cold, however often it is
   read afterwards.
3. `restore` has memory let go of what was not there before: looking twice shows the same twice. What others have mapped
   meanwhile stays, and so does what they have written.
4. For one thread, which may wait for the disk.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from mmap import PAGESIZE
from typing import Protocol

from broker.log.io.disk import Disk
from broker.log.io.page_cache import Cachestat, MethodName, pages_of

TRIED_PAGES = 64  # of a file's start, on which the two ways must agree
MAP_FAILED = ctypes.c_void_p(-1).value


class UnknownResidencyError(Exception):
    """Nobody tells what of a file is in memory; `str()` says why, in one line."""


class Asker(Protocol):
    """A way to ask that brings nothing into memory."""

    @property
    def name(self) -> str:
        """What the system calls it."""

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """How many pages of a range are not in memory. Raises OSError."""


class Mincore:
    """By a mapping of the range that is never touched. Not for the event loop: mapping takes locks."""

    name = "mincore"

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._munmap, self._mincore = libc.mmap, libc.munmap, libc.mincore
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        self._mmap.restype = ctypes.c_void_p
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Exactly those; a range past the end of the file is missing. Raises OSError."""
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


def choose_asker(fd: int, size: int, candidates: Iterable[Asker] | None = None) -> Asker:
    """The way to ask about a file of `size` bytes. Raises UnknownResidencyError.

    `candidates` stands in for cachestat and mincore, in tests.
    """
    cachestat, mincore = candidates or (Cachestat().without_nowait(), Mincore())
    tried = min(size, TRIED_PAGES * PAGESIZE)
    counted, reason = _tried(cachestat, fd, tried)
    seen, other_reason = _tried(mincore, fd, tried) if _may_ask(fd) else (None, "the file belongs to somebody else")
    if counted is not None and (seen is None or counted <= seen or _tried(cachestat, fd, tried)[0] == seen):
        return cachestat
    if seen is not None:
        return mincore
    raise UnknownResidencyError(f"cachestat: {reason}; mincore: {other_reason}")


def _tried(asker: Asker, fd: int, size: int) -> tuple[int | None, str]:
    try:
        return asker.missing_pages(fd, 0, size), ""
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def _may_ask(fd: int) -> bool:
    """Whether the kernel tells us the truth of a file: others could learn from it what its owner does."""
    is_owner = os.geteuid() in {0, os.fstat(fd).st_uid}
    return is_owner or os.access(f"/proc/self/fd/{fd}", os.W_OK)


class ObservedFile:
    """One file as it is looked at; `restore` closes it."""

    def __init__(self, disk: Disk, fd: int, path: str) -> None:
        """`fd` is another's; a duplicate is kept."""
        self.path = path
        self.size = disk.size(fd)
        self.asker: Asker | None = None
        self.reason: str | None = None  # why there is nobody to ask
        self._disk = disk
        self._fd = os.dup(fd)
        self._notes: dict[int, bool] = {}  # page: whether it was missing
        self._read: dict[int, None] = {}  # pages in the order in which they were first read
        self._read_since: dict[int, None] = {}
        try:
            self.asker = choose_asker(fd, self.size)
        except UnknownResidencyError as unknown:
            self.reason = str(unknown)

    def note(self, position: int, length: int) -> range:
        """Have it noted which pages of a range are in memory; gives the pages."""
        end = min(position + length, max(self.size, self._disk.size(self._fd)))
        pages = range(position // PAGESIZE, position // PAGESIZE + pages_of(position, end - position))
        if self.asker is not None:
            for first, last in runs(page for page in pages if page not in self._notes):
                self._note_run(self.asker, first, last - first + 1)
        return pages

    def _note_run(self, asker: Asker, first: int, count: int) -> None:
        """Note a run of pages by halves: what is all there or all missing takes one question."""
        missing = asker.missing_pages(self._fd, first * PAGESIZE, count * PAGESIZE)
        if missing in {0, count}:
            self._notes.update(dict.fromkeys(range(first, first + count), missing > 0))
            return
        half = count // 2
        self._note_run(asker, first, half)
        self._note_run(asker, first + half, count - half)

    def will_read(self, position: int, length: int) -> None:
        """Note a range that is read now."""
        pages = dict.fromkeys(self.note(position, length))
        self._read |= pages
        self._read_since |= pages

    def has_read(self, position: int, length: int) -> bool:
        """Whether all of a range was read here."""
        return all(page in self._read for page in self.note(position, length))

    def take_read(self) -> list[int]:
        """The pages read since this was asked last, each once, in order of the first read."""
        pages, self._read_since = list(self._read_since), {}
        return pages

    def missing(self, pages: Iterable[int]) -> list[int] | None:
        """Those of the pages that were not in memory when they were first noted; None if nobody could be asked."""
        if self.asker is None:
            return None
        return [page for page in pages if self._notes.get(page)]

    def restore(self) -> None:
        """Let memory hold of it what it held before."""
        for first, last in runs(sorted(page for page in self._read if self._notes.get(page))):
            self._disk.drop_cached(self._fd, first * PAGESIZE, (last - first + 1) * PAGESIZE)
        self._disk.close(self._fd)


def runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of neighbours in increasing pages."""
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
    """Real files, opened for reading, whose pages are noted before they are read."""

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
        """Close a descriptor; what was noted stays."""
        self._by_fd.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read, and note it."""
        self.opened(fd).will_read(position, size)
        return super().pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read, and note it."""
        self.opened(fd).will_read(position, len(buffer))
        return super().read_into(fd, buffer, position)

    def opened(self, fd: int) -> ObservedFile:
        """What is known of an open file."""
        return self._by_fd[fd]

    def file(self, path: str) -> ObservedFile:
        """What is known of the file that is called so; it is opened if it was not. Raises OSError."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self._by_fd[fd]
        finally:
            self.close(fd)

    @property
    def files(self) -> list[ObservedFile]:
        """All that were opened, in that order."""
        return list(self._files.values())

    def restore(self) -> None:
        """Let memory hold what it held before; to be called once, when all descriptors and mappings are closed."""
        for file in self._files.values():
            file.restore()
        self._files.clear()


class ObservingMethod:
    """The residency gate's question, asked of a disk that notes: what was read here is there, whatever it was before.

    Where nobody can be asked, all is missing, and so is read in the open before it is touched.
    """

    name: MethodName = "cachestat"

    def __init__(self, disk: ObservedDisk) -> None:
        self._disk = disk

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        """Pages that are to be read before they are touched."""
        file = self._disk.opened(fd)
        if file.has_read(position, length):
            return 0
        missing = file.missing(file.note(position, length))
        return pages_of(position, length) if missing is None else len(missing)
