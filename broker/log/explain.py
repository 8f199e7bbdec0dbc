"""The way of a fetch, told and not gone: segment, index pages, entry, scan, batch, and what of it is in memory.

Owns: what an explanation says, and how it is found: by the very search, check and scan that fetches use, on twins of
the segments over an `ObservedDisk`. Must not know: who asks, or where segments come from (`PartitionLog.sight`,
`offline_sight`).

    offset   floor segment -> offset index -> headers from the entry's position on -> batch
    time     first segment whose largest time reaches it -> time index -> offset index -> batches -> record

Invariants:
1. For a worker: files are read. Nothing is written, and memory holds afterwards what it held before.
2. Pages are told as they were before the explanation read them.
3. An index that a broker would not believe is told as such, and the way is that over the log alone: made anew is what a
   broker would have of it first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from broker.log.config import SearchName
from broker.log.errors import IndexCorruptError, OffsetOutOfRangeError, TimeOutOfRangeError
from broker.log.files import OpenFiles
from broker.log.index_search import PAGE_SIZE, Section
from broker.log.log_scan import BatchEnd, find_batch, read_header_at, walk_headers
from broker.log.mapped_index import MappedIndex
from broker.log.observed_disk import ObservedDisk, ObservedFile, ObservingMethod, runs
from broker.log.offset_index import OffsetPosition
from broker.log.residency import Residency
from broker.log.segment import Segment
from broker.log.segments import Segments
from broker.log.time_index import NO_TIMESTAMP, TimestampOffset
from broker.log.time_search import check_entries, first_from

IndexName: TypeAlias = Literal["offset", "time"]
SEARCHES: tuple[SearchName, ...] = ("warm", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSegment:
    """The segment that holds what was asked for. Offsets [base_offset, next_offset), bytes of its log."""

    base_offset: int
    next_offset: int
    size: int
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLookup:
    """A lookup in an index of `entries` entries.

    `pages`: of its file, in the order of the first touch; `missing`: those that are not in memory, None where that is
    not known; each would be a major fault, were it touched unasked. `slot`: of the entry found, None: none is so low,
    and the scan begins at the segment's start. `timestamp` (ms) is a time index's, `position` (bytes) an offset
    index's. `section`: None in an empty index, and for the plain search, which knows none.
    """

    index: IndexName
    search: SearchName
    section: Section | None
    entries: int
    pages: tuple[int, ...]
    missing: tuple[int, ...] | None
    faults_expected: int | None
    slot: int | None
    timestamp: int | None
    offset: int
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """Pages of a file that follow each other."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRange:
    """`size` bytes of a log file, and the pages that are read for them, which may be more.

    `missing_pages` counts those that are not in memory, `missing` says which; None where that is not known.
    """

    position: int
    size: int
    first_page: int
    pages: int
    missing_pages: int | None
    missing: tuple[PageRun, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBatch:
    """The batch at the end of the way: offsets [base_offset, last_offset], and its place."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    place: ExplainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The way. `offset` is the first one that a fetch would get, `timestamp` (ms) its record's where a time was asked.

    `passed`: segments that were looked at before this one in vain. `index_fault`: why the segment's indexes cannot be
    believed. `known_by_heart`: the batch lies behind the last index entry of a log that is being appended to, and is
    known without a scan. Without a `batch` the offset is the log's end. `asked`: by which call it is known what is in
    memory; None: it is not known, for the reason of `not_asked`.
    """

    log_start_offset: int
    log_end_offset: int
    offset: int
    timestamp: int | None
    passed: int
    segment: ExplainedSegment
    index_fault: str | None
    lookups: tuple[ExplainedLookup, ...]
    known_by_heart: bool
    scan: ExplainedRange | None
    batch: ExplainedBatch | None
    asked: str | None
    not_asked: str | None


class LogSight(NamedTuple):
    """A log at one moment, to be looked at: segments over files of their own, oldest first; the last one is active."""

    disk: ObservedDisk
    segments: Sequence[Segment]
    log_start_offset: int
    log_end_offset: int
    search: SearchName
    end_fault: str | None = None  # why the last segment's indexes cannot be believed, where that is known already
    snapshot: Sequence[Segment] = ()  # the log's own segments, which these are twins of


def observed_files() -> tuple[ObservedDisk, OpenFiles]:
    """A disk that notes, and open files on it that are read before they are touched."""
    disk = ObservedDisk()
    return disk, OpenFiles(disk=disk, residency=Residency(method=ObservingMethod(disk)))


def take_sight(segments: Segments, log_start_offset: int, log_end_offset: int, search: SearchName) -> LogSight:
    """A log's segments as they are now. On the loop; memory only."""
    disk, files = observed_files()
    twins = [segment.twin(files) for segment in segments.snapshot]
    return LogSight(disk, twins, log_start_offset, log_end_offset, search, snapshot=segments.snapshot)


@contextmanager
def looking(sight: LogSight) -> Iterator[None]:
    """Close what was looked at, and have memory hold what it held before."""
    try:
        yield
    finally:
        for segment in sight.segments:
            segment.close()
        sight.disk.restore()


def _leave(sight: LogSight, segment: Segment) -> None:
    """A segment was looked at in vain: keep none of its files open, for there may be thousands."""
    segment.close()
    sight.disk.restore()


# -- by offset ---------------------------------------------------------------------------------------------------------


def explain_offset(sight: LogSight, offset: int, *, searches: Sequence[SearchName] = ()) -> Explanation:
    """The way to an offset, by the sight's search; `searches` are told beside it. Within `looking`.

    Raises OffsetOutOfRangeError, CorruptBatchError, OSError.
    """
    if not sight.log_start_offset <= offset <= sight.log_end_offset:
        raise OffsetOutOfRangeError(offset, sight.log_start_offset, sight.log_end_offset)
    if offset == sight.log_end_offset:
        return _Way(sight, sight.segments[-1], 0, searches).at_end()
    first = max(0, sum(segment.base_offset <= offset for segment in sight.segments) - 1)
    for passed, segment in enumerate(sight.segments[first:]):
        found = _Way(sight, segment, passed, searches).to_offset(offset)
        if found is not None:
            return found
        _leave(sight, segment)
    return _Way(sight, sight.segments[-1], len(sight.segments) - first - 1, searches).at_end()


# -- by time -----------------------------------------------------------------------------------------------------------


def explain_time(sight: LogSight, timestamp: int, *, searches: Sequence[SearchName] = ()) -> Explanation:
    """The way to the first record at or past a time (ms). As `explain_offset`; raises TimeOutOfRangeError, too."""
    largest = NO_TIMESTAMP
    for passed, segment in enumerate(sight.segments):
        way = _Way(sight, segment, passed, searches)
        latest = way.largest_timestamp()
        found = way.to_time(timestamp) if latest >= timestamp else None
        if found is not None and found.offset < sight.log_end_offset:
            return found
        largest = max(largest, latest)
        _leave(sight, segment)
    raise TimeOutOfRangeError(_outside(sight, timestamp, largest))


def _outside(sight: LogSight, timestamp: int, largest: int) -> str:
    if largest == NO_TIMESTAMP:
        return f"time {_readable(timestamp)} is outside the log, which holds no record with a time"
    first = next(segment for segment in sight.segments if segment.size)
    since = read_header_at(first.reader.descriptor(), 0).base_timestamp
    held = f"from {_readable(since)}, its first one's, to {_readable(largest)}"
    return f"time {_readable(timestamp)} is outside the log, whose records have times {held}"


def _readable(timestamp: int) -> str:
    try:
        time = datetime.fromtimestamp(timestamp // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03}Z"


# -- in one segment ----------------------------------------------------------------------------------------------------


class _Way:
    """The way through one segment."""

    def __init__(self, sight: LogSight, segment: Segment, passed: int, searches: Sequence[SearchName]) -> None:
        self._sight = sight
        self._segment = segment
        self._passed = passed
        self._searches = (sight.search, *(search for search in searches if search != sight.search))
        self._fault = sight.end_fault if segment is sight.segments[-1] else None
        self._lookups: list[ExplainedLookup] = []

    def largest_timestamp(self) -> int:
        """The segment's largest time; where its index cannot be believed, by its batches."""
        try:
            if self._fault is None:
                return self._segment.largest_timestamp()
        except IndexCorruptError as error:
            self._fault = error.reason
        headers = walk_headers(self._segment.reader.descriptor(), 0, self._segment.size)
        return max((header.max_timestamp for _, header in headers), default=NO_TIMESTAMP)

    def to_offset(self, offset: int) -> Explanation | None:
        """The way to an offset; None if the segment has nothing at or past it."""
        segment = self._segment
        if not segment.size:
            return None
        start, log, place = 0, self._log(), None
        try:
            if self._fault is None:
                self._look_up("offset", segment.checked_offset_index(), offset - segment.base_offset)
                start = self._lookups[0].position or 0
                log.take_read()
                place = segment.find(offset, self._sight.search)
        except IndexCorruptError as error:
            self._distrust(error, log)
            start = 0
        if self._fault is not None:
            log.take_read()
            place = find_batch(segment.reader.descriptor(), offset, BatchEnd(0, None), segment.size)
        if place is None:
            return None
        return self._told(offset, None, self._scanned(log, start, place.position), place.position)

    def to_time(self, timestamp: int) -> Explanation | None:
        """The way to the first record at or past a time; None if the segment has none in the log."""
        segment, start_offset, start, log = self._segment, self._sight.log_start_offset, 0, self._log()
        try:
            if self._fault is None:
                start = self._look_up_time(timestamp, log)
        except IndexCorruptError as error:
            self._distrust(error, log)
        found = first_from(segment, start, timestamp, start_offset)
        if found is None:
            return None
        return self._told(found.offset, found.timestamp, self._scanned(log, start, found.position), found.position)

    def _look_up_time(self, timestamp: int, log: ObservedFile) -> int:
        """From a time to an offset to a position. Raises IndexCorruptError."""
        segment = self._segment
        self._look_up("time", segment.checked_time_index(), timestamp)
        time = self._lookups[0]
        offset = max(time.offset, self._sight.log_start_offset)
        count = len(self._lookups)
        self._look_up("offset", segment.checked_offset_index(), offset - segment.base_offset)
        entry = self._lookups[count]
        log.take_read()
        hit = TimestampOffset(NO_TIMESTAMP if time.timestamp is None else time.timestamp, time.offset)
        check_entries(segment, hit, OffsetPosition(entry.offset, entry.position or 0))
        return entry.position or 0

    def at_end(self) -> Explanation:
        """Where there is nothing yet."""
        return self._explanation(self._sight.log_end_offset, None, None, None)

    # -- steps --

    def _log(self) -> ObservedFile:
        return self._sight.disk.file(self._segment.reader.path)

    def _distrust(self, error: IndexCorruptError, log: ObservedFile) -> None:
        """The indexes are no help: what follows goes by the log alone."""
        self._fault = error.reason
        self._lookups.clear()
        log.take_read()

    def _look_up(self, name: IndexName, index: MappedIndex, key: int) -> None:
        self._lookups += [self._lookup(name, index, key, search) for search in self._searches]

    def _lookup(self, name: IndexName, index: MappedIndex, key: int, search: SearchName) -> ExplainedLookup:
        slot, section = index.key_floor(key, search)
        pages = index.key_pages(key, search)
        found = None if slot < 0 else index.fields(slot)
        if found is not None:  # whose value may lie on the page after its key's
            pages += [page for page in index.pages_of(slot) if page not in pages]
        missing = self._sight.disk.file(index.path).missing(pages) if pages else []
        is_time = name == "time"
        found_key, value = found or (0, 0)
        return ExplainedLookup(
            index=name,
            search=search,
            section=section if search == "warm" else None,
            entries=index.entries,
            pages=tuple(pages),
            missing=_frozen(missing),
            faults_expected=None if missing is None else len(missing),
            slot=None if found is None else slot,
            timestamp=found_key if is_time and found else None,
            offset=index.base_offset + (value if is_time else found_key),
            position=None if is_time else value,
        )

    def _scanned(self, log: ObservedFile, start: int, end: int) -> ExplainedRange:
        """What was read to come from the entry's position to the batch: nothing where that is known by heart."""
        pages = log.take_read()
        return _range(log, start, end - start if pages else 0, pages)

    def _told(self, offset: int, timestamp: int | None, scan: ExplainedRange, position: int) -> Explanation:
        log = self._log()
        header = read_header_at(self._segment.reader.descriptor(), position)
        place = _range(log, position, header.size, log.note(position, header.size))
        batch = ExplainedBatch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp,
            place=place,
        )
        return self._explanation(max(offset, header.base_offset), timestamp, scan, batch)

    def _explanation(
        self, offset: int, timestamp: int | None, scan: ExplainedRange | None, batch: ExplainedBatch | None
    ) -> Explanation:
        segment, sight = self._segment, self._sight
        log = self._log()
        active = segment is sight.segments[-1]
        next_base = segment.next_base_offset
        return Explanation(
            log_start_offset=sight.log_start_offset,
            log_end_offset=sight.log_end_offset,
            offset=offset,
            timestamp=timestamp,
            passed=self._passed,
            segment=ExplainedSegment(
                base_offset=segment.base_offset,
                next_offset=sight.log_end_offset if active or next_base is None else next_base,
                size=segment.size,
                active=active,
            ),
            index_fault=self._fault,
            lookups=tuple(self._lookups),
            known_by_heart=scan is not None and not scan.pages,
            scan=scan,
            batch=batch,
            asked=log.asker.name if log.asker else None,
            not_asked=log.reason,
        )


def _range(log: ObservedFile, position: int, size: int, pages: Sequence[int]) -> ExplainedRange:
    missing = log.missing(pages)
    found = None if missing is None else runs(sorted(missing))
    return ExplainedRange(
        position=position,
        size=size,
        first_page=min(pages, default=position // PAGE_SIZE),
        pages=len(pages),
        missing_pages=None if missing is None else len(missing),
        missing=None if found is None else tuple(PageRun(first=first, count=last - first + 1) for first, last in found),
    )


def _frozen(pages: list[int] | None) -> tuple[int, ...] | None:
    return None if pages is None else tuple(pages)
