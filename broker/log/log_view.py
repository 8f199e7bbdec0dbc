"""A log at one moment, for those who rearrange its segments: retention and compaction.

Owns: the shape of that view. Must not know what they do with it.
"""

from typing import NamedTuple

from broker.log.recovery.contiguity import Contiguity
from broker.log.recovery.place import LogPlace
from broker.log.segments import Segments


class LogBounds(NamedTuple):
    """A log's offsets. `cleanable_end`: the high watermark, what is synced, or where an open transaction began.

    The least of them. Taken before its segments: what is rolled meanwhile lies past all of them.
    """

    log_start_offset: int
    high_watermark: int
    cleanable_end: int
    log_end_offset: int


class LogView(NamedTuple):
    """A log as it is now; `segments` goes on changing, its snapshot does not."""

    bounds: LogBounds
    segments: Segments
    place: LogPlace
    contiguity: Contiguity
