"""Check a segment's two indexes against its batches, which are passed in file order.

1. An index is read before its log, so that every entry must be in the log even beside a running broker.
2. Memory is that of the index's entries.
3. Entries behind the first one that is out of order are not checked.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.log.index.offset import OffsetIndex
from broker.log.index.time import NO_TIMESTAMP, TimeIndex
from protocol.records.layout import BatchHeader
from warmlog.inspect.findings import Finding
from warmlog.inspect.segment import IndexEntries, index_entries

# A Kafka follower writes one entry for everything it appends at once (replica.fetch.max.bytes).
LARGEST_APPEND_BYTES = 1 << 20
# What is done about entries of another rule.
CURE = "a broker rebuilds it when it is used, `log repair` now"


class SegmentEnd(NamedTuple):
    """What a scan of a segment found.

    `size`: bytes. `still`: no broker writes to it now. `settled`: it is closed, so none ever will.
    `index_interval_bytes`: how far apart the entries of its offset index may lie.
    """

    size: int
    batches: int
    next_offset: int
    still: bool
    settled: bool
    index_interval_bytes: int


class IndexCheck(Protocol):
    """What the checks of both indexes have in common; methods are called in this order."""

    def form(self) -> Iterator[Finding]:
        """Check the index file by itself."""

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Check the entries up to this batch against it."""

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Check what remains at the end of the log."""


class OffsetIndexCheck:
    """Check `.index`: every entry is (last offset of a batch, position of its first byte).

    Entries of several batches (last offset of the last one, position of the first) are reported together.
    """

    def __init__(self, path: Path, base_offset: int, *, still: bool, settled: bool) -> None:
        """Read the file. `still`, `settled`: as in SegmentEnd. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._found = index_entries(path, OffsetIndex)
        self._still = still
        self._settled = settled
        self._next = 0
        self._stretches: list[tuple[int, int]] = []
        self._appends: list[tuple[int, int]] = []  # (slot, offset) of entries that may be those of several batches
        self._foreign: list[int] = []  # slots of entries that are
        self._reached = 0  # the log is covered by entries up to here
        self._largest_batch = LARGEST_APPEND_BYTES

    def form(self) -> Iterator[Finding]:
        """Check size, end and order."""
        yield from form_findings(self.path, self._found, still=self._still, settled=self._settled)
        if slot := out_of_order(self._found.entries):
            yield self._finding(slot, "does not increase on the one before")
            self._next = len(self._found.entries)

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Check the entries up to this batch against it."""
        self._largest_batch = max(self._largest_batch, header.size)
        yield from self._several_batches(position, header)
        entries = self._found.entries
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

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Report entries past the end of the log, stretches of log without an entry, and another broker's rule."""
        for slot, offset in self._appends:
            yield self._finding(slot, f"no batch ends with offset {offset}")
        if self._foreign:
            what = f"{counted(self._foreign)} of several batches each, as older Kafka followers wrote; {CURE}"
            yield Finding(self.path, what, self._foreign[0] * OffsetIndex.entry.size)
        for slot, (_, at) in enumerate(self._found.entries[self._next :], start=self._next):
            yield self._finding(slot, f"position {at} lies past the end of the log at {segment.size}")
        if not segment.still:
            return
        is_long = segment.batches > 1 and segment.size > 2 * segment.index_interval_bytes
        if not self._found.entries and is_long:
            yield Finding(
                self.path, f"no entries, though the log has {segment.size} bytes in {segment.batches} batches"
            )
        elif self._found.entries:
            yield from self._stretch_findings(segment)

    def _several_batches(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Hold entries whose offset lies past their batch against a later one, up to the next entry's."""
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
        """Report where a lookup would walk much further than the index interval."""
        longest = segment.index_interval_bytes + 2 * self._largest_batch
        for begin, end in [*self._stretches, (self._reached, segment.size)]:
            if end - begin > longest:
                yield Finding(self.path, f"no entry between positions {begin} and {end} of the log")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * OffsetIndex.entry.size)


class TimeIndexCheck:
    """Check `.timeindex`: every entry is (largest timestamp so far, last offset of the first batch that has it).

    Entries with the offset of a record before that are reported together.
    """

    def __init__(self, path: Path, base_offset: int, *, still: bool, settled: bool) -> None:
        """Read the file. `still`, `settled`: as in SegmentEnd. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._found = index_entries(path, TimeIndex)
        self._still = still
        self._settled = settled
        self._next = 0
        self._foreign: list[int] = []  # slots of entries with a record's offset
        self._max_timestamp = NO_TIMESTAMP

    def form(self) -> Iterator[Finding]:
        """Check size, end and order."""
        yield from form_findings(self.path, self._found, still=self._still, settled=self._settled)
        if slot := out_of_order(self._found.entries):
            yield self._finding(slot, "does not increase on the one before")
            self._next = len(self._found.entries)

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:  # noqa: ARG002  # as IndexCheck has it
        """Check the entries up to this batch against it."""
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        entries = self._found.entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] <= header.last_offset:
            timestamp, relative = entries[self._next]
            offset = self._base_offset + relative
            if header.base_offset <= offset < header.last_offset and timestamp == header.max_timestamp:
                self._foreign.append(self._next)
            elif offset < header.last_offset:
                yield self._finding(self._next, f"no batch ends with offset {offset}")
            elif timestamp != self._max_timestamp:
                largest = self._max_timestamp
                what = f"time {timestamp}, but up to offset {offset} the largest is {largest}"
                yield self._finding(self._next, what)
            self._next += 1

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Report entries past the end, a settled segment without its largest time, and another broker's rule."""
        if self._foreign:
            what = f"{counted(self._foreign)} with a record's offset, as Kafka up to 3.7 wrote them; {CURE}"
            yield Finding(self.path, what, self._foreign[0] * TimeIndex.entry.size)
        entries = self._found.entries
        for slot, (_, relative) in enumerate(entries[self._next :], start=self._next):
            offset, end = self._base_offset + relative, segment.next_offset
            yield self._finding(slot, f"offset {offset} lies past the end of the segment at {end}")
        last = entries[-1][0] if entries else NO_TIMESTAMP
        if segment.settled and last < self._max_timestamp:
            yield Finding(self.path, f"ends with time {last}, but the segment's largest is {self._max_timestamp}")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * TimeIndex.entry.size)


def counted(slots: list[int]) -> str:
    """Return how many entries these are, in words."""
    return f"{len(slots)} entries" if len(slots) > 1 else "an entry"


def form_findings(path: Path, found: IndexEntries, *, still: bool, settled: bool) -> Iterator[Finding]:
    """Report a partial entry, or padding in a settled segment: only an active one is preallocated."""
    if found.rest and still:
        yield Finding(path, f"{found.rest} bytes at the end are no whole entry", found.whole_size)
    if found.padding and settled:
        yield Finding(path, f"{found.padding} zero entries at the end: never trimmed", found.used_size)


def out_of_order(entries: list[tuple[int, int]]) -> int:
    """Return the slot of the first entry that does not increase in both fields, or 0."""
    for slot, (before, after) in enumerate(pairwise(entries), start=1):
        if after[0] <= before[0] or after[1] <= before[1]:
            return slot
    return 0
