"""One segment: a log file, its two indexes, and the way from an offset or a time to a position in the file.

Owns: the three files together, their check against each other, and the search through them. Must not know the other
segments, nor when to roll.

    <base>.log        batches end to end, base offsets increasing
    <base>.index      offset index, entries of 8 bytes
    <base>.timeindex  time index, entries of 12 bytes

Invariants:
1. `size` counts whole, committed batches; nothing reads past it, whatever the file holds there.
2. A sealed segment's indexes are held against the log, in O(1), before the first use of each; the active one's are its
   own. Each entry of the offset index is held against the batch that it points to when it is used: what does not fit is
   IndexCorruptError, never a wrong answer. So is a time index that has lost its end and says less than the truth
   (KAFKA-10207): what lies after its last entry is held against it before it is believed.
3. Nothing of a sealed segment is open before it is used.
4. `find_time` and the checks may run in a worker beside a loop that appends; `find` belongs to the loop.
"""

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from broker.log.append import Tail
from broker.log.config import LogConfig, SearchName
from broker.log.descriptions import LogRead
from broker.log.errors import IndexCorruptError, MisplacedBatchError
from broker.log.index.offset import OffsetIndex, OffsetPosition
from broker.log.index.search import Section
from broker.log.index.time import NO_TIMESTAMP, TimeIndex
from broker.log.index.transaction import AbortedTransaction, TransactionIndex
from broker.log.io.directory_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from broker.log.io.disk import Disk, sync_file
from broker.log.io.files import Descriptor, File, FileSlice, OpenFiles
from broker.log.io.page_faults import Where
from broker.log.io.residency import ColdReadError, GatedFile
from broker.log.log_scan import (
    BatchEnd,
    BatchPlace,
    find_batch,
    read_header_at,
    timed,
    walk_headers,
    walk_timed,
)
from protocol.errors import ProtocolError
from protocol.records.layout import BatchHeader

INDEXES_SYNCED_BYTES = 1 << 20  # recovery checks as much in a millisecond, and a sync takes as long
LOOKUP_FAULTS: Mapping[Section, Where] = {Section.WARM: "index_warm", Section.COLD: "index_cold"}
MAX_RECENT: Final = 4096  # batches since the last index entry that are known by heart: some hundred KB at most


class BatchFound(NamedTuple):
    """A batch's place in its segment, and which section of the index led there (None: the index is empty)."""

    position: int
    size: int
    section: Section | None


class Segment:
    """One segment. `next_base_offset` is the following one's base; None while this is the active one."""

    __slots__ = (
        "_checked_offsets",
        "_checked_times",
        "_indexes_synced_size",
        "_largest_timestamp",
        "_offset_index",
        "_recent_offsets",
        "_recent_positions",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "directory",
        "extra_suffix",
        "index_interval_bytes",
        "may_have_aborted",
        "next_base_offset",
        "open_files",
        "reader",
        "removed",
        "size",
        "synced",
        "tail",
        "writer",
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
        """A segment whose files are there already."""
        self.open_files = open_files
        self.directory = directory
        self.base_offset = base_offset
        self.next_base_offset = next_base_offset
        self.size = size
        self.index_interval_bytes = index_interval_bytes
        self.extra_suffix = ""  # of all its files, while it is on its way in or out
        self.synced = False
        self.removed = False  # from the log: its files may have gone
        self.reader = File(open_files, self.path(LOG_SUFFIX), writable=False)
        self.writer: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._checked_offsets = self._checked_times = False
        self._transaction_index: TransactionIndex | None = None
        self.may_have_aborted = True  # False: there is no transaction index
        self._largest_timestamp: int | None = None
        self._indexes_synced_size = 0  # of the log, when its indexes were last synced with it
        self.tail: Tail | None = None  # of the active segment: its end as committed
        self._recent_offsets: list[int] = []
        self._recent_positions: list[int] = []

    def path(self, suffix: str) -> str:
        """The path of one of its files."""
        return segment_path(self.directory, self.base_offset, suffix) + self.extra_suffix

    def use_names(self, extra_suffix: str, other_suffix: str | None = None) -> None:
        """All its files have this suffix behind their names, or the other one while they are being renamed.

        On the loop; who has them open goes on.
        """
        self.extra_suffix = extra_suffix
        for suffix, named in (
            (OFFSET_INDEX_SUFFIX, self.offset_index),
            (TIME_INDEX_SUFFIX, self.time_index),
        ):
            named.use_names(self.path(suffix), self._other_path(suffix, other_suffix))
        if self._transaction_index is not None or self.may_have_aborted:
            self.transaction_index.use_names(
                self.path(TRANSACTION_INDEX_SUFFIX), self._other_path(TRANSACTION_INDEX_SUFFIX, other_suffix)
            )
        self.reader.path = self.path(LOG_SUFFIX)
        self.reader.other_path = self._other_path(LOG_SUFFIX, other_suffix)

    def _other_path(self, suffix: str, other_suffix: str | None) -> str | None:
        if other_suffix is None:
            return None
        return segment_path(self.directory, self.base_offset, suffix) + other_suffix

    @property
    def disk(self) -> Disk:
        """What its files are on."""
        return self.open_files.disk

    def twin(self, open_files: OpenFiles) -> "Segment":
        """The same segment as it is now, over other open files: for who looks on from outside. Memory only.

        Of an active one on the loop only. A twin is not appended to: its indexes are cut where they end now.
        """
        twin = Segment(
            open_files,
            self.directory,
            self.base_offset,
            size=self.size,
            next_base_offset=self.next_base_offset,
            index_interval_bytes=self.index_interval_bytes,
        )
        twin.use_names(self.extra_suffix)
        if self._offset_index is not None:
            twin.offset_index.trust_entries_of(self._offset_index)
        if self._time_index is not None:
            twin.time_index.trust_entries_of(self._time_index)
        twin._checked_offsets, twin._checked_times = self._checked_offsets, self._checked_times
        twin._recent_offsets, twin._recent_positions = self._recent_offsets[:], self._recent_positions[:]
        tail = self.tail
        twin._largest_timestamp = self._largest_timestamp if tail is None else tail.max_timestamp
        return twin

    def relocated(self, directory: str) -> "Segment":
        """The same segment in another directory, where all of its files are on the disk. For a worker.

        Of the active one while nothing is written; `activate` and `recall` follow on the loop.
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

    @property
    def recent(self) -> tuple[Sequence[int], Sequence[int]]:
        """Last offsets and positions of the batches at the end that are known by heart."""
        return self._recent_offsets, self._recent_positions

    def recall(self, recent: tuple[Sequence[int], Sequence[int]]) -> None:
        """Know the batches at the end by heart that the same segment knew in another directory. Memory only."""
        self._recent_offsets, self._recent_positions = list(recent[0]), list(recent[1])

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, open_files: OpenFiles, directory: str, tail: Tail, config: LogConfig) -> "Segment":
        """Make the files of a new, empty, active segment; existing ones of its name are replaced. Raises OSError.

        Nothing is synced. What was made is removed again if the rest fails.
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
        """Make it the one that is appended to, with indexes that hold as many entries as `tail` says. Memory only."""
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
        self._recent_offsets, self._recent_positions = [], []
        self._indexes_synced_size = tail.size

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings to the active segment. Memory only."""
        self.index_interval_bytes = config.index_interval_bytes
        self.offset_index.set_capacity(config.segment_index_bytes)
        self.time_index.set_capacity(config.segment_index_bytes)

    def seal(self, next_base_offset: int) -> None:
        """No more appends: `next_base_offset` begins the next segment. Memory only; `trim` follows in a worker."""
        assert self.tail is not None, "only the active segment is sealed"
        self.offset_index.seal()
        self.time_index.seal()
        self._largest_timestamp = self.tail.max_timestamp
        self.tail = None
        self._recent_offsets, self._recent_positions = [], []
        self.next_base_offset = next_base_offset

    def trim(self) -> None:
        """Cut the files of a sealed segment to what they hold. For a worker. Raises OSError."""
        self.offset_index.trim()
        self.time_index.trim()
        writer = self.writer
        if writer is not None:  # blocks that were preallocated past the end go back
            writer.descriptor().truncate(self.size)

    @property
    def is_untrimmed(self) -> bool:
        """Whether it was sealed and `trim` and `close_writers` have not followed yet."""
        return self.next_base_offset is not None and self.writer is not None

    def close_writers(self) -> None:
        """A sealed segment is only read: let go of the descriptors it was written with."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
        self.offset_index.close_writer()
        self.time_index.close_writer()

    def sync(self) -> None:
        """Wait until its files are on the disk: indexes, too, where they have changed. For a worker. Raises OSError."""
        self._sync_log()
        self.offset_index.sync()
        self.time_index.sync()

    def sync_end(self) -> None:
        """Wait until the log of the active segment is on the disk; for its indexes only after so many bytes of log.

        Recovery makes those entries from the log that a power cut has taken, but not those of the transaction index.
        For a worker. Raises OSError.
        """
        if self.size - self._indexes_synced_size >= INDEXES_SYNCED_BYTES:
            self._indexes_synced_size = self.size
            self.sync()
        else:
            self._sync_log()

    def _sync_log(self) -> None:
        """Sync the log file and the transaction index, if any: recovery trusts both below the recovery point."""
        (self.writer or self.reader).descriptor().sync()
        with suppress(FileNotFoundError):
            sync_file(self.disk, self.path(TRANSACTION_INDEX_SUFFIX))

    def close(self) -> None:
        """Close its files; they open again if they are used."""
        for closable in (self.reader, self.writer, self._offset_index, self._time_index):
            if closable is not None:
                closable.close()
        if self._transaction_index is not None:
            self._transaction_index.forget()

    def remove_files(self) -> None:
        """Unlink everything of this base offset that the log layer makes. A slice being sent keeps its file.

        Raises OSError.
        """
        self.close()
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX):  # a start removes indexes that have no log
            with suppress(FileNotFoundError):
                self.disk.unlink(self.path(suffix))

    def append_descriptor(self) -> Descriptor:
        """The open file that the active segment is appended to. Raises OSError."""
        assert self.writer is not None, "only the active segment is appended to"
        return self.writer.descriptor()

    # -- indexes -------------------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index as it is, unchecked."""
        index = self._offset_index  # once: another thread may forget it
        if index is None:
            index = OffsetIndex(self.open_files, self.path(OFFSET_INDEX_SUFFIX), self.base_offset, capacity_size=0)
            index.seal()
            self._offset_index = index
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index as it is, unchecked."""
        index = self._time_index
        if index is None:
            index = TimeIndex(self.open_files, self.path(TIME_INDEX_SUFFIX), self.base_offset, capacity_size=0)
            index.seal()
            self._time_index = index
        return index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The transaction index, which may have no file."""
        index = self._transaction_index
        if index is None:
            index = TransactionIndex(self.open_files, self.path(TRANSACTION_INDEX_SUFFIX), self.base_offset)
            self._transaction_index = index
        return index

    def forget_transactions(self) -> None:
        """Note that the transaction index was replaced, cut or made."""
        self.may_have_aborted = True
        if self._transaction_index is not None:
            self._transaction_index.forget()

    def add_aborted(self, aborted: Sequence[AbortedTransaction]) -> bool:
        """Add to the transaction index of the active segment, or fail as a whole; return whether its file is new.

        Raises OSError.
        """
        is_created = self.transaction_index.append(aborted, is_new=not self.may_have_aborted)
        self.may_have_aborted = True
        return is_created

    def checked_offset_index(self) -> OffsetIndex:
        """The offset index, known to fit the log. Raises IndexCorruptError, OSError."""
        if not self._checked_offsets:
            self._check_offset_index()
            self._checked_offsets = True
        return self.offset_index

    def checked_time_index(self) -> TimeIndex:
        """The time index, known to fit the log. Raises IndexCorruptError, OSError."""
        if not self._checked_times:
            self.checked_offset_index()
            self._check_time_index()
            self._checked_times = True
        return self.time_index

    def forget_indexes(self) -> None:
        """The index files of a sealed segment were replaced: know nothing of the old ones.

        Who is reading them goes on.
        """
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = None
        self.forget_transactions()
        self._checked_offsets = self._checked_times = False
        self._largest_timestamp = None

    def doubt_indexes(self) -> None:
        """Have the next `sync` cover the index files, whoever wrote them."""
        self.offset_index.doubt()
        self.time_index.doubt()
        self._indexes_synced_size = -INDEXES_SYNCED_BYTES

    @property
    def end_of_offsets(self) -> int:
        """The offset after a sealed segment's last one: the next one's base."""
        assert self.next_base_offset is not None, "the active segment's indexes are its own"
        return self.next_base_offset

    def _check_offset_index(self) -> None:
        index = self.offset_index
        index.sanity_check(self.end_of_offsets, self.size)
        if index.entries:
            last = index.last()
            if self._last_offset_at(last.position) != last.offset:
                raise IndexCorruptError(self.base_offset, f"no batch at {last.position} ends at offset {last.offset}")
        elif self.reaches_past_interval():
            raise IndexCorruptError(self.base_offset, "it is empty, but the log is longer than its interval")

    def _check_time_index(self) -> None:
        index = self.time_index
        index.sanity_check(self.end_of_offsets)
        if index.entries:
            last = index.last()
            if self.max_timestamp_of(last.offset) != last.timestamp:
                raise IndexCorruptError(self.base_offset, f"no batch ending at {last.offset} has time {last.timestamp}")
        elif self.size and self._timed_header_at(0).max_timestamp >= 0:
            raise IndexCorruptError(self.base_offset, "its time index is empty, but its records have times")
        self.check_doubtful_times()

    def check_doubtful_times(self) -> None:
        """Check that the time index knows the times of batches whose header has a wrong one, if there are such batches.

        Looks at the first batch and one in the middle: an index made by what the headers say misses nearly all of them.
        For a worker. Raises IndexCorruptError, ProtocolError, OSError.
        """
        offsets, times = self.offset_index, self.time_index
        positions = [0] if self.size else []
        if offsets.entries:
            positions.append(offsets.entry_at(offsets.entries // 2).position)
        for position in positions:
            header = self._header_at(position)
            if header.has_invalid_max_timestamp:
                slot = times.value_ceiling(header.last_offset - self.base_offset)
                told = times.entry_at(slot) if slot < times.entries else times.last()
                if told.timestamp < self._timed_header_at(position).max_timestamp:
                    reason = f"it does not know the times of the batch at {position}"
                    raise IndexCorruptError(self.base_offset, reason)

    def _last_offset_at(self, position: int) -> int | None:
        try:
            return self._header_at(position).last_offset
        except ProtocolError:
            return None

    def _header_at(self, position: int) -> BatchHeader:
        return read_header_at(self.reader.descriptor(), position)

    def _timed_header_at(self, position: int) -> BatchHeader:
        return timed(self.reader.descriptor(), position, self._header_at(position))

    def max_timestamp_of(self, last_offset: int) -> int | None:
        """The largest timestamp of the batch that ends at an offset; None if there is none. Reads an index interval."""
        place = self._scan(last_offset, self.offset_index.lookup(last_offset))
        if place is None:
            return None
        header = self._timed_header_at(place.position)
        return header.max_timestamp if header.last_offset == last_offset else None

    def reaches_past_interval(self) -> bool:
        """Whether a batch begins so far into the log that it must have an entry."""
        headers = walk_headers(self.reader.descriptor(), 0, self.size)
        return any(position > self.index_interval_bytes for position, _ in headers)

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, offset: int, search: SearchName) -> BatchFound | None:
        """The first batch with a record at or past an offset, or None if the segment has none.

        Raises IndexCorruptError, CorruptBatchError, OSError, and ColdReadError where it would have to wait for the
        disk and must not. On the loop only.
        """
        try:
            return self._find(offset, search)
        except ColdReadError as cold:
            cold.base_offset = self.base_offset
            raise

    def _find(self, offset: int, search: SearchName) -> BatchFound | None:
        if not self.size:
            return None  # compacted away: a row of such segments is passed without a look at their indexes
        if not self._checked_offsets and self.open_files.residency.must_not_wait:
            raise ColdReadError(self._make_ready)
        start = self.checked_offset_index().lookup(offset, search)
        positions = self._recent_positions
        if positions and positions[0] == start.position:
            slot = bisect_left(self._recent_offsets, offset)
            if slot == len(positions):
                return None
            position = positions[slot]
            end = positions[slot + 1] if slot + 1 < len(positions) else self.size
            return BatchFound(position, end - position, start.section)
        faults = self.open_files.page_faults
        if start.section is not None:
            faults.end(LOOKUP_FAULTS[start.section])
        place = self._scan(offset, start)
        faults.end("log_scan")
        return None if place is None else BatchFound(place.position, place.size, start.section)

    def _make_ready(self) -> None:
        """Have the files of a sealed segment open and its offset index checked. For a worker."""
        self.checked_offset_index()
        self.reader.descriptor()

    def _scan(self, offset: int, start: OffsetPosition) -> BatchPlace | None:
        """The batch that holds an offset or follows it, from where the index says. Raises IndexCorruptError."""
        position = start.position
        known = BatchEnd(position, start.offset if position else None)
        descriptor, residency = self.reader.descriptor(), self.open_files.residency
        file: Descriptor | GatedFile = descriptor
        if residency.must_not_wait:
            file = GatedFile(residency, descriptor, passing=start.offset < offset and position > 0)
        try:
            return find_batch(file, offset, known, self.size)
        except MisplacedBatchError as error:
            raise IndexCorruptError(self.base_offset, str(error)) from error

    def remember(self, last_offset: int, position: int, *, indexed: bool) -> None:
        """Know a batch at the end by heart, so that who reads there needs no scan; `indexed`: an entry points to it."""
        if indexed:
            self._recent_offsets, self._recent_positions = [], []
        elif not self._recent_positions and position:
            return  # what came before is not known
        if len(self._recent_positions) < MAX_RECENT:
            self._recent_offsets.append(last_offset)
            self._recent_positions.append(position)
        else:
            self._recent_offsets, self._recent_positions = [], []

    def slice(self, found: BatchFound, max_bytes: int, end: int, *, min_one_message: bool) -> LogRead:
        """At most `max_bytes` from a batch on, nothing at or past byte `end`."""
        position = found.position
        most = max(max_bytes, found.size) if min_one_message else max_bytes
        length = min(end - position, most)
        if length <= 0:
            return LogRead(None, self.base_offset, position, section=found.section)
        piece = FileSlice(self.reader.descriptor(), position, length)
        return LogRead(piece, self.base_offset, position, most < found.size, found.section)

    def end_of_slice(self, position: int, size: int) -> int | None:
        """Return an offset past all records of a slice, by the offset index; None if no entry lies past it.

        Raises IndexCorruptError, OSError, ColdReadError. Source: LogSegment.fetchUpperBoundOffset.
        """
        try:
            past = self.checked_offset_index().upper_bound(position, size)
        except ColdReadError as cold:
            cold.base_offset = self.base_offset
            raise
        return self.next_base_offset if past is None else past.offset

    def modified_ms(self) -> int:
        """When the log file was last written, ms since the epoch. Raises OSError."""
        try:
            return self.disk.modified_ms(self.reader.path)
        except FileNotFoundError:
            if self.reader.other_path is None:
                raise
            return self.disk.modified_ms(self.reader.other_path)

    def newest_ms(self) -> int:
        """Return the largest timestamp (ms), or when the file was last written if no record has one.

        For any thread. Raises IndexCorruptError, OSError. Source: LogSegment.largestTimestamp.
        """
        timestamp = self.largest_timestamp()
        return self.modified_ms() if timestamp <= NO_TIMESTAMP else timestamp

    def largest_timestamp(self) -> int:
        """The largest timestamp (ms), or NO_TIMESTAMP. For any thread. Raises IndexCorruptError, OSError."""
        tail = self.tail
        if tail is not None:
            return tail.max_timestamp
        timestamp = self._largest_timestamp  # once: another thread may forget it
        if timestamp is None:
            timestamp = self.checked_time_index().last().timestamp
            later = self.later_timestamp(timestamp)
            if later is not None:
                reason = f"it says {timestamp} is its largest time, but there is {later}"
                raise IndexCorruptError(self.base_offset, reason)
            self._largest_timestamp = timestamp
        return timestamp

    def later_timestamp(self, timestamp: int, *, anywhere: bool = False) -> int | None:
        """Return a time larger than the one taken for the largest, in a batch after the one that has it; None: none is.

        Reads an index interval where times increase, as they mostly do; all of the segment if it may be `anywhere`.
        Raises IndexCorruptError, OSError.
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
