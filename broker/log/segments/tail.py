"""The end of the active segment: the index entries that a batch gets, and when a segment rolls.

Everything here is in memory.

Invariants:
1. Appends, recovery and index rebuilds all go through `Tail.add`, so a rebuilt index equals the one that was appended.
2. The first batch of a segment has no entry in the offset index. A later batch has one if more than
   `index.interval.bytes` lie between the first byte of the last indexed batch and its own.
3. An empty segment never rolls, unless the relative offset of the next batch would not fit.

Source: org.apache.kafka.storage.internals.log.LogSegment.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from warmlog.broker.classes import mypyc_attr
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.mapped import MAX_RELATIVE_OFFSET
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import NO_TIMESTAMP, TimeIndex
from warmlog.protocol.records.record import MAX_INT64

_OFFSET_STRIDE: Final = OffsetIndex.entry.size
_TIME_STRIDE: Final = TimeIndex.entry.size


class RollReason(StrEnum):
    """Why a new segment begins."""

    SIZE = "size"
    TIME = "time"
    INDEX_FULL = "index_full"
    INDEX_CORRUPT = "index_corrupt"
    OFFSET_RANGE = "offset_range"


class IndexEntries(NamedTuple):
    """Encoded index entries of a batch; no time index entry if the largest timestamp has not changed."""

    offset_index: bytes
    time_index: bytes


def joined(entries: Sequence[IndexEntries]) -> IndexEntries:
    """Concatenate the entries of several batches."""
    if len(entries) == 1:
        return entries[0]
    return IndexEntries(b"".join(each.offset_index for each in entries), b"".join(each.time_index for each in entries))


@mypyc_attr(acyclic=True)
class BatchExtent:
    """A batch's last offset, largest timestamp (ms) and size (bytes), and the index entries that `Tail.add` made."""

    __slots__ = ("entries", "last_offset", "max_timestamp", "size")

    def __init__(self, last_offset: int, max_timestamp: int, size: int) -> None:
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.size = size
        self.entries: IndexEntries | None = None


class Tail:
    """The end of the active segment, either as committed or with all planned appends included."""

    __slots__ = (
        "_config",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "index_interval_bytes",
        "indexed_timestamp",
        "jitter_ms",
        "max_age_ms",
        "max_offset_entries",
        "max_time_entries",
        "max_timestamp",
        "max_timestamp_offset",
        "must_roll",
        "next_offset",
        "offset_entries",
        "segment_bytes",
        "size",
        "time_entries",
        "unindexed_size",
    )

    def __init__(self, base_offset: int, config: LogConfig, *, created_ms: int, jitter_ms: int) -> None:
        """Start at the beginning of an empty segment."""
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms  # time by which it rolls before `segment.ms`
        self.size = 0
        self.next_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP  # largest timestamp of the first batch
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.unindexed_size = 0  # bytes since the start of the last indexed batch
        self.offset_entries = 0
        self.time_entries = 0
        self.indexed_timestamp = NO_TIMESTAMP  # timestamp of the time index's last entry
        self.must_roll = False  # its indexes are corrupt, and only a sealed segment's can be rebuilt
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Apply the settings for rolling and indexing."""
        self._config = config
        self.segment_bytes = config.segment_bytes
        self.max_age_ms = config.max_segment_ms - self.jitter_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.max_offset_entries = config.segment_index_bytes // _OFFSET_STRIDE
        self.max_time_entries = config.segment_index_bytes // _TIME_STRIDE

    def copy(self) -> "Tail":
        """Return an independent copy."""
        other = Tail(self.base_offset, self._config, created_ms=self.created_ms, jitter_ms=self.jitter_ms)
        other.size = self.size
        other.next_offset = self.next_offset
        other.first_timestamp = self.first_timestamp
        other.max_timestamp = self.max_timestamp
        other.max_timestamp_offset = self.max_timestamp_offset
        other.unindexed_size = self.unindexed_size
        other.offset_entries = self.offset_entries
        other.time_entries = self.time_entries
        other.indexed_timestamp = self.indexed_timestamp
        other.must_roll = self.must_roll
        other.index_interval_bytes = self.index_interval_bytes
        return other

    def add(self, batch: BatchExtent) -> IndexEntries | None:
        """Append a batch; return its index entries, or None if it gets none."""
        is_indexed = self.unindexed_size > self.index_interval_bytes and self.offset_entries < self.max_offset_entries
        is_timed = self.time_entries < self.max_time_entries - 1
        batch.entries = entries = self._put(batch, is_indexed=is_indexed, is_timed=is_timed)
        return entries

    def repeat(self, batch: BatchExtent) -> None:
        """Append a batch that another tail has added, with the same entries, even if settings have changed since."""
        entries = batch.entries
        self._put(batch, is_indexed=entries is not None, is_timed=entries is not None and bool(entries.time_index))

    def _put(self, batch: BatchExtent, *, is_indexed: bool, is_timed: bool) -> IndexEntries | None:
        """Append a batch. `is_indexed`: add an offset index entry. `is_timed`: add a time index entry with it."""
        last_offset, max_timestamp, size = batch.last_offset, batch.max_timestamp, batch.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if not self.size:
            self.first_timestamp = max_timestamp
        entries = self._index(last_offset, is_timed=is_timed) if is_indexed else None
        self.size += size
        self.unindexed_size += size
        self.next_offset = last_offset + 1
        return entries

    def _index(self, last_offset: int, *, is_timed: bool) -> IndexEntries:
        self.offset_entries += 1
        self.unindexed_size = 0
        offset_entry = OffsetIndex.entry.pack(last_offset - self.base_offset, self.size)
        return IndexEntries(offset_entry, self.last_time_entry() if is_timed else b"")

    def last_time_entry(self) -> bytes:
        """Encode and count an entry for the largest timestamp; return b"" if the time index already has it."""
        if self.max_timestamp <= self.indexed_timestamp:
            return b""
        self.time_entries += 1
        self.indexed_timestamp = self.max_timestamp
        return TimeIndex.entry.pack(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def roll_reason(self, batches: BatchExtent, now_ms: int) -> RollReason | None:
        """Return why these batches, taken as one, must begin a new segment, or None.

        A segment's age is the difference between the timestamps of these batches and of its first one; by the clock,
        a replay of old data would roll at every append. `now_ms` is used only if the first batch has no timestamp.
        """
        if self.size:
            if self.size + batches.size > self.segment_bytes:
                return RollReason.SIZE
            first = self.first_timestamp
            age_ms = batches.max_timestamp - first if first >= 0 else now_ms - self.created_ms
            if age_ms > self.max_age_ms:
                return RollReason.TIME
            if self.offset_entries >= self.max_offset_entries or self.time_entries >= self.max_time_entries - 1:
                return RollReason.INDEX_FULL
            if self.must_roll:
                return RollReason.INDEX_CORRUPT
        if batches.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return RollReason.OFFSET_RANGE
        return None

    def without_indexing(self) -> "Tail":
        """Stop `add` from making entries, for batches that the index files already cover; return this tail."""
        self.index_interval_bytes = MAX_INT64
        return self
