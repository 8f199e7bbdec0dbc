"""The two indexes of a segment held against its batches.

Owns: what must be true of an index beside its log. Must not know: how batches are found; they are shown to it one by
one, in the order of the file.

1. An index is read before its log: whatever it tells of must then be in the log, also beside a running broker.
2. Memory is that of the index's entries; nothing is kept of the log.
3. Once an index is found to be out of order, its further entries are not judged.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.log.offset_index import OffsetIndex
from broker.log.time_index import NO_TIMESTAMP, TimeIndex
from protocol.records.layout import BatchHeader
from warmlog.cli.findings import Finding
from warmlog.cli.scan import IndexEntries, index_entries

# As much as a Kafka that copied from another one appended at once (replica.fetch.max.bytes): one index entry for all.
LARGEST_APPEND_BYTES = 1 << 20


class SegmentEnd(NamedTuple):
    """What a segment was found to hold.

    Bytes and batches, the first offset after it. `still`: nobody writes to it; `settled`: and nobody will, it is
    closed. `index_interval_bytes`: how many bytes of log may go without an entry in the offset index.
    """

    size: int
    batches: int
    next_offset: int
    still: bool
    settled: bool
    index_interval_bytes: int


class IndexCheck(Protocol):
    """What both kinds of check do, in this order."""

    def form(self) -> Iterator[Finding]:
        """What can be said without the log."""

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Hold the entries up to this batch against it."""

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """The log holds no more."""


class OffsetIndexCheck:
    """`.index`: every entry is (last offset of a batch, position of its first byte)."""

    def __init__(self, path: Path, base_offset: int, *, still: bool, settled: bool) -> None:
        """Read the file; see SegmentEnd. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._found = index_entries(path, OffsetIndex)
        self._still = still
        self._settled = settled
        self._next = 0
        self._stretches: list[tuple[int, int]] = []
        self._reached = 0  # up to where the log is found through the entries so far
        self._largest_batch = LARGEST_APPEND_BYTES

    def form(self) -> Iterator[Finding]:
        """Size, end and order."""
        yield from form_findings(self.path, self._found, still=self._still, settled=self._settled)
        if slot := out_of_order(self._found.entries):
            yield self._finding(slot, "does not increase on the one before")
            self._next = len(self._found.entries)

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Hold the entries up to this batch against it."""
        self._largest_batch = max(self._largest_batch, header.size)
        entries = self._found.entries
        while self._next < len(entries) and entries[self._next][1] <= position:
            relative, at = entries[self._next]
            if at < position:
                yield self._finding(self._next, f"no batch begins at position {at}")
            elif self._base_offset + relative != header.last_offset:
                offset = self._base_offset + relative
                last = header.last_offset
                yield self._finding(self._next, f"offset {offset}, but the batch at {at} ends with {last}")
            self._next += 1
            self._stretches.append((self._reached, at))
            self._reached = at

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """What is left over points nowhere, and an empty index of a long log is of no use."""
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

    def _stretch_findings(self, segment: SegmentEnd) -> Iterator[Finding]:
        """Where a lookup would have to walk much farther than it should."""
        longest = segment.index_interval_bytes + 2 * self._largest_batch
        for begin, end in [*self._stretches, (self._reached, segment.size)]:
            if end - begin > longest:
                yield Finding(self.path, f"no entry between positions {begin} and {end} of the log")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * OffsetIndex.entry.size)


class TimeIndexCheck:
    """`.timeindex`: every entry is (largest time so far, last offset of the first batch that has it)."""

    def __init__(self, path: Path, base_offset: int, *, still: bool, settled: bool) -> None:
        """Read the file; see SegmentEnd. Raises OSError."""
        self.path = path
        self._base_offset = base_offset
        self._found = index_entries(path, TimeIndex)
        self._still = still
        self._settled = settled
        self._next = 0
        self._max_timestamp = NO_TIMESTAMP

    def form(self) -> Iterator[Finding]:
        """Size, end and order."""
        yield from form_findings(self.path, self._found, still=self._still, settled=self._settled)
        if slot := out_of_order(self._found.entries):
            yield self._finding(slot, "does not increase on the one before")
            self._next = len(self._found.entries)

    def batch(self, position: int, header: BatchHeader) -> Iterator[Finding]:  # noqa: ARG002  # as IndexCheck has it
        """Hold the entries up to this batch against it."""
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        entries = self._found.entries
        while self._next < len(entries) and self._base_offset + entries[self._next][1] <= header.last_offset:
            timestamp, relative = entries[self._next]
            offset = self._base_offset + relative
            if offset < header.last_offset:
                yield self._finding(self._next, f"no batch ends with offset {offset}")
            elif timestamp != self._max_timestamp:
                largest = self._max_timestamp
                what = f"time {timestamp}, but up to offset {offset} the largest is {largest}"
                yield self._finding(self._next, what)
            self._next += 1

    def end(self, segment: SegmentEnd) -> Iterator[Finding]:
        """What is left over points nowhere, and the index of a settled segment ends with its largest time."""
        entries = self._found.entries
        for slot, (_, relative) in enumerate(entries[self._next :], start=self._next):
            offset, end = self._base_offset + relative, segment.next_offset
            yield self._finding(slot, f"offset {offset} lies past the end of the segment at {end}")
        last = entries[-1][0] if entries else NO_TIMESTAMP
        if segment.settled and last < self._max_timestamp:
            yield Finding(self.path, f"ends with time {last}, but the segment's largest is {self._max_timestamp}")

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * TimeIndex.entry.size)


def form_findings(path: Path, found: IndexEntries, *, still: bool, settled: bool) -> Iterator[Finding]:
    """What is wrong with the file's size and end; that of an active segment is preallocated, then trimmed."""
    if found.rest and still:
        yield Finding(path, f"{found.rest} bytes at the end are no whole entry", found.whole_size)
    if found.padding and settled:
        yield Finding(path, f"{found.padding} zero entries at the end: never trimmed", found.used_size)


def out_of_order(entries: list[tuple[int, int]]) -> int:
    """The slot of the first entry that does not increase in both fields, or 0."""
    for slot, (before, after) in enumerate(pairwise(entries), start=1):
        if after[0] <= before[0] or after[1] <= before[1]:
            return slot
    return 0
