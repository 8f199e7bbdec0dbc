"""Find the first record at or past a timestamp. Blocking: it reads the disk and decompresses batches.

A batch whose records cannot be read is treated as one record at its first offset, with the largest timestamp of its
header: a reader that continues from there misses no record.

Safe while the event loop appends and rolls: it works on a snapshot of the segments, whose sizes only grow.

Source: kafka.log.UnifiedLog.fetchOffsetByTimestamp, KIP-734 (the largest timestamp).
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.offset import OffsetPosition
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimestampOffset
from warmlog.broker.log.segments.log_scan import walk_timed
from warmlog.broker.log.segments.segment import Segment
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.reader import offsets_and_times

# Called with the base offset of a batch whose records cannot be read, and the reason.
NoteUnreadable: TypeAlias = Callable[[int, ProtocolError], None]


def _ignore(_: int, __: ProtocolError) -> None:
    pass


class TimeView(NamedTuple):
    """A log as it was at one moment. Offsets in [start_offset, end_offset) are searched."""

    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    search: SearchName
    note_unreadable: NoteUnreadable = _ignore


class RecordLocation(NamedTuple):
    """A record's offset and timestamp (ms), and the position and header of its batch."""

    offset: int
    timestamp: int
    position: int
    header: BatchHeader


def first_at_or_past(view: TimeView, timestamp: int) -> TimestampOffset | None:
    """Return the first record at or past a timestamp (ms), with its own timestamp and leader epoch, or None.

    Raises IndexCorruptError, CorruptBatchError for a damaged batch, OSError.
    """
    for segment in view.segments:
        if segment.largest_timestamp() >= timestamp:
            record = _first_in_segment(view, segment, timestamp)
            if record is not None:
                return record if record.offset < view.end_offset else None
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
        record = _first_in_segment(view, segment, timestamp) or _largest_in_segment(view, segment)
        if record is not None and (best is None or record.timestamp > best.timestamp):
            best = record
    return best


def _largest_in_segment(view: TimeView, segment: Segment) -> TimestampOffset | None:
    """Scan a segment for the first record with the largest timestamp."""
    best: TimestampOffset | None = None
    file = segment.reader.descriptor()
    for position, header in walk_timed(file, 0, segment.size):
        least = NO_TIMESTAMP if best is None else best.timestamp
        if header.max_timestamp > least and header.last_offset >= view.start_offset and header.record_count:
            for offset, time in _rows(
                file.pread(header.size, position), header, view.start_offset, view.note_unreadable
            ):
                if time > least:
                    least = time
                    best = TimestampOffset(time, offset, header.leader_epoch)
    return best


def _first_in_segment(view: TimeView, segment: Segment, timestamp: int) -> TimestampOffset | None:
    """Look up the time index, then the offset index, then scan batches from that position."""
    hit = segment.checked_time_index().lookup(timestamp, view.search)
    start = segment.checked_offset_index().lookup(max(hit.offset, view.start_offset), view.search)
    check_entries(segment, hit, start)
    record = first_from(segment, start.position, timestamp, view.start_offset, view.note_unreadable)
    if record is None:
        return None
    return TimestampOffset(record.timestamp, record.offset, record.header.leader_epoch, hit.section)


def first_from(
    segment: Segment, position: int, timestamp: int, start_offset: int, note_unreadable: NoteUnreadable = _ignore
) -> RecordLocation | None:
    """Return the first record from a position on with at least this timestamp (ms) and offset, or None.

    Raises CorruptBatchError, OSError.
    """
    file = segment.reader.descriptor()
    for at_position, header in walk_timed(file, position, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            batch = file.pread(header.size, at_position)
            for offset, time in _rows(batch, header, start_offset, note_unreadable):
                if time >= timestamp:
                    return RecordLocation(offset, time, at_position, header)
    return None


def check_entries(segment: Segment, hit: TimestampOffset, start: OffsetPosition) -> None:
    """Compare the index entries that the search relies on with their batches. Raises IndexCorruptError."""
    if hit.timestamp != NO_TIMESTAMP and segment.max_timestamp_of(hit.offset) != hit.timestamp:
        raise IndexCorruptError(segment.base_offset, f"no batch ending at {hit.offset} has time {hit.timestamp}")
    if start.position:
        segment.max_timestamp_of(start.offset)


def _rows(
    batch: bytes, header: BatchHeader, start_offset: int, note_unreadable: NoteUnreadable
) -> Iterator[tuple[int, int]]:
    """Yield the offset and timestamp of each record of a batch from an offset on. Raises CorruptBatchError."""
    try:
        for offset, timestamp in offsets_and_times(batch, 0, header):
            if offset >= start_offset:
                yield offset, timestamp
    except ProtocolError as error:
        verify_crc(batch, 0, header)
        note_unreadable(header.base_offset, error)
        yield max(header.base_offset, start_offset), header.max_timestamp
