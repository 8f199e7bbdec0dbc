"""Collect records as Arrow columns: plain buffers in Arrow's memory layout, without depending on pyarrow.

This is the reference implementation; `_columns` is the compiled `ColumnBuilder`, which creates no object per record.
Import the builder from `column_builder`.

    fixed-width column    one little-endian number per record
    column of bytes       validity: one bit per record, least significant first, set for a value; None without nulls
                          offsets: int32, one more than records; value i is data[offsets[i]:offsets[i + 1]]
                          data: all values, concatenated
    headers               one list per record: validity and offsets as above, the items are rows of two columns of
                          bytes; null for a record without headers, as in Spark's Kafka connector

Invariants:
1. Adding a batch either succeeds or leaves the builder unchanged.
2. Columns are never modified once returned.

Source: the Arrow columnar format, version 1.
"""

from array import array
from typing import NamedTuple

from warmlog.protocol.records.record import MAX_INT32, MAX_INT64, MIN_INT64, Buffer, Record, decode_records

__all__ = ["EVERYTHING", "BytesColumn", "ColumnBuilder", "Columns", "HeaderColumn", "Wanted"]

MICROSECONDS = 1000  # microseconds per millisecond
# Timestamps are clamped to what 64 bits of microseconds can represent.
MAX_TIMESTAMP_MS = MAX_INT64 // MICROSECONDS
MIN_TIMESTAMP_MS = -MAX_TIMESTAMP_MS


class Wanted(NamedTuple):
    """Filter records by offset and timestamp (ms), both bounds inclusive."""

    first_offset: int = MIN_INT64
    last_offset: int = MAX_INT64
    first_ms: int = MIN_INT64
    last_ms: int = MAX_INT64


EVERYTHING = Wanted()


class BytesColumn(NamedTuple):
    """A column of bytes or UTF-8 text."""

    count: int  # type: ignore[assignment]  # shadows the tuple's method
    null_count: int
    validity: Buffer | None
    offsets: Buffer
    data: Buffer


class HeaderColumn(NamedTuple):
    """The headers of each record as a list, or null for a record without headers."""

    count: int  # type: ignore[assignment]  # shadows the tuple's method
    null_count: int
    validity: Buffer | None
    offsets: Buffer
    keys: BytesColumn
    values: BytesColumn


class Columns(NamedTuple):
    """Records as columns; None for a column that was not requested.

    `timestamps_us` is int64 microseconds since the epoch, `timestamp_types` int32 as in `layout.TimestampType`.
    """

    count: int  # type: ignore[assignment]  # shadows the tuple's method
    offsets: Buffer
    timestamps_us: Buffer
    timestamp_types: Buffer
    keys: BytesColumn | None
    values: BytesColumn | None
    headers: HeaderColumn | None


class ColumnBuilder:
    """Collects the records of batches in columns.

    `count` is the number of records so far, `size` the bytes of their keys, values and headers. Not thread-safe; the
    compiled version releases the GIL while it parses records.
    """

    def __init__(self, *, keys: bool = True, values: bool = True, headers: bool = False) -> None:
        self._with_keys = keys
        self._with_values = values
        self._with_headers = headers
        self._clear()

    def _clear(self) -> None:
        self._records: list[tuple[Record, bool]] = []
        self.size = 0

    @property
    def count(self) -> int:
        """Number of records that `take` will return."""
        return len(self._records)

    def add(  # noqa: PLR0917 - positional, because the compiled version is called so for every batch
        self,
        buffer: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None = None,
        wanted: Wanted = EVERYTHING,
    ) -> int:
        """Parse bytes [start, end), uncompressed, as exactly `count` records, and add those that match `wanted`.

        Takes the parameters of `record.decode_records` and returns the number of records added. Raises
        InvalidRecordError; ValueError if the range is outside the buffer, or if the columns could exceed 2 GiB and must
        be taken first.
        """
        if self.size + end - start > MAX_INT32:
            raise ValueError("the columns would exceed 2 GiB; call take() first")
        records = decode_records(buffer, start, end, count, base_offset, base_timestamp, append_time)
        chosen = [(record, append_time is not None) for record in records if _is_wanted(record, wanted)]
        size = self.size + sum(self._size_of(record) for record, _ in chosen)
        if size > MAX_INT32:  # invalid header keys may have grown: see _text
            raise ValueError("the columns would exceed 2 GiB; call take() first")
        self._records += chosen
        self.size = size
        return len(chosen)

    def _size_of(self, record: Record) -> int:
        size = len(record.key or b"") if self._with_keys else 0
        if self._with_values:
            size += len(record.value or b"")
        if self._with_headers:
            size += sum(len(_text(key)) + len(value or b"") for key, value in record.headers)
        return size

    def take(self) -> Columns:
        """Return the columns collected so far and empty the builder."""
        records = [record for record, _ in self._records]
        columns = Columns(
            len(records),
            array("q", [record.offset for record in records]).tobytes(),
            array("q", [_microseconds(record.timestamp) for record in records]).tobytes(),
            array("i", [int(appended) for _, appended in self._records]).tobytes(),
            _bytes_column([record.key for record in records]) if self._with_keys else None,
            _bytes_column([record.value for record in records]) if self._with_values else None,
            _header_column(records) if self._with_headers else None,
        )
        self._clear()
        return columns


def _is_wanted(record: Record, wanted: Wanted) -> bool:
    return (
        wanted.first_offset <= record.offset <= wanted.last_offset
        and wanted.first_ms <= record.timestamp <= wanted.last_ms
    )


def _microseconds(timestamp_ms: int) -> int:
    return max(MIN_TIMESTAMP_MS, min(timestamp_ms, MAX_TIMESTAMP_MS)) * MICROSECONDS


def _text(key: str) -> bytes:
    """Encode a header key, in which each invalid byte has become a replacement character of three bytes."""
    return key.encode()


def _validity(present: list[bool]) -> bytes | None:
    if all(present):
        return None
    bits = bytearray(-(-len(present) // 8))
    for index, there in enumerate(present):
        bits[index // 8] |= there << index % 8
    return bytes(bits)


def _offsets(sizes: list[int]) -> bytes:
    ends = array("i", [0])
    for size in sizes:
        ends.append(ends[-1] + size)
    return ends.tobytes()


def _bytes_column(values: list[bytes | None]) -> BytesColumn:
    present = [value is not None for value in values]
    return BytesColumn(
        len(values),
        present.count(False),
        _validity(present),
        _offsets([len(value or b"") for value in values]),
        b"".join(value or b"" for value in values),
    )


def _header_column(records: list[Record]) -> HeaderColumn:
    present = [bool(record.headers) for record in records]
    headers = [header for record in records for header in record.headers]
    return HeaderColumn(
        len(records),
        present.count(False),
        _validity(present),
        _offsets([len(record.headers) for record in records]),
        _bytes_column([_text(key) for key, _ in headers]),
        _bytes_column([value for _, value in headers]),
    )
