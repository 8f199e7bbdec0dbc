"""Find positions in a log file: by offset, by timestamp, and after damage.

Every index entry is checked against the log before it is used. If none can be confirmed, the search walks the headers
from the beginning of the segment.
"""

from collections.abc import Callable, Iterator, Sequence

from warmlog.broker.log.segments.log_scan import CutError
from warmlog.inspect.errors import InspectError
from warmlog.inspect.index_files import IndexedTime, OffsetEntries, TimeEntries
from warmlog.inspect.log_file import LogFile, Segment
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.reader import offsets_and_times

ENTRIES_TRIED = 16  # maximum entries checked backwards from the target; an index with more wrong entries is not used


def confirmed_entries(file: LogFile, entries: OffsetEntries, slot: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of entries confirmed by the log, from a slot backwards."""
    for tried in range(slot, max(slot - ENTRIES_TRIED, -1), -1):
        entry = entries[tried]
        try:
            header = file.header(entry.position) if 0 < entry.position < file.size else None
        except ProtocolError:
            continue
        if header is not None and header.last_offset == entry.last_offset:
            yield entry.position, header


def position_of(file: LogFile, segment: Segment, offset: int, end: int) -> int:
    """Return the position of the batch with the offset, or of the first batch after it, or `end` without one.

    A broken header ends the search; reading from the returned position will report it.
    """
    entries = OffsetEntries(segment.path, segment.base_offset)
    before = entries.slot_before_offset(offset)
    position = next((at for at, _ in confirmed_entries(file, entries, before)), 0)
    try:
        for at, header in file.headers(position, end):
            if header.next_offset > offset:
                return at
            position = at + header.size
    except CutError:
        return end
    except ProtocolError:
        return position
    return end


def position_after_damage(file: LogFile, segment: Segment, position: int, end: int) -> int:
    """Return the position of the next readable batch after a damaged one, or `end`.

    It is the end stated by the damaged batch if a later batch begins there, otherwise the next batch in the index.
    """
    try:
        damaged = file.header(position)
        following = position + damaged.size
        if following == end or file.header(following).base_offset >= damaged.next_offset:
            return following
    except ProtocolError:
        pass
    entries = OffsetEntries(segment.path, segment.base_offset)
    for slot in range(entries.slot_at_position(position + 1), len(entries)):
        for at, _ in confirmed_entries(file, entries, slot):
            if at > position:
                return min(at, end)
    return end


def may_hold(header: BatchHeader, timestamp_ms: int) -> bool:
    """Return whether a batch may hold a record at or after the time, using only its header."""
    return header.max_timestamp >= timestamp_ms or header.has_invalid_max_timestamp


def first_offset_at_time(
    segments: Sequence[Segment], size_of: Callable[[Segment], int], timestamp_ms: int, start_offset: int
) -> int | None:
    """Return the offset of the first record at or after a time, like Kafka's ListOffsets, or None if all are earlier.

    `size_of`: readable bytes of a segment. Raises InspectError if a batch that must be opened is damaged,
    SegmentGoneError, OSError.
    """
    for segment in segments:
        if segment is not segments[-1] and _is_earlier(segment, timestamp_ms):
            continue
        with segment.open() as file:
            offset = _find_time(file, segment, timestamp_ms, size_of(segment), start_offset)
        if offset is not None:
            return offset
    return None


def _is_earlier(segment: Segment, timestamp_ms: int) -> bool:
    """Return whether a sealed segment ends before a time, using its last time index entry and the headers after it."""
    entries = TimeEntries(segment.path, segment.base_offset)
    if not len(entries) or entries[len(entries) - 1].timestamp >= timestamp_ms:
        return False
    with segment.open() as file:
        position = _confirmed_time(file, segment, entries[len(entries) - 1], segment.size)
        try:
            headers = file.headers(position, segment.size) if position is not None else ()
            return position is not None and not any(may_hold(header, timestamp_ms) for _, header in headers)
        except ProtocolError:
            return False


def _confirmed_time(file: LogFile, segment: Segment, entry: IndexedTime, end: int) -> int | None:
    """Return the position of a time index entry's batch, or None if the log does not confirm the entry."""
    position = position_of(file, segment, entry.offset, end)
    try:
        header = file.header(position) if position < end else None
    except ProtocolError:
        return None
    if header is None or header.base_offset > entry.offset or header.max_timestamp != entry.timestamp:
        return None
    return position


def _find_time(file: LogFile, segment: Segment, timestamp_ms: int, end: int, start_offset: int) -> int | None:
    entry = TimeEntries(segment.path, segment.base_offset).last_before(timestamp_ms)
    position = _confirmed_time(file, segment, entry, end) if entry is not None else None
    try:
        for at, header in file.headers(position or 0, end):
            if header.next_offset <= start_offset or header.is_control or not may_hold(header, timestamp_ms):
                continue
            buffer, start = file.batch(at, header)
            record = _first_record(buffer, start, header, timestamp_ms, start_offset)
            if record is not None:
                return record
    except ProtocolError as error:
        raise InspectError(f"{segment.path}: cannot look up a time: {error}") from error
    return None


def _first_record(
    buffer: memoryview, start: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> int | None:
    """Return the offset within a batch, or its first offset if records cannot be read, as a broker (`time_search`)."""
    try:
        for offset, timestamp in offsets_and_times(buffer, start, header):
            if timestamp >= timestamp_ms and offset >= start_offset:
                return offset
    except ProtocolError:
        return max(header.base_offset, start_offset)
    return None
