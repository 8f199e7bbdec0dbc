"""A view of a log for retention and compaction, which remove and replace its segments."""

from typing import NamedTuple

from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.segments.segment_map import Segments


class LogBounds(NamedTuple):
    """A log's offsets. `cleanable_end` is the lower of its last stable offset and its recovery point.

    Read them before the segments: a segment that is rolled in between is past all of them.
    """

    log_start_offset: int
    high_watermark: int
    cleanable_end: int
    log_end_offset: int


class LogView(NamedTuple):
    """A log and its bounds. `segments` keeps changing while the view is used; `segments.snapshot` is immutable."""

    bounds: LogBounds
    segments: Segments
    context: LogContext
    contiguity: Contiguity
