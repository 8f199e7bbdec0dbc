"""A partition's directory looked at without a broker, or beside one: what `explain` needs to know of it.

Owns: finding the segments, how far the last one reaches, and which of its index entries are in use. Must not know: what
is looked for. Nothing is written, no lock is taken.

Of all segments but the last the indexes are held against the log when they are used, as a broker does. The last one may
be that of a running broker, or of one that was killed: its index files may end in a hole or in zeros, which are no
entries, and its last batch may be half written, which is no batch. What lies past the last index entries is walked
through, header by header, as after a clean stop.
"""

import os
from mmap import PAGESIZE
from pathlib import Path

from broker.log.append import Tail
from broker.log.config import LogConfig
from broker.log.directory.checkpoint import LOG_STARTS, read_offsets
from broker.log.errors import CheckpointError, IndexCorruptError
from broker.log.explain import LogSight, observed_files
from broker.log.index.offset import OffsetIndex
from broker.log.index.time import TimeIndex
from broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    parse_partition_directory,
)
from broker.log.io.observed_disk import ObservedDisk
from broker.log.log_scan import read_header_at, timed
from broker.log.recovery.rebuild import MAX_INDEX_BYTES, resume, scan_segment
from broker.log.segment import Segment
from protocol.errors import ProtocolError


class NoSegmentsError(Exception):
    """A directory that holds no log."""


def take_offline_sight(directory: Path, *, index_interval_bytes: int) -> LogSight:
    """The log in a partition's directory, as it is now. Blocking.

    `index_interval_bytes`: the topic's, by which an empty index is judged. Raises NoSegmentsError, OSError.
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
    return LogSight(
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
    """Where the log begins by its data directory's checkpoint; 0 where that says nothing."""
    name = parse_partition_directory(directory.resolve().name)
    try:
        starts = read_offsets(disk, str(directory.resolve().parent / LOG_STARTS))
    except (CheckpointError, OSError):
        return 0
    return starts.get((name.topic, name.partition), 0) if name else 0


class _End:
    """The last segment: how far it reaches, and what of its indexes is in use."""

    def __init__(self, disk: ObservedDisk, segment: Segment, index_interval_bytes: int) -> None:
        self.fault: str | None = None  # why its indexes cannot be believed
        self._disk = disk
        self._segment = segment
        self._config = LogConfig(index_interval_bytes=index_interval_bytes, segment_index_bytes=MAX_INDEX_BYTES)

    def find(self) -> int:
        """The log's end; the segment knows its size then, and its entries but for a `fault`. Raises OSError."""
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
        """By the last entries and the few batches after them, as a clean start finds it."""
        segment = self._segment
        offsets = self._used_entries(OFFSET_INDEX_SUFFIX, OffsetIndex.entry.size)
        times = self._used_entries(TIME_INDEX_SUFFIX, TimeIndex.entry.size)
        segment.offset_index.believe(offsets)
        segment.time_index.believe(times)
        beyond = segment.base_offset + (1 << 31)
        segment.offset_index.sanity_check(beyond, segment.size)
        segment.time_index.sanity_check(beyond)
        if not offsets and segment.reaches_past_interval():
            raise IndexCorruptError(segment.base_offset, "it is empty, but the log is longer than its interval")
        file = segment.reader.descriptor()
        if offsets and not times and timed(file, 0, read_header_at(file, 0)).max_timestamp >= 0:
            raise IndexCorruptError(segment.base_offset, "its time index is empty, but its records have times")
        tail = resume(segment, self._new_tail(), offsets, times)
        if times and segment.max_timestamp_of(tail.max_timestamp_offset) != tail.max_timestamp:
            reason = f"no batch ending at {tail.max_timestamp_offset} has time {tail.max_timestamp}"
            raise IndexCorruptError(segment.base_offset, reason)
        scan_segment(segment, tail, verified=False)
        segment.close()
        segment.activate(self._config, tail)
        return tail

    def _by_batches(self) -> Tail:
        """By all of its batches."""
        self._segment.forget_indexes()
        return scan_segment(self._segment, self._new_tail(), verified=False).tail

    def _new_tail(self) -> Tail:
        return Tail(self._segment.base_offset, self._config, created_ms=0, jitter_ms=0).without_indexing()

    def _used_entries(self, suffix: str, stride: int) -> int:
        """How many entries an index file holds before its hole, or its zeros. Raises IndexCorruptError, OSError."""
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
    """Where the last byte of a file ends that is not zero: what follows was never written, or is padding."""
    end = data_size(fd, disk.size(fd))
    while end:
        start = (end - 1) // PAGESIZE * PAGESIZE
        data = disk.pread(fd, end - start, start).rstrip(b"\0")
        if data:
            return start + len(data)
        end = start
    return 0


def data_size(fd: int, size: int) -> int:
    """Where the hole at the end of a file begins that was made larger than what is written; its size if it has none."""
    try:
        return min(size, os.lseek(fd, 0, os.SEEK_HOLE)) if size else 0
    except OSError:  # the file system knows no holes
        return size
