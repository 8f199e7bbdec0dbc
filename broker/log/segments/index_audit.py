"""Checks of a segment's indexes against its log file, before they are trusted.

A sealed segment's indexes are checked in constant time before the first use of each: size, order, and the last entry
against its batch. Each entry used later is checked against the batch that it points to. A time index that has lost
its last entries reports too low a largest timestamp (KAFKA-10207); `Segment.later_timestamp` finds that.

All functions raise IndexCorruptError on a mismatch, ProtocolError for a corrupt batch, and OSError.
"""

from typing import Final

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.segments.log_scan import read_header_at, timed, walk_headers, walk_readable
from warmlog.broker.log.segments.segment_files import SegmentFiles
from warmlog.protocol.errors import ProtocolError

MAX_SEGMENT_OFFSETS: Final = 1 << 31  # indexes hold relative offsets below this


def check_offset_index(segment: SegmentFiles) -> None:
    """Check the offset index of a sealed segment."""
    index, base_offset = segment.offset_index, segment.base_offset
    index.sanity_check(segment.end_of_offsets, segment.size)
    if index.entries:
        last = index.last()
        if _last_offset_at(segment, last.position) != last.offset:
            raise IndexCorruptError(base_offset, f"no batch at {last.position} ends at offset {last.offset}")
    else:
        _check_may_be_empty(segment)


def end_of_records(segment: SegmentFiles) -> tuple[int, int]:
    """Return the offset and the position after the last readable batch of a sealed segment, by its checked index."""
    file, index = segment.reader.descriptor(), segment.offset_index
    end, position = segment.base_offset, 0
    if index.entries:
        position = index.last().position
        end = read_header_at(file, position).base_offset  # of a batch that may be cut itself
    for position_of_batch, header in walk_readable(file, position, segment.size):
        end, position = header.next_offset, position_of_batch + header.size
    return end, position


def check_time_index(segment: SegmentFiles) -> None:
    """Check the time index of a sealed segment whose offset index was checked."""
    index = segment.time_index
    index.sanity_check(segment.end_of_offsets)
    if index.entries:
        last = index.last()
        if segment.max_timestamp_of(last.offset) != last.timestamp:
            reason = f"no batch ending at offset {last.offset} has timestamp {last.timestamp}"
            raise IndexCorruptError(segment.base_offset, reason)
    elif segment.size:
        check_has_no_timestamps(segment)
    check_doubtful_times(segment)


def check_active_indexes(segment: SegmentFiles) -> None:
    """Check the order of both indexes of a segment that may be appended to; `resume` checks their last entries."""
    limit = segment.base_offset + MAX_SEGMENT_OFFSETS
    segment.offset_index.sanity_check(limit, segment.size)
    segment.time_index.sanity_check(limit)
    if not segment.offset_index.entries:
        _check_may_be_empty(segment)


def check_has_no_timestamps(segment: SegmentFiles) -> None:
    """Check that the first batch, as a sample, has no timestamp: the time index is empty."""
    file = segment.reader.descriptor()
    if timed(file, 0, read_header_at(file, 0)).max_timestamp >= 0:
        raise IndexCorruptError(segment.base_offset, "time index is empty, but the records have timestamps")


def check_doubtful_times(segment: SegmentFiles) -> None:
    """Check that the time index covers batches whose header has an invalid largest timestamp, if there are any.

    Samples the first batch and one in the middle: an index made from the stored headers misses nearly all of them. For
    a worker.
    """
    offsets, times = segment.offset_index, segment.time_index
    positions = [0] if segment.size else []
    if offsets.entries:
        positions.append(offsets.entry_at(offsets.entries // 2).position)
    for position in positions:
        file = segment.reader.descriptor()
        header = read_header_at(file, position)
        if header.has_invalid_max_timestamp:
            slot = times.value_ceiling(header.last_offset - segment.base_offset)
            entry = times.entry_at(slot) if slot < times.entries else times.last()
            if entry.timestamp < timed(file, position, header).max_timestamp:
                reason = f"time index does not cover the timestamps of the batch at {position}"
                raise IndexCorruptError(segment.base_offset, reason)


def _check_may_be_empty(segment: SegmentFiles) -> None:
    """Check that no batch begins so far into the log that it must have an offset index entry."""
    headers = walk_headers(segment.reader.descriptor(), 0, segment.size)
    if any(position > segment.index_interval_bytes for position, _ in headers):
        reason = "offset index is empty, but the log is longer than the index interval"
        raise IndexCorruptError(segment.base_offset, reason)


def _last_offset_at(segment: SegmentFiles, position: int) -> int | None:
    try:
        return read_header_at(segment.reader.descriptor(), position).last_offset
    except ProtocolError:
        return None
