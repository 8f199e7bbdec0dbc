"""Find the first record at or past a timestamp. Blocking: it reads the disk and decompresses batches.

Safe while the event loop appends and rolls: it works on a snapshot of the segments, whose sizes only grow.

Source: kafka.log.UnifiedLog.fetchOffsetByTimestamp, KIP-734 (the largest timestamp).
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.offset import OffsetPosition
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimestampOffset
from warmlog.broker.log.segments.log_scan import walk_timed
from warmlog.broker.log.segments.segment import Segment
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.reader import decode_batch

MAX_DECOMPRESSED_SIZE = 128 << 20  # per batch: far above what producers send, and a bound on a worker's memory


class TimeView(NamedTuple):
    """A log as it was at one moment. Offsets in [start_offset, end_offset) are searched."""

    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    search: SearchName


class RecordPlace(NamedTuple):
    """A record's offset and timestamp (ms), and the position and header of its batch."""

    offset: int
    timestamp: int
    position: int
    header: BatchHeader


def first_at_or_past(view: TimeView, timestamp: int) -> TimestampOffset | None:
    """Return the first record at or past a timestamp (ms), with its own timestamp and leader epoch, or None.

    Raises IndexCorruptError, ProtocolError for a batch that cannot be decoded, OSError.
    """
    for segment in view.segments:
        if segment.largest_timestamp() >= timestamp:
            found = _first_in_segment(view, segment, timestamp)
            if found is not None:
                return found if found.offset < view.end_offset else None
    return None


def largest(view: TimeView) -> TimestampOffset | None:
    """Return the first record with the largest timestamp, or None if no record has one. Raises as above.

    The largest timestamp of a segment may be that of a batch whose records were all removed by compaction, or of a
    deleted record. Then the segment is scanned, and the next ones are searched, too.
    """
    best: TimestampOffset | None = None
    ordered = sorted(((each.largest_timestamp(), each) for each in view.segments), key=itemgetter(0), reverse=True)
    for timestamp, segment in ordered:
        if timestamp <= (NO_TIMESTAMP if best is None else best.timestamp):
            break
        found = _first_in_segment(view, segment, timestamp) or _largest_in_segment(view, segment)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _largest_in_segment(view: TimeView, segment: Segment) -> TimestampOffset | None:
    """Scan a segment for the first record with the largest timestamp."""
    best: TimestampOffset | None = None
    file = segment.reader.descriptor()
    for position, header in walk_timed(file, 0, segment.size):
        least = NO_TIMESTAMP if best is None else best.timestamp
        if header.max_timestamp > least and header.last_offset >= view.start_offset and header.record_count:
            rows = _rows(file.pread(header.size, position), header)
            times = [(time, -at) for at, time in rows if at >= view.start_offset and time > least]
            if times:
                time, minus_offset = max(times)
                best = TimestampOffset(time, -minus_offset, header.leader_epoch)
    return best


def _first_in_segment(view: TimeView, segment: Segment, timestamp: int) -> TimestampOffset | None:
    """Look up the time index, then the offset index, then scan batches from that position."""
    hit = segment.checked_time_index().lookup(timestamp, view.search)
    start = segment.checked_offset_index().lookup(max(hit.offset, view.start_offset), view.search)
    check_entries(segment, hit, start)
    found = first_from(segment, start.position, timestamp, view.start_offset)
    if found is None:
        return None
    return TimestampOffset(found.timestamp, found.offset, found.header.leader_epoch, hit.section)


def first_from(segment: Segment, position: int, timestamp: int, start_offset: int) -> RecordPlace | None:
    """Return the first record from a position on with at least this timestamp (ms) and offset, or None.

    Raises ProtocolError, OSError.
    """
    file = segment.reader.descriptor()
    for at_position, header in walk_timed(file, position, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            batch = file.pread(header.size, at_position)
            found = _first_in_batch(batch, header, lambda at, time: time >= timestamp and at >= start_offset)
            if found is not None:
                return RecordPlace(*found, at_position, header)
    return None


def check_entries(segment: Segment, hit: TimestampOffset, start: OffsetPosition) -> None:
    """Compare the index entries that the search relies on with their batches. Raises IndexCorruptError."""
    if hit.timestamp != NO_TIMESTAMP and segment.max_timestamp_of(hit.offset) != hit.timestamp:
        raise IndexCorruptError(segment.base_offset, f"no batch ending at {hit.offset} has time {hit.timestamp}")
    if start.position:
        segment.max_timestamp_of(start.offset)


def _first_in_batch(batch: bytes, header: BatchHeader, wanted: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record for which `wanted` is true, or None."""
    return next((row for row in _rows(batch, header) if wanted(*row)), None)


def _rows(batch: bytes, header: BatchHeader) -> Iterable[tuple[int, int]]:
    """Return the offset and timestamp of each record of a batch."""
    return decode_batch(batch, 0, header, max_decompressed_size=MAX_DECOMPRESSED_SIZE, make=_offset_and_time)


def _offset_and_time(offset: int, timestamp: int, *_: object) -> tuple[int, int]:
    return offset, timestamp
