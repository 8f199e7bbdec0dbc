"""The values of an explanation: how a fetch would be served, step by step (`explain` computes them)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.index.search import Section

IndexName: TypeAlias = Literal["offset", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSegment:
    """The segment that holds the target: offsets [base_offset, next_offset), size of its log in bytes."""

    base_offset: int
    next_offset: int
    size: int
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLookup:
    """A lookup in an index of `entries` entries.

    `pages`: pages of the index file in the order of the first touch; `missing`: those not resident, None if unknown;
    each would be a major fault without the residency gate. `slot`: that of the entry found; None: the target is below
    the first entry, and the scan begins at the segment's start. `timestamp` (ms) is set for a time index, `position`
    (bytes) for an offset index. `section`: None for an empty index and for the plain search.
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
    """Consecutive pages of a file."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRange:
    """`size` bytes of a log file, and the pages read for them: a scan reads only a piece of each batch.

    `missing`: pages not resident, `missing_pages` their number; None if unknown.
    """

    position: int
    size: int
    pages: tuple[PageRun, ...]
    missing: tuple[PageRun, ...] | None
    missing_pages: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBatch:
    """The batch found: offsets [base_offset, last_offset], and its range in the log file."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The steps by which a fetch would be served, from the record at `offset` with its `timestamp` (ms, if requested).

    `passed`: segments searched in vain before this one. `index_fault`: why the segment's indexes cannot be used.
    `known_by_heart`: the position of the batch, past the last index entry of the active segment, is cached, so no scan
    is needed. Without a `batch` the offset is the log end offset. `asked`: the system call that reported residency;
    None: it is unknown, for the reason in `not_asked`.
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
