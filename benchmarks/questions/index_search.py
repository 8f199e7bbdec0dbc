"""Page faults of a lookup at the end of an index, by warm and by plain search, for all sizes of the index.

    python -m benchmarks.questions.index_search [FILE.csv] [--directory D]    all sizes to a file, a selection printed

For each size, the first lookup of the last entry after a new page has begun is measured, as caused by a consumer at the
end of the log. The first entry was just written to page n, and only the last three pages are resident, because earlier
lookups have touched them. File and mapping are reopened for each size, with MADV_RANDOM or with the default advice,
with which the kernel reads pages around the missing one. There is no residency gate here: it prevents the faults
counted here.
"""

import argparse
import csv
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from mmap import MADV_RANDOM, PROT_READ, mmap
from os import O_RDONLY, POSIX_FADV_DONTNEED, POSIX_FADV_RANDOM, close, fsync, posix_fadvise, pread
from os import open as open_fd
from pathlib import Path
from statistics import median
from struct import Struct
from time import perf_counter
from typing import Literal, TextIO

from benchmarks.harness import Conditions, Figures
from warmlog.broker.log.config import SearchName
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import PAGE_SIZE, floor_slot
from warmlog.broker.log.io.page_cache import Cachestat

ENTRY = Struct(">ii")
PER_PAGE = PAGE_SIZE // ENTRY.size
MAX_PAGES = 2_560  # 10 MiB, the default of Kafka's `segment.index.bytes`
RECORDS_AN_ENTRY, BYTES_AN_ENTRY = 10, 1_000  # so that the last offset still fits into 32 bits
KEPT_PAGES = 3
PRINTED = (1, 2, 3, 4, 5, 8, 13, 14, 32, 64, 128, 256, 512, 1_024, 2_048, 2_560)
Advice = Literal["random", "default"]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The cost of one lookup. `pages`: size of the index; resident: number of its pages in memory before and after."""

    pages: int
    search: SearchName
    advice: Advice
    resident_before: int
    resident_after: int
    major_faults: int
    minor_faults: int
    microseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """A search, in mappings of one kind."""

    search: SearchName
    advice: Advice

    @property
    def name(self) -> str:
        """The label in tables."""
        return f"{self.search} search, {'MADV_RANDOM' if self.advice == 'random' else 'default'}"

    def measure(self, conditions: Conditions) -> Figures:
        """Measure all sizes up to MAX_PAGES."""
        path = conditions.kept / "index"
        if not path.exists():
            write_index(path)
        step = max(1, round(1 / conditions.scale))
        found = [look_up(path, pages, self.search, self.advice) for pages in range(1, MAX_PAGES + 1, step)]
        return {
            "major_mean": sum(each.major_faults for each in found) / len(found),
            "major_max": max(each.major_faults for each in found),
            "read_pages_mean": sum(each.resident_after - each.resident_before for each in found) / len(found),
            "lookup_us": median(each.microseconds for each in found),
        }


def write_index(path: Path) -> None:
    """Write an index of MAX_PAGES pages to the disk."""
    entries = (ENTRY.pack(RECORDS_AN_ENTRY * slot + 9, BYTES_AN_ENTRY * slot) for slot in range(MAX_PAGES * PER_PAGE))
    with path.open("wb") as file:
        file.write(b"".join(entries))
        file.flush()
        fsync(file.fileno())


def look_up(path: Path, pages: int, search: SearchName, advice: Advice) -> Lookup:
    """Measure the first lookup of the last entry when the index has this many pages. Raises OSError."""
    entries = (pages - 1) * PER_PAGE + 1
    fd = open_fd(path, O_RDONLY)
    try:
        _keep_the_last(path, pages)
        before = _resident(fd, pages)
        with mmap(fd, MAX_PAGES * PAGE_SIZE, prot=PROT_READ) as view:
            if advice == "random":
                view.madvise(MADV_RANDOM)
            target = RECORDS_AN_ENTRY * (entries - 1) + 9
            used, began_at = resource.getrusage(resource.RUSAGE_THREAD), perf_counter()
            slot, _ = floor_slot(OffsetIndex.key_column, view, entries, target, search)
            elapsed_s, now_used = perf_counter() - began_at, resource.getrusage(resource.RUSAGE_THREAD)
            assert slot == entries - 1, "it is there"
        return Lookup(
            pages,
            search,
            advice,
            before,
            _resident(fd, pages),
            now_used.ru_majflt - used.ru_majflt,
            now_used.ru_minflt - used.ru_minflt,
            elapsed_s * 1e6,
        )
    finally:
        close(fd)


def _keep_the_last(path: Path, pages: int) -> None:
    """Evict all of the file except the last three of its first `pages` pages; it must not be mapped."""
    fd = open_fd(path, O_RDONLY)
    try:
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)  # reads now do not read ahead
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)
        first = max(0, pages - KEPT_PAGES)
        pread(fd, (pages - first) * PAGE_SIZE, first * PAGE_SIZE)
    finally:
        close(fd)


def _resident(fd: int, pages: int) -> int:
    """Return the number of resident pages. Raises OSError if the kernel cannot count them."""
    return pages - Cachestat().without_nowait().missing_pages(fd, 0, pages * PAGE_SIZE)


def every_lookup(path: Path, sizes: Iterable[int]) -> Iterator[Lookup]:
    """Return both searches in both kinds of mappings."""
    for pages in sizes:
        for advice in ("random", "default"):
            for search in ("warm", "plain"):
                yield look_up(path, pages, search, advice)


def table(lookups: Sequence[Lookup]) -> str:
    """Return a Markdown table: for each size and search, major faults, resident pages before and after, and time."""
    lines = [
        "| pages | warm, MADV_RANDOM | plain, MADV_RANDOM | warm, default | plain, default |",
        "|---|---|---|---|---|",
    ]
    for pages in dict.fromkeys(each.pages for each in lookups):
        cells = (
            f"{each.major_faults}; {each.resident_before} to {each.resident_after}; {each.microseconds:.0f} us"
            for each in lookups
            if each.pages == pages
        )
        lines.append(f"| {pages} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_rows(file: TextIO, lookups: Sequence[Lookup]) -> None:
    """Write one row for each size, with the four searches side by side."""
    rows = csv.writer(file, lineterminator="\n")
    kinds = dict.fromkeys(f"{each.search}_{each.advice}" for each in lookups)
    measured = ("major_faults", "resident_after", "microseconds")
    rows.writerow(["pages", "resident_before", *(f"{kind}_{name}" for kind in kinds for name in measured)])
    for pages, found in groupby(lookups, key=lambda each: each.pages):
        of_size = list(found)
        cells = [(each.major_faults, each.resident_after, round(each.microseconds)) for each in of_size]
        rows.writerow([pages, of_size[0].resident_before, *chain.from_iterable(cells)])


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions.index_search", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.csv", help="output file for all sizes")
    parser.add_argument("--directory", type=Path, default="/var/tmp", help="where to measure the disk (/var/tmp)")
    chosen = parser.parse_args()
    path = chosen.directory / "warmlog-index-search"
    try:
        write_index(path)
        lookups = list(every_lookup(path, range(1, MAX_PAGES + 1)))
    finally:
        path.unlink(missing_ok=True)
    if chosen.file:
        with chosen.file.open("w", newline="") as file:
            write_rows(file, lookups)
    print(table([each for each in lookups if each.pages in PRINTED]))


if __name__ == "__main__":
    sys.exit(main())
