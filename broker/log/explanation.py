"""The way of a fetch, as it is told: values only.

Owns: their shape. Must not know how the way is found (`explain`), or who shows it.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from broker.log.config import SearchName
from broker.log.index.search import Section

IndexName: TypeAlias = Literal["offset", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSegment:
    """The segment that holds what was asked for. Offsets [base_offset, next_offset), bytes of its log."""

    base_offset: int
    next_offset: int
    size: int
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLookup:
    """A lookup in an index of `entries` entries.

    `pages`: of its file, in the order of the first touch; `missing`: those that are not in memory, None where that is
    not known; each would be a major fault, were it touched unasked. `slot`: of the entry found, None: none is so low,
    and the scan begins at the segment's start. `timestamp` (ms) is a time index's, `position` (bytes) an offset
    index's. `section`: None in an empty index, and for the plain search, which knows none.
    """

    index: IndexName
    search: SearchName
    section: Section | None
    entries: int
    pages: tuple[int, ...]
    missing: tuple[int, ...] | None
    faults_expected: int | None
    slot: int | None
    timestamp: int | None
    offset: int
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """Pages of a file that follow each other."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRange:
    """`size` bytes of a log file, and the pages that are read for them: a scan takes a piece at each batch.

    `missing`: those that are not in memory, `missing_pages` so many; None where that is not known.
    """

    position: int
    size: int
    pages: tuple[PageRun, ...]
    missing: tuple[PageRun, ...] | None
    missing_pages: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBatch:
    """The batch at the end of the way: offsets [base_offset, last_offset], and its place."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The way. `offset` is the first one that a fetch would get, `timestamp` (ms) its record's where a time was asked.

    `passed`: segments that were looked at before this one in vain. `index_fault`: why the segment's indexes cannot be
    believed. `known_by_heart`: the batch lies behind the last index entry of a log that is being appended to, and is
    known without a scan. Without a `batch` the offset is the log's end. `asked`: by which call it is known what is in
    memory; None: it is not known, for the reason of `not_asked`.
    """

    log_start_offset: int
    log_end_offset: int
    offset: int
    timestamp: int | None
    passed: int
    segment: ExplainedSegment
    index_fault: str | None
    lookups: tuple[ExplainedLookup, ...]
    known_by_heart: bool
    scan: ExplainedRange | None
    batch: ExplainedBatch | None
    asked: str | None
    not_asked: str | None
