"""Explain how a fetch would be served from the files of a log, and which pages are resident (native protocol only).

`broker.log.reads.explain` computes the explanation; its values have the same fields.
"""

from typing import ClassVar

from warmlog.protocol.request import Int32, Int64, Value


class ExplainRequest(Value, frozen=True, kw_only=True, gc=False):
    """Explain how an offset, or the first record at or after a timestamp (ms), would be found. Set one of the two.

    `plain` also explains a plain binary search of the indexes.
    """

    api: ClassVar[str] = "explain"
    topic: str
    partition: Int32
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    plain: bool = False


class ExplainedSegment(Value, frozen=True, kw_only=True, gc=False):
    """The segment with offsets [base_offset, next_offset); `size` in bytes, `active` if it is appended to."""

    base_offset: int
    next_offset: int
    size: int
    active: bool


class ExplainedLookup(Value, frozen=True, kw_only=True, gc=False):
    """A lookup in an index ("offset" or "time") with a search ("warm" or "plain").

    `pages` are pages of the index file in order of first access; `missing` those not resident, None if unknown. `slot`
    is None if the target is below the first entry.
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
    """A byte range of the log file and its pages; `missing` are those not resident, None if unknown."""

    position: int
    size: int
    pages: tuple[PageRun, ...]
    missing: tuple[PageRun, ...] | None
    missing_pages: int | None


class ExplainedBatch(Value, frozen=True, kw_only=True, gc=False):
    """The batch that was looked up."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


class ExplainResponse(Value, frozen=True, kw_only=True, gc=False):
    """The segment, index lookups, scan and batch of a fetch. `scan` and `batch` are None at the log end offset."""

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
