"""What compaction does to record batches: the last offset of each key, and batches without what is superseded.

Owns: the map from keys to offsets, in bounded memory, and the bytes of a batch of which records were taken. Must not
know: files, segments, which transactions were aborted (the caller says what to discard). This is the reference, pure
Python; `_compaction` is its compiled twin for `OffsetMap`, which `offset_map` chooses where it was built.

A batch is *ordinary* when its records need nothing but the map: uncompressed, no control batch, no part of a
transaction. Runs of those go through `add_batches` and `filter_batches` in one call; everything else stops them, and
goes through `add_batch` and `filter_batch` one by one.

What stays of a batch, and as what:

    every record                     the bytes as they were, but for a delete horizon that is due (below)
    some records                     base and last offset, sequence, producer as they were; count and largest time anew
    none, but it must be kept        the header alone: it has the last offset, or a producer's last sequence
    tombstones, for the first time   bit 6, and the delete horizon (now + delete.retention.ms) in place of the base
                                     timestamp, from which the records' times count anew; once set it stays

Invariants:
1. A record stays if it lies past the map's latest offset, or if it has a key of which the map knows no later offset;
   a tombstone only until the horizon of its batch.
2. Offsets never change, nor does their order.
3. What is not sound (CRC, records) raises and is not copied.

Source: org.apache.kafka.common.record.MemoryRecords.filterTo, kafka.log.Cleaner, SkimpyOffsetMap; KIP-534.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import ClassVar, NamedTuple

from crc32c import crc32c

from protocol.records.batch import read_header, verify_crc
from protocol.records.compression import compress, decompress
from protocol.records.layout import (
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
from protocol.records.record import (
    Buffer,
    _Broken,
    _read_record,
    _read_varint,
    _write_varint,
    refuse_record,
    refuse_rest,
)

__all__ = ["FilterRules", "Filtered", "Kept", "OffsetMap", "add_batch", "filter_batch"]

EXTRAORDINARY_BITS = CODEC_MASK | CONTROL_BIT | TRANSACTIONAL_BIT
MAX_DECOMPRESSED_SIZE = 1 << 30  # of one batch that is in a log already: far above what any producer sends
HASH_SIZE = 16
NO_OFFSET = -1


class FilterRules(NamedTuple):
    """How batches are filtered. Times in ms; `keep_empty`: last offsets of batches of which the header must stay."""

    now_ms: int
    delete_retention_ms: int
    keep_empty: frozenset[int]


class Filtered(NamedTuple):
    """What `filter_batches` did: where it stopped, and how many records it read and kept."""

    position: int
    records_read: int
    records_kept: int


class Kept(NamedTuple):
    """The records that stay of a block: their bytes, count, largest time (or NO_TIMESTAMP), whether one is a tombstone.

    `records` is None if all of them stay.
    """

    records: bytes | None
    record_count: int
    max_timestamp: int
    has_tombstone: bool


class _Place(NamedTuple):
    """A record in a block, as far as compaction looks at it: bytes [start, end), from the fields on `fields`."""

    start: int
    fields: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


class OffsetMap:
    """The last offset of each key, as far as memory reaches: keys are known by a hash of 128 bits, as in Kafka.

    `latest_offset`: up to where (included) the map knows every record; nothing past it may be judged by it. `is_full`:
    a key was refused for want of room.
    """

    ENTRY_SIZE: ClassVar[int] = 160  # bytes a dictionary takes for a hash and an offset; the compiled twin takes 24

    def __init__(self, buffer_size: int, load_factor: float = 0.9) -> None:
        """Of at most `buffer_size` bytes. Raises ValueError if that is not enough for one key."""
        self.max_entries = int(buffer_size // self.ENTRY_SIZE * load_factor)
        if self.max_entries < 1:
            raise ValueError(f"an offset map of {buffer_size} bytes holds nothing")
        self._offsets: dict[bytes, int] = {}
        self.clear(NO_OFFSET)

    def __len__(self) -> int:
        return len(self._offsets)

    def clear(self, latest_offset: int) -> None:
        """Forget all keys; begin after this offset."""
        self._offsets.clear()
        self.latest_offset = latest_offset
        self.is_full = False

    def skip_to(self, offset: int) -> None:
        """What lies up to here has no keys to remember."""
        self.latest_offset = max(self.latest_offset, offset)

    def find(self, key: bytes) -> int:
        """The last offset of a key, or NO_OFFSET."""
        return self._offsets.get(_hash(key), NO_OFFSET)

    # -- building ------------------------------------------------------------------------------------------------------

    def add_records(self, records: Buffer, count: int, base_offset: int, first_offset: int) -> None:
        """Remember the keys of an uncompressed block, from `first_offset` on, until the map is full.

        `latest_offset` moves along. Raises InvalidRecordError.
        """
        for place in _walk(bytes(records), count):
            offset = base_offset + place.offset_delta
            if offset < first_offset:
                continue
            if place.key is not None:
                digest = _hash(place.key)
                if digest not in self._offsets and len(self._offsets) >= self.max_entries:
                    self.is_full = True
                    return
                self._offsets[digest] = offset
            self.skip_to(offset)

    def add_batches(self, data: Buffer, position: int, end: int, first_offset: int) -> int:
        """Remember the keys of ordinary batches, from `position` on; gives where it stopped.

        That is at a batch that is not whole before `end`, one that is not ordinary, or, once the map is full, the one
        that did not fit. Raises CorruptBatchError, InvalidRecordError.
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
        """What stays of an uncompressed block. Raises InvalidRecordError."""
        data, pieces = bytes(records), []
        max_timestamp, has_tombstone = NO_TIMESTAMP, False
        horizon = header.delete_horizon_ms
        is_expired = horizon is not None and now_ms >= horizon
        for place in _walk(data, header.record_count):
            if self._stays(place, header.base_offset + place.offset_delta, is_expired=is_expired):
                pieces.append(data[place.start : place.end])
                max_timestamp = max(max_timestamp, header.base_timestamp + place.timestamp_delta)
                has_tombstone |= place.is_tombstone
        kept = None if len(pieces) == header.record_count else b"".join(pieces)
        return Kept(kept, len(pieces), max_timestamp, has_tombstone)

    def _stays(self, place: _Place, offset: int, *, is_expired: bool) -> bool:
        if offset > self.latest_offset:
            return True
        if place.key is None or (place.is_tombstone and is_expired):
            return False
        return offset >= self.find(place.key)

    def filter_batches(self, data: Buffer, position: int, end: int, rules: FilterRules, out: bytearray) -> Filtered:
        """Append what stays of ordinary batches, from `position` on, to `out`.

        Stops as `add_batches` does. Raises CorruptBatchError, InvalidRecordError.
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
    """(position, header) of whole, sound batches up to the first that is not ordinary."""
    if not 0 <= position <= end <= len(data):
        raise ValueError(f"bytes {position} to {end} of {len(data)}")
    while position + HEADER_SIZE <= end:
        header = read_header(data, position)
        if header.attributes & EXTRAORDINARY_BITS or position + header.size > end:
            return
        verify_crc(data, position, header)
        yield position, header
        position += header.size


def _walk(records: bytes, count: int) -> Iterator[_Place]:
    """The records of an uncompressed block. Raises InvalidRecordError."""
    position = 0
    for index in range(count):
        start = position
        try:
            _, fields = _read_varint(records, start, len(records))
            timestamp_delta, offset_delta, key, value, _, position = _read_record(records, start)
        except _Broken as broken:
            refuse_record(index, count, broken.args[0])
        yield _Place(start, fields, position, timestamp_delta, offset_delta, key, value is None)
    if position != len(records):
        refuse_rest(len(records) - position, count)


# -- any batch ---------------------------------------------------------------------------------------------------------


def add_batch(known: "OffsetMap", batch: Buffer, header: BatchHeader, first_offset: int) -> None:
    """Remember the keys of any batch but a control batch, as `OffsetMap.add_batches` does of ordinary ones."""
    known.add_records(_opened(batch, header), header.record_count, header.base_offset, first_offset)
    if not known.is_full and header.last_offset >= first_offset:
        known.skip_to(header.last_offset)


def filter_batch(
    known: "OffsetMap",
    batch: Buffer,
    header: BatchHeader,
    rules: FilterRules,
    *,
    discard: bool = False,
    marks_nothing: bool = False,
) -> Buffer:
    """What stays of any batch, whose CRC was checked: all of it, a batch made anew, a header, or nothing.

    `discard`: no record of it stays (it was aborted, or it is a marker whose time is over). `marks_nothing`: it is the
    marker of a transaction of which nothing is left, so its horizon begins. Raises InvalidRecordError,
    CompressionError.
    """
    kept = _kept(known, batch, header, rules.now_ms, discard=discard)
    if not kept.record_count:
        return _empty(header) if header.last_offset in rules.keep_empty else b""
    begins = (kept.has_tombstone or marks_nothing) and header.delete_horizon_ms is None
    if kept.records is None and not begins:
        return batch
    records = _opened(batch, header) if kept.records is None else kept.records
    if begins:
        horizon = rules.now_ms + rules.delete_retention_ms
        records = _counted_from(bytes(records), kept.record_count, header.base_timestamp - horizon)
        header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon)
    if not header.attributes & LOG_APPEND_TIME_BIT:
        header = header._replace(max_timestamp=kept.max_timestamp)
    return _made(header, compress(header.codec, records) if header.is_compressed else records, kept.record_count)


def _kept(known: "OffsetMap", batch: Buffer, header: BatchHeader, now_ms: int, *, discard: bool) -> Kept:
    if discard:
        return Kept(b"", 0, NO_TIMESTAMP, has_tombstone=False)
    if header.is_control:
        return Kept(None, header.record_count, header.max_timestamp, has_tombstone=False)
    return known.filter_records(_opened(batch, header), header, now_ms)


def _opened(batch: Buffer, header: BatchHeader) -> Buffer:
    """The records part of a batch, uncompressed."""
    block = memoryview(batch)[HEADER_SIZE:]
    return decompress(header.codec, block, max_size=MAX_DECOMPRESSED_SIZE) if header.is_compressed else block


def _counted_from(records: bytes, count: int, shift_ms: int) -> bytes:
    """The records with every timestamp delta so much greater: their base is another one now."""
    parts: list[bytes] = []
    for place in _walk(records, count):
        _, after_delta = _read_varint(records, place.fields + 1, place.end, 63, (1 << 64) - 1)
        body = b"".join(
            (
                records[place.fields : place.fields + 1],
                _write_varint(place.timestamp_delta + shift_ms),
                records[after_delta : place.end],
            )
        )
        parts += (_write_varint(len(body)), body)
    return b"".join(parts)


def _made(header: BatchHeader, block: Buffer, count: int) -> bytes:
    """A batch of this header and these records."""
    length = HEADER_SIZE - LOG_OVERHEAD + len(block)
    batch = bytearray(HEADER.pack(*header._replace(batch_length=length, record_count=count, crc=0)))
    batch += block
    batch[CRC_POSITION:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(CRC_START - CRC_POSITION)
    return bytes(batch)


def _empty(header: BatchHeader) -> bytes:
    """The header alone, uncompressed, without a base timestamp, as Kafka writes it."""
    attributes = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _made(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP), b"", 0)
