"""Where the next batch goes: the end of the active segment, what an append adds to it, and when a new segment begins.

Owns: the rule by which batches get their offsets and index entries, the rule by which segments roll, and the values of
a planned append. Must not know files: everything here is memory.

Invariants:
1. The rules are here once: appends, recovery and rebuilt indexes go through `Tail.add`, so an index made anew is the
   one that appending made.
2. The first batch of a segment has no entry in the offset index; a later one has if more than `index.interval.bytes`
   lie between the last entry's batch (its first byte) and this one.
3. A segment is never rolled empty, but where its offsets would not fit.

Source: org.apache.kafka.storage.internals.log.LogSegment.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from broker.log.config import LogConfig
from broker.log.index.mapped import MAX_RELATIVE_OFFSET
from broker.log.index.offset import OffsetIndex
from broker.log.index.time import NO_TIMESTAMP, TimeIndex
from broker.log.producers.state import ProducerBatch, ProducerState
from protocol.errors import InvalidRecordError
from protocol.records.batch import rewritten_start, stamped_start
from protocol.records.layout import HEADER_SIZE, LOG_OVERHEAD, STALE_CRC, STAMPED_SIZE
from protocol.records.markers import Outcome
from protocol.records.record import MAX_INT64
from protocol.records.validation import CheckedBatches

Buffer = bytes | bytearray | memoryview

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
    """Encoded entries that a batch adds to the indexes; the time index gets none where there is no news."""

    offset_index: bytes
    time_index: bytes


def joined(entries: Sequence[IndexEntries]) -> IndexEntries:
    """Entries one after the other."""
    return IndexEntries(b"".join(each.offset_index for each in entries), b"".join(each.time_index for each in entries))


class BatchExtent:
    """What the rules ask of a batch: its last offset, its largest timestamp (ms), its size (bytes)."""

    __slots__ = ("last_offset", "max_timestamp", "size")

    def __init__(self, last_offset: int, max_timestamp: int, size: int) -> None:
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.size = size


class Tail:
    """The end of the active segment, as it is or as it will be once what is planned is written."""

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
        """An empty segment's."""
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms  # how much earlier than `segment.ms` it rolls
        self.size = 0
        self.next_offset = base_offset
        self.first_timestamp = NO_TIMESTAMP  # the first batch's largest
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.unindexed_size = 0  # from the first byte of the last entry's batch on
        self.offset_entries = 0
        self.time_entries = 0
        self.indexed_timestamp = NO_TIMESTAMP  # the time index's last
        self.must_roll = False  # its indexes are corrupt: those of a sealed segment can be rebuilt
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Take the settings that the rules depend on."""
        self._config = config
        self.segment_bytes = config.segment_bytes
        self.max_age_ms = config.max_segment_ms - self.jitter_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.max_offset_entries = config.segment_index_bytes // _OFFSET_STRIDE
        self.max_time_entries = config.segment_index_bytes // _TIME_STRIDE

    def copy(self) -> "Tail":
        """An independent copy."""
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
        """Put a batch at the end; return the index entries that come with it, if any."""
        is_indexed = self.unindexed_size > self.index_interval_bytes and self.offset_entries < self.max_offset_entries
        return self._put(batch, is_indexed=is_indexed, has_room=self.time_entries < self.max_time_entries - 1)

    def repeat(self, batch: BatchExtent, entries: IndexEntries | None) -> None:
        """Put a batch at the end with the entries that `add` returned for it, whatever the settings are by now."""
        self._put(batch, is_indexed=entries is not None, has_room=entries is not None and bool(entries.time_index))

    def _put(self, batch: BatchExtent, *, is_indexed: bool, has_room: bool) -> IndexEntries | None:
        """Put a batch at the end, with or without an offset index entry; `has_room`: the time index takes one, too."""
        last_offset, max_timestamp, size = batch.last_offset, batch.max_timestamp, batch.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if not self.size:
            self.first_timestamp = max_timestamp
        entries = self._index(last_offset, has_room=has_room) if is_indexed else None
        self.size += size
        self.unindexed_size += size
        self.next_offset = last_offset + 1
        return entries

    def add_all(self, batches: list[BatchExtent]) -> list[IndexEntries | None]:
        """Put batches at the end, in order; return what `add` returns for each."""
        return [self.add(batch) for batch in batches]

    def _index(self, last_offset: int, *, has_room: bool) -> IndexEntries:
        self.offset_entries += 1
        self.unindexed_size = 0
        offset_entry = OffsetIndex.entry.pack(last_offset - self.base_offset, self.size)
        return IndexEntries(offset_entry, self.last_time_entry() if has_room else b"")

    def last_time_entry(self) -> bytes:
        """The entry that says the largest timestamp, counted as written; empty if the time index says it already."""
        if self.max_timestamp <= self.indexed_timestamp:
            return b""
        self.time_entries += 1
        self.indexed_timestamp = self.max_timestamp
        return TimeIndex.entry.pack(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def roll_reason(self, batches: BatchExtent, now_ms: int) -> RollReason | None:
        """Why these batches (taken together) must begin a new segment, or None.

        Age is the time from the segment's first batch to these, by their own timestamps: replayed old data would
        otherwise roll at every append. `now_ms` counts only where the first batch has no time.
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
        """The same, but `add` makes no entries: for batches whose entries are in the files already."""
        self.index_interval_bytes = MAX_INT64
        return self


def extents(checked: CheckedBatches, base_offset: int) -> list[BatchExtent]:
    """Give batches their offsets from `base_offset` on. Raises InvalidRecordError.

    A producer numbers each batch from 0, or goes on counting through the batches of one request.
    """
    found, next_offset = [], base_offset
    for _, header in checked:
        if header.base_offset and header.base_offset != next_offset - base_offset:
            raise InvalidRecordError(f"a batch sent with base offset {header.base_offset}: producers count from 0")
        last_offset = next_offset + header.last_offset_delta
        found.append(BatchExtent(last_offset, header.max_timestamp, header.batch_length + LOG_OVERHEAD))
        next_offset = last_offset + 1
    return found


def extents_after(known: Sequence[ProducerBatch], checked: CheckedBatches, base_offset: int) -> list[BatchExtent]:
    """As `extents`, for the batches after those that are known already. Raises InvalidRecordError."""
    skipped = sum(batch.offset_delta + 1 for batch in known)
    return extents(checked, base_offset - skipped)[len(known) :]


def whole(batches: list[BatchExtent]) -> BatchExtent:
    """Several batches taken as one."""
    if len(batches) == 1:
        return batches[0]
    largest = max(batch.max_timestamp for batch in batches)
    return BatchExtent(batches[-1].last_offset, largest, sum(batch.size for batch in batches))


def stamped(view: memoryview, checked: CheckedBatches, base_offset: int, leader_epoch: int) -> list[Buffer]:
    """The bytes to write: of each batch a new start, with base offset and leader epoch, and a view of the rest.

    A new start is the whole header where its fields are no longer those in the bytes.
    """
    buffers: list[Buffer] = []
    for position, header in checked:
        end = position + header.batch_length + LOG_OVERHEAD
        if header.crc == STALE_CRC:
            rest = view[position + HEADER_SIZE : end]
            start = rewritten_start(header, rest, base_offset=base_offset, leader_epoch=leader_epoch)
        else:
            rest = view[position + STAMPED_SIZE : end]
            start = stamped_start(header, base_offset=base_offset, leader_epoch=leader_epoch)
        buffers += (start, rest)
        base_offset += header.last_offset_delta + 1
    return buffers


class PlannedAppend:
    """Batches that have their place: offsets, position, stamped starts. Sizes in bytes, times in ms.

    `position` is a byte in the active segment's file (0 after a `roll`), `buffers` what goes there, end to end.
    `entries`: the index entries of each batch. `log_append_time`: where the topic's records have that time, else -1.
    `new_tail` is the end of the segment that a `roll` begins. `producers`: the states of idempotent producers after it.
    `outcome`: of the transaction that it ends, if it is a marker.
    `is_duplicate`: all of it is in the log already, or planned before this; the offsets are where, and nothing is
    written.
    """

    __slots__ = (
        "base_offset",
        "batches",
        "buffers",
        "entries",
        "is_duplicate",
        "last_offset",
        "leader_epoch",
        "log_append_time",
        "max_timestamp",
        "new_tail",
        "outcome",
        "position",
        "producers",
        "roll",
        "size",
    )

    def __init__(
        self,
        *,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time: int,
        size: int,
        position: int,
        leader_epoch: int,
        roll: RollReason | None,
        new_tail: Tail | None,
        buffers: list[Buffer],
        batches: list[BatchExtent],
        entries: list[IndexEntries | None],
        producers: Sequence[ProducerState] = (),
        outcome: Outcome | None = None,
        is_duplicate: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.size = size
        self.position = position
        self.leader_epoch = leader_epoch
        self.roll = roll
        self.new_tail = new_tail
        self.buffers = buffers
        self.batches = batches
        self.entries = entries
        self.producers = producers
        self.outcome = outcome
        self.is_duplicate = is_duplicate


def duplicate_of(
    known: Sequence[ProducerBatch], *, position: int, leader_epoch: int, append_time: bool
) -> PlannedAppend:
    """The plan for batches that the log has already: it waits for its turn, and writes nothing.

    `append_time`: their time is the broker's, and told again.
    """
    return PlannedAppend(
        base_offset=known[0].base_offset,
        last_offset=known[-1].last_offset,
        max_timestamp=max(batch.timestamp for batch in known),
        log_append_time=known[0].timestamp if append_time else NO_TIMESTAMP,
        size=0,
        position=position,
        leader_epoch=leader_epoch,
        roll=None,
        new_tail=None,
        buffers=[],
        batches=[],
        entries=[],
        is_duplicate=True,
    )
