"""Real files that are put out of memory: for tests of what happens then."""

import os
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path

import pytest

from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.io.page_cache import Cachestat, missing_by_mincore


def file_of(path: Path, pages: int) -> Descriptor:
    """An open file of so many pages, in memory, without the kernel's read-ahead."""
    path.write_bytes(os.urandom(pages * PAGESIZE))
    disk = Disk()
    descriptor = Descriptor(disk, disk.open(str(path), os.O_RDWR))
    disk.advise_random(descriptor.fd)
    return descriptor


def evict(descriptor: Descriptor) -> None:
    """Put all of a file out of memory that nobody has mapped."""
    os.fsync(descriptor.fd)
    os.posix_fadvise(descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def evict_files(directory: Path, pattern: str = "*") -> None:
    """The same for the files of a directory."""
    disk = Disk()
    for path in sorted(directory.glob(pattern)):
        with suppress(FileNotFoundError):  # a snapshot that was just being written has its own name by now
            evict(Descriptor(disk, disk.open(str(path), os.O_RDONLY)))


def needs_eviction(directory: Path) -> None:
    """Skip the test where the file system keeps everything in memory, or lets nobody ask."""
    probe = file_of(directory / ".evictable", 2)
    (directory / ".evictable").unlink()
    evict(probe)
    if missing_by_mincore(probe.fd, 2 * PAGESIZE) != 2:
        pytest.skip("the file system keeps everything in memory")


def needs_cachestat(directory: Path) -> None:
    """The same, and where the kernel does not count pages."""
    needs_eviction(directory)
    try:
        asked = file_of(directory / "asked", 8)
        Cachestat().missing_pages(asked.fd, 0, 8 * PAGESIZE)
    except OSError as error:
        pytest.skip(f"no cachestat here: {error.strerror}")
