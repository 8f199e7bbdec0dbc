"""What only the native protocol asks: the way of a fetch through the files of a log, and what of it is in memory.

Owns: values. Must not know: how the way is found (`broker.log.explain`, whose values have the same fields).
"""

from typing import ClassVar

from protocol.request import Int32, Int64, Value


class ExplainRequest(Value, frozen=True, kw_only=True, gc=False):
    """Explain how a fetch would come to an offset, or to the first record at or past a time (ms): one of the two.

    `plain`: tell the plain binary search of the indexes beside the one that is used.
    """

    api: ClassVar[str] = "explain"
    topic: str
    partition: Int32
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    plain: bool = False


class ExplainedSegment(Value, frozen=True, kw_only=True, gc=False):
    """The segment that holds it: offsets [base_offset, next_offset), bytes of its log, whether it is appended to."""

    base_offset: int
    next_offset: int
    size: int
    active: bool


class ExplainedLookup(Value, frozen=True, kw_only=True, gc=False):
    """A lookup in an index ("offset", "time") by a search ("warm", "plain").

    `pages`: of the index file, in the order of the first touch; `missing`: those not in memory, None where that is not
    known. `slot` None: no entry is so low.
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
    """Pages of a file that follow each other."""

    first: int
    count: int


class ExplainedRange(Value, frozen=True, kw_only=True, gc=False):
    """Bytes of the log file, and the pages that are read for them; `missing`: those not in memory, so many."""

    position: int
    size: int
    pages: tuple[PageRun, ...]
    missing: tuple[PageRun, ...] | None
    missing_pages: int | None


class ExplainedBatch(Value, frozen=True, kw_only=True, gc=False):
    """The batch at the end of the way."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


class ExplainResponse(Value, frozen=True, kw_only=True, gc=False):
    """The way. `scan` and `batch` are None at the log's end."""

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
