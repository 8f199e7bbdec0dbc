"""From a time to the first record that is not earlier. For a worker: it reads the disk and opens compressed batches.

Owns: the way through the segments and the batches for a time. Must not know what the answer is for.

Safe beside a loop that appends and rolls: it works on a snapshot of the segments, whose sizes only grow.

Source: kafka.log.UnifiedLog.fetchOffsetByTimestamp, KIP-734 (the largest timestamp).
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from broker.log.config import SearchName
from broker.log.errors import IndexCorruptError
from broker.log.index.offset import OffsetPosition
from broker.log.index.time import NO_TIMESTAMP, TimestampOffset
from broker.log.log_scan import walk_timed
from broker.log.segment import Segment
from protocol.records.layout import BatchHeader
from protocol.records.reader import decode_batch

MAX_DECOMPRESSED_SIZE = 128 << 20  # of one batch: far above what any producer sends, and a bound on a worker's memory


class TimeView(NamedTuple):
    """A log as it was at one moment. Offsets in [start_offset, end_offset) are searched."""

    segments: Sequence[Segment]
    start_offset: int
    end_offset: int
    search: SearchName


class RecordPlace(NamedTuple):
    """A record by its offset and time (ms), and the batch that holds it: where that begins, and its header."""

    offset: int
    timestamp: int
    position: int
    header: BatchHeader


def first_at_or_past(view: TimeView, timestamp: int) -> TimestampOffset | None:
    """The first record at or past a time (ms), with its own time and leader epoch; None if there is none.

    Raises IndexCorruptError, ProtocolError for a batch that cannot be opened, OSError.
    """
    for segment in view.segments:
        if segment.largest_timestamp() >= timestamp:
            found = _first_in_segment(view, segment, timestamp)
            if found is not None:
                return found if found.offset < view.end_offset else None
    return None


def largest(view: TimeView) -> TimestampOffset | None:
    """The first record that has the largest timestamp of all; None if no record has a time. Raises as above."""
    timestamp, segment = max(((each.largest_timestamp(), each) for each in view.segments), key=itemgetter(0))
    return None if timestamp <= NO_TIMESTAMP else _first_in_segment(view, segment, timestamp)


def _first_in_segment(view: TimeView, segment: Segment, timestamp: int) -> TimestampOffset | None:
    """By the time index to an offset, by the offset index to a position, from there batch by batch."""
    hit = segment.checked_time_index().lookup(timestamp, view.search)
    start = segment.checked_offset_index().lookup(max(hit.offset, view.start_offset), view.search)
    check_entries(segment, hit, start)
    found = first_from(segment, start.position, timestamp, view.start_offset)
    if found is None:
        return None
    return TimestampOffset(found.timestamp, found.offset, found.header.leader_epoch, hit.section)


def first_from(segment: Segment, position: int, timestamp: int, start_offset: int) -> RecordPlace | None:
    """The first record from a batch on that is at or past a time (ms) and an offset. Raises ProtocolError, OSError."""
    file = segment.reader.descriptor()
    for at_position, header in walk_timed(file, position, segment.size):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            batch = file.pread(header.size, at_position)
            found = _first_in_batch(batch, header, lambda at, time: time >= timestamp and at >= start_offset)
            if found is not None:
                return RecordPlace(*found, at_position, header)
    return None


def check_entries(segment: Segment, hit: TimestampOffset, start: OffsetPosition) -> None:
    """Hold the entries that the search believes against their batches. Raises IndexCorruptError."""
    if hit.timestamp != NO_TIMESTAMP and segment.max_timestamp_of(hit.offset) != hit.timestamp:
        raise IndexCorruptError(segment.base_offset, f"no batch ending at {hit.offset} has time {hit.timestamp}")
    if start.position:
        segment.max_timestamp_of(start.offset)


def _first_in_batch(batch: bytes, header: BatchHeader, wanted: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that is wanted, or None."""
    rows = decode_batch(batch, 0, header, max_decompressed_size=MAX_DECOMPRESSED_SIZE, make=_offset_and_time)
    return next((row for row in rows if wanted(*row)), None)


def _offset_and_time(offset: int, timestamp: int, *_: object) -> tuple[int, int]:
    return offset, timestamp
