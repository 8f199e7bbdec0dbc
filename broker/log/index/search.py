"""Binary search in an index, with a warm section whose pages stay resident.

A plain binary search begins at the middle, and the middle of a growing index moves: with 13 full pages of 512 entries a
lookup of the last entry touches pages 0, 6, 9, 11, 12; with 14 it touches 0, 7, 10, 12, 13. Nothing else has touched
pages 7 and 10 for hours, so they have probably been evicted, and a reader at the end of the log waits for the disk.

So the search tries the warm section first, the last 8192 bytes of entries (N = 8192 // entry size, 1024 or 682):

    |-------------------- cold ---------------------|------ warm ------|
    0                                             n-1-N               n-1

If its first entry is smaller than the target, the search stays inside; otherwise (equality is cold) it checks entry 0
and searches the rest. With 8192 bytes, every lookup near the end touches all of the section's pages (its first entry,
its middle, its upper half; at most three pages of 4096 bytes) and so keeps them resident; in a larger section some
pages would not be touched. A smaller section would miss readers that are a few seconds behind: 1024 entries cover 4 MiB
of log at the default interval.

Source: org.apache.kafka.storage.internals.log.AbstractIndex, KAFKA-6432. (Articles about it also print the sequences
0, 12, 6, 9, 11, 12 and 0, 13, 7, 10, 11, 12, 13, and say that any lookup in the section touches all of its pages. The
code does neither: a lookup with a target in the section's lower half does not touch its end.)
"""

from collections.abc import Callable
from enum import StrEnum
from mmap import mmap
from typing import Any, Final, NamedTuple

from warmlog.broker.log.config import SearchName

PAGE_SIZE: Final = 4096
WARM_SIZE: Final = 8192


class Section(StrEnum):
    """The part of an index that a lookup searched."""

    WARM = "warm"
    COLD = "cold"


class Column(NamedTuple):
    """One field of the entries: its reader, its position in the entry, the entry's size, its own size (bytes)."""

    read: Callable[[mmap, int], tuple[Any, ...]]
    at: int
    stride: int
    width: int

    def pages(self, position: int) -> range:
        """Return the pages that hold the field at a byte of the file: two if it crosses a page boundary."""
        return range(position // PAGE_SIZE, (position + self.width - 1) // PAGE_SIZE + 1)


def floor_slot(column: Column, view: mmap, entries: int, target: int, search: SearchName) -> tuple[int, Section]:
    """Return the last slot whose field is <= the target, or -1, and the section searched.

    The index must not be empty. The plain search has no warm section.
    """
    last = entries - 1
    if search == "warm":
        first_warm = first_warm_slot(column, entries)
        if column.read(view, first_warm * column.stride + column.at)[0] < target:
            return bisect_slots(column, view, first_warm, last, target), Section.WARM
        last = first_warm
    if column.read(view, column.at)[0] > target:
        return -1, Section.COLD
    return bisect_slots(column, view, 0, last, target), Section.COLD


def first_warm_slot(column: Column, entries: int) -> int:
    """Return the first slot of the warm section, N entries before the last one."""
    return max(0, entries - 1 - WARM_SIZE // column.stride)


def bisect_slots(column: Column, view: mmap, low: int, high: int, target: int) -> int:
    """Return the last slot in [low, high] whose field is <= the target, given that low's is."""
    read, at, stride, _ = column
    while low < high:
        middle = (low + high + 1) >> 1
        value = read(view, middle * stride + at)[0]
        if value < target:
            low = middle
        elif value > target:
            high = middle - 1
        else:
            return middle
    return low


def touched_pages(column: Column, view: mmap, entries: int, target: int, search: SearchName) -> list[int]:
    """Return the pages of the file that `floor_slot` touches, each once, in the order of the first touch."""
    touched: dict[int, None] = {}

    def watched(watched_view: mmap, position: int) -> tuple[Any, ...]:
        touched.update(dict.fromkeys(column.pages(position)))
        return column.read(watched_view, position)

    floor_slot(column._replace(read=watched), view, entries, target, search)
    return list(touched)
