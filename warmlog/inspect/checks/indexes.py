"""Check a segment's two indexes against its batches, which are passed in file order.

1. An index is read before its log, so that every entry must be in the log even beside a running broker.
2. Only the entries of the index are held in memory.
3. Entries after the first one that is out of order are not checked.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimeIndex
from warmlog.broker.log.io.directory_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from warmlog.inspect.findings import Finding
from warmlog.inspect.index_files import IndexEntries, index_entries
from warmlog.protocol.records.layout import BatchHeader

# A Kafka follower writes one entry for everything it appends in one call (replica.fetch.max.bytes).
LARGEST_APPEND_BYTES = 1 << 20
REBUILT_BY = "a broker rebuilds the index at first use, `log repair` does it now"


class SegmentEnd(NamedTuple):
    """Totals of a segment's log after its last batch.

    `size`: bytes. `at_rest`, `closed`: see CheckedSegment. `index_interval_bytes`: maximum distance between entries of
    its offset index.
    """

    size: int
    batches: int
    next_offset: int
    at_rest: bool
    closed: bool
    index_interval_bytes: int


class IndexCheck(Protocol):
    """The check of either index. Methods are called in the order of their definition."""

    def form_findings(self) -> Iterator[Finding]:
        """Check the index file without the log."""

    def batch_findings(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Check the entries up to this batch."""

    def end_findings(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Check the remaining entries at the end of the log."""


class OffsetIndexCheck:
    """Checks `.index`: every entry is (last offset of a batch, position of its first byte).

    Entries of several batches (last offset of the last one, position of the first) are reported together.
    """

    def __init__(self, path: Path, base_offset: int, *, at_rest: bool, closed: bool) -> None:
        """Read the file. `at_rest`, `closed`: as in CheckedSegment. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._index = index_entries(path, OffsetIndex)
        self._at_rest = at_rest
        self._closed = closed
        self._next = 0
        self._stretches: list[tuple[int, int]] = []
        self._appends: list[tuple[int, int]] = []  # (slot, offset) of entries that may cover several batches
        self._foreign: list[int] = []  # slots of entries that cover several batches
        self._reached = 0  # position up to which entries cover the log
        self._largest_batch = LARGEST_APPEND_BYTES
        self._last_batch_at = 0

    def form_findings(self) -> Iterator[Finding]:
        """Check size, end and order."""
        yield from size_findings(self.path, self._index, at_rest=self._at_rest, closed=self._closed)
        if slot := out_of_order(self._index.entries):
            yield self._finding(slot, "not greater than the entry before")
            self._next = len(self._index.entries)

    def batch_findings(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Check the entries up to this batch."""
        self._largest_batch = max(self._largest_batch, header.size)
        self._last_batch_at = position
        yield from self._several_batches(position, header)
        entries = self._index.entries
        while self._next < len(entries) and entries[self._next][1] <= position:
            relative, at = entries[self._next]
            if at < position:
                yield self._finding(self._next, f"no batch begins at position {at}")
            elif (offset := self._base_offset + relative) > header.last_offset:
                self._appends.append((self._next, offset))
            elif offset < header.last_offset:
                last = header.last_offset
                yield self._finding(self._next, f"offset {offset}, but the batch at {at} ends with {last}")
            self._next += 1
            self._stretches.append((self._reached, at))
            self._reached = at

    def end_findings(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Report entries beyond the end of the log, long stretches without entries, and entries of several batches."""
        for slot, offset in self._appends:
            yield self._finding(slot, f"no batch ends with offset {offset}")
        if self._foreign:
            what = f"{counted(self._foreign)} of several batches each, as older Kafka followers wrote; {REBUILT_BY}"
            yield Finding(self.path, what, self._foreign[0] * OffsetIndex.entry.size)
        for slot, (_, at) in enumerate(self._index.entries[self._next :], start=self._next):
            yield self._finding(slot, f"position {at} is past the end of the log at {segment.size}")
        if not segment.at_rest:
            return
        is_long = self._last_batch_at > 2 * segment.index_interval_bytes  # a batch has an entry for what is before it
        if not self._index.entries and is_long:
            yield Finding(
                self.path, f"no entries, though the log has {segment.size} bytes in {segment.batches} batches"
            )
        elif self._index.entries:
            yield from self._stretch_findings(segment)

    def _several_batches(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Match entries whose offset is after their batch with a later batch, up to the next entry."""
        while self._appends:
            slot, offset = self._appends[0]
            if header.last_offset < offset:
                return
            if header.last_offset == offset:
                self._foreign.append(slot)
            else:
                yield self._finding(slot, f"no batch between it and position {position} ends with offset {offset}")
            del self._appends[0]

    def _stretch_findings(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Report stretches in which a lookup would scan much more than the index interval."""
        longest = segment.index_interval_bytes + 2 * self._largest_batch
        for begin, end in [*self._stretches, (self._reached, segment.size)]:
            if end - begin > longest:
                yield Finding(self.path, f"no entry between positions {begin} and {end} of the log")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * OffsetIndex.entry.size)


class TimeIndexCheck:
    """Checks `.timeindex`: every entry is (largest timestamp so far, last offset of the first batch that has it).

    Entries with the offset of an earlier record of that batch are reported together.
    """

    def __init__(self, path: Path, base_offset: int, *, at_rest: bool, closed: bool) -> None:
        """Read the file. `at_rest`, `closed`: as in CheckedSegment. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._index = index_entries(path, TimeIndex)
        self._at_rest = at_rest
        self._closed = closed
        self._next = 0
        self._foreign: list[int] = []  # slots of entries with a record's offset
        self._max_timestamp = NO_TIMESTAMP

    def form_findings(self) -> Iterator[Finding]:
        """Check size, end and order."""
        yield from size_findings(self.path, self._index, at_rest=self._at_rest, closed=self._closed)
        if slot := out_of_order(self._index.entries):
            yield self._finding(slot, "not greater than the entry before")
            self._next = len(self._index.entries)

    def batch_findings(self, position: int, header: BatchHeader) -> Iterator[Finding]:  # noqa: ARG002  # part of IndexCheck
        """Check the entries up to this batch."""
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        entries = self._index.entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] <= header.last_offset:
            timestamp, relative = entries[self._next]
            offset = self._base_offset + relative
            if header.base_offset <= offset < header.last_offset and timestamp == header.max_timestamp:
                self._foreign.append(self._next)
            elif offset < header.last_offset:
                yield self._finding(self._next, f"no batch ends with offset {offset}")
            elif timestamp != self._max_timestamp:
                largest = self._max_timestamp
                what = f"timestamp {timestamp}, but the largest up to offset {offset} is {largest}"
                yield self._finding(self._next, what)
            self._next += 1

    def end_findings(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Report entries beyond the end, a missing largest timestamp, and entries with a record's offset."""
        if self._foreign:
            what = f"{counted(self._foreign)} with a record's offset, as Kafka up to 3.7 wrote them; {REBUILT_BY}"
            yield Finding(self.path, what, self._foreign[0] * TimeIndex.entry.size)
        entries = self._index.entries
        for slot, (_, relative) in enumerate(entries[self._next :], start=self._next):
            offset, end = self._base_offset + relative, segment.next_offset
            yield self._finding(slot, f"offset {offset} is past the end of the segment at {end}")
        last = entries[-1][0] if entries else NO_TIMESTAMP
        if segment.closed and last < self._max_timestamp:
            yield Finding(self.path, f"ends with timestamp {last}, but the segment's largest is {self._max_timestamp}")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * TimeIndex.entry.size)


def counted(slots: list[int]) -> str:
    """Format the number of entries."""
    return f"{len(slots)} entries" if len(slots) > 1 else "an entry"


def size_findings(path: Path, index: IndexEntries, *, at_rest: bool, closed: bool) -> Iterator[Finding]:
    """Report a partial entry, or padding in a settled segment: only an active one is preallocated."""
    if index.rest and at_rest:
        yield Finding(path, f"{index.rest} bytes at the end are not a whole entry", index.whole_size)
    if index.padding and closed:
        yield Finding(path, f"{index.padding} zero entries at the end: the index was not trimmed", index.used_size)


def out_of_order(entries: list[tuple[int, int]]) -> int:
    """Return the slot of the first entry that does not increase in both fields, or 0."""
    for slot, (before, after) in enumerate(pairwise(entries), start=1):
        if after[0] <= before[0] or after[1] <= before[1]:
            return slot
    return 0


INDEX_CHECKS: dict[str, Callable[..., IndexCheck]] = {  # checks by the suffix of the file
    OFFSET_INDEX_SUFFIX: OffsetIndexCheck,
    TIME_INDEX_SUFFIX: TimeIndexCheck,
}
