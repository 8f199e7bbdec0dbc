"""Compact record batches: build a map of each key's last offset, and remove superseded records from batches.

This is the reference implementation; `_filtering` is the compiled `OffsetMap`, imported through `offset_map`. The
caller decides which batches of transactions to discard.

A batch is *ordinary* if filtering it needs nothing but the map: not compressed, no control batch, not transactional.
`add_batches` and `filter_batches` process runs of ordinary batches in one call and stop at any other batch, which goes
through `add_batch` and `filter_batch`.

The form of a filtered batch depends on the records that are kept:

    all                            unchanged, unless a delete horizon has to be set (see below)
    some                           same offsets, sequence and producer; new record count and max timestamp
    none, but batch must be kept   the header alone, which preserves the last offset or a producer's last sequence
    tombstones, first time         attribute bit 6 is set, and the delete horizon (now + delete.retention.ms) replaces
                                   the base timestamp; timestamp deltas are adjusted. Later runs keep the horizon

Invariants:
1. A record is kept if its offset is after the map's latest offset, or if it has a key for which the map has no later
offset. A tombstone is removed after the delete horizon of its batch.
2. Offsets and their order never change.
3. Corrupt batches and records raise and are never copied.
4. A block that decompresses to several windows (`records.windows`) is read twice and recompressed as it is read, in
   bounded memory.

Source: org.apache.kafka.common.record.MemoryRecords.filterTo, kafka.log.Cleaner, SkimpyOffsetMap; KIP-534.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import ClassVar, NamedTuple

from warmlog.protocol.records.batch import read_header, verify_crc
from warmlog.protocol.records.compression import compress, compressed_parts
from warmlog.protocol.records.crc import crc32c
from warmlog.protocol.records.layout import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from warmlog.protocol.records.reader import batch_windows
from warmlog.protocol.records.record import (
    Buffer,
    _Broken,
    _read_record,
    _read_varint,
    _write_varint,
    refuse_record,
    refuse_rest,
)
from warmlog.protocol.records.windows import Window

__all__ = ["FilterRules", "Filtered", "Kept", "OffsetMap", "add_batch", "filter_batch"]

EXTRAORDINARY_BITS = CODEC_MASK | CONTROL_BIT | TRANSACTIONAL_BIT
HASH_SIZE = 16
NO_OFFSET = -1


class FilterRules(NamedTuple):
    """Parameters of filtering; times in ms. `keep_empty`: last offsets of batches whose header must be kept."""

    now_ms: int
    delete_retention_ms: int
    keep_empty: frozenset[int]


class Filtered(NamedTuple):
    """Result of `filter_batches`: the position where it stopped, and the numbers of records read and kept."""

    position: int
    records_read: int
    records_kept: int


class Kept(NamedTuple):
    """The kept records of a block. `records` is None if all are kept; `max_timestamp` may be NO_TIMESTAMP."""

    records: Buffer | None
    record_count: int
    max_timestamp: int
    has_tombstone: bool


_NOTHING = Kept(b"", 0, NO_TIMESTAMP, has_tombstone=False)


class _RecordSpan(NamedTuple):
    """A record in a block: bytes [start, end), with its first field after the length at `fields`."""

    start: int
    fields: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


class OffsetMap:
    """Maps keys to their last offset in bounded memory. Keys are identified by a 128-bit hash, as in Kafka.

    The map covers all records up to and including `latest_offset`; records after it must be kept. `is_full` is set when
    a key did not fit.
    """

    ENTRY_SIZE: ClassVar[int] = 160  # bytes a dict takes for a hash and an offset; the compiled version needs 24

    def __init__(self, buffer_size: int, load_factor: float = 0.9) -> None:
        """Limit the map to `buffer_size` bytes. Raises ValueError if that is too small for one key."""
        self.max_entries = int(buffer_size // self.ENTRY_SIZE * load_factor)
        if self.max_entries < 1:
            raise ValueError(f"a buffer of {buffer_size} bytes is too small for an offset map")
        self._offsets: dict[bytes, int] = {}
        self.clear(NO_OFFSET)

    def __len__(self) -> int:
        return len(self._offsets)

    def clear(self, latest_offset: int) -> None:
        """Remove all keys; the next offset to add follows `latest_offset`."""
        self._offsets.clear()
        self.latest_offset = latest_offset
        self.is_full = False

    def skip_to(self, offset: int) -> None:
        """Mark offsets up to and including `offset` as covered, since they have no keys to add."""
        self.latest_offset = max(self.latest_offset, offset)

    def find(self, key: bytes) -> int:
        """Return the last offset of a key, or NO_OFFSET."""
        return self._offsets.get(_hash(key), NO_OFFSET)

    # -- building ------------------------------------------------------------------------------------------------------

    def add_records(self, records: Buffer, count: int, base_offset: int, first_offset: int) -> None:
        """Add the keys of an uncompressed block, from `first_offset` on, until the map is full.

        Advances `latest_offset`. Raises InvalidRecordError.
        """
        for span in _walk(bytes(records), count):
            offset = base_offset + span.offset_delta
            if offset < first_offset:
                continue
            if span.key is not None:
                digest = _hash(span.key)
                if digest not in self._offsets and len(self._offsets) >= self.max_entries:
                    self.is_full = True
                    return
                self._offsets[digest] = offset
            self.skip_to(offset)

    def add_batches(self, data: Buffer, position: int, end: int, first_offset: int) -> int:
        """Add the keys of ordinary batches, from `position` on; return the position where it stopped.

        Stops at a batch that extends past `end`, that is not ordinary, or whose keys no longer fit into the map. Raises
        CorruptBatchError, InvalidRecordError.
        """
        for at, header in _ordinary(data, position, end):
            self.add_records(
                memoryview(data)[at + HEADER_SIZE : at + header.size],
                header.record_count,
                header.base_offset,
                first_offset,
            )
            if self.is_full:
                return at
            if header.last_offset >= first_offset:
                self.skip_to(header.last_offset)
            position = at + header.size
        return position

    # -- filtering -----------------------------------------------------------------------------------------------------

    def filter_records(self, records: Buffer, header: BatchHeader, now_ms: int) -> Kept:
        """Return the records of an uncompressed block that are kept. Raises InvalidRecordError."""
        data, pieces = bytes(records), []
        max_timestamp, has_tombstone = NO_TIMESTAMP, False
        horizon = header.delete_horizon_ms
        is_expired = horizon is not None and now_ms >= horizon
        for span in _walk(data, header.record_count):
            if self._is_kept(span, header.base_offset + span.offset_delta, is_expired=is_expired):
                pieces.append(data[span.start : span.end])
                max_timestamp = max(max_timestamp, header.base_timestamp + span.timestamp_delta)
                has_tombstone |= span.is_tombstone
        kept = None if len(pieces) == header.record_count else b"".join(pieces)
        return Kept(kept, len(pieces), max_timestamp, has_tombstone)

    def _is_kept(self, span: _RecordSpan, offset: int, *, is_expired: bool) -> bool:
        if offset > self.latest_offset:
            return True
        if span.key is None or (span.is_tombstone and is_expired):
            return False
        return offset >= self.find(span.key)

    def filter_batches(self, data: Buffer, position: int, end: int, rules: FilterRules, out: bytearray) -> Filtered:
        """Filter ordinary batches, from `position` on, and append the result to `out`.

        Stops at a batch that extends past `end` or is not ordinary. Raises CorruptBatchError, InvalidRecordError.
        """
        read = kept = 0
        for at, header in _ordinary(data, position, end):
            filtered = filter_batch(self, memoryview(data)[at : at + header.size], header, rules)
            read += header.record_count
            kept += read_header(filtered).record_count if filtered else 0
            out += filtered
            position = at + header.size
        return Filtered(position, read, kept)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=HASH_SIZE).digest()


def _ordinary(data: Buffer, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of complete batches with a valid CRC, up to the first that is not ordinary."""
    if not 0 <= position <= end <= len(data):
        raise ValueError(f"bytes {position} to {end} are outside the buffer of {len(data)} bytes")
    while position + HEADER_SIZE <= end:
        header = read_header(data, position)
        if header.attributes & EXTRAORDINARY_BITS or position + header.size > end:
            return
        verify_crc(data, position, header)
        yield position, header
        position += header.size


def _walk(records: bytes, count: int) -> Iterator[_RecordSpan]:
    """Yield the records of an uncompressed block. Raises InvalidRecordError."""
    position = 0
    for index in range(count):
        start = position
        try:
            _, fields = _read_varint(records, start, len(records))
            timestamp_delta, offset_delta, key, value, _, position = _read_record(records, start)
        except _Broken as broken:
            refuse_record(index, count, broken.args[0])
        yield _RecordSpan(start, fields, position, timestamp_delta, offset_delta, key, value is None)
    if position != len(records):
        refuse_rest(len(records) - position, count)


# -- any batch ---------------------------------------------------------------------------------------------------------


def add_batch(known: "OffsetMap", batch: Buffer, header: BatchHeader, first_offset: int) -> None:
    """Add the keys of any batch except a control batch. Raises what `filter_batch` raises."""
    for window in batch_windows(batch, 0, header):
        known.add_records(window.records, window.count, header.base_offset, first_offset)
        if known.is_full:
            return
    if header.last_offset >= first_offset:
        known.skip_to(header.last_offset)


def filter_batch(
    known: "OffsetMap",
    batch: Buffer,
    header: BatchHeader,
    rules: FilterRules,
    *,
    discard: bool = False,
    marks_empty_transaction: bool = False,
) -> Buffer:
    """Filter any batch whose CRC has been verified; return it unchanged, a new batch, its header alone, or nothing.

    `discard` removes all records (of an aborted transaction, or an expired marker). `marks_empty_transaction`: the
    batch is the marker of a transaction without remaining records, so its delete horizon has to be set. Raises
    InvalidRecordError, CompressionError, UnsupportedCompressionError.
    """
    kept = _NOTHING if discard else _filter_records(known, batch, header, rules.now_ms)
    if not kept.record_count:
        return _header_only(header) if header.last_offset in rules.keep_empty else b""
    sets_horizon = (kept.has_tombstone or marks_empty_transaction) and header.delete_horizon_ms is None
    if kept.record_count == header.record_count and not sets_horizon:
        return batch
    filtered, shift_ms = header, 0
    if sets_horizon:
        horizon = rules.now_ms + rules.delete_retention_ms
        shift_ms = header.base_timestamp - horizon
        filtered = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon)
    if not header.attributes & LOG_APPEND_TIME_BIT:
        filtered = filtered._replace(max_timestamp=kept.max_timestamp)
    if kept.records is not None:
        records = _shift_timestamps(bytes(kept.records), kept.record_count, shift_ms) if shift_ms else kept.records
        block = compress(header.codec, records) if header.is_compressed else records
    else:
        block = b"".join(compressed_parts(header.codec, _kept_parts(known, batch, header, rules.now_ms, shift_ms)))
    return _encode(filtered, block, kept.record_count)


def _filter_records(known: "OffsetMap", batch: Buffer, header: BatchHeader, now_ms: int) -> Kept:
    """Return the kept part of a batch; `records` is None if the batch has several windows."""
    if header.is_control:
        return Kept(memoryview(batch)[HEADER_SIZE:], header.record_count, header.max_timestamp, has_tombstone=False)
    windows = batch_windows(batch, 0, header)
    kept = _kept_of(known, next(windows), header, now_ms)
    for window in windows:
        more = _kept_of(known, window, header, now_ms)
        kept = Kept(
            None,
            kept.record_count + more.record_count,
            max(kept.max_timestamp, more.max_timestamp),
            kept.has_tombstone or more.has_tombstone,
        )
    return kept


def _kept_of(known: "OffsetMap", window: Window, header: BatchHeader, now_ms: int) -> Kept:
    """Return the kept records of a window; for a large record, return only whether it is kept."""
    kept = known.filter_records(window.records, header._replace(record_count=window.count), now_ms)
    if window.large is not None:
        return kept._replace(records=None)
    return kept._replace(records=window.records) if kept.records is None else kept


def _kept_parts(known: "OffsetMap", batch: Buffer, header: BatchHeader, now_ms: int, shift_ms: int) -> Iterator[Buffer]:
    """Yield the kept records of a batch, window by window, with `shift_ms` added to their timestamp deltas."""
    for window in batch_windows(batch, 0, header):
        kept = _kept_of(known, window, header, now_ms)
        if kept.records is not None:
            yield _shift_timestamps(bytes(kept.records), kept.record_count, shift_ms) if shift_ms else kept.records
        elif kept.record_count and window.large is not None:
            yield from window.large.parts(shift_ms)


def _shift_timestamps(records: bytes, count: int, shift_ms: int) -> bytes:
    """Add `shift_ms` to every timestamp delta, for a changed base timestamp."""
    parts: list[bytes] = []
    for span in _walk(records, count):
        _, after_delta = _read_varint(records, span.fields + 1, span.end, 63, (1 << 64) - 1)
        body = b"".join(
            (
                records[span.fields : span.fields + 1],
                _write_varint(span.timestamp_delta + shift_ms),
                records[after_delta : span.end],
            )
        )
        parts += (_write_varint(len(body)), body)
    return b"".join(parts)


def _encode(header: BatchHeader, block: Buffer, count: int) -> bytes:
    """Join header and records into a batch; compute its length, record count and CRC."""
    length = HEADER_SIZE - LOG_OVERHEAD + len(block)
    batch = bytearray(HEADER.pack(*header._replace(batch_length=length, record_count=count, crc=0)))
    batch += block
    batch[CRC_POSITION:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(CRC_START - CRC_POSITION)
    return bytes(batch)


def _header_only(header: BatchHeader) -> bytes:
    """Return a batch without records: not compressed and without a base timestamp, as Kafka writes it."""
    attributes = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _encode(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP), b"", 0)
