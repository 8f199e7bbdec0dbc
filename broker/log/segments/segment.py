"""One segment of a log: find the position of an offset or a timestamp in its file.

Invariants:
1. `size` counts whole, committed batches; nothing is read past it, regardless of the file's content there.
2. A sealed segment's indexes are checked against the log before the first use of each (`index_audit`); the active
   segment's were written by this broker. An offset index entry is compared with its batch when it is used. A mismatch
   raises IndexCorruptError; it never gives a wrong result. The check also reads the end of a sealed segment, so that
   offsets of records lost there raise CorruptBatchError instead of returning records of the next segment.
3. Nothing of a sealed segment is open before its first use.
4. `find` is for the event loop. Timestamps and checks may be used in a worker while the event loop appends.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from warmlog.broker.log.config import LogConfig, SearchName
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.search import Section
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimeIndex
from warmlog.broker.log.io.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from warmlog.broker.log.io.files import File, FileSlice, OpenFiles
from warmlog.broker.log.io.page_faults import Where
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.log.segments.index_audit import check_offset_index, check_time_index, end_of_records
from warmlog.broker.log.segments.log_scan import walk_timed
from warmlog.broker.log.segments.segment_files import SegmentFiles
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.errors import CorruptBatchError
from warmlog.protocol.records.record import MAX_INT64

LOOKUP_FAULTS: Mapping[Section, Where] = {Section.WARM: "index_warm", Section.COLD: "index_cold"}
MAX_RECENT: Final = 4096  # cached batches since the last index entry: a few hundred KB at most


class LocatedBatch(NamedTuple):
    """A batch's position and size, and the section of the index that was searched; None if the index is empty."""

    position: int
    size: int
    section: Section | None


class RecentBatches:
    """Cached positions of the active segment's batches since its last index entry, so that tail reads need no scan.

    `last_offsets` and `positions` run in parallel, ascending. Both are empty if there were more than MAX_RECENT.
    """

    __slots__ = ("last_offsets", "positions")

    def __init__(self) -> None:
        self.last_offsets: list[int] = []
        self.positions: list[int] = []

    def add(self, last_offset: int, position: int, *, indexed: bool) -> None:
        """Add the batch at the log end. `indexed`: it has an index entry, so earlier ones are dropped."""
        if indexed:
            self.clear()
        elif not self.positions and position:
            return  # the batches before it are not cached
        if len(self.positions) < MAX_RECENT:
            self.last_offsets.append(last_offset)
            self.positions.append(position)
        else:
            self.clear()

    def clear(self) -> None:
        """Drop all positions."""
        self.last_offsets, self.positions = [], []

    def copy(self) -> "RecentBatches":
        """Return an independent copy."""
        other = RecentBatches()
        other.last_offsets, other.positions = self.last_offsets[:], self.positions[:]
        return other


class Segment(SegmentFiles):
    """One segment. `tail` is the committed end of the active one; None if sealed."""

    __slots__ = (
        "_checked_offsets",
        "_checked_times",
        "_largest_timestamp",
        "_lost_from",
        "contiguous_from",
        "cuts",
        "recent",
        "tail",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        *,
        size: int,
        next_base_offset: int | None,
        index_interval_bytes: int,
    ) -> None:
        super().__init__(
            open_files,
            directory,
            base_offset,
            size=size,
            next_base_offset=next_base_offset,
            index_interval_bytes=index_interval_bytes,
        )
        self._checked_offsets = self._checked_times = False
        self._largest_timestamp: int | None = None
        self._lost_from = MAX_INT64  # the first offset of records lost at its end
        self.contiguous_from: Callable[[], int | None] | None = None  # see `recovery.contiguity`
        self.tail: Tail | None = None
        self.cuts = 0  # number of truncations, which invalidate earlier copies
        self.recent = RecentBatches()

    def snapshot(self, open_files: OpenFiles) -> "Segment":
        """Return a read-only copy of the segment in its current state that uses other open files. Memory only.

        Call it on the event loop if the segment is active.
        """
        other = Segment(
            open_files,
            self.directory,
            self.base_offset,
            size=self.size,
            next_base_offset=self.next_base_offset,
            index_interval_bytes=self.index_interval_bytes,
        )
        other.use_names(self.extra_suffix)
        if self._offset_index is not None:
            other.offset_index.trust_entries_of(self._offset_index)
        if self._time_index is not None:
            other.time_index.trust_entries_of(self._time_index)
        other._checked_offsets, other._checked_times = self._checked_offsets, self._checked_times
        other._lost_from, other.contiguous_from = self._lost_from, self.contiguous_from
        other.recent = self.recent.copy()
        tail = self.tail
        other._largest_timestamp = self._largest_timestamp if tail is None else tail.max_timestamp
        return other

    def relocated(self, directory: str) -> "Segment":
        """Return the segment in another directory that has durable copies of all its files. For a worker.

        The active segment must not be written to during this; `activate` it on the event loop and copy `recent`.
        """
        other = Segment(
            self.open_files,
            directory,
            self.base_offset,
            size=self.size,
            next_base_offset=self.next_base_offset,
            index_interval_bytes=self.index_interval_bytes,
        )
        other.synced = True
        other.may_have_aborted = self.may_have_aborted
        other._largest_timestamp = self._largest_timestamp
        return other

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, open_files: OpenFiles, directory: str, tail: Tail, config: LogConfig) -> "Segment":
        """Create the files of a new, empty, active segment, replacing existing ones. Raises OSError.

        Nothing is synced. On failure, the files created so far are removed.
        """
        interval = config.index_interval_bytes
        segment = cls(
            open_files, directory, tail.base_offset, size=0, next_base_offset=None, index_interval_bytes=interval
        )
        segment.may_have_aborted = False
        try:
            segment._create_files(tail, config)
        except OSError:
            segment.remove_files()
            raise
        return segment

    def _create_files(self, tail: Tail, config: LogConfig) -> None:
        fd = self.disk.open(self.path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            if config.preallocate:
                self.disk.allocate(fd, config.segment_bytes)
        finally:
            self.disk.close(fd)
        self.activate(config, tail)
        self.offset_index.create()
        self.time_index.create()

    def activate(self, config: LogConfig, tail: Tail) -> None:
        """Make it the active segment, which ends at `tail` and whose indexes have its entries. Memory only."""
        size = config.segment_index_bytes
        path, base = self.path, self.base_offset
        self.tail = tail
        self.next_base_offset = None
        self.synced = False
        self._offset_index = OffsetIndex(
            self.open_files, path(OFFSET_INDEX_SUFFIX), base, capacity_size=size, entries=tail.offset_entries
        )
        self._time_index = TimeIndex(
            self.open_files, path(TIME_INDEX_SUFFIX), base, capacity_size=size, entries=tail.time_entries
        )
        self._checked_offsets = self._checked_times = True
        self.writer = File(self.open_files, self.path(LOG_SUFFIX), writable=True)
        self.recent = RecentBatches()
        self._indexes_synced_size = tail.size

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings to the active segment. Memory only."""
        self.index_interval_bytes = config.index_interval_bytes
        self.offset_index.set_capacity(config.segment_index_bytes)
        self.time_index.set_capacity(config.segment_index_bytes)

    def seal(self, next_base_offset: int) -> None:
        """Stop appends; the next segment begins at `next_base_offset`. Memory only; `trim` follows in a worker."""
        assert self.tail is not None, "only the active segment is sealed"
        self.offset_index.seal()
        self.time_index.seal()
        self._largest_timestamp = self.tail.max_timestamp
        self.tail = None
        self.recent = RecentBatches()
        self.next_base_offset = next_base_offset

    # -- indexes -------------------------------------------------------------------------------------------------------

    def checked_offset_index(self) -> OffsetIndex:
        """Return the offset index, after checking it once. Raises IndexCorruptError, OSError."""
        if not self._checked_offsets:
            check_offset_index(self)
            self._find_lost_end()
            self._checked_offsets = True
        return self.offset_index

    def _find_lost_end(self) -> None:
        """Detect whether the log file was cut: inside a batch, or between batches if its original end is known."""
        end, position = end_of_records(self)
        following = self.end_of_offsets
        is_lost = position < self.size
        if not is_lost and self.size and end < following and self.contiguous_from is not None:
            known = self.contiguous_from()
            is_lost = known is not None and known < following
        self._lost_from = end if is_lost else MAX_INT64

    def checked_time_index(self) -> TimeIndex:
        """Return the time index, after checking both indexes once. Raises IndexCorruptError, OSError."""
        if not self._checked_times:
            self.checked_offset_index()
            check_time_index(self)
            self._checked_times = True
        return self.time_index

    def forget_indexes(self) -> None:
        """Drop all state of a sealed segment's indexes after their files were replaced. Running reads may finish."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = None
        self.forget_transactions()
        self._checked_offsets = self._checked_times = False
        self._lost_from = MAX_INT64
        self._largest_timestamp = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, offset: int, search: SearchName) -> LocatedBatch | None:
        """Return the first batch with a record at or past an offset, or None. For the event loop.

        Raises IndexCorruptError, CorruptBatchError, OSError; ColdReadError instead of waiting for the disk on the
        event loop.
        """
        try:
            return self._find(offset, search)
        except ColdReadError as cold:
            cold.base_offset = self.base_offset
            raise

    def _find(self, offset: int, search: SearchName) -> LocatedBatch | None:
        if not self.size:
            return None  # emptied by compaction
        if not self._checked_offsets and self.open_files.residency.must_not_wait:
            raise ColdReadError(self._open_checked)
        index = self.checked_offset_index()
        if offset >= self._lost_from:
            raise CorruptBatchError(
                f"{self.path(LOG_SUFFIX)} was cut or damaged: the records from {self._lost_from} to"
                f" {self.end_of_offsets - 1} are lost; restore the file, or reset the consumers past them"
            )
        start = index.lookup(offset, search)
        recent = self.recent
        positions = recent.positions
        if positions and positions[0] == start.position:
            slot = bisect_left(recent.last_offsets, offset)
            if slot == len(positions):
                return None
            position = positions[slot]
            end = positions[slot + 1] if slot + 1 < len(positions) else self.size
            return LocatedBatch(position, end - position, start.section)
        faults = self.open_files.page_faults
        if start.section is not None:
            faults.end(LOOKUP_FAULTS[start.section])
        location = self.scan_from(offset, start)
        faults.end("log_scan")
        return None if location is None else LocatedBatch(location.position, location.size, start.section)

    def _open_checked(self) -> None:
        """Open the log file and check the offset index of a sealed segment. For a worker."""
        self.checked_offset_index()
        self.reader.descriptor()

    def slice(self, batch: LocatedBatch, max_bytes: int, end: int, *, min_one_batch: bool) -> LogRead:
        """Return at most `max_bytes` from a batch on, up to byte `end`. `min_one_batch`: at least that batch."""
        position = batch.position
        limit = max(max_bytes, batch.size) if min_one_batch else max_bytes
        length = min(end - position, limit)
        if length <= 0:
            return LogRead(None, self.base_offset, position, section=batch.section)
        piece = FileSlice(self.reader.descriptor(), position, length)
        return LogRead(piece, self.base_offset, position, limit < batch.size, batch.section)

    def end_of_slice(self, position: int, size: int) -> int | None:
        """Return an offset past all records of a slice, from the offset index; None if it has no later entry.

        Raises IndexCorruptError, OSError, ColdReadError. Source: LogSegment.fetchUpperBoundOffset.
        """
        try:
            past = self.checked_offset_index().upper_bound(position, size)
        except ColdReadError as cold:
            cold.base_offset = self.base_offset
            raise
        return self.next_base_offset if past is None else past.offset

    def newest_ms(self) -> int:
        """Return the largest timestamp (ms), or the time of the last write if no record has one.

        For any thread. Raises IndexCorruptError, OSError. Source: LogSegment.largestTimestamp.
        """
        timestamp = self.largest_timestamp()
        return self.modified_ms() if timestamp <= NO_TIMESTAMP else timestamp

    def largest_timestamp(self) -> int:
        """Return the largest timestamp (ms), or NO_TIMESTAMP. For any thread. Raises IndexCorruptError, OSError."""
        tail = self.tail
        if tail is not None:
            return tail.max_timestamp
        timestamp = self._largest_timestamp  # read once: another thread may reset it
        if timestamp is None:
            timestamp = self.checked_time_index().last().timestamp
            later = self.later_timestamp(timestamp)
            if later is not None:
                reason = f"time index ends at timestamp {timestamp}, but a batch has {later}"
                raise IndexCorruptError(self.base_offset, reason)
            self._largest_timestamp = timestamp
        return timestamp

    def later_timestamp(self, timestamp: int, *, anywhere: bool = False) -> int | None:
        """Return a timestamp above the supposed largest one, found in a later batch; None if there is none.

        Reads an index interval if timestamps increase, as they mostly do; the whole segment if `anywhere`. Raises
        IndexCorruptError, OSError.
        """
        position = 0
        if timestamp > NO_TIMESTAMP and not anywhere:
            tail = self.tail
            offset = self.checked_time_index().last().offset if tail is None else tail.max_timestamp_offset
            position = self.checked_offset_index().lookup(offset).position
        for _, header in walk_timed(self.reader.descriptor(), position, self.size):
            if header.max_timestamp > timestamp:
                return header.max_timestamp
        return None
