"""Read a snapshot of a log from a partition's directory for `log explain`, with or without a running broker.

Nothing is written, and no lock is taken. The indexes of sealed segments are validated when they are used, as in a
broker. The last segment may be active, or may have been active when its broker was killed: its index files can end with
a hole or zeros, and its last batch can be incomplete. Batches after the last index entries are found by walking the
headers, as after a clean stop.
"""

import os
from mmap import PAGESIZE
from pathlib import Path

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.checkpoint import LOG_STARTS, read_offsets
from warmlog.broker.log.errors import CheckpointError, IndexCorruptError
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    parse_partition_directory,
)
from warmlog.broker.log.io.observed_disk import ObservedDisk
from warmlog.broker.log.io.survey import data_end
from warmlog.broker.log.reads.explain import LogSnapshot, observed_files
from warmlog.broker.log.recovery.rebuild import MAX_INDEX_BYTES, resume, scan_segment
from warmlog.broker.log.segments.index_audit import check_active_indexes, check_has_no_timestamps
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.errors import ProtocolError


class NoSegmentsError(Exception):
    """The directory holds no segments."""


def read_log_snapshot(directory: Path, *, index_interval_bytes: int) -> LogSnapshot:
    """Read the current state of the log in a partition's directory. Blocking.

    `index_interval_bytes`: the topic's setting; an empty index is valid only for a shorter log. Raises NoSegmentsError,
    OSError.
    """
    disk, files = observed_files()
    names = [entry.name for entry in disk.scan(str(directory)) if entry.name.endswith(LOG_SUFFIX)]
    bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
    if not bases:
        raise NoSegmentsError(f"{directory}: no segments")
    segments = [
        Segment(
            files,
            str(directory),
            base,
            size=(directory / f"{base:020d}{LOG_SUFFIX}").stat().st_size,
            next_base_offset=next_base,
            index_interval_bytes=index_interval_bytes,
        )
        for base, next_base in zip(bases, [*bases[1:], None], strict=True)
    ]
    end = _End(disk, segments[-1], index_interval_bytes)
    log_end = end.find()
    start = min(max(bases[0], _checkpointed_start(disk, directory)), log_end)
    segments[-1].close()
    disk.restore()
    return LogSnapshot(
        disk=disk,
        files=None,
        segments=segments,
        active=segments[-1],
        log_start_offset=start,
        log_end_offset=log_end,
        search="warm",
        end_fault=end.fault,
    )


def _checkpointed_start(disk: ObservedDisk, directory: Path) -> int:
    """Return the log start offset from the data directory's checkpoint, or 0."""
    name = parse_partition_directory(directory.resolve().name)
    try:
        starts = read_offsets(disk, str(directory.resolve().parent / LOG_STARTS))
    except (CheckpointError, OSError):
        return 0
    return starts.get((name.topic, name.partition), 0) if name else 0


class _End:
    """Finds the end of the last segment, and the index entries in use."""

    def __init__(self, disk: ObservedDisk, segment: Segment, index_interval_bytes: int) -> None:
        self.fault: str | None = None  # reason why the segment's indexes cannot be used
        self._disk = disk
        self._segment = segment
        self._config = LogConfig(index_interval_bytes=index_interval_bytes, segment_index_bytes=MAX_INDEX_BYTES)

    def find(self) -> int:
        """Return the log end offset, and set the segment's size and, unless there is a `fault`, its entries.

        Raises OSError.
        """
        try:
            tail = self._by_indexes()
        except IndexCorruptError as error:
            self.fault = error.reason
            tail = self._by_batches()
        except ProtocolError as error:
            self.fault = str(error)
            tail = self._by_batches()
        self._segment.size = tail.size
        return tail.next_offset

    def _by_indexes(self) -> Tail:
        """Start from the last index entries and walk the few batches after them, as a clean start does."""
        segment = self._segment
        offsets = self._used_entries(OFFSET_INDEX_SUFFIX, OffsetIndex.entry.size)
        times = self._used_entries(TIME_INDEX_SUFFIX, TimeIndex.entry.size)
        segment.offset_index.trust_entries(offsets)
        segment.time_index.trust_entries(times)
        check_active_indexes(segment)
        if offsets and not times:
            check_has_no_timestamps(segment)
        tail = resume(segment, self._new_tail(), offsets, times)
        if times and segment.max_timestamp_of(tail.max_timestamp_offset) != tail.max_timestamp:
            reason = f"no batch ending at offset {tail.max_timestamp_offset} has timestamp {tail.max_timestamp}"
            raise IndexCorruptError(segment.base_offset, reason)
        scan_segment(segment, tail, verified=False)
        segment.close()
        segment.activate(self._config, tail)
        return tail

    def _by_batches(self) -> Tail:
        """Walk all batches of the segment."""
        self._segment.forget_indexes()
        return scan_segment(self._segment, self._new_tail(), verified=False).tail

    def _new_tail(self) -> Tail:
        return Tail(self._segment.base_offset, self._config, created_ms=0, jitter_ms=0).without_indexing()

    def _used_entries(self, suffix: str, stride: int) -> int:
        """Count the entries of an index file before its hole or zeros. Raises IndexCorruptError, OSError."""
        path = self._segment.path(suffix)
        try:
            fd = self._disk.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise IndexCorruptError(self._segment.base_offset, f"{os.path.basename(path)} is missing") from error
        try:
            return -(-used_size(self._disk, fd) // stride)
        finally:
            self._disk.close(fd)


def used_size(disk: ObservedDisk, fd: int) -> int:
    """Return the size of a file without the zeros and the hole at its end."""
    end = min(data_end(fd), disk.size(fd))
    while end:
        start = (end - 1) // PAGESIZE * PAGESIZE
        data = disk.pread(fd, end - start, start).rstrip(b"\0")
        if data:
            return start + len(data)
        end = start
    return 0
