"""Remove a log's oldest segments: find them, rename their files, unlink these later.

    find     worker   applies `retention`; looks up the time index of the oldest segments and verifies it with the log
    take_out loop     removes the segments from the log: no new read uses them
    rename   worker   <base>.log and its other files become <name>.deleted, the log first
    unlink   worker   after `file.delete.delay.ms`

Invariants:
1. Reads of a removed segment finish: an open descriptor or mapping outlives the name (`files`).
2. After a crash between any two steps the directory can be opened: startup removes `.deleted` files and the indexes of
   a log that is `.deleted`; a segment whose log still has its name is kept, with indexes rebuilt if necessary.
3. No segment is removed because of a timestamp that its log does not confirm. A time index that lost its end reports
   too small a timestamp (KAFKA-10207), so the batches after its last entry are checked first. If a file with old
   records was written recently, it holds a replay, or batches whose headers have a wrong timestamp: then all of it is
   checked.

Source: org.apache.kafka.storage.internals.log.LocalLog.deleteSegmentFiles.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter, sleep
from typing import NamedTuple

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.directory_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.recovery.index_repair import IndexRepair
from warmlog.broker.log.retention.log_view import LogView
from warmlog.broker.log.retention.rules import Candidate, RemovalReason, removal_reasons
from warmlog.broker.log.segments.segment import Segment

DROP_BYTES = 4 << 20  # bytes evicted per step, in 0.3 ms


class Removable(NamedTuple):
    """The segments that can be removed: all below `end_offset`, with a reason for each, oldest first.

    `with_active`: the active segment is among them and must be rolled first. `active_base_offset` is the end of the
    others. `from_future`: the base offset of a segment that is kept because its timestamp lies in the future, if any.
    """

    end_offset: int
    reasons: Sequence[RemovalReason]
    with_active: bool
    active_base_offset: int
    from_future: int | None


def find_removable(view: LogView) -> Removable:
    """Return the segments that can be removed. Blocking. Raises IndexCorruptError, ProtocolError, OSError."""
    bounds, config, segments = view.bounds, view.context.config, view.segments.snapshot
    ages = _Ages(segments, view.context.clock(), config.retention_ms)
    candidates = [
        Candidate(_end_of(segment, bounds.log_end_offset), segment.size, segment.next_base_offset is None)
        for segment in segments
    ]
    reasons = removal_reasons(
        candidates,
        config,
        log_start_offset=bounds.log_start_offset,
        high_watermark=min(bounds.high_watermark, bounds.log_end_offset),
        is_expired=ages.is_expired,
    )
    count = len(reasons)
    return Removable(
        end_offset=candidates[count - 1].end_offset if count else bounds.log_start_offset,
        reasons=reasons,
        with_active=count == len(segments),
        active_base_offset=segments[-1].base_offset,
        from_future=ages.from_future,
    )


def _end_of(segment: Segment, log_end_offset: int) -> int:
    return log_end_offset if segment.next_base_offset is None else segment.next_base_offset


class _Ages:
    """Decides which segments are older than `retention_ms`."""

    def __init__(self, segments: Sequence[Segment], now_ms: int, retention_ms: int) -> None:
        self._segments = segments
        self._now_ms = now_ms
        self._retention_ms = retention_ms
        self.from_future: int | None = None

    def is_expired(self, slot: int) -> bool:
        """Return whether a segment is too old by its largest timestamp, or by its modification time without one."""
        segment = self._segments[slot]
        timestamp, written_ms = segment.largest_timestamp(), segment.newest_ms()
        if written_ms > self._now_ms:
            self.from_future = segment.base_offset
        if self._now_ms - written_ms <= self._retention_ms:
            return False
        is_fresh = self._now_ms - segment.modified_ms() <= self._retention_ms
        later = segment.later_timestamp(timestamp, anywhere=is_fresh)
        if later is not None and segment.next_base_offset is not None:
            raise IndexCorruptError(segment.base_offset, f"its largest time is {timestamp}, but there is {later}")
        return later is None  # otherwise the active segment has grown in the meantime


def _drop_from_memory(disk: Disk, path: str) -> None:
    """Evict a file's pages in small steps, each followed by a pause of the same length. Raises OSError.

    Unlinking would do it in one step, which occupies a core for 10 ms if 128 MB are resident.
    """
    fd = disk.open(path, os.O_RDONLY)
    try:
        for position in range(0, disk.size(fd), DROP_BYTES):
            began_at = perf_counter()
            disk.drop_cached(fd, position, DROP_BYTES)
            sleep(perf_counter() - began_at)
    finally:
        disk.close(fd)


class OldSegments:
    """Removes the oldest segments of one log; `view` returns its current state."""

    __slots__ = ("_indexes", "_still_named", "_view")

    def __init__(self, view: Callable[[], LogView], indexes: IndexRepair) -> None:
        self._view = view
        self._indexes = indexes
        self._still_named: int | None = None  # oldest base offset taken out but perhaps not renamed yet

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment that a startup would find."""
        return self._view().segments.first.base_offset if self._still_named is None else self._still_named

    def find(self) -> Removable:
        """Return the segments that can be removed. Blocking; safe while the log is appended to.

        Corrupt indexes are rebuilt. Raises IndexCorruptError, ProtocolError, OSError.
        """
        return self._indexes.run(lambda: find_removable(self._view()), self._view().context.config)

    def take_out(self) -> Sequence[Segment]:
        """Remove the segments before the log start offset from the log and return them; `rename` must follow.

        A segment whose roll is not finished is left to the next call, with all segments after it.
        """
        view, old = self._view(), list[Segment]()
        for segment in view.segments.snapshot[:-1]:
            if segment.end_of_offsets > view.bounds.log_start_offset or segment.is_untrimmed:
                break
            segment.removed = True
            old.append(segment)
        if old and self._still_named is None:
            self._still_named = old[0].base_offset
        view.segments.remove(*old)
        return old

    def rename(self, removed: Sequence[Segment]) -> list[str]:
        """Rename the files of removed segments to `.deleted`; return their paths, for `unlink`.

        Blocking, one call at a time. After an OSError a startup may find some of them again, before the log start.
        """
        view = self._view()
        context = view.context
        if len(removed) > 1:  # a power cut may bring back any of them
            view.contiguity.exclude(removed[-1].end_of_offsets)
        with self._indexes.moving:
            names = [name for segment in removed for name in _set_aside(context.disk, segment)]
        context.disk.sync_directory(context.directory)
        self._still_named = None
        return names

    def unlink(self, names: Iterable[str]) -> None:
        """Unlink the renamed files that still exist. Blocking. Raises OSError."""
        disk = self._view().context.disk
        for name in names:
            with suppress(OSError):  # the file is then unlinked in one step
                _drop_from_memory(disk, name)
            with suppress(FileNotFoundError):
                disk.unlink(name)


def _set_aside(disk: Disk, segment: Segment) -> list[str]:
    segment.close()
    names = []
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):
        path = segment_path(segment.directory, segment.base_offset, suffix)
        with suppress(FileNotFoundError):
            disk.rename(path, path + DELETED_SUFFIX)
            names.append(path + DELETED_SUFFIX)
    return names
