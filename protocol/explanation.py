"""Explain how a fetch would be served from the files of a log, step by step, and which pages are resident.

`broker.log.reads.explain` computes the explanation, and the native protocol sends it unchanged.
"""

from warmlog.protocol.request import Value


class ExplainedSegment(Value, frozen=True, kw_only=True, gc=False):
    """The segment with the target: offsets [base_offset, next_offset), and the `size` of its log in bytes.

    `active`: whether records are appended to it.
    """

    base_offset: int
    next_offset: int
    size: int
    active: bool


class ExplainedLookup(Value, frozen=True, kw_only=True, gc=False):
    """A lookup in an index ("offset" or "time") of `entries` entries, with a search ("warm" or "plain").

    `pages`: pages of the index file in order of first access; `missing`: the non-resident ones, None if unknown; each
    would be a major fault without the residency gate. `slot`: index of the matching entry; None if the target is below
    the first entry, so that the scan begins at the segment's start. `timestamp` (ms) is set for a time index,
    `position` (bytes) for an offset index. `section`: None for an empty index and for the plain search.
    """

    index: str
    search: str
    section: str | None
    entries: int
    pages: tuple[int, ...]
    missing: tuple[int, ...] | None
    faults_expected: int | None
    slot: int | None
    timestamp: int | None
    offset: int
    position: int | None


class PageRun(Value, frozen=True, kw_only=True, gc=False):
    """Consecutive pages of a file."""

    first: int
    count: int


class ExplainedRange(Value, frozen=True, kw_only=True, gc=False):
    """A range of `size` bytes of a log file, and the pages read for it: a scan reads only a part of each batch.

    `missing`: pages not resident, `missing_pages` their number; None if unknown.
    """

    position: int
    size: int
    pages: tuple[PageRun, ...]
    missing: tuple[PageRun, ...] | None
    missing_pages: int | None


class ExplainedBatch(Value, frozen=True, kw_only=True, gc=False):
    """The matching batch: offsets [base_offset, last_offset], and its range in the log file."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


class Explanation(Value, frozen=True, kw_only=True, gc=False):
    """The steps by which a fetch would be served, from the record at `offset` with its `timestamp` (ms, if requested).

    `passed`: segments searched before this one, without a match. `index_fault`: why the segment's indexes cannot be
    used. `known_by_heart`: whether the position of the batch, which is after the last index entry of the active
    segment, is cached, so that no scan is needed. Without a `batch` the offset is the log end offset. `asked`: the
    system call that reported residency, or None if residency is unknown, for the reason in `not_asked`.
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
