"""Taking a log's oldest segments away: finding them, giving their files another name, unlinking these later.

Owns: the facts that the rules of retention ask for, and the way of a segment's files out of the directory. Must not
know the rules (`retention` does), or when all this happens.

    find     worker   which may go; asks the time index of the oldest ones, and confirms what it says against the log
    (the log lets go of the segments on the loop: nothing new reads them)
    rename   worker   <base>.log and what belongs to it become <name>.deleted, the log first
    unlink   worker   after `file.delete.delay.ms`

Invariants:
1. Who reads a removed segment finishes: an open descriptor or mapping outlives the name (`files`).
2. A crash between any of these steps leaves a directory that opens: a start removes what is called `.deleted`, and
   indexes without a log; a segment whose log still has its name is a segment, with indexes made anew if need be.
3. No segment goes by a time that its log does not bear out. A time index that has lost its end says less than the truth
   (KAFKA-10207), so what lies after its last entry is held against it first.

Source: org.apache.kafka.storage.internals.log.LocalLog.deleteSegmentFiles.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.directory_names import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_path
from broker.log.disk import Disk
from broker.log.errors import IndexCorruptError
from broker.log.log_scan import walk_headers
from broker.log.retention import Candidate, RemovalReason, removal_reasons
from broker.log.segment import Segment
from broker.log.time_index import NO_TIMESTAMP


class Removable(NamedTuple):
    """What may go: everything below `end_offset`, which is a segment's end, for so many `reasons`, oldest first.

    `with_active`: the active segment is among it, and must be rolled first. `active_base_offset` is where the rest
    ends. `from_future`: the base offset of a segment that stays because its time is yet to come, if one does.
    """

    end_offset: int
    reasons: Sequence[RemovalReason]
    with_active: bool
    active_base_offset: int
    from_future: int | None


def find_removable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> Removable:
    """Which of these segments may go; they are all of the log's. For a worker.

    Raises IndexCorruptError, ProtocolError, OSError. The offsets must have been taken before the segments: what is
    rolled meanwhile then counts as not yet readable.
    """
    ages = _Ages(segments, now_ms, config.retention_ms)
    candidates = [
        Candidate(_end_of(segment, log_end_offset), segment.size, segment.next_base_offset is None)
        for segment in segments
    ]
    reasons = removal_reasons(
        candidates,
        config,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        is_expired=ages.is_expired,
    )
    count = len(reasons)
    return Removable(
        end_offset=candidates[count - 1].end_offset if count else log_start_offset,
        reasons=reasons,
        with_active=count == len(segments),
        active_base_offset=segments[-1].base_offset,
        from_future=ages.from_future,
    )


def _end_of(segment: Segment, log_end_offset: int) -> int:
    return log_end_offset if segment.next_base_offset is None else segment.next_base_offset


class _Ages:
    """Which segments are older than `retention_ms`."""

    def __init__(self, segments: Sequence[Segment], now_ms: int, retention_ms: int) -> None:
        self._segments = segments
        self._now_ms = now_ms
        self._retention_ms = retention_ms
        self.from_future: int | None = None

    def is_expired(self, slot: int) -> bool:
        """By its largest timestamp, or, where no record has one, by when its file was last written."""
        segment = self._segments[slot]
        timestamp = segment.largest_timestamp()
        written_ms = segment.modified_ms() if timestamp <= NO_TIMESTAMP else timestamp
        if written_ms > self._now_ms:
            self.from_future = segment.base_offset
        if self._now_ms - written_ms <= self._retention_ms:
            return False
        later = _later_timestamp(segment, timestamp)
        if later is not None and segment.tail is None:
            reason = f"it says {timestamp} is its largest time, but there is {later}"
            raise IndexCorruptError(segment.base_offset, reason)
        return later is None


def _later_timestamp(segment: Segment, timestamp: int) -> int | None:
    """A time larger than the one taken for the largest, in a batch after the one that has it; None if there is none.

    Reads an index interval where times increase, as they mostly do.
    """
    position = 0
    if timestamp > NO_TIMESTAMP:
        tail = segment.tail
        offset = segment.checked_time_index().last().offset if tail is None else tail.max_timestamp_offset
        position = segment.checked_offset_index().lookup(offset).position
    for _, header in walk_headers(segment.reader.descriptor(), position, segment.size):
        if header.max_timestamp > timestamp:
            return header.max_timestamp
    return None


class RemovedSegments(NamedTuple):
    """Segments that the log has let go of, oldest first."""

    disk: Disk
    segments: Sequence[Segment]

    def rename(self) -> list[str]:
        """Give all their files names that a start removes; gives these names. For a worker. Raises OSError."""
        return [name for segment in self.segments for name in _set_aside(self.disk, segment)]


def _set_aside(disk: Disk, segment: Segment) -> list[str]:
    segment.close()
    names = []
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):
        path = segment_path(segment.directory, segment.base_offset, suffix)
        with suppress(FileNotFoundError):
            disk.rename(path, path + DELETED_SUFFIX)
            names.append(path + DELETED_SUFFIX)
    return names


def unlink_all(disk: Disk, paths: Iterable[str]) -> None:
    """Unlink files, those that are still there. For a worker: a large file takes its time. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError):
            disk.unlink(path)
