"""Describe segments. Blocking: the largest timestamp of a sealed segment is read from its index."""

from warmlog.broker.log.descriptions import SegmentFacts
from warmlog.broker.log.segments.segment import Segment


def describe_segment(segment: Segment, log_end_offset: int) -> SegmentFacts:
    """Describe one segment. Raises IndexCorruptError, OSError."""
    timestamp = segment.largest_timestamp()
    next_offset = segment.next_base_offset
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=log_end_offset if next_offset is None else next_offset,
        size=segment.size,
        offset_index_entries=segment.offset_index.entries,
        time_index_entries=segment.time_index.entries,
        max_timestamp=None if timestamp < 0 else timestamp,
        modified_ms=segment.modified_ms(),
        active=next_offset is None,
    )
