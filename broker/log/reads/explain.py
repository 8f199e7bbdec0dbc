"""Explain how a fetch would be served, without serving it: segment, index pages, entry, scan, batch, residency.

The explanation runs the search, checks and scan of real fetches, on copies of the segments over an `ObservedDisk`.
Snapshots come from `LogReads.snapshot` or from files (`warmlog.inspect.log_snapshot`).

    offset   floor segment -> offset index -> headers from the entry's position on -> batch
    time     first segment whose largest timestamp reaches it -> time index -> offset index -> batches -> record

Invariants:
1. Blocking: files are read. Nothing is written, and the page cache is restored afterwards.
2. Pages are reported as they were before the explanation read them.
3. Indexes that a broker would reject are reported as faulty, and the explanation scans the log instead: a broker would
   rebuild them first.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.errors import IndexCorruptError, OffsetOutOfRangeError, TimeOutOfRangeError
from warmlog.broker.log.index.mapped import MappedIndex
from warmlog.broker.log.index.offset import OffsetPosition
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimestampOffset
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.observed_disk import ObservedDisk, ObservedFile, ObservingMethod, runs
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.reads.time_search import check_entries, first_from
from warmlog.broker.log.segments.log_scan import BatchEnd, BatchLocation, find_batch, read_header_at, walk_timed
from warmlog.broker.log.segments.segment import LocatedBatch, Segment
from warmlog.broker.log.segments.segment_map import Segments
from warmlog.protocol.explanation import (
    ExplainedBatch,
    ExplainedLookup,
    ExplainedRange,
    ExplainedSegment,
    Explanation,
    PageRun,
)

IndexName: TypeAlias = Literal["offset", "time"]

SEARCHES: tuple[SearchName, ...] = ("warm", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """A log at one moment. `segments` are the log's own, oldest first, `active` a copy of the last one.

    `files`: where copies of the sealed ones are opened; None: the segments use observed files already.
    """

    disk: ObservedDisk
    files: OpenFiles | None
    segments: Sequence[Segment]
    active: Segment
    log_start_offset: int
    log_end_offset: int
    search: SearchName
    end_fault: str | None = None  # why the active segment's indexes cannot be used, if already known

    @contextmanager
    def segment(self, slot: int) -> Iterator[Segment]:
        """Provide a segment to inspect, and close its files afterwards: there may be thousands."""
        last = slot == len(self.segments) - 1
        segment = self.active if last else self.segments[slot]
        if not last and self.files is not None:
            segment = segment.snapshot(self.files)
        try:
            yield segment
        finally:
            segment.close()
            self.disk.restore()


def observed_files() -> tuple[ObservedDisk, OpenFiles]:
    """Return an observed disk, and open files on it whose pages are read before they are touched."""
    disk = ObservedDisk()
    return disk, OpenFiles(disk=disk, residency=Residency(method=ObservingMethod(disk)))


def take_snapshot(segments: Segments, log_start_offset: int, log_end_offset: int, search: SearchName) -> LogSnapshot:
    """Return a snapshot of a log in use. On the event loop; memory only."""
    disk, files = observed_files()
    return LogSnapshot(
        disk=disk,
        files=files,
        segments=segments.snapshot,
        active=segments.active.snapshot(files),
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        search=search,
    )


# -- by offset ---------------------------------------------------------------------------------------------------------


def explain_offset(snapshot: LogSnapshot, offset: int, *, searches: Sequence[SearchName] = ()) -> Explanation:
    """Explain how an offset would be found by the snapshot's search; `searches` are explained, too.

    Raises OffsetOutOfRangeError, CorruptBatchError, OSError.
    """
    if not snapshot.log_start_offset <= offset <= snapshot.log_end_offset:
        raise OffsetOutOfRangeError(offset, snapshot.log_start_offset, snapshot.log_end_offset)
    last = len(snapshot.segments) - 1
    if offset == snapshot.log_end_offset:
        return _at_end(snapshot, 0)
    first = max(0, bisect_right(snapshot.segments, offset, key=lambda segment: segment.base_offset) - 1)
    for slot in range(first, last + 1):
        with snapshot.segment(slot) as segment:
            result = _SegmentLookup(snapshot, segment, slot - first, searches).to_offset(offset)
            if result is not None:
                return result
    return _at_end(snapshot, last - first)


def _at_end(snapshot: LogSnapshot, passed: int) -> Explanation:
    with snapshot.segment(len(snapshot.segments) - 1) as segment:
        return _SegmentLookup(snapshot, segment, passed, ()).at_end()


# -- by time -----------------------------------------------------------------------------------------------------------


def explain_time(snapshot: LogSnapshot, timestamp: int, *, searches: Sequence[SearchName] = ()) -> Explanation:
    """Explain how the first record at or past a timestamp (ms) would be found, as `explain_offset` does.

    Raises TimeOutOfRangeError, too.
    """
    largest = NO_TIMESTAMP
    for slot in range(len(snapshot.segments)):
        with snapshot.segment(slot) as segment:
            lookup = _SegmentLookup(snapshot, segment, slot, searches)
            latest = lookup.largest_timestamp()
            result = lookup.to_time(timestamp) if latest >= timestamp else None
            if result is not None and result.offset < snapshot.log_end_offset:
                return result
            largest = max(largest, latest)
    raise TimeOutOfRangeError(_outside(snapshot, timestamp, largest))


def _outside(snapshot: LogSnapshot, timestamp: int, largest: int) -> str:
    if largest == NO_TIMESTAMP:
        return f"time {_readable(timestamp)} is outside the log, which holds no record with a time"
    first = next(slot for slot, segment in enumerate(snapshot.segments) if segment.size)
    with snapshot.segment(first) as segment:
        since = read_header_at(segment.reader.descriptor(), 0).base_timestamp
    held = f"from {_readable(since)}, its first one's, to {_readable(largest)}"
    return f"time {_readable(timestamp)} is outside the log, whose records have times {held}"


def _readable(timestamp: int) -> str:
    try:
        time = datetime.fromtimestamp(timestamp // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03}Z"


# -- in one segment ----------------------------------------------------------------------------------------------------


class _SegmentLookup:
    """Explains the lookup in one segment."""

    def __init__(self, snapshot: LogSnapshot, segment: Segment, passed: int, searches: Sequence[SearchName]) -> None:
        self._snapshot = snapshot
        self._segment = segment
        self._passed = passed
        self._searches = (snapshot.search, *(search for search in searches if search != snapshot.search))
        self._fault = snapshot.end_fault if segment is snapshot.active else None
        self._lookups: list[ExplainedLookup] = []

    def largest_timestamp(self) -> int:
        """Return the segment's largest timestamp, from its batches if the index cannot be used."""
        try:
            if self._fault is None:
                return self._segment.largest_timestamp()
        except IndexCorruptError as error:
            self._fault = error.reason
        headers = walk_timed(self._segment.reader.descriptor(), 0, self._segment.size)
        return max((header.max_timestamp for _, header in headers), default=NO_TIMESTAMP)

    def to_offset(self, offset: int) -> Explanation | None:
        """Explain the lookup of an offset; return None if the segment has no record at or past it."""
        segment = self._segment
        if not segment.size:
            return None
        start, log = 0, self._log()
        location: LocatedBatch | BatchLocation | None = None
        try:
            if self._fault is None:
                self._look_up("offset", segment.checked_offset_index(), offset - segment.base_offset)
                start = self._lookups[0].position or 0
                log.take_read()
                location = segment.find(offset, self._snapshot.search)
        except IndexCorruptError as error:
            self._distrust(error, log)
            start = 0
        if self._fault is not None:
            log.take_read()
            location = find_batch(segment.reader.descriptor(), offset, BatchEnd(0, None), segment.size)
        if location is None:
            return None
        return self._explain_batch(offset, None, self._scanned(log, start, location.position), location.position)

    def to_time(self, timestamp: int) -> Explanation | None:
        """Explain the lookup of a timestamp; return None if the segment has no record at or past it."""
        segment, start_offset, start, log = self._segment, self._snapshot.log_start_offset, 0, self._log()
        try:
            if self._fault is None:
                start = self._look_up_time(timestamp, log)
        except IndexCorruptError as error:
            self._distrust(error, log)
        location = first_from(segment, start, timestamp, start_offset)
        if location is None:
            return None
        return self._explain_batch(
            location.offset, location.timestamp, self._scanned(log, start, location.position), location.position
        )

    def _look_up_time(self, timestamp: int, log: ObservedFile) -> int:
        """Look up a timestamp's offset, and that offset's position. Raises IndexCorruptError."""
        segment = self._segment
        self._look_up("time", segment.checked_time_index(), timestamp)
        time = self._lookups[0]
        offset = max(time.offset, self._snapshot.log_start_offset)
        count = len(self._lookups)
        self._look_up("offset", segment.checked_offset_index(), offset - segment.base_offset)
        entry = self._lookups[count]
        log.take_read()
        hit = TimestampOffset(NO_TIMESTAMP if time.timestamp is None else time.timestamp, time.offset)
        check_entries(segment, hit, OffsetPosition(entry.offset, entry.position or 0))
        return entry.position or 0

    def at_end(self) -> Explanation:
        """Explain a fetch at the log end offset."""
        return self._explanation(self._snapshot.log_end_offset, None, None, None)

    # -- steps --

    def _log(self) -> ObservedFile:
        return self._snapshot.disk.file(self._segment.reader.path)

    def _distrust(self, error: IndexCorruptError, log: ObservedFile) -> None:
        """Note that the indexes cannot be used, so that the log is scanned instead."""
        self._fault = error.reason
        self._lookups.clear()
        log.take_read()

    def _look_up(self, name: IndexName, index: MappedIndex, key: int) -> None:
        self._lookups += [self._lookup(name, index, key, search) for search in self._searches]

    def _lookup(self, name: IndexName, index: MappedIndex, key: int, search: SearchName) -> ExplainedLookup:
        slot, section = index.key_floor(key, search)
        pages = index.key_pages(key, search)
        entry = None if slot < 0 else index.fields(slot)
        if entry is not None:  # its value may lie on the page after that of its key
            pages += [page for page in index.pages_of(slot) if page not in pages]
        missing = self._snapshot.disk.file(index.path).missing(pages) if pages else []
        is_time = name == "time"
        entry_key, value = entry or (0, 0)
        return ExplainedLookup(
            index=name,
            search=search,
            section=section if search == "warm" else None,
            entries=index.entries,
            pages=tuple(pages),
            missing=_frozen(missing),
            faults_expected=None if missing is None else len(missing),
            slot=None if entry is None else slot,
            timestamp=entry_key if is_time and entry else None,
            offset=index.base_offset + (value if is_time else entry_key),
            position=None if is_time else value,
        )

    def _scanned(self, log: ObservedFile, start: int, end: int) -> ExplainedRange:
        """Return the range scanned from the entry's position to the batch; None if the position was cached."""
        pages = log.take_read()
        return _range(log, start, end - start if pages else 0, pages)

    def _explain_batch(self, offset: int, timestamp: int | None, scan: ExplainedRange, position: int) -> Explanation:
        log = self._log()
        header = read_header_at(self._segment.reader.descriptor(), position)
        read_range = _range(log, position, header.size, log.record(position, header.size))
        batch = ExplainedBatch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp,
            place=read_range,
        )
        return self._explanation(max(offset, header.base_offset), timestamp, scan, batch)

    def _explanation(
        self, offset: int, timestamp: int | None, scan: ExplainedRange | None, batch: ExplainedBatch | None
    ) -> Explanation:
        segment, snapshot = self._segment, self._snapshot
        log = self._log()
        active = segment is snapshot.active
        next_base = segment.next_base_offset
        return Explanation(
            log_start_offset=snapshot.log_start_offset,
            log_end_offset=snapshot.log_end_offset,
            offset=offset,
            timestamp=timestamp,
            passed=self._passed,
            segment=ExplainedSegment(
                base_offset=segment.base_offset,
                next_offset=snapshot.log_end_offset if active or next_base is None else next_base,
                size=segment.size,
                active=active,
            ),
            index_fault=self._fault,
            lookups=tuple(self._lookups),
            known_by_heart=scan is not None and not scan.pages,
            scan=scan,
            batch=batch,
            asked=log.query.name if log.query else None,
            not_asked=log.reason,
        )


def _range(log: ObservedFile, position: int, size: int, pages: Sequence[int]) -> ExplainedRange:
    missing = log.missing(pages)
    return ExplainedRange(
        position=position,
        size=size,
        pages=_page_runs(pages),
        missing=None if missing is None else _page_runs(missing),
        missing_pages=None if missing is None else len(missing),
    )


def _page_runs(pages: Sequence[int]) -> tuple[PageRun, ...]:
    return tuple(PageRun(first=first, count=last - first + 1) for first, last in runs(sorted(pages)))


def _frozen(pages: list[int] | None) -> tuple[int, ...] | None:
    return None if pages is None else tuple(pages)
