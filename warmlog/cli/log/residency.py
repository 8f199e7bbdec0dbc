"""`warmlog log residency`: show which parts of segments are in the page cache.

1. Files are neither read nor written: the page cache does not change.
2. A cell of a map covers one or more pages, so that a file takes one line. The hole at the end of an active segment's
   index is not part of the map.
3. Files that a running broker removes meanwhile are omitted.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from mmap import PAGESIZE
from pathlib import Path
from typing import NamedTuple

import click

from warmlog.broker.log.io.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from warmlog.broker.log.io.observed_disk import UnknownResidencyError
from warmlog.broker.log.io.survey import PageSurvey, survey_pages
from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, binary_size, counted, print_json, print_line, print_table
from warmlog.inspect.paths import SegmentFile, partition_directories, segment_files

SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
MAX_CELLS = 64
MIN_CELLS = 8
OTHER_COLUMNS = 64  # width of a row without its map, in characters
BLOCKS = "·░▒▓█"  # shares of resident pages: none, up to a third, up to two thirds, less than all, all
PLAIN_BLOCKS = ".-+*#"  # for encodings without block characters
COLUMNS = (
    Column("segment"),
    Column("file"),
    Column("size", number=True),
    Column("resident", number=True),
    Column("%", number=True),
    Column("map"),
)
TOTAL_COLUMNS = (
    Column("files"),
    Column("count", number=True),
    Column("size", number=True),
    Column("resident", number=True),
    Column("%", number=True),
)


class FileSurvey(NamedTuple):
    """A file and the survey of its pages."""

    file: SegmentFile
    survey: PageSurvey


@click.command(short_help="Show which parts of segments are in the page cache.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option("One JSON object per line: each file with its cells, then the totals.")
def residency(directory: Path, as_json: bool) -> None:
    """Show which parts of segments are in the page cache.

    DIR is a data directory or the directory of a partition. The map of each log and index file runs from its first
    byte on the left to its last: a full block is completely resident, a dot not at all. Files are not read. Safe
    beside a running broker.
    """
    cells = MAX_CELLS if as_json else map_width()
    surveys: list[FileSurvey] = []
    for partition, of_partition in groupby(survey_files(directory, cells), key=lambda survey: survey.file.path.parent):
        files = list(of_partition)
        surveys += files
        if as_json:
            print_json(*map(file_json, files))
        else:
            show_partition(partition.resolve().name, files)
    if as_json:
        print_json(*(total_json(kind, files) for kind, files in by_kind(surveys)))
    else:
        show_totals(surveys)


def map_width() -> int:
    """Return the width of a map in characters: the rest of a terminal's line, or the maximum without a terminal."""
    if not sys.stdout.isatty():
        return MAX_CELLS
    return max(MIN_CELLS, min(MAX_CELLS, shutil.get_terminal_size().columns - OTHER_COLUMNS))


# -- survey ------------------------------------------------------------------------------------------------------------


def survey_files(directory: Path, max_cells: int) -> Iterator[FileSurvey]:
    """Survey every segment file in use. Raises WrongPathError, Failure if residency is unknown, OSError."""
    for partition in partition_directories(directory):
        try:
            files = segment_files(partition.iterdir())
        except FileNotFoundError:
            continue
        for file in files:
            if file.suffix in SUFFIXES and not file.state:
                survey = survey_file(file, max_cells)
                if survey is not None:
                    yield survey


def survey_file(file: SegmentFile, max_cells: int) -> FileSurvey | None:
    """Survey one file; return None if it has been removed. Raises Failure, OSError."""
    try:
        surveyed = survey_pages(file.path, max_cells)
    except UnknownResidencyError as unknown:
        raise Failure(f"{file.path}: cannot query the page cache ({unknown})") from unknown
    return None if surveyed is None else FileSurvey(file, surveyed)


# -- output ------------------------------------------------------------------------------------------------------------


def file_json(surveyed: FileSurvey) -> dict[str, object]:
    """Return a file as a JSON object."""
    survey = surveyed.survey
    return {
        "type": "file",
        "partition": surveyed.file.path.parent.resolve().name,
        "base_offset": surveyed.file.base_offset,
        "kind": surveyed.file.suffix.removeprefix("."),
        "file": str(surveyed.file.path),
        "size": survey.size,
        "pages": survey.pages,
        "resident_pages": survey.resident_pages,
        "cell_pages": survey.cell_pages,
        "resident_cells": survey.resident_cells,
    }


def by_kind(surveys: Iterable[FileSurvey]) -> Iterator[tuple[str, list[FileSurvey]]]:
    """Group the files by kind, then as `all`."""
    every = list(surveys)
    for suffix in SUFFIXES:
        yield suffix.removeprefix("."), [survey for survey in every if survey.file.suffix == suffix]
    yield "all", every


def total_json(kind: str, surveys: Sequence[FileSurvey]) -> dict[str, object]:
    """Return the totals of a kind as a JSON object."""
    size, pages, resident = totals(surveys)
    return {
        "type": "total", "kind": kind, "files": len(surveys), "size": size, "pages": pages, "resident_pages": resident,
    }  # fmt: skip


def totals(surveys: Iterable[FileSurvey]) -> tuple[int, int, int]:
    """Return bytes, pages and resident pages."""
    every = [each.survey for each in surveys]
    size, pages = sum(survey.size for survey in every), sum(survey.pages for survey in every)
    return size, pages, sum(survey.resident_pages for survey in every)


def show_partition(name: str, surveys: Sequence[FileSurvey]) -> None:
    """Print the files of a partition with their maps."""
    size, pages, resident = totals(surveys)
    print_line(f"{name}: {binary_size(size)}, {percent(resident, pages) or '0'} % resident")
    blocks = supported_blocks()
    print_table(COLUMNS, [file_row(survey, blocks) for survey in surveys])
    print_line()


def file_row(surveyed: FileSurvey, blocks: str) -> tuple[object, ...]:
    """Return the cells of a file for COLUMNS."""
    survey = surveyed.survey
    return (
        f"{surveyed.file.base_offset:020d}",
        surveyed.file.suffix,
        binary_size(survey.size),
        resident_size(survey),
        percent(survey.resident_pages, survey.pages),
        draw_map(survey, blocks),
    )


def resident_size(survey: PageSurvey) -> str:
    """Format the number of resident bytes, considering that the last page of a file is rarely full."""
    return binary_size(min(survey.size, survey.resident_pages * PAGESIZE))


def draw_map(survey: PageSurvey, blocks: str) -> str:
    """Draw a block for each cell."""
    drawn = []
    for number, resident in enumerate(survey.resident_cells):
        pages = min(survey.cell_pages, survey.pages - number * survey.cell_pages)
        drawn.append(blocks[-1] if resident == pages else blocks[-(-resident * (len(blocks) - 2) // pages)])
    return "".join(drawn)


def supported_blocks() -> str:
    """Return the blocks that the encoding of standard output supports."""
    try:
        BLOCKS.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return PLAIN_BLOCKS
    return BLOCKS


def percent(resident: int, pages: int) -> str | None:
    """Format a percentage; 0 and 100 are exact, never rounded."""
    if not pages:
        return None
    share = 100 * resident / pages
    return f"{share:.0f}" if resident in {0, pages} or 1 <= share < 99 else f"{min(max(share, 0.1), 99.9):.1f}"


def show_totals(surveys: Sequence[FileSurvey]) -> None:
    """Print the totals and the legend."""
    rows = []
    for kind, files in by_kind(surveys):
        size, pages, resident = totals(files)
        resident_bytes = binary_size(min(size, resident * PAGESIZE))
        rows.append((kind, len(files), binary_size(size), resident_bytes, percent(resident, pages)))
    print_table(TOTAL_COLUMNS, rows)
    blocks = supported_blocks()
    partly = " ".join(blocks[-2:0:-1])
    print_line(f"{blocks[-1]} all resident, {partly} partly, {blocks[0]} none; {counted(PAGESIZE, 'byte')} per page")
