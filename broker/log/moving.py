"""Move a log to another data directory while it serves reads and appends.

    worker  `prepare`   create <topic>-<partition>.<hex>-future in the new data directory, naming the old one
    worker  `copy`      copy the next piece, segment by segment, and sync each sealed segment once it is copied;
                        repeat until little is left
            pause writes: appends are planned and queued
    loop    `PartitionLog.end_of_move`
    worker  `complete`  copy the rest and the small files, sync, rename both directories
    loop    `PartitionLog.finish_move`: only paths change, so queued plans remain valid
            resume writes

Copies are byte for byte, so offsets and positions stay the same. Copies are tracked by `Segment` object: the copy of a
segment that retention or compaction has removed is dropped, and a segment that it has added is copied.

Invariants:
1. The log stays in the old data directory until `complete` has durably renamed the old directory. Until then, no
   acknowledged record is in the copy alone.
2. By then the copy is durable, including its file names and the checkpoints of its data directory.
3. A startup after a crash at any step finds the log complete in one of the two places (`arrival`).
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from warmlog.broker.log.directory.arrival import Arrival, read_arrival, write_arrival
from warmlog.broker.log.directory.checkpoint import CONTIGUOUS_OFFSET, LEADER_EPOCHS, PARTITION_METADATA, write_epochs
from warmlog.broker.log.index.mapped import MappedIndex
from warmlog.broker.log.io.directory_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    deleted_directory,
    future_directory,
    partition_directory,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk, read_file, sync_file, write_all
from warmlog.broker.log.producers.idle import CapturedProducers
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments

PIECE_BYTES = 1 << 20  # copied by one call


class MoveSource(NamedTuple):
    """The log to be moved. `segments` returns its current segments; `moving` is held while index files are replaced."""

    topic: str
    partition: int
    context: LogContext
    segments: Callable[[], Segments]
    moving: Lock


class MoveEnd(NamedTuple):
    """The state of a log whose writes are paused that is not in its segments."""

    log_end_offset: int
    producers: CapturedProducers
    epochs: Sequence[tuple[int, int]]
    snapshots: ProducerSnapshots


class MovedLog(NamedTuple):
    """A log in its new directory; `old_directory` has a name that marks it for removal."""

    directory: str
    segments: Segments
    old_directory: str


class _Copy:
    """The copy of one segment. `position`: bytes copied of its log; `is_complete`: all its files are durable."""

    __slots__ = ("_cuts", "cold", "is_complete", "position", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._cuts = segment.cuts
        self.position = 0
        self.is_complete = False
        self.cold: list[tuple[int, int]] = []  # (position, length) of ranges that were not resident before

    @property
    def is_current(self) -> bool:
        """Whether the segment was not truncated since: a follower replaces what it removes by other records."""
        return self.segment.cuts == self._cuts


class LogMove:
    """One move. For a worker, one call at a time, unless stated otherwise."""

    def __init__(self, source: MoveSource, data_directory: str) -> None:
        """Move to the data directory at this path."""
        self._source = source
        self._disk = source.context.disk
        self._data_directory = data_directory
        self.directory = f"{data_directory}/{future_directory(source.topic, source.partition)}"
        self._copies: dict[Segment, _Copy] = {}

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def copied_bytes(self) -> int:
        """Bytes of log files copied so far. For any thread."""
        return sum(copy.position for copy in list(self._copies.values()))

    @property
    def remaining_bytes(self) -> int:
        """Bytes of log files still to be copied. For any thread."""
        copies = self._current_copies()
        segments = self._source.segments().snapshot
        return sum(segment.size - (copies[segment].position if segment in copies else 0) for segment in segments)

    @property
    def end_offset(self) -> int:
        """Offset below which all segments are copied as a whole. For any thread."""
        copies = self._current_copies()
        snapshot = self._source.segments().snapshot
        for segment in snapshot:
            if segment not in copies or not copies[segment].is_complete:
                return segment.base_offset
        return snapshot[-1].base_offset

    @property
    def has_sealed(self) -> bool:
        """Whether the copies of all sealed segments are durable. For any thread."""
        copies = self._current_copies()
        sealed = self._source.segments().snapshot[:-1]
        return all(segment in copies and copies[segment].is_complete for segment in sealed)

    def _current_copies(self) -> dict[Segment, _Copy]:
        return {segment: copy for segment, copy in self._copies.copy().items() if copy.is_current}

    # -- copying -------------------------------------------------------------------------------------------------------

    def prepare(self, source_id: str) -> None:
        """Create the new directory; `source_id` is the id of the old data directory. Raises OSError."""
        self._disk.make_directory(self.directory)
        before = read_arrival(self._disk, self._source.context.directory)
        replaces_all = before is not None and before.replaces_all
        write_arrival(self._disk, self.directory, Arrival(source_id, replaces_all=replaces_all))

    def copy(self) -> int:
        """Copy a piece, or sync a copied segment; return the bytes copied. Raises OSError.

        Once `remaining_bytes` is 0 and this returns 0, there is nothing left to do for now.
        """
        snapshot = self._source.segments().snapshot
        self._drop_strays(snapshot)
        for segment in snapshot:
            copy = self._copies.get(segment)
            if copy is None:
                copy = self._copies[segment] = _Copy(segment)
            if copy.position < segment.size:
                return self._copy_piece(copy)
            if segment.next_base_offset is not None and not copy.is_complete:
                self._complete(copy)
                return 0
        return 0

    def sync_active(self) -> None:
        """Sync the copied part of the active segment, so that `complete` has less to sync. Raises OSError."""
        active = self._source.segments().active
        if active in self._copies:
            sync_file(self._disk, self._path(active, LOG_SUFFIX))

    def _copy_piece(self, copy: _Copy) -> int:
        """Copy the next piece of a log file; return its bytes, 0 if the segment was removed in the meantime."""
        segment, position = copy.segment, copy.position
        length = min(PIECE_BYTES, segment.size - position)
        try:
            descriptor = segment.reader.descriptor()
            residency = segment.open_files.residency
            is_cold = bool(residency.missing_pages(descriptor, position, length, None))
            if is_cold:
                residency.need(descriptor, position, length, "log")
            piece = descriptor.pread(length, position)
        except FileNotFoundError:
            if segment in self._source.segments().snapshot:
                raise
            return 0
        if len(piece) < length:
            raise OSError(f"{segment.reader.path} has {position + len(piece)} bytes, expected {segment.size}")
        flags = os.O_WRONLY | os.O_CREAT | (0 if position else os.O_TRUNC)
        target = self._disk.open(self._path(segment, LOG_SUFFIX), flags)
        try:
            write_all(self._disk, target, [piece], position)
        finally:
            self._disk.close(target)
        if is_cold:
            descriptor.drop_cached(position, length)
            copy.cold.append((position, length))
        copy.position = position + length
        return length

    def _complete(self, copy: _Copy) -> None:
        """Copy the indexes of a sealed segment, and sync all of its files."""
        segment = copy.segment
        try:
            self._copy_indexes(segment)
            modified_ms = segment.modified_ms()
        except FileNotFoundError:
            if segment in self._source.segments().snapshot:
                raise
            return
        self._sync(segment)
        path = self._path(segment, LOG_SUFFIX)
        self._disk.set_modified(path, modified_ms)  # retention uses it if records have no timestamps
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            for position, length in copy.cold:
                self._disk.drop_cached(fd, position, length)
        finally:
            self._disk.close(fd)
        copy.is_complete = True

    def _copy_indexes(self, segment: Segment) -> None:
        with self._source.moving:
            for suffix, index in (
                (OFFSET_INDEX_SUFFIX, segment.offset_index),
                (TIME_INDEX_SUFFIX, segment.time_index),
            ):
                _write(self._disk, self._path(segment, suffix), self._entries_of(index))
            with suppress(FileNotFoundError):
                aborted = read_file(self._disk, segment.path(TRANSACTION_INDEX_SUFFIX))
                _write(self._disk, self._path(segment, TRANSACTION_INDEX_SUFFIX), aborted)

    def _entries_of(self, index: MappedIndex) -> bytes:
        return read_file(self._disk, index.path, index.entries * index.stride)

    def _sync(self, segment: Segment) -> None:
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            with suppress(FileNotFoundError):  # few segments have a transaction index
                sync_file(self._disk, self._path(segment, suffix))

    def _drop_strays(self, snapshot: Sequence[Segment]) -> None:
        """Remove the copies of segments that the log no longer has as they were, before others use the same names."""
        current = set(snapshot)
        for segment in [each for each, copy in self._copies.items() if each not in current or not copy.is_current]:
            del self._copies[segment]
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                with suppress(FileNotFoundError):
                    self._disk.unlink(self._path(segment, suffix))

    def _path(self, segment: Segment, suffix: str) -> str:
        return segment_path(self.directory, segment.base_offset, suffix)

    # -- completion ----------------------------------------------------------------------------------------------------

    def complete(self, end: MoveEnd, write_checkpoints: Callable[[], None]) -> MovedLog:
        """Copy the rest and replace the log, whose writes are paused, by the copy.

        `write_checkpoints` writes the checkpoints of the new data directory. Raises OSError, and then the log has not
        moved.
        """
        source, disk = self._source, self._disk
        self._drop_strays(source.segments().snapshot)
        while not self._is_copied:
            self.copy()
        active = source.segments().active
        if not active.size:
            _write(disk, self._path(active, LOG_SUFFIX), b"")
        if source.context.config.preallocate:
            self._preallocate(active)
        self._copy_indexes(active)
        self._sync(active)
        self._copy_small_files(end)
        disk.sync_directory(self.directory)
        write_checkpoints()
        directory, old_directory = self._swap_directories()
        moved = [segment.relocated(directory) for segment in source.segments().snapshot]
        return MovedLog(directory, Segments(moved), old_directory)

    def _preallocate(self, active: Segment) -> None:
        fd = self._disk.open(self._path(active, LOG_SUFFIX), os.O_RDWR)
        try:
            self._disk.allocate(fd, self._source.context.config.segment_bytes)
        finally:
            self._disk.close(fd)

    @property
    def _is_copied(self) -> bool:
        """Whether all log files are copied."""
        return self.has_sealed and not self.remaining_bytes

    def _copy_small_files(self, end: MoveEnd) -> None:
        """Copy producer snapshots, leader epochs, the topic id and the contiguous offset."""
        disk, old = self._disk, self._source.context.directory
        end.snapshots.write_taken()
        copied = ProducerSnapshots(disk, self.directory)
        for entry in disk.scan(old):
            offset = base_offset_of(entry.name) if entry.name.endswith(SNAPSHOT_SUFFIX) else None
            if offset is not None and offset < end.log_end_offset:
                _write(disk, f"{self.directory}/{entry.name}", read_file(disk, f"{old}/{entry.name}"))
                sync_file(disk, f"{self.directory}/{entry.name}")
        if end.log_end_offset:
            copied.write(end.log_end_offset, end.producers, sync=True)
        write_epochs(disk, f"{self.directory}/{LEADER_EPOCHS}", end.epochs)
        sync_file(disk, f"{self.directory}/{LEADER_EPOCHS}")
        for name in (PARTITION_METADATA, CONTIGUOUS_OFFSET):
            with suppress(FileNotFoundError):
                _write(disk, f"{self.directory}/{name}", read_file(disk, f"{old}/{name}"))
                sync_file(disk, f"{self.directory}/{name}")

    def _swap_directories(self) -> tuple[str, str]:
        """Rename the copy to the log's name, and the log to one that marks it as deleted; return both paths."""
        disk, source = self._disk, self._source
        target = f"{self._data_directory}/{partition_directory(source.topic, source.partition)}"
        old = source.context.directory
        parent = os.path.dirname(old)
        doomed = f"{parent}/{deleted_directory(source.topic, source.partition)}"
        disk.rename(self.directory, target)
        try:
            disk.sync_directory(self._data_directory)
            disk.rename(old, doomed)
        except OSError:
            disk.rename(target, self.directory)
            disk.sync_directory(self._data_directory)
            raise
        try:
            disk.sync_directory(parent)
        except OSError:  # after a power cut the old name could be back, without the records appended since
            arrival = read_arrival(disk, target)
            if arrival is not None:
                write_arrival(disk, target, arrival._replace(is_confirmed=True))
        return target, doomed

    def discard(self) -> None:
        """Remove the copy; the log stays in its directory. Raises OSError."""
        with suppress(FileNotFoundError):
            for entry in self._disk.scan(self.directory):
                self._disk.unlink(f"{self.directory}/{entry.name}")
            self._disk.remove_directory(self.directory)


def _write(disk: Disk, path: str, data: bytes) -> None:
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if data:
            write_all(disk, fd, [data], 0)
    finally:
        disk.close(fd)
