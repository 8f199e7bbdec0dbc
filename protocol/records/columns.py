"""Records as Arrow columns: the reference, in plain Python.

Owns: the shape of the columns, and which records of a batch get into them. `_columns` is its compiled twin for
`ColumnBuilder`, which `column_builder` chooses where it was built; it makes no object of a record. Must not know:
batches, CRCs and compression (`reader` opens them), pyarrow (what is given here are plain buffers in Arrow's layout).

    a fixed column        little-endian numbers, one a record
    a column of bytes     validity: a bit a record, low bits first, set where there is a value; None if nothing is null
                          offsets: int32, one more than records; value i is data[offsets[i]:offsets[i + 1]]
                          data: all values, one after the other
    headers               a list a record: validity and offsets as above, the items being rows of two columns of bytes;
                          null where a record has none, as Spark's Kafka connector has it

Invariants:
1. A batch that is refused leaves no trace.
2. Columns that were taken are never written to again.

Source: the Arrow columnar format, version 1.
"""

from array import array
from typing import NamedTuple

from protocol.records.record import MAX_INT32, MAX_INT64, MIN_INT64, Buffer, Record, decode_records

__all__ = ["EVERYTHING", "BytesColumn", "ColumnBuilder", "Columns", "HeaderColumn", "Wanted"]

MICROSECONDS = 1000  # in a millisecond
# Times that microseconds in 64 bits cannot say become the last one that they can.
MAX_TIMESTAMP_MS = MAX_INT64 // MICROSECONDS
MIN_TIMESTAMP_MS = -MAX_TIMESTAMP_MS


class Wanted(NamedTuple):
    """Which records to take: offsets and times (ms) from `first` to `last`, both included."""

    first_offset: int = MIN_INT64
    last_offset: int = MAX_INT64
    first_ms: int = MIN_INT64
    last_ms: int = MAX_INT64


EVERYTHING = Wanted()


class BytesColumn(NamedTuple):
    """A column of bytes, or of text in UTF-8."""

    count: int  # type: ignore[assignment]  # in place of the tuple's method
    null_count: int
    validity: Buffer | None
    offsets: Buffer
    data: Buffer


class HeaderColumn(NamedTuple):
    """The headers of each record: a list, null where it has none."""

    count: int  # type: ignore[assignment]  # in place of the tuple's method
    null_count: int
    validity: Buffer | None
    offsets: Buffer
    keys: BytesColumn
    values: BytesColumn


class Columns(NamedTuple):
    """Records in columns; None for a column that was not asked for.

    `timestamps_us`: int64, microseconds since the epoch. `timestamp_types`: int32, as in `layout.TimestampType`.
    """

    count: int  # type: ignore[assignment]  # in place of the tuple's method
    offsets: Buffer
    timestamps_us: Buffer
    timestamp_types: Buffer
    keys: BytesColumn | None
    values: BytesColumn | None
    headers: HeaderColumn | None


class ColumnBuilder:
    """Collects the records of batches in columns. `count` records so far, `size` bytes of keys, values and headers.

    Not thread-safe; the compiled twin gives up the GIL while it reads.
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
        """How many records are there to be taken."""
        return len(self._records)

    def add(  # noqa: PLR0917 - positional, because the compiled twin is called so for every batch
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
        """Read bytes [start, end), uncompressed, as exactly `count` records, and add those that are wanted.

        Parameters as for `record.decode_records`. Gives how many were added. Raises InvalidRecordError; ValueError
        where the range does not lie in the buffer, or the columns could grow beyond 2 GiB: take them before.
        """
        if self.size + end - start > MAX_INT32:
            raise ValueError("columns of more than 2 GiB: take them before")
        records = decode_records(buffer, start, end, count, base_offset, base_timestamp, append_time)
        found = [(record, append_time is not None) for record in records if _is_wanted(record, wanted)]
        size = self.size + sum(self._size_of(record) for record, _ in found)
        if size > MAX_INT32:  # header keys may grow: see _text
            raise ValueError("columns of more than 2 GiB: take them before")
        self._records += found
        self.size = size
        return len(found)

    def _size_of(self, record: Record) -> int:
        size = len(record.key or b"") if self._with_keys else 0
        if self._with_values:
            size += len(record.value or b"")
        if self._with_headers:
            size += sum(len(_text(key)) + len(value or b"") for key, value in record.headers)
        return size

    def take(self) -> Columns:
        """The columns so far; the builder is empty afterwards."""
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
    """A header's key, whose broken bytes have become replacement characters of three bytes."""
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
