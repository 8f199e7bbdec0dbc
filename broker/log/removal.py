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
   (KAFKA-10207), so what lies after its last entry is checked first. A file that was written lately, though its records
   are said to be old, holds a replay, or batches whose headers have a wrong time: then all of it is checked.

Source: org.apache.kafka.storage.internals.log.LocalLog.deleteSegmentFiles.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter, sleep
from typing import NamedTuple

from broker.log.errors import IndexCorruptError
from broker.log.io.directory_names import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_path
from broker.log.io.disk import Disk
from broker.log.log_view import LogView
from broker.log.recovery.index_repair import IndexRepair
from broker.log.retention import Candidate, RemovalReason, removal_reasons
from broker.log.segment import Segment

DROP_BYTES = 4 << 20  # of a file's pages at a time: 0.3 ms


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


def find_removable(view: LogView) -> Removable:
    """Which of a log's segments may go. For a worker. Raises IndexCorruptError, ProtocolError, OSError."""
    bounds, config, segments = view.bounds, view.place.config, view.segments.snapshot
    ages = _Ages(segments, view.place.clock(), config.retention_ms)
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
    """Which segments are older than `retention_ms`."""

    def __init__(self, segments: Sequence[Segment], now_ms: int, retention_ms: int) -> None:
        self._segments = segments
        self._now_ms = now_ms
        self._retention_ms = retention_ms
        self.from_future: int | None = None

    def is_expired(self, slot: int) -> bool:
        """By its largest timestamp, or, where no record has one, by when its file was last written."""
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
        return later is None  # else the active one has got another record by now


def _drop_from_memory(disk: Disk, path: str) -> None:
    """Let go of a file's pages, a few at a time, with a rest after each as long as it took.

    Unlinking would do it in one go, and have a core for 10 ms where 128 MB are in memory: whoever is to run on that
    core waits. Raises OSError.
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
    """The oldest segments of one log and their way out; `view` gives the log as it is now."""

    __slots__ = ("_indexes", "_still_named", "_view")

    def __init__(self, view: Callable[[], LogView], indexes: IndexRepair) -> None:
        self._view = view
        self._indexes = indexes
        self._still_named: int | None = None  # base of the oldest one taken out whose files may have their names

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment that a start would find."""
        return self._view().segments.first.base_offset if self._still_named is None else self._still_named

    def find(self) -> Removable:
        """Which may go by the log's settings and start. For a worker; safe beside appends.

        Indexes found corrupt are made anew. Raises IndexCorruptError, ProtocolError, OSError.
        """
        return self._indexes.run(lambda: find_removable(self._view()), self._view().place.config)

    def take_out(self) -> Sequence[Segment]:
        """Have the log let go of those that lie before its start; nothing new reads them. `rename` follows.

        One whose roll is not finished yet stays for the next time, and so do those after it.
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
        """Give the files of what was taken out names that a start removes; gives these names, for `unlink`.

        For a worker, one at a time. Raises OSError: then a start may find some of them again, before the log start.
        """
        view = self._view()
        place = view.place
        if len(removed) > 1:  # a power cut may bring back any of them
            view.contiguity.exclude(removed[-1].end_of_offsets)
        with self._indexes.moving:
            names = [name for segment in removed for name in _set_aside(place.disk, segment)]
        place.disk.sync_directory(place.directory)
        self._still_named = None
        return names

    def unlink(self, names: Iterable[str]) -> None:
        """Unlink what `rename` named, as far as it is there. For a worker: a large file takes its time.

        Raises OSError.
        """
        disk = self._view().place.disk
        for name in names:
            with suppress(OSError):  # in vain, it is only less gentle
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
