"""Compact the sealed segments of a log into new ones, in a child process.

The job is plain data: the process reads files that do not change, and writes files that are not read before the broker
swaps them in (`recovery.swap`).

    1  build the map     dirty segments, oldest first: the last offset of each key, until the map is full
    2  clean a group     as many consecutive segments as fit into one: <base>.log.cleaned and its indexes
       -> the broker swaps in the new segment; then the next group

If the map is full before the end, the log is compacted up to there, and the rest by another run.

The walk over batches (`_walk`) is separate from `log_scan` because its hot path hands whole pieces to compiled code.

Invariants:
1. Both passes treat records by the same rules (`protocol.records.compaction.filtering`, `compaction.transactions`).
2. The last compacted batch, and the last batch of each active producer, are kept, if only as headers.
3. A cleaned segment is synced before it is reported.
4. A damaged batch ends the run: only verified data is copied.
5. A batch whose CRC matches but whose records cannot be read is kept as it is, and reported.
6. One run per directory at a time, among all processes: a child may outlive a killed broker by a second, while the next
   broker starts.

Source: kafka.log.Cleaner.
"""

import os
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from warmlog.broker.log.compaction.cleaned_segment import CleanedSegment
from warmlog.broker.log.compaction.transactions import CleanedTransactions
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.transaction import AbortedTransaction, read_aborted
from warmlog.broker.log.io.directory_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.errors import CorruptBatchError, ProtocolError
from warmlog.protocol.records.batch import read_header, verify_crc
from warmlog.protocol.records.compaction.filtering import FilterRules, add_batch, filter_batch
from warmlog.protocol.records.compaction.offset_map import OffsetMap
from warmlog.protocol.records.layout import HEADER_SIZE, BatchHeader
from warmlog.protocol.records.reader import decode_batch

MIN_READ_SIZE = 64 << 10  # bytes
MAX_GROUP_SPAN = (1 << 31) - 1  # relative offsets have 31 bits
MAX_REPORTED = 100  # unreadable batches reported


class SourceSegment(Struct, frozen=True, kw_only=True):
    """A sealed segment with offsets [base_offset, next_base_offset); its size and those of its indexes in bytes."""

    base_offset: int
    next_base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


class CleanerLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of a run: bytes, and bytes per second (reads and writes together)."""

    dedupe_buffer_bytes: int
    load_factor: float
    io_buffer_bytes: int
    max_bytes_per_second: float


class CompactionJob(Struct, frozen=True, kw_only=True):
    """One run over one log.

    `segments`: the sealed ones from the first one up to `end_offset`; `first_dirty_offset`: the end of the last run;
    `later_bases`: base offsets of the segments after these, which may hold markers of their transactions.
    `last_offsets`: the last offset of each active producer's last batch; `marker_epochs`: the epochs of producers of
    which only a marker is left. Times in ms.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    later_bases: tuple[int, ...]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    last_offsets: tuple[int, ...]
    marker_epochs: dict[int, int]
    limits: CleanerLimits


class CleanedGroup(Struct, frozen=True, kw_only=True, tag="cleaned"):
    """A complete cleaned segment: its base offset and size, and the base offsets of the segments it replaces."""

    base_offset: int
    size: int
    sources: tuple[int, ...]


class UnreadableBatch(Struct, frozen=True):
    """A batch that was kept unchanged because its records cannot be read, and the reason."""

    base_offset: int
    reason: str


class CompactionSummary(Struct, frozen=True, kw_only=True, tag="summary"):
    """The result of a run: the end of the compacted range, bytes and records processed, and the map's fill ratio.

    `unreadable`: the first `MAX_REPORTED` of such batches.
    """

    clean_offset: int
    bytes_read: int
    bytes_written: int
    map_bytes_read: int
    records_read: int
    records_kept: int
    map_utilization: float
    unreadable: tuple[UnreadableBatch, ...] = ()


class Compaction:
    """One run. `progress` is called with the size of each read or write in bytes; it may wait, or raise to stop."""

    def __init__(self, job: CompactionJob, progress: Callable[[int], None], disk: Disk | None = None) -> None:
        self._job = job
        self._progress = progress
        self._disk = disk or Disk()
        self._read_size = max(MIN_READ_SIZE, job.limits.io_buffer_bytes // 2)
        self._map = OffsetMap(self._map_bytes(), job.limits.load_factor)
        self._map_bytes_read = self._bytes_read = self._bytes_written = 0
        self._records_read = self._records_kept = 0
        self._unreadable: list[UnreadableBatch] = []

    def _map_bytes(self) -> int:
        """Return the map's size: the limit, or less for few dirty offsets, so that it stays in the CPU's cache."""
        limits, dirty = self._job.limits, self._job.end_offset - self._job.first_dirty_offset
        needed = int((dirty + 2) / limits.load_factor + 1) * OffsetMap.ENTRY_SIZE
        return min(limits.dedupe_buffer_bytes, needed)

    def run(self) -> Iterator[CleanedGroup]:
        """Yield cleaned groups; each must be swapped in before the next one is requested.

        Raises ProtocolError and IndexCorruptError for damaged files, OSError, and what `progress` raises. Unfinished
        files are removed.
        """
        lock = self._disk.lock_directory(self._job.directory)
        try:
            yield from self._clean_groups()
        finally:
            self._disk.close(lock)

    def _clean_groups(self) -> Iterator[CleanedGroup]:
        self._build_map()
        transactions = CleanedTransactions(self._aborted(self._job.segments[0].base_offset))
        rules = self._rules()
        for group in self._groups():
            yield self._clean(group, rules, transactions)

    def summary(self) -> CompactionSummary:
        """Return the summary, after the last group."""
        return CompactionSummary(
            clean_offset=self._map.latest_offset + 1,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            map_bytes_read=self._map_bytes_read,
            records_read=self._records_read,
            records_kept=self._records_kept,
            map_utilization=len(self._map) / self._map.max_entries,
            unreadable=tuple(self._unreadable),
        )

    # -- the map -------------------------------------------------------------------------------------------------------

    def _build_map(self) -> None:
        first_dirty = self._job.first_dirty_offset
        self._map.clear(first_dirty - 1)
        transactions = CleanedTransactions(self._aborted(first_dirty))
        for segment in self._job.segments:
            if segment.next_base_offset > first_dirty:
                self._map_segment(segment, transactions)
            if self._map.is_full:
                return
            if segment.next_base_offset > first_dirty:
                self._map.skip_to(segment.next_base_offset - 1)  # offsets may be missing at its end

    def _map_segment(self, segment: SourceSegment, transactions: CleanedTransactions) -> None:
        first = self._job.first_dirty_offset
        self._map_bytes_read += self._walk(
            segment,
            run=lambda data, position: self._map.add_batches(data, position, len(data), first),
            single=lambda batch, header: self._map_batch(batch, header, transactions),
            is_over=lambda: self._map.is_full,
        )

    def _map_batch(self, batch: bytes, header: BatchHeader, transactions: CleanedTransactions) -> None:
        try:
            if header.is_control:
                transactions.can_remove_marker(header, _marker_key(batch, header))
            elif not transactions.discards(header):
                add_batch(self._map, batch, header, self._job.first_dirty_offset)
                return
        except ProtocolError:
            pass  # reported when the batch is copied
        self._map.skip_to(header.last_offset)

    def _aborted(self, start: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that end at or after an offset, from the indexes of all segments."""
        bases = [segment.base_offset for segment in self._job.segments if segment.next_base_offset > start]
        aborted: list[AbortedTransaction] = []
        for base in (*bases, *self._job.later_bases):
            path = segment_path(self._job.directory, base, TRANSACTION_INDEX_SUFFIX)
            aborted += read_aborted(self._disk, path, base)
        return [transaction for transaction in aborted if transaction.last_offset >= start]

    # -- groups --------------------------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[Sequence[SourceSegment]]:
        """Yield runs of segments, up to the end of the map, whose logs, indexes and offsets fit into one segment."""
        job, group = self._job, list[SourceSegment]()
        for segment in job.segments:
            if segment.base_offset > self._map.latest_offset:
                break
            if group and not _fits(group, segment, job):
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _config(self) -> LogConfig:
        """Return the settings that indexing depends on."""
        return LogConfig(
            segment_bytes=self._job.segment_bytes,
            segment_index_bytes=self._job.segment_index_bytes,
            index_interval_bytes=self._job.index_interval_bytes,
        )

    def _rules(self) -> FilterRules:
        job = self._job
        keep_empty = frozenset({*job.last_offsets, job.end_offset - 1})
        return FilterRules(job.now_ms, job.delete_retention_ms, keep_empty)

    def _clean(
        self, group: Sequence[SourceSegment], rules: FilterRules, transactions: CleanedTransactions
    ) -> CleanedGroup:
        target = CleanedSegment(self._disk, self._job.directory, group[0].base_offset, self._config())
        transactions.retained.clear()
        try:
            for segment in group:
                self._clean_into(target, segment, rules, transactions)
            target.finish(transactions.retained, like=self._log_path(group[-1]))
        except BaseException:
            target.remove()
            raise
        finally:
            target.close()
        sources = tuple(segment.base_offset for segment in group)
        return CleanedGroup(base_offset=target.base_offset, size=target.size, sources=sources)

    def _clean_into(
        self, target: CleanedSegment, segment: SourceSegment, rules: FilterRules, transactions: CleanedTransactions
    ) -> None:
        out = bytearray()

        def run(data: bytes, position: int) -> int:
            before = len(out)
            try:
                filtered = self._map.filter_batches(data, position, len(data), rules, out)
            except ProtocolError:
                del out[before:]
                raise
            self._records_read += filtered.records_read
            self._records_kept += filtered.records_kept
            return filtered.position

        def single(batch: bytes, header: BatchHeader) -> None:
            try:
                out.extend(self._filter(batch, header, rules, transactions))
            except ProtocolError as error:
                if len(self._unreadable) < MAX_REPORTED:
                    self._unreadable.append(UnreadableBatch(header.base_offset, str(error)))
                out.extend(batch)

        self._bytes_read += self._walk(segment, run=run, single=single, after=lambda: self._write(target, out))

    def _filter(
        self, batch: bytes, header: BatchHeader, rules: FilterRules, transactions: CleanedTransactions
    ) -> bytes | bytearray | memoryview:
        """Return the retained part of a control batch, or of a batch that the compiled filter does not handle."""
        if header.is_control:
            done = transactions.can_remove_marker(header, _marker_key(batch, header))
            horizon = header.delete_horizon_ms
            is_over = done and horizon is not None and horizon <= rules.now_ms
            if self._is_last_marker(header):
                rules = rules._replace(keep_empty=frozenset({header.last_offset}))
            return filter_batch(self._map, batch, header, rules, discard=is_over, marks_empty_transaction=done)
        filtered = filter_batch(self._map, batch, header, rules, discard=transactions.discards(header))
        self._records_read += header.record_count
        self._records_kept += read_header(filtered).record_count if filtered else 0
        return filtered

    def _is_last_marker(self, header: BatchHeader) -> bool:
        """Return whether a marker must be kept as the only source of an active producer's epoch."""
        return self._job.marker_epochs.get(header.producer_id) == header.producer_epoch

    def _write(self, target: CleanedSegment, out: bytearray) -> None:
        if out:
            target.append(out)
            self._bytes_written += len(out)
            self._progress(len(out))
            out.clear()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _log_path(self, segment: SourceSegment) -> str:
        return segment_path(self._job.directory, segment.base_offset, LOG_SUFFIX)

    def _walk(
        self,
        segment: SourceSegment,
        *,
        run: Callable[[bytes, int], int],
        single: Callable[[bytes, BatchHeader], None],
        is_over: Callable[[], bool] = lambda: False,
        after: Callable[[], None] = lambda: None,
    ) -> int:
        """Pass a log file's batches on, in order; return the number of bytes processed, all unless `is_over()`.

        Not `log_scan.walk_headers`, because compaction needs the bytes of each batch: it passes on whole reads and lets
        the compiled `run` find the batches in them.

        `run(data, position)` processes batches as far as it can, and returns the position reached; the batch there is
        passed to `single` with its CRC verified. If `run` raises ProtocolError, all batches of this read are passed to
        `single`. `after` is called after each read. Raises CorruptBatchError, UnsupportedMagicError, OSError.
        """
        fd = self._disk.open(self._log_path(segment), os.O_RDONLY)
        try:
            position, size = 0, self._read_size
            while position < segment.size and not is_over():
                data = self._disk.pread(fd, min(size, segment.size - position), position)
                if len(data) < min(size, segment.size - position):
                    raise CorruptBatchError(f"the log file ends after {position + len(data)} of {segment.size} bytes")
                used = _pass_on(data, run, single, is_over)
                self._progress(used)
                after()
                size = self._read_size if used or is_over() else _larger(data, segment.size - position)
                position += used
        finally:
            self._disk.close(fd)
        return position


def _pass_on(
    data: bytes,
    run: Callable[[bytes, int], int],
    single: Callable[[bytes, BatchHeader], None],
    is_over: Callable[[], bool],
) -> int:
    """Pass on the whole batches in `data`; return the position reached."""
    at = 0
    runs = True
    while at < len(data):
        reached = at
        if runs:
            try:
                reached = run(data, at)
            except ProtocolError:
                runs = False
        if reached == at:
            if is_over() or len(data) - at < HEADER_SIZE or (size := read_header(data, at).size) > len(data) - at:
                break
            single(data[at : at + size], _checked(data, at))
            if is_over():
                break
            reached += size
        at = reached
    return at


def _larger(data: bytes, left: int) -> int:
    """Return the size of the first batch, which was read incompletely. Raises CorruptBatchError."""
    size = read_header(data).size
    if not len(data) < size <= left:
        raise CorruptBatchError(f"a batch of {size} bytes, of which {left} are there")
    return size


def _checked(data: bytes, position: int) -> BatchHeader:
    """Return the header of a batch after verifying its CRC. Raises CorruptBatchError."""
    header = read_header(data, position)
    verify_crc(data, position, header)
    return header


def _marker_key(batch: bytes, header: BatchHeader) -> bytes | None:
    """Return the key of a control batch's record, or None if the record was removed."""
    records = decode_batch(batch, 0, header)
    return records[0].key or b"" if records else None


def _fits(group: Sequence[SourceSegment], segment: SourceSegment, job: CompactionJob) -> bool:
    """Return whether a segment fits into one with those of a group, even if nothing is removed."""
    together = [*group, segment]
    return (
        sum(each.size for each in together) <= job.segment_bytes
        and sum(each.index_bytes for each in together) <= job.segment_index_bytes
        and sum(each.time_index_bytes for each in together) <= job.segment_index_bytes
        and (not segment.size or segment.next_base_offset - 1 - group[0].base_offset <= MAX_GROUP_SPAN)
    )
