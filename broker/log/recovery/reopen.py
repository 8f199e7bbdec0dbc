"""Rebuild the end of a failed log in place, by copying the segments whose state a failed sync or write left uncertain.

    loop    the log has failed: no append is planned, and nothing else changes its segments
    worker  `make`: copies each segment in doubt to <base>.log.cleaned, verifies batches from the recovery point on,
            rebuilds the indexes, syncs the copies and renames them over the old files
    loop    the log adopts the copies: its end is durable, and it accepts appends again
    worker  `close_replaced`: closes the old files; their blocks are freed with the last descriptor

Invariants:
1. A file whose sync failed is never synced again: Linux reports the failure once and considers the pages clean after
   that. They can be read as long as they stay in memory.
2. Only synced data is trusted: batches past the recovery point are verified, and the log ends at the first damaged one
   (its page was evicted meanwhile). A log that would end before its start offset restarts there, empty, so that no
   deleted offset is assigned again.
3. After a crash at any step, recovery can open the log: each name is either the old file or a synced new one with the
   same content up to the recovery point, and no segment follows one that was cut.
4. Readers are not disturbed: their open files outlive the names.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from errno import ENOSPC
from threading import Lock
from typing import NamedTuple

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.mapped import MappedIndex
from warmlog.broker.log.index.transaction import cut_aborted
from warmlog.broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk, read_file, sync_file, write_all
from warmlog.broker.log.producers.idle import CapturedProducers
from warmlog.broker.log.producers.replay import Bounds, Scanned
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.rebuild import Scan, check_from, cut_log, remember_end, rewrite_indexes
from warmlog.broker.log.recovery.rebuild_transactions import rebuild_scanned
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.records.record import MAX_INT64

COPY_BYTES = 1 << 20  # per read; the copy can be cancelled between two reads
_FILES = (LOG_SUFFIX, *INDEX_SUFFIXES)  # the log first: startup removes indexes without a log


class FailedLog(NamedTuple):
    """A failed log: all its segments, its bounds, recovery point, producer snapshots and producer states."""

    context: LogContext
    segments: Sequence[Segment]
    bounds: Bounds
    recovery_point: int
    snapshots: ProducerSnapshots
    producers: CapturedProducers


class Reopened(NamedTuple):
    """A log whose end was rebuilt: its segments, its tail, and the segments that were replaced.

    `reason`: why the log was cut; None if it was not. `producers` is None unless the log was cut: otherwise the
    producer states are unchanged.
    """

    segments: Sequence[Segment]
    tail: Tail
    producers: Producers | None
    replaced: Sequence[Segment]
    copied_bytes: int
    truncated_bytes: int
    reason: str | None

    def close_replaced(self) -> None:
        """Close the replaced segments' files. Blocking: closing the last descriptor frees an unlinked file's blocks."""
        for segment in self.replaced:
            segment.close()


class Reopening:
    """One attempt to reopen a log. `moving` is held while files of sealed segments are replaced or renamed."""

    def __init__(self, failed: FailedLog, moving: Lock) -> None:
        self._failed = failed
        self._context = failed.context
        self._disk = failed.context.disk
        self._moving = moving
        self._scans: list[Scan] = []
        self._from_offset = MAX_INT64  # the lowest offset from which all batches were scanned

    def make(self, check: Callable[[], None] = lambda: None) -> Reopened:
        """Copy the segments in doubt and rename the copies over the failed files. Blocking.

        `check` is called between reads while nothing has changed yet; if it raises, the attempt ends. Raises OSError,
        LogError, ProtocolError: then the log is unchanged, except that some files may be replaced by equivalent ones.
        """
        doubtful = self._doubtful()
        with self._moving, ExitStack() as stack:
            self._check_space(doubtful)
            stack.callback(self._clear, doubtful)
            copies = self._copy(doubtful, check)
            if self._end < self._failed.bounds.start:
                return self._start_over()
            self._replace_files(copies)
        return self._reopened(copies)

    def _doubtful(self) -> list[Segment]:
        """Return the first segment past the recovery point that is not known to be synced, and all after it.

        A segment that ends at the recovery point may lack the last time index entry, written after the last flush. Some
        of those in between may be synced, but transactions are followed from the first one to the last.
        """
        point, segments = self._failed.recovery_point, self._failed.segments
        first = len(segments) - 1
        for number, segment in enumerate(segments[:-1]):
            if segment.next_base_offset is None or (segment.next_base_offset >= point and not segment.synced):
                first = number
                break
        return list(segments[first:])

    def _check_space(self, doubtful: Sequence[Segment]) -> None:
        """Raise OSError if the copies would fill the disk, which other logs need, too."""
        directory = self._context.directory
        wanted = sum(segment.size for segment in doubtful)
        if self._disk.space(directory).usable_bytes < wanted:
            raise OSError(ENOSPC, f"{os.strerror(ENOSPC)}: {wanted} bytes needed for copies", directory)

    # -- copying -------------------------------------------------------------------------------------------------------

    def _copy(self, doubtful: Sequence[Segment], check: Callable[[], None]) -> list[Segment]:
        """Return synced copies under temporary names, ending with the first one that was cut."""
        copies = []
        for segment in doubtful:
            copy = self._copied(segment, check)
            copies.append(copy)
            scan = self._recover(copy)
            if scan.reason is None and copy.size < segment.size:
                scan = scan._replace(reason=f"the file has {copy.size} bytes of {segment.size}")
            self._scans.append(scan)
            if scan.reason is not None:
                break
        self._rebuild_transaction_indexes(copies)
        for copy in copies:
            for suffix in _FILES:
                with suppress(FileNotFoundError):  # few segments have a transaction index
                    sync_file(self._disk, copy.path(suffix))
        return copies

    def _rebuild_transaction_indexes(self, copies: Sequence[Segment]) -> None:
        """Rebuild the copies' transaction indexes if their scans found transactions."""
        if not any(scan.trail.has_transactions for scan in self._scans):
            return
        failed, first = self._failed, copies[0]
        failed.snapshots.write_taken()
        failed.snapshots.find()
        before = [segment for segment in failed.segments if segment.base_offset < first.base_offset]
        trails = [(copy, scan.trail) for copy, scan in zip(copies, self._scans, strict=True)]
        scanned = Scanned(self._from_offset, trails)
        rebuild_scanned(failed.snapshots, [*before, *copies], scanned)

    def _copied(self, segment: Segment, check: Callable[[], None]) -> Segment:
        """Copy a segment to files with a temporary name; the copy is shorter if the file cannot be read to its end."""
        is_last = segment is self._failed.segments[-1]  # also if a truncation has removed those that followed it
        copy = self._context.segment(segment.base_offset, segment.size, None if is_last else segment.next_base_offset)
        copy.use_names(CLEANED_SUFFIX)
        position = 0
        target = self._disk.open(copy.path(LOG_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with suppress(FileNotFoundError):  # it was removed, and the step after that has failed
                source = segment.reader.descriptor()
                while position < segment.size:
                    check()
                    piece = source.pread(min(COPY_BYTES, segment.size - position), position)
                    if not piece:
                        break
                    write_all(self._disk, target, [piece], position)
                    position += len(piece)
        finally:
            self._disk.close(target)
        copy.size = position
        _write(self._disk, copy.path(OFFSET_INDEX_SUFFIX), self._entries_of(segment.offset_index))
        _write(self._disk, copy.path(TIME_INDEX_SUFFIX), self._entries_of(segment.time_index))
        with suppress(FileNotFoundError):
            aborted = read_file(self._disk, segment.path(TRANSACTION_INDEX_SUFFIX))
            _write(self._disk, copy.path(TRANSACTION_INDEX_SUFFIX), aborted)
        return copy

    def _entries_of(self, index: MappedIndex) -> bytes:
        """Return an index's content, or nothing if it cannot be read: then it is rebuilt from the log."""
        try:
            return read_file(self._disk, index.path, index.entries * index.stride)
        except (IndexCorruptError, FileNotFoundError):
            return b""

    def _recover(self, copy: Segment) -> Scan:
        """Verify a copy from the recovery point on, rebuild its indexes, and cut it at the first damaged batch."""
        context, point = self._context, self._failed.recovery_point
        scan, offsets, times, from_offset = check_from(copy, point, lambda: context.new_tail(copy.base_offset))
        self._from_offset = min(self._from_offset, from_offset)
        if copy.next_base_offset is not None:
            scan.time_entries.extend(scan.tail.last_time_entry())
        copy.close()
        rewrite_indexes(copy, scan, offsets, times)
        if scan.reason is not None:
            cut_log(copy, scan.tail.size)
            cut_aborted(self._disk, copy.path(TRANSACTION_INDEX_SUFFIX), scan.tail.next_offset)
        return scan

    # -- replacing the files -------------------------------------------------------------------------------------------

    def _replace_files(self, copies: Sequence[Segment]) -> None:
        """Rename the copies over the failed files, after removing the segments past one that was cut."""
        directory = self._context.directory
        if self._is_cut:
            last = copies[-1].base_offset
            later = [segment for segment in self._failed.segments if segment.base_offset > last]
            for segment in reversed(later):
                segment.removed = True
                segment.remove_files()
            self._disk.sync_directory(directory)
        for copy in copies:
            for suffix in _FILES:
                self._rename(copy.path(suffix), segment_path(directory, copy.base_offset, suffix))
            copy.close()
            copy.use_names("")
            copy.synced = True
        self._disk.sync_directory(directory)

    def _rename(self, source: str, target: str) -> None:
        """Rename a copy over a file; remove a transaction index for which there is no copy."""
        try:
            self._disk.rename(source, target)
        except FileNotFoundError:
            if not target.endswith(TRANSACTION_INDEX_SUFFIX):
                raise
            with suppress(FileNotFoundError):
                self._disk.unlink(target)

    def _clear(self, doubtful: Sequence[Segment]) -> None:
        """Unlink copies that were not renamed."""
        for segment in doubtful:
            for suffix in _FILES:
                path = segment_path(self._context.directory, segment.base_offset, suffix) + CLEANED_SUFFIX
                with suppress(OSError):
                    self._disk.unlink(path)

    # -- the outcome ---------------------------------------------------------------------------------------------------

    @property
    def _is_cut(self) -> bool:
        """Whether the log ends earlier than before: for a reason that was found, or since a truncation had begun."""
        return self._scans[-1].reason is not None or self._end < self._failed.bounds.end

    @property
    def _end(self) -> int:
        return self._scans[-1].tail.next_offset

    def _reopened(self, copies: Sequence[Segment]) -> Reopened:
        active = copies[-1]
        by_base = {copy.base_offset: copy for copy in copies}
        segments = [
            by_base.get(old.base_offset, old) for old in self._failed.segments if old.base_offset <= active.base_offset
        ]
        return self._outcome(segments, self._activate(active, self._scans[-1]), sum(copy.size for copy in copies))

    def _start_over(self) -> Reopened:
        """Restart the log, empty, at its start offset: every record that could be read had been deleted before."""
        fresh, tail = self._context.start_over(self._failed.segments, self._failed.bounds.start)
        self._disk.sync_directory(self._context.directory)
        return self._outcome([fresh], tail, 0)

    def _outcome(self, segments: list[Segment], tail: Tail, copied_bytes: int) -> Reopened:
        """Return the log's new segments, with rebuilt producer states if it was cut."""
        failed, producers = self._failed, None
        if self._is_cut:
            failed.snapshots.write_taken()
            failed.snapshots.find()
            end = tail.next_offset
            producers = self._context.rebuild_producers(failed.snapshots, segments, end, before=failed.producers)
            try:
                self._disk.sync_directory(self._context.directory)  # snapshots past the end were removed
            except OSError:
                producers.release()
                raise
        return Reopened(
            segments=segments,
            tail=tail,
            producers=producers,
            replaced=[segment for segment in failed.segments if segment not in segments],
            copied_bytes=copied_bytes,
            truncated_bytes=sum(old.size for old in failed.segments) - sum(new.size for new in segments),
            reason=self._scans[-1].reason,
        )

    def _activate(self, active: Segment, scan: Scan) -> Tail:
        """Make the last copy the active segment, with its last batches' positions cached."""
        tail, config = scan.tail, self._context.config
        tail.configure(config)
        active.activate(config, tail)
        active.synced = True
        remember_end(active, tail)
        return tail


def _write(disk: Disk, path: str, data: bytes) -> None:
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        if data:
            write_all(disk, fd, [data], 0)
    finally:
        disk.close(fd)
