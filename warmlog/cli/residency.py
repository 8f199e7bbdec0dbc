"""`warmlog log residency`: which parts of segments are in memory.

Owns: the options, the survey of files, and how it is drawn. Must not know: how the system is asked
(`broker.log.io.observed_disk`).

1. Nothing is read from the files, and nothing is written: looking changes nothing.
2. A cell of a drawing is a page or more, so that a file takes one line. The hole at the end of an index that is still
   appended to is no part of it.
3. Beside a running broker files may vanish while they are looked at; they are left out.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from mmap import PAGESIZE
from pathlib import Path
from typing import NamedTuple

import click

from broker.log.io.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from broker.log.io.observed_disk import UnknownResidencyError, choose_asker
from broker.log.io.page_cache import pages_of
from broker.log.offline_sight import data_size
from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.inspect.paths import SegmentFile, partition_directories, segment_files

SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
MAX_CELLS = 64
MIN_CELLS = 8
OTHER_COLUMNS = 64  # characters that a row takes beside its drawing
BLOCKS = "·░▒▓█"  # nothing, a third, two thirds, less than all, all
PLAIN_BLOCKS = ".-+*#"  # where the terminal knows no others
COLUMNS = (
    Column("segment"),
    Column("file"),
    Column("size", number=True),
    Column("in memory", number=True),
    Column("%", number=True),
    Column("parts"),
)
TOTAL_COLUMNS = (
    Column("files"),
    Column("count", number=True),
    Column("size", number=True),
    Column("in memory", number=True),
    Column("%", number=True),
)


class FileSurvey(NamedTuple):
    """What of a file is in memory: of each cell of so many pages (the last may have fewer), how many are."""

    file: SegmentFile
    size: int
    cell_pages: int
    resident_cells: tuple[int, ...]

    @property
    def pages(self) -> int:
        """All pages of it."""
        return pages_of(0, self.size)

    @property
    def resident_pages(self) -> int:
        """Those that are in memory."""
        return sum(self.resident_cells)


@click.command(short_help="Draw which parts of segments are in memory.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option("One JSON object per line: each file with its cells, then the totals.")
def residency(directory: Path, as_json: bool) -> None:
    """Draw which parts of segments are in memory.

    DIR is a data directory or the directory of a partition. The log and the two indexes of every segment are drawn from
    their first byte on the left to their last: a full block is completely in memory, a point not at all. Safe beside a
    running broker; no data is read.
    """
    cells = MAX_CELLS if as_json else drawing_width()
    surveys: list[FileSurvey] = []
    for partition, found in groupby(surveyed(directory, cells), key=lambda survey: survey.file.path.parent):
        files = list(found)
        surveys += files
        if as_json:
            print_json(*map(form, files))
        else:
            show_partition(partition.resolve().name, files)
    if as_json:
        print_json(*(total_form(kind, files) for kind, files in by_kind(surveys)))
    else:
        show_totals(surveys)


def drawing_width() -> int:
    """Characters for a drawing: what a terminal leaves; in a pipe as many as there are to be."""
    if not sys.stdout.isatty():
        return MAX_CELLS
    return max(MIN_CELLS, min(MAX_CELLS, shutil.get_terminal_size().columns - OTHER_COLUMNS))


# -- looking -----------------------------------------------------------------------------------------------------------


def surveyed(directory: Path, max_cells: int) -> Iterator[FileSurvey]:
    """Every file of a segment in use. Raises WrongPathError, Failure where nobody tells what is in memory, OSError."""
    for partition in partition_directories(directory):
        try:
            files = segment_files(partition.iterdir())
        except FileNotFoundError:
            continue
        for file in files:
            if file.suffix in SUFFIXES and not file.state:
                survey = survey_of(file, max_cells)
                if survey is not None:
                    yield survey


def survey_of(file: SegmentFile, max_cells: int) -> FileSurvey | None:
    """One file; None if it is gone by now. Raises Failure, OSError."""
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = data_size(fd, os.fstat(fd).st_size)
        cell_pages = -(-pages_of(0, size) // max_cells) or 1
        cells = tuple(resident_cells(fd, size, cell_pages * PAGESIZE))
    except UnknownResidencyError as unknown:
        raise Failure(f"{file.path}: what is in memory cannot be asked ({unknown})") from unknown
    finally:
        os.close(fd)
    return FileSurvey(file, size, cell_pages, cells)


def resident_cells(fd: int, size: int, cell_size: int) -> Iterator[int]:
    """How many pages of each cell are in memory. Raises UnknownResidencyError, OSError."""
    asker = choose_asker(fd, size) if size else None
    for position in range(0, size, cell_size):
        length = min(cell_size, size - position)
        assert asker is not None, "there is something to ask about"
        yield pages_of(position, length) - asker.missing_pages(fd, position, length)


# -- telling -----------------------------------------------------------------------------------------------------------


def form(survey: FileSurvey) -> dict[str, object]:
    """A file for scripts."""
    return {
        "type": "file",
        "partition": survey.file.path.parent.resolve().name,
        "base_offset": survey.file.base_offset,
        "kind": survey.file.suffix.removeprefix("."),
        "file": str(survey.file.path),
        "size": survey.size,
        "pages": survey.pages,
        "resident_pages": survey.resident_pages,
        "cell_pages": survey.cell_pages,
        "resident_cells": survey.resident_cells,
    }


def by_kind(surveys: Iterable[FileSurvey]) -> Iterator[tuple[str, list[FileSurvey]]]:
    """The files of each kind that there is, and all."""
    every = list(surveys)
    for suffix in SUFFIXES:
        yield suffix.removeprefix("."), [survey for survey in every if survey.file.suffix == suffix]
    yield "all", every


def total_form(kind: str, surveys: Sequence[FileSurvey]) -> dict[str, object]:
    """All files of a kind for scripts."""
    size, pages, resident = totals(surveys)
    return {
        "type": "total", "kind": kind, "files": len(surveys), "size": size, "pages": pages, "resident_pages": resident,
    }  # fmt: skip


def totals(surveys: Iterable[FileSurvey]) -> tuple[int, int, int]:
    """Bytes, pages, and pages in memory."""
    every = list(surveys)
    size, pages = sum(survey.size for survey in every), sum(survey.pages for survey in every)
    return size, pages, sum(survey.resident_pages for survey in every)


def show_partition(name: str, surveys: Sequence[FileSurvey]) -> None:
    """The files of a partition, drawn."""
    size, pages, resident = totals(surveys)
    print_line(f"{name}: {binary_size(size)}, {percent(resident, pages) or '0'} % in memory")
    blocks = known_blocks()
    print_table(COLUMNS, [file_row(survey, blocks) for survey in surveys])
    print_line()


def file_row(survey: FileSurvey, blocks: str) -> tuple[object, ...]:
    """A file's cells under COLUMNS."""
    return (
        f"{survey.file.base_offset:020d}",
        survey.file.suffix,
        binary_size(survey.size),
        resident_size(survey),
        percent(survey.resident_pages, survey.pages),
        drawing(survey, blocks),
    )


def resident_size(survey: FileSurvey) -> str:
    """Its bytes in memory: the last page of a file is seldom full."""
    return binary_size(min(survey.size, survey.resident_pages * PAGESIZE))


def drawing(survey: FileSurvey, blocks: str) -> str:
    """A block for each cell."""
    drawn = []
    for number, resident in enumerate(survey.resident_cells):
        pages = min(survey.cell_pages, survey.pages - number * survey.cell_pages)
        drawn.append(blocks[-1] if resident == pages else blocks[-(-resident * (len(blocks) - 2) // pages)])
    return "".join(drawn)


def known_blocks() -> str:
    """The blocks, if what prints them knows them."""
    try:
        BLOCKS.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return PLAIN_BLOCKS
    return BLOCKS


def percent(resident: int, pages: int) -> str | None:
    """A share; never 100 or 0 where it is only nearly so."""
    if not pages:
        return None
    share = 100 * resident / pages
    return f"{share:.0f}" if resident in {0, pages} or 1 <= share < 99 else f"{min(max(share, 0.1), 99.9):.1f}"


def show_totals(surveys: Sequence[FileSurvey]) -> None:
    """The sums."""
    rows = []
    for kind, files in by_kind(surveys):
        size, pages, resident = totals(files)
        in_memory = binary_size(min(size, resident * PAGESIZE))
        rows.append((kind, len(files), binary_size(size), in_memory, percent(resident, pages)))
    print_table(TOTAL_COLUMNS, rows)
    blocks = known_blocks()
    partly = " ".join(blocks[-2:0:-1])
    print_line(f"{blocks[-1]} all in memory, {partly} less, {blocks[0]} nothing; {counted(PAGESIZE, 'byte')} a page")
