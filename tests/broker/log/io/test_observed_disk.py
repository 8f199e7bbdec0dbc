"""Files that are only looked at: what is reported about them, and that they and memory stay as they were."""

import errno
import os
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path

import pytest

from tests.broker.log.io.eviction import evict, file_of, needs_cachestat, needs_eviction
from warmlog.broker.log.io.observed_disk import (
    Mincore,
    ObservedDisk,
    ObservingMethod,
    UnknownResidencyError,
    choose_query,
    runs,
)
from warmlog.broker.log.io.page_cache import Cachestat, missing_by_mincore

PAGES = 16


class Says:
    """A way to ask that answers as it was told."""

    def __init__(self, name: str, answer: int | OSError) -> None:
        self.name = name
        self._answer = answer

    def missing_pages(self, fd: int, position: int, length: int) -> int:
        del fd, position, length
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer


REFUSED = OSError(errno.ENOSYS, "Function not implemented")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 16 pages, of which 3, 4 and 9 are in memory."""
    needs_eviction(tmp_path)
    opened = file_of(tmp_path / "file", PAGES)
    evict(opened)
    for page in (3, 4, 9):
        opened.pread(1, page * PAGESIZE)
    return tmp_path / "file"


@pytest.fixture
def disk() -> Iterator[ObservedDisk]:
    disk = ObservedDisk()
    yield disk
    disk.restore()


def missing_now(path: Path) -> int:
    fd = os.open(path, os.O_RDWR)
    try:
        return missing_by_mincore(fd, PAGES * PAGESIZE)
    finally:
        os.close(fd)


def test_what_is_read_was_noted_before_and_is_let_go_again(disk: ObservedDisk, path: Path) -> None:
    fd = disk.open(str(path), os.O_RDWR)
    file = disk.opened(fd)
    assert disk.pread(fd, 4 * PAGESIZE, PAGESIZE) == path.read_bytes()[PAGESIZE : 5 * PAGESIZE]
    disk.close(fd)
    assert file.take_read() == [1, 2, 3, 4]
    assert file.take_read() == []
    assert file.missing([4, 3, 2, 1]) == [2, 1]


def test_memory_holds_afterwards_what_it_held_before(path: Path) -> None:
    before, disk = missing_now(path), ObservedDisk()
    fd = disk.open(str(path), os.O_RDONLY)
    disk.pread(fd, 5 * PAGESIZE, 0)
    disk.read_into(fd, bytearray(100), 12 * PAGESIZE)
    assert before == 13
    assert missing_now(path) == 9
    disk.close(fd)
    disk.restore()
    assert missing_now(path) == 13


def test_nothing_can_be_written(disk: ObservedDisk, path: Path) -> None:
    fd = disk.open(str(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.pwritev(fd, [b"x"], 0)
    with pytest.raises(OSError, match="Invalid argument"):
        disk.truncate(fd, 0)
    disk.close(fd)
    assert path.stat().st_size == PAGES * PAGESIZE


def test_a_range_is_noted_as_far_as_the_file_goes(disk: ObservedDisk, path: Path) -> None:
    file = disk.file(str(path))
    assert file.record(14 * PAGESIZE + 100, 1 << 20) == range(14, 16)
    assert list(file.record(1 << 20, 10)) == []
    assert file.missing(file.record(0, 1 << 20)) == [page for page in range(PAGES) if page not in {3, 4, 9}]


def test_what_was_read_here_may_be_touched_and_the_rest_may_not(disk: ObservedDisk, path: Path) -> None:
    method, fd = ObservingMethod(disk), disk.open(str(path), os.O_RDONLY)
    assert method.missing_pages(fd, 0, 2 * PAGESIZE) == 2
    disk.pread(fd, 2 * PAGESIZE, 0)
    assert method.missing_pages(fd, 0, 2 * PAGESIZE) == 0
    assert method.missing_pages(fd, 3 * PAGESIZE, 2 * PAGESIZE) == 0
    disk.close(fd)


def test_mincore_sees_what_cachestat_sees(path: Path) -> None:
    needs_cachestat(path.parent)
    fd = os.open(path, os.O_RDONLY)
    for first in range(PAGES):
        for count in range(1, PAGES - first + 1):
            asked = fd, first * PAGESIZE, count * PAGESIZE - 5
            assert Mincore().missing_pages(*asked) == Cachestat().without_nowait().missing_pages(*asked)
    assert Mincore().missing_pages(fd, 0, 0) == 0
    os.close(fd)


@pytest.mark.parametrize(
    ("cachestat", "mincore", "believed"),
    [
        (3, 3, "cachestat"),
        (2, 3, "cachestat"),  # read meanwhile
        (16, 3, "mincore"),  # an overlay file system
        (REFUSED, 3, "mincore"),
        (3, REFUSED, "cachestat"),
    ],
)
def test_the_way_to_ask(path: Path, cachestat: int | OSError, mincore: int | OSError, believed: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    ways = Says("cachestat", cachestat), Says("mincore", mincore)
    assert choose_query(fd, PAGES * PAGESIZE, ways).name == believed
    os.close(fd)


def test_where_nobody_tells_the_reasons_are_said(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    ways = Says("cachestat", REFUSED), Says("mincore", OSError(errno.ENODEV, "No such device"))
    with pytest.raises(UnknownResidencyError, match="cachestat: function not implemented; mincore: no such device"):
        choose_query(fd, PAGES * PAGESIZE, ways)
    os.close(fd)


@pytest.mark.parametrize(
    ("pages", "found"), [([], []), ([4], [(4, 4)]), ([1, 2, 3, 7, 9, 10], [(1, 3), (7, 7), (9, 10)])]
)
def test_runs(pages: list[int], found: list[tuple[int, int]]) -> None:
    assert list(runs(pages)) == found
