"""Survey which pages of a file are in the page cache, without reading the file. For any thread but the event loop's."""

import errno
import os
from collections.abc import Iterator
from mmap import PAGESIZE
from typing import NamedTuple

from warmlog.broker.log.io.observed_disk import choose_query
from warmlog.broker.log.io.page_cache import pages_of


class PageSurvey(NamedTuple):
    """Resident pages of a file of `size` bytes, by cells of `cell_pages` pages (fewer in the last)."""

    size: int
    cell_pages: int
    resident_cells: tuple[int, ...]

    @property
    def pages(self) -> int:
        """Number of pages."""
        return pages_of(0, self.size)

    @property
    def resident_pages(self) -> int:
        """Number of resident pages."""
        return sum(self.resident_cells)


def survey_pages(path: str | os.PathLike[str], max_cells: int) -> PageSurvey | None:
    """Survey a file up to its last block that is not a hole; return None if it has been removed.

    Raises UnknownResidencyError, OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = min(data_end(fd), os.fstat(fd).st_size)
        cell_pages = -(-pages_of(0, size) // max_cells) or 1
        return PageSurvey(size, cell_pages, tuple(_resident_cells(fd, size, cell_pages * PAGESIZE)))
    finally:
        os.close(fd)


def data_end(descriptor: int) -> int:
    """Return the end of the last block that is not a hole; the file's size if the file system does not report it."""
    end = 0
    while True:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from there on
                return end
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)


def _resident_cells(fd: int, size: int, cell_size: int) -> Iterator[int]:
    """Yield the number of resident pages of each cell. Raises UnknownResidencyError, OSError."""
    query = choose_query(fd, size) if size else None
    for position in range(0, size, cell_size):
        length = min(cell_size, size - position)
        assert query is not None, "an empty file has no cells"
        yield pages_of(position, length) - query.missing_pages(fd, position, length)
