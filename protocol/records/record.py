"""Records inside a batch: the reference codec, in plain Python.

Owns: the bytes of a record, `Record`, and the wording of what can be wrong with them. Its compiled twin `_codec` has
the same functions with the same results and the same errors; tests hold the two to each other, and `codec` chooses.
Must not know: headers and CRCs (`layout`, `batch`), compression.

    varint    length of what follows
    int8      attributes, unused
    varlong   timestamp delta, ms, from the batch's base timestamp
    varint    offset delta from the batch's base offset
    varint    key length, -1: no key          then the key
    varint    value length, -1: no value      then the value (none: a tombstone)
    varint    header count                    then each header:
                varint   key length           then the key, UTF-8
                varint   value length, -1     then the value

varint and varlong are zig-zag numbers of 7 bits a byte, low bits first: at most 5 bytes for 32 bits, 10 for 64.

Invariants:
1. No length or count is believed before it was held against the bytes that are left; nothing is allocated by it before.
2. A record ends where its length says and the last one where the records part ends, or nothing is returned.
3. An encoder that refuses a record is as it was before.

Source: org.apache.kafka.common.record.DefaultRecord. Stricter than it: lengths below -1 and numbers with surplus bits
are refused.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec

from protocol.errors import InvalidRecordError
from protocol.records.layout import HEADER_SIZE, MAX_BATCH_SIZE, NO_TIMESTAMP

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
# A record to be encoded: timestamp in ms, key, value, headers.
Row: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]

# The smallest record: one byte each for length, attributes, both deltas, both lengths and the header count.
MIN_RECORD_SIZE = 7
MIN_HEADER_SIZE = 2
MAX_RECORDS_SIZE = MAX_BATCH_SIZE - HEADER_SIZE
MAX_INT32 = (1 << 31) - 1
MAX_UINT32 = (1 << 32) - 1
MAX_INT64 = (1 << 63) - 1
MAX_UINT64 = (1 << 64) - 1
MIN_INT64 = -(1 << 63)
# So many records with a fault are told one by one; a batch can hold a hundred thousand, and the reply tells each.
MAX_FAULTS = 100
LAST_SHIFT_32 = 28
LAST_SHIFT_64 = 63

# What can be wrong with a record. The compiled twin returns the index, `refuse_record` words it.
REASONS = (
    "it is cut off",
    "it holds a number with too many bytes",
    "its length does not fit the bytes that are left",
    "a key, value or header is longer than the bytes that are left",
    "its header count does not fit the bytes that are left",
    "bytes are left over after its last field",
    "its offset or time is beyond 64 bits",
    "its offset is not one more than that of the record before",
)
CUT, TOO_MANY_BYTES, BAD_LENGTH, BAD_FIELD_LENGTH, BAD_HEADER_COUNT, LEFT_OVER, OUT_OF_RANGE, BAD_DELTA = range(
    len(REASONS)
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as read: its offset, its time in ms, and what the producer sent. Both twins return this class."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Broken(Exception):  # noqa: N818 - never leaves this module
    """A record is broken; the argument is an index into REASONS."""


def refuse_record(index: int, count: int, reason: int) -> NoReturn:
    """Raise InvalidRecordError for the record at `index` (from 0) of `count`."""
    raise InvalidRecordError(f"record at index {index} of {count}: {REASONS[reason]}")


def refuse_count(count: int, size: int) -> NoReturn:
    """Raise InvalidRecordError for a record count that `size` bytes cannot hold."""
    raise InvalidRecordError(f"{count} records cannot stand in {size} bytes")


def refuse_rest(rest: int, count: int) -> NoReturn:
    """Raise InvalidRecordError for bytes after the last record."""
    raise InvalidRecordError(f"{rest} bytes are left over after {count} records")


def refuse_range(start: int, end: int, size: int) -> NoReturn:
    """Raise ValueError for a range that does not lie in the buffer: the caller's mistake."""
    raise ValueError(f"bytes {start} to {end} do not lie in a buffer of {size} bytes")


def _read_varint(
    data: bytes, position: int, end: int, last_shift: int = LAST_SHIFT_32, largest: int = MAX_UINT32
) -> tuple[int, int]:
    """The number at `position`, and where what follows it begins."""
    if position < end and (byte := data[position]) < 0x80:  # most are this short
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
        # As Java reads it: bytes that are no UTF-8 become replacement characters, so that nobody's header can stop a
        # reader.
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _record_end(data: bytes, position: int) -> tuple[int, int]:
    """Where the fields of the record at `position` begin and end."""
    length, position = _read_varint(data, position, len(data))
    if not MIN_RECORD_SIZE - 1 <= length <= len(data) - position:
        raise _Broken(BAD_LENGTH)
    return position, position + length


def _read_record(
    data: bytes, position: int
) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]:
    """One record: timestamp delta, offset delta, key, value, headers, and where the next one begins."""
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
    """A copy of the records part, when `count` records can stand in it."""
    view = memoryview(buffer)
    if not 0 <= start <= end <= len(view):
        refuse_range(start, end, len(view))
    if not 0 <= count <= (end - start) // MIN_RECORD_SIZE:
        refuse_count(count, end - start)
    return bytes(view[start:end])


def walk_records(buffer: Buffer, start: int, end: int, count: int) -> None:
    """Check that bytes [start, end) are exactly `count` records as a producer writes them, creating none of them.

    Every length is followed, and offset deltas must be 0, 1, 2 and on (after compaction they are not: do not ask then).
    `buffer` holds bytes.
    Raises InvalidRecordError; ValueError where the range does not lie in the buffer. The compiled twin takes about 5 ns
    a record and never copies.
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
    """Walk records as `walk_records` does; gives their largest timestamp, and those that are not allowed.

    Times in ms, `earliest` and `latest` allowed; -1 is no time, always allowed, and the largest where there is no
    other. A record that is not allowed is (its index, its timestamp), or (its index, None) if `need_keys` and it has no
    key; the first MAX_FAULTS of them. Raises as `walk_records`, and InvalidRecordError for a time beyond 64 bits.
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


def decode_records(  # noqa: PLR0917 - positional, because the compiled twin is called so on hot paths
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None = None,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
) -> list[Any]:
    """Read bytes [start, end), uncompressed, as exactly `count` records. Most callers want `reader.decode_batch`.

    `append_time`: the time of them all, where the broker set it. Each is made as `make(*prefix, offset, timestamp, key,
    value, headers)`, so a client gets its own type, with its topic and partition, at no further cost. Keys and values
    are copies: the buffer may go.
    Raises InvalidRecordError (then nothing is returned), ValueError where the range does not lie in the buffer.
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
        records.append(make(*prefix, offset, timestamp, key, value, headers))
    if position != len(data):
        refuse_rest(len(data) - position, count)
    return records


def _write_varint(number: int) -> bytes:
    """A number of up to 64 bits, either sign, as a zig-zag varint or varlong."""
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
        raise TypeError(f"a {what} is bytes or None, not {type(data).__name__}")


def _write_headers(parts: list[bytes], headers: Headers) -> None:
    if not isinstance(headers, (tuple, list)):
        raise TypeError(f"headers are a tuple or list, not {type(headers).__name__}")
    headers = tuple(headers)
    parts.append(_write_varint(len(headers)))
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise TypeError("a header is a tuple of a str and bytes or None")
        _write_bytes(parts, header[0].encode(), "header key")
        _write_bytes(parts, header[1], "header value")


class RecordEncoder:
    """Encodes records one after the other, as they stand in a batch: the hot loop of `builder.BatchBuilder`.

    Offset deltas are 0, 1, 2 and on; times count from the first record's. `count` records so far, `records_size` bytes
    of them, `base_timestamp` and `max_timestamp` in ms (-1 while empty). Not thread-safe.
    """

    __slots__ = ("_parts", "base_timestamp", "count", "max_timestamp", "records_size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._parts: list[bytes] = []
        self.count = 0
        self.records_size = 0
        self.base_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP

    def append(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers = ()) -> int:
        """Add a record; give the bytes of all records so far.

        `timestamp` in ms, -1 for none. Raises TypeError for wrong types, ValueError for a time below -1 or beyond 64
        bits and where the records would no longer fit into one batch (2 GiB). A record that is refused leaves no trace.
        """
        if not isinstance(timestamp, int):
            raise TypeError(f"a timestamp is an int, not {type(timestamp).__name__}")
        base = self.base_timestamp if self.count else timestamp
        if not NO_TIMESTAMP <= timestamp <= MAX_INT64 or timestamp - base > MAX_INT64:
            raise ValueError(f"a timestamp is -1 or milliseconds since the epoch, not {timestamp}")
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
            raise ValueError(f"the records of a batch measure at most {MAX_RECORDS_SIZE} bytes")
        self._parts.append(length)
        self._parts += parts
        self.records_size = size
        self.count += 1
        self.base_timestamp = base
        self.max_timestamp = max(self.max_timestamp, timestamp)
        return size

    def extend(self, rows: Iterable[Row]) -> int:
        """Add records given as tuples (timestamp, key, value, headers); give the bytes of all records so far.

        Raises as `append` does; the rows before the refused one are then in.
        """
        for row in rows:
            if not (isinstance(row, tuple) and len(row) == 4):
                raise TypeError("a row is a tuple (timestamp, key, value, headers)")
            timestamp, key, value, headers = row
            self.append(key, value, timestamp, headers)
        return self.records_size

    def records(self) -> bytes:
        """The records part: all records, uncompressed."""
        return b"".join(self._parts)


# Constants of murmur2 as Kafka seeds it.
_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 hash of `data`, as Java's signed int.

    Source: org.apache.kafka.common.utils.Utils.murmur2. The default partitioner takes `(murmur2(key) & 0x7FFFFFFF) %
    partitions`.
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
