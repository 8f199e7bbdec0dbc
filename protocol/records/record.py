"""Encode and decode the records inside a batch: the reference codec, in plain Python.

The compiled version, `_codec`, has the same functions, results and errors; import either through `codec`.

    varint    length of the rest of the record
    int8      attributes, unused
    varlong   timestamp delta, ms, relative to the batch's base timestamp
    varint    offset delta, relative to the batch's base offset
    varint    key length, -1 for null         followed by the key
    varint    value length, -1 for null       followed by the value (null: a tombstone)
    varint    header count                    followed by the headers:
                varint   key length           followed by the key, UTF-8
                varint   value length, or -1  followed by the value

varint and varlong are zig-zag encoded, 7 bits per byte, least significant first: up to 5 bytes for 32 bits, 10 for 64.

Invariants:
1. Every length and count is checked against the remaining bytes before it is used or memory is allocated for it.
2. A record must end exactly where its length says, and the last one at the end of the records; otherwise decoding
   raises and returns nothing.
3. An encoder is unchanged after rejecting a record.

Source: org.apache.kafka.common.record.DefaultRecord, but stricter: lengths below -1 and varints with surplus bits are
errors.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.layout import HEADER_SIZE, MAX_BATCH_SIZE, NO_TIMESTAMP

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
# A record to encode: timestamp in ms, key, value, headers.
Row: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
AnyRow = TypeVar("AnyRow", bound=Row)

# The smallest record: one byte each for length, attributes, both deltas, both lengths and the header count.
MIN_RECORD_SIZE = 7
MIN_HEADER_SIZE = 2
MAX_RECORDS_SIZE = MAX_BATCH_SIZE - HEADER_SIZE
MAX_INT32 = (1 << 31) - 1
MAX_UINT32 = (1 << 32) - 1
MAX_INT64: Final = (1 << 63) - 1
MAX_UINT64 = (1 << 64) - 1
MIN_INT64: Final = -(1 << 63)
# Maximum number of invalid records listed in a response; a batch can hold 100,000.
MAX_FAULTS = 100
LAST_SHIFT_32 = 28
LAST_SHIFT_64 = 63

# Reasons why a record is invalid. The compiled codec returns the index, and `refuse_record` raises with the text.
REASONS = (
    "it is cut off",
    "a varint has too many bytes",
    "its length does not match the remaining bytes",
    "the length of a key, value or header does not match the remaining bytes",
    "its header count does not match the remaining bytes",
    "bytes are left over after its last field",
    "its offset or timestamp exceeds 64 bits",
    "its offset does not follow that of the previous record",
)
CUT, TOO_MANY_BYTES, BAD_LENGTH, BAD_FIELD_LENGTH, BAD_HEADER_COUNT, LEFT_OVER, OUT_OF_RANGE, BAD_DELTA = range(
    len(REASONS)
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A decoded record; `timestamp` in ms. The compiled codec returns this class too."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Broken(Exception):  # noqa: N818 - never leaves this package
    """A record is invalid; the argument is an index into REASONS."""


def refuse_record(index: int, count: int, reason: int) -> NoReturn:
    """Raise InvalidRecordError for the record at `index` (from 0) of `count`."""
    raise InvalidRecordError(f"record at index {index} of {count}: {REASONS[reason]}")


def refuse_count(count: int, size: int) -> NoReturn:
    """Raise InvalidRecordError for a record count that `size` bytes cannot hold."""
    raise InvalidRecordError(f"{size} bytes cannot hold {count} records")


def refuse_rest(rest: int, count: int) -> NoReturn:
    """Raise InvalidRecordError for bytes after the last record."""
    raise InvalidRecordError(f"{rest} bytes are left over after {count} records")


def refuse_range(start: int, end: int, size: int) -> NoReturn:
    """Raise ValueError for a range outside the buffer."""
    raise ValueError(f"bytes {start} to {end} are outside the buffer of {size} bytes")


def _read_varint(
    data: bytes, position: int, end: int, last_shift: int = LAST_SHIFT_32, largest: int = MAX_UINT32
) -> tuple[int, int]:
    """Return the number at `position` and the position after it."""
    if position < end and (byte := data[position]) < 0x80:  # most varints have one byte
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = shift = 0
    while True:
        if position >= end:
            raise _Broken(CUT)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > last_shift:
            raise _Broken(TOO_MANY_BYTES)
    if value > largest:
        raise _Broken(TOO_MANY_BYTES)
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position, end)
    if length < 0:
        if length == -1:
            return None, position
        raise _Broken(BAD_FIELD_LENGTH)
    if length > end - position:
        raise _Broken(BAD_FIELD_LENGTH)
    return data[position : position + length], position + length


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(data, position, end)
    if not 0 <= count <= (end - position) // MIN_HEADER_SIZE:
        raise _Broken(BAD_HEADER_COUNT)
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise _Broken(BAD_FIELD_LENGTH)
        value, position = _read_bytes(data, position, end)
        # Replace invalid UTF-8 as Java does, so that no header can stop a consumer.
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _record_end(data: bytes, position: int) -> tuple[int, int]:
    """Return the start and end of the fields of the record at `position`."""
    length, position = _read_varint(data, position, len(data))
    if not MIN_RECORD_SIZE - 1 <= length <= len(data) - position:
        raise _Broken(BAD_LENGTH)
    return position, position + length


def _read_record(
    data: bytes, position: int
) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]:
    """Return timestamp delta, offset delta, key, value and headers of a record, and the position after it."""
    position, end = _record_end(data, position)
    timestamp_delta, position = _read_varint(data, position + 1, end, LAST_SHIFT_64, MAX_UINT64)
    offset_delta, position = _read_varint(data, position, end)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    if position + 1 == end and data[position] == 0:
        return timestamp_delta, offset_delta, key, value, (), end
    headers, position = _read_headers(data, position, end)
    if position != end:
        raise _Broken(LEFT_OVER)
    return timestamp_delta, offset_delta, key, value, headers, end


def _records_part(buffer: Buffer, start: int, end: int, count: int) -> bytes:
    """Return a copy of bytes [start, end) after checking that they can hold `count` records."""
    view = memoryview(buffer)
    if not 0 <= start <= end <= len(view):
        refuse_range(start, end, len(view))
    if not 0 <= count <= (end - start) // MIN_RECORD_SIZE:
        refuse_count(count, end - start)
    return bytes(view[start:end])


def walk_records(buffer: Buffer, start: int, end: int, count: int) -> None:
    """Check that bytes [start, end) are exactly `count` records as a producer writes them, without creating objects.

    Offset deltas must be 0, 1, 2 and so on, so this is not for compacted batches. Raises InvalidRecordError; ValueError
    if the range is outside the buffer. The compiled version takes about 5 ns per record and does not copy.
    """
    data = _records_part(buffer, start, end, count)
    position = 0
    for index in range(count):
        try:
            _, delta, _, _, _, position = _read_record(data, position)
        except _Broken as broken:
            refuse_record(index, count, broken.args[0])
        if delta != index:
            refuse_record(index, count, BAD_DELTA)
    if position != len(data):
        refuse_rest(len(data) - position, count)


def scan_records(  # noqa: PLR0917 - positional, as for decode_records
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    earliest: int = MIN_INT64,
    latest: int = MAX_INT64,
    need_keys: bool = False,
) -> tuple[int, list[tuple[int, int | None]]]:
    """Walk records as `walk_records` does; return the max timestamp and the records that violate the rules.

    Timestamps (ms) must be in [earliest, latest] or -1 for none; the max is -1 if no record has one. A violation is
    (index, timestamp), or (index, None) for a missing key with `need_keys`; the first MAX_FAULTS are returned. Raises
    the errors of `walk_records`, and InvalidRecordError for a timestamp that exceeds 64 bits.
    """
    data = _records_part(buffer, start, end, count)
    largest = NO_TIMESTAMP
    faults: list[tuple[int, int | None]] = []
    position = 0
    for index in range(count):
        try:
            timestamp, delta, key, _, _, position = _read_record(data, position)
        except _Broken as broken:
            refuse_record(index, count, broken.args[0])
        if delta != index:
            refuse_record(index, count, BAD_DELTA)
        timestamp += base_timestamp
        if not MIN_INT64 <= timestamp <= MAX_INT64:
            refuse_record(index, count, OUT_OF_RANGE)
        if need_keys and key is None:
            faults.append((index, None))
        elif timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            faults.append((index, timestamp))
        largest = max(largest, timestamp)
    if position != len(data):
        refuse_rest(len(data) - position, count)
    return largest, faults[:MAX_FAULTS]


def decode_records(  # noqa: PLR0917 - positional, because the compiled version is called so on hot paths
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None = None,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
    max_headers: int = MAX_INT32,
) -> list[Any]:
    """Decode bytes [start, end), uncompressed, as exactly `count` records. Most callers use `reader.decode_batch`.

    `append_time` overrides all timestamps if it is not None. Each record is created as `make(*prefix, offset,
    timestamp, key, value, headers)`, so that a client can build its own type with topic and partition directly. Keys
    and values are copied out of the buffer; headers after the first `max_headers` of a record are omitted. Raises
    InvalidRecordError; ValueError if the range is outside the buffer.
    """
    data = _records_part(buffer, start, end, count)
    position = 0
    records = []
    for index in range(count):
        try:
            timestamp, offset, key, value, headers, position = _read_record(data, position)
        except _Broken as broken:
            refuse_record(index, count, broken.args[0])
        offset += base_offset
        timestamp = timestamp + base_timestamp if append_time is None else append_time
        if not (MIN_INT64 <= offset <= MAX_INT64 and MIN_INT64 <= timestamp <= MAX_INT64):
            refuse_record(index, count, OUT_OF_RANGE)
        records.append(make(*prefix, offset, timestamp, key, value, headers[:max_headers]))
    if position != len(data):
        refuse_rest(len(data) - position, count)
    return records


def _write_varint(number: int) -> bytes:
    """Encode a signed number of up to 64 bits as a zig-zag varint or varlong."""
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return bytes((number,))
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_MINUS_ONE = _write_varint(-1)
_ZERO = _write_varint(0)


def _write_bytes(parts: list[bytes], data: bytes | None, what: str) -> None:
    if data is None:
        parts.append(_MINUS_ONE)
    elif isinstance(data, bytes):
        parts.append(_write_varint(len(data)))
        parts.append(data)
    else:
        raise TypeError(f"{what} must be bytes or None, not {type(data).__name__}")


def _write_headers(parts: list[bytes], headers: Headers) -> None:
    if not isinstance(headers, (tuple, list)):
        raise TypeError(f"headers must be a tuple or list, not {type(headers).__name__}")
    headers = tuple(headers)
    parts.append(_write_varint(len(headers)))
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise TypeError("each header must be a tuple of str and bytes or None")
        _write_bytes(parts, header[0].encode(), "header key")
        _write_bytes(parts, header[1], "header value")


class RecordEncoder:
    """Encodes the records of one batch: the hot loop of `builder.BatchBuilder`.

    `count` is the number of records so far, `records_size` their size in bytes; `base_timestamp` (the first record's)
    and `max_timestamp` are in ms, -1 while empty. Not thread-safe.
    """

    __slots__ = ("_parts", "base_timestamp", "count", "max_timestamp", "records_size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all records."""
        self._parts: list[bytes] = []
        self.count = 0
        self.records_size = 0
        self.base_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP

    def append(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers = ()) -> int:
        """Add a record and return the size of all records so far, in bytes.

        `timestamp` is in ms, -1 for none. Raises TypeError for wrong types; ValueError for a timestamp below -1 or over
        64 bits, and if the records would exceed one batch (2 GiB). A rejected record leaves the encoder unchanged.
        """
        if not isinstance(timestamp, int):
            raise TypeError(f"timestamp must be an int, not {type(timestamp).__name__}")
        base = self.base_timestamp if self.count else timestamp
        if not NO_TIMESTAMP <= timestamp <= MAX_INT64 or timestamp - base > MAX_INT64:
            raise ValueError(f"timestamp must be -1 or milliseconds since the epoch, not {timestamp}")
        parts = [b"\0", _write_varint(timestamp - base), _write_varint(self.count)]
        _write_bytes(parts, key, "key")
        _write_bytes(parts, value, "value")
        if headers:
            _write_headers(parts, headers)
        else:
            parts.append(_ZERO)
        body_size = sum(map(len, parts))
        length = _write_varint(body_size)
        size = self.records_size + len(length) + body_size
        if size > MAX_RECORDS_SIZE:
            raise ValueError(f"the records of one batch exceed {MAX_RECORDS_SIZE} bytes")
        self._parts.append(length)
        self._parts += parts
        self.records_size = size
        self.count += 1
        self.base_timestamp = base
        self.max_timestamp = max(self.max_timestamp, timestamp)
        return size

    def extend(self, rows: Iterable[Row]) -> int:
        """Add records given as tuples (timestamp, key, value, headers); return the size of all records so far.

        Raises the errors of `append`; the rows before the rejected one have then been added.
        """
        for row in rows:
            if not (isinstance(row, tuple) and len(row) == 4):
                raise TypeError("each row must be a tuple (timestamp, key, value, headers)")
            timestamp, key, value, headers = row
            self.append(key, value, timestamp, headers)
        return self.records_size

    def records(self) -> bytes:
        """Return all encoded records, uncompressed."""
        return b"".join(self._parts)


# Constants of murmur2 as Kafka seeds it.
_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of `data` as a signed int.

    Kafka's default partitioner uses `(murmur2(key) & 0x7FFFFFFF) % partitions`. Source:
    org.apache.kafka.common.utils.Utils.murmur2.
    """
    length = len(data)
    whole = length & ~3
    digest = (_MURMUR_SEED ^ length) & MAX_UINT32
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MURMUR_M & MAX_UINT32
        word = (word ^ word >> 24) * _MURMUR_M & MAX_UINT32
        digest = (digest * _MURMUR_M & MAX_UINT32) ^ word
    if length > whole:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * _MURMUR_M & MAX_UINT32
    digest = (digest ^ digest >> 13) * _MURMUR_M & MAX_UINT32
    digest ^= digest >> 15
    return digest - (1 << 32) if digest > MAX_INT32 else digest


def rows_by_partition(rows: Iterable[AnyRow], partitions: int) -> list[list[AnyRow]]:
    """Group rows by the partition that Kafka's Java client chooses for their keys, then rows without a key.

    The result has `partitions` + 1 lists, which keep the order of the rows. Raises ValueError for `partitions` below 1.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    by_partition: list[list[AnyRow]] = [[] for _ in range(partitions + 1)]
    for row in rows:
        key = row[1]
        by_partition[partitions if key is None else (murmur2(key) & MAX_INT32) % partitions].append(row)
    return by_partition


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, 32 bits, signed. Kafka chooses coordinators by it."""
    digest = 0
    for character in text:
        unit = ord(character)
        if unit > 0xFFFF:
            digest = (digest * 31 + 0xD800 + (unit - 0x10000 >> 10)) & MAX_UINT32
            unit = 0xDC00 + (unit & 0x3FF)
        digest = (digest * 31 + unit) & MAX_UINT32
    return digest - (1 << 32) if digest > MAX_INT32 else digest
