"""Scan a segment's log file for its end and its index entries, and decide how much of its indexes can be kept.

Recovery, reopening of failed logs and index rebuilds share this scan.

Source: org.apache.kafka.storage.internals.log.LogSegment.recover.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.mapped import MAX_RELATIVE_OFFSET, MappedIndex
from warmlog.broker.log.io.directory_names import CLEANED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from warmlog.broker.log.io.disk import Disk, write_all
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.producers.trail import ProducerTrail
from warmlog.broker.log.segments.log_scan import (
    WALK_CHUNK_SIZE,
    read_header_at,
    timed,
    walk_headers,
    walk_timed,
    walk_verified,
)
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import BatchExtent, Tail
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import batch_spans
from warmlog.protocol.records.codec import compiled
from warmlog.protocol.records.layout import BatchHeader

SAMPLE = 16  # entries checked of each index; each costs a short read of a log that may be on a slow disk
MAX_INDEX_BYTES = (1 << 31) - 1  # positions are signed 32-bit integers

# Compiled walk over batches that need no special treatment. Takes a scan, bytes that begin at its tail, whether to
# verify CRCs, and the last offset and leader epoch of the batch before; returns those of the last batch it consumed.
# None if it was not built or does not support this processor.
walk_sound: Callable[["Scan", bytes, bool, int, int], tuple[int, int]] | None = None
if compiled:
    with suppress(ImportError):
        from warmlog.broker.log.segments import _scan

        walk_sound = _scan.walk_sound if _scan.AVAILABLE else None


class Scan(NamedTuple):
    """The result of a scan from byte `start` on: `tail` is the end of the sound part, `reason` why it ends there.

    `offset_entries` and `time_entries` are the index entries of the scanned batches, `epochs` the (leader epoch, base
    offset) pairs at which an epoch began. `trail` holds the batches of idempotent producers; the compiled walk reports
    in `producers` that a piece has some.
    """

    tail: Tail
    start: int
    reason: str | None
    offset_entries: bytearray
    time_entries: bytearray
    epochs: list[tuple[int, int]]
    producers: list[bool]
    trail: ProducerTrail


class Checked(NamedTuple):
    """A scan from a recovery point on, and the number of entries kept of each index.

    All batches that begin at or past `from_offset` were scanned.
    """

    scan: Scan
    offset_entries: int
    time_entries: int
    from_offset: int


def scan_segment(
    segment: Segment, tail: Tail, *, verified: bool, advanced: Callable[[int], None] = lambda _: None
) -> Scan:
    """Scan the batches of a segment from `tail` on, advancing it. Raises OSError.

    `verified`: verify CRCs, too. A batch whose offsets do not increase, or do not belong to the segment, ends the scan
    as a damaged batch does. `advanced` is called with the size of each piece in bytes.
    """
    scan = Scan(tail, tail.size, None, bytearray(), bytearray(), [], [], ProducerTrail())
    file = segment.reader.descriptor()
    previous, epoch = segment.base_offset - 1, -1
    if walk_sound is not None:
        previous, epoch = _walk_sound(scan, file, segment.size, verified=verified, advanced=advanced)
    begun = tail.size
    walk = walk_verified if verified else walk_headers
    try:
        for position, header in walk_timed(file, tail.size, segment.size, walk):
            if not _follows(header, previous, segment.base_offset):
                reason = f"offsets {header.base_offset} to {header.last_offset} after {previous} at position {position}"
                return scan._replace(reason=reason)
            previous = header.last_offset
            if header.leader_epoch > epoch:
                epoch = header.leader_epoch
                scan.epochs.append((epoch, header.base_offset))
            scan.trail.add(position, header)
            _add(scan, header)
    except ProtocolError as error:
        return scan._replace(reason=f"{error} at position {tail.size}")
    finally:
        advanced(tail.size - begun)
    return scan if tail.size == segment.size else scan._replace(reason="the last batch is cut")


def _walk_sound(
    scan: Scan, file: Descriptor, end: int, *, verified: bool, advanced: Callable[[int], None]
) -> tuple[int, int]:
    """Scan with the compiled walk, which releases the GIL, up to the first batch it does not handle.

    Return the last scanned batch's last offset and leader epoch. Raises OSError.
    """
    assert walk_sound is not None, "it was built"
    tail = scan.tail
    previous, epoch, wanted = tail.base_offset - 1, -1, WALK_CHUNK_SIZE
    while tail.size < end:
        begun = tail.size
        chunk = file.pread(min(wanted, end - begun), begun)
        previous, epoch = walk_sound(scan, chunk, verified, previous, epoch)
        if scan.producers:
            scan.producers.clear()
            scan.trail.add_piece(memoryview(chunk)[: tail.size - begun], begun)
        advanced(tail.size - begun)
        wanted = WALK_CHUNK_SIZE
        if tail.size == begun:
            _, wanted = next(batch_spans(chunk), (0, 0))
            if not len(chunk) < wanted <= end - begun:
                break
    return previous, epoch


def _follows(header: BatchHeader, previous: int, base_offset: int) -> bool:
    if header.base_offset <= previous or header.last_offset_delta < 0:
        return False
    return header.last_offset - base_offset <= MAX_RELATIVE_OFFSET


def _add(scan: Scan, header: BatchHeader) -> None:
    entries = scan.tail.add(BatchExtent(header.last_offset, header.max_timestamp, header.size))
    if entries is not None:
        scan.offset_entries.extend(entries.offset_index)
        scan.time_entries.extend(entries.time_index)


# -- where a scan begins -----------------------------------------------------------------------------------------------


def resume(segment: Segment, tail: Tail, offset_entries: int, time_entries: int) -> Tail:
    """Move an empty segment's `tail` to the batch of the last kept index entry. Raises IndexCorruptError, OSError.

    That batch has its index entry, but is not yet counted in the tail's sizes.
    """
    file = segment.reader.descriptor()
    tail.offset_entries, tail.time_entries = offset_entries, time_entries
    if time_entries:
        newest = segment.time_index.entry_at(time_entries - 1)
        tail.max_timestamp, tail.max_timestamp_offset = newest.timestamp, newest.offset
        tail.indexed_timestamp = newest.timestamp
    if offset_entries:
        last = segment.offset_index.entry_at(offset_entries - 1)
        if read_header_at(file, last.position).last_offset != last.offset:
            raise IndexCorruptError(segment.base_offset, f"no batch at {last.position} ends at offset {last.offset}")
        tail.size = last.position
        tail.first_timestamp = timed(file, 0, read_header_at(file, 0)).max_timestamp
    return tail


def sound_entries(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """Return how many entries of the offset and the time index can be kept below a recovery point. Raises OSError.

    A power cut leaves zeros or an older version in an index page: either way its entries stop increasing. The last kept
    entry of each index is compared with its batch. Entries are kept only if both indexes have some to keep.
    """
    offset_index, time_index = segment.offset_index, segment.time_index
    try:
        offset_index.trust_entries(_increasing(offset_index, recovery_point - segment.base_offset, by_key=True))
        if not offset_index.entries:
            return 0, 0
        limit = offset_index.last().offset + 1 - segment.base_offset
        time_index.trust_entries(_increasing(time_index, limit, by_key=False))
        newest = time_index.last()
        if not time_index.entries or segment.max_timestamp_of(newest.offset) != newest.timestamp:
            return 0, 0
    except (IndexCorruptError, ProtocolError):
        return 0, 0
    return offset_index.entries, time_index.entries


def _increasing(index: MappedIndex, offset_limit: int, *, by_key: bool) -> int:
    """Count the leading entries that increase in both fields and have an offset below the limit.

    Zeros are never an entry: the offset index has none for a segment's first batch, and no record dates from 1970.
    """
    previous = (0, -1)
    for slot, fields in enumerate(index.stored()):
        offset = fields[0] if by_key else fields[1]
        if fields[0] <= previous[0] or fields[1] <= previous[1] or offset >= offset_limit:
            return slot
        previous = fields
    return index.entries


def indexed_end(segment: Segment) -> int:
    """Return the offset after the last entry of a segment's offset index, even without its log. Raises OSError.

    Only for recovery: it discards how many entries are kept.
    """
    index = segment.offset_index
    try:
        index.trust_entries(index.file_size() // index.stride)
        index.trust_entries(_increasing(index, MAX_RELATIVE_OFFSET, by_key=True))
        return index.last().offset + 1 if index.entries else segment.base_offset
    except IndexCorruptError:
        return segment.base_offset


def follows_rule(segment: Segment) -> bool:
    """Check a bounded sample of a segment's index entries against the rule of `Tail.add`. Raises OSError.

    Kafka followers of some versions (3.9.0 and before, 4.0.0) wrote one offset entry for all batches of an append, with
    the last offset of the last batch and the position of the first. Time indexes written by Kafka up to 3.7 may hold
    the offset of a record instead of a batch's last offset. Entries outside the sample are checked when they are used.
    """
    file, offsets, times = segment.reader.descriptor(), segment.offset_index, segment.time_index
    try:
        for slot in _sample(offsets.entries):
            position = offsets.entry_at(slot)
            if read_header_at(file, position.position).last_offset != position.offset:
                return False
        for slot in _sample(times.entries):
            time = times.entry_at(slot)
            if segment.max_timestamp_of(time.offset) != time.timestamp:
                return False
    except (IndexCorruptError, ProtocolError):
        return False
    return True


def _sample(entries: int) -> list[int]:
    """Return slots spread evenly over an index, including the last; all slots of a short index."""
    return sorted({entries - 1 - entries * at // SAMPLE for at in range(SAMPLE)}) if entries else []


def check_from(
    segment: Segment,
    recovery_point: int,
    new_tail: Callable[[], Tail],
    advanced: Callable[[int], None] = lambda _: None,
) -> Checked:
    """Verify the batches of a segment from the last index entry below a recovery point on. Raises OSError.

    `new_tail` returns the tail of the segment as if it were empty.
    """
    offsets, times = sound_entries(segment, recovery_point)
    scan = _scan_from(segment, new_tail(), offsets, times, advanced)
    if scan is None:
        offsets = times = 0
        scan = _scan_from(segment, new_tail(), 0, 0, advanced)
    assert scan is not None, "a scan from the start needs no index"
    from_offset = segment.offset_index.entry_at(offsets - 1).offset if offsets else segment.base_offset
    return Checked(scan, offsets, times, from_offset)


def _scan_from(segment: Segment, tail: Tail, offsets: int, times: int, advanced: Callable[[int], None]) -> Scan | None:
    """Scan from the batch of the last kept index entry on; return None if that batch is damaged."""
    try:
        tail = resume(segment, tail, offsets, times)
    except (IndexCorruptError, ProtocolError):
        return None
    scan = scan_segment(segment, tail, verified=True, advanced=advanced)
    return None if offsets and scan.tail.size == scan.start else scan


def remember_end(segment: Segment, tail: Tail) -> None:
    """Cache the positions of the active segment's batches since its last index entry. Raises OSError."""
    start = tail.size - tail.unindexed_size
    for position, header in walk_headers(segment.reader.descriptor(), start, tail.size):
        segment.recent.add(header.last_offset, position, indexed=position == start)


# -- new index files ---------------------------------------------------------------------------------------------------


def rewrite_indexes(segment: Segment, scan: Scan, offset_entries: int, time_entries: int) -> tuple[bool, bool]:
    """Replace all index entries after the kept ones by those of the scan. Raises OSError.

    Return whether the offset index and the time index held other content or were missing. Only for recovery: the files
    must not be mapped.
    """
    disk = segment.disk
    segment.forget_indexes()
    return (
        _replace_end(disk, segment.path(OFFSET_INDEX_SUFFIX), offset_entries * 8, scan.offset_entries),
        _replace_end(disk, segment.path(TIME_INDEX_SUFFIX), time_entries * 12, scan.time_entries),
    )


def _replace_end(disk: Disk, path: str, kept_size: int, data: bytearray) -> bool:
    """Make a file end with `data` after its first `kept_size` bytes; return whether it held something else there."""
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    try:
        size = kept_size + len(data)
        is_same = disk.pread(fd, len(data), kept_size) == data
        if not is_same:
            disk.truncate(fd, kept_size)
            write_all(disk, fd, [data], kept_size)
        elif disk.size(fd) != size:
            disk.truncate(fd, size)
        return not is_same
    finally:
        disk.close(fd)


def rebuild_indexes(segment: Segment, config: LogConfig) -> None:
    """Rebuild a sealed segment's index files, which may be mapped and in use. Blocking. Raises OSError.

    `segment.index.bytes` is ignored, because the log may have been written under a larger value. The indexes end at the
    first damaged batch. The new files are written under a name that startup removes (Kafka's, too), then renamed.
    """
    tail = Tail(segment.base_offset, replace(config, segment_index_bytes=MAX_INDEX_BYTES), created_ms=0, jitter_ms=0)
    scan = scan_segment(segment, tail, verified=False)
    scan.time_entries.extend(tail.last_time_entry())
    disk = segment.disk
    for suffix, entries in ((OFFSET_INDEX_SUFFIX, scan.offset_entries), (TIME_INDEX_SUFFIX, scan.time_entries)):
        path = segment.path(suffix)
        try:
            _write_synced(disk, path + CLEANED_SUFFIX, entries)
            disk.rename(path + CLEANED_SUFFIX, path)
        except OSError:
            with suppress(OSError):  # a file of this name would make the next startup undo a swap (see `swap`)
                disk.unlink(path + CLEANED_SUFFIX)
            raise
    segment.forget_indexes()


def _write_synced(disk: Disk, path: str, data: bytes | bytearray) -> None:
    fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        if data:
            write_all(disk, fd, [data], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)


def cut_log(segment: Segment, size: int) -> None:
    """Truncate a segment's log file to `size` bytes. Raises OSError."""
    fd = segment.disk.open(segment.path(LOG_SUFFIX), os.O_RDWR)
    try:
        segment.disk.truncate(fd, size)
    finally:
        segment.disk.close(fd)
    segment.size = size
