"""Decode batches into Arrow record batches, in the schema that Spark expects.

1. No Python object is created per record; constant columns (topic, partition) are built once and sliced.
2. Memory is bounded by `CHUNK_BYTES`, `CHUNK_RECORDS`, and the largest batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from warmlog.protocol.errors import CorruptBatchError
from warmlog.protocol.records.arrow.column_builder import ColumnBuilder
from warmlog.protocol.records.arrow.columns import BytesColumn, Columns, HeaderColumn, Wanted
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.reader import uncompressed_records

# Larger chunks exceed the processor's cache: 30 M records/s up to 4 MiB, 14 M at 8 MiB.
CHUNK_BYTES = 2 << 20
CHUNK_RECORDS = 1 << 16

_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema that Spark expects for these columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


class ArrowDecoder:
    """Collects the records of one partition; `take` them when it `is_full`, and at the end. Not thread-safe."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._builder = ColumnBuilder(keys="key" in columns, values="value" in columns, headers="headers" in columns)
        self._constants = {"topic": topic, "partition": partition}
        self._repeated: dict[str, pa.Array] = {}

    @property
    def count(self) -> int:
        """Number of records collected."""
        return self._builder.count

    @property
    def is_full(self) -> bool:
        """Whether enough records are collected to `take` them."""
        return self._builder.size >= CHUNK_BYTES or self._builder.count >= CHUNK_RECORDS

    def add(self, buffer: memoryview, position: int, header: BatchHeader, wanted: Wanted) -> None:
        """Add the wanted records of the batch at a position, whose CRC was checked. Raises ProtocolError."""
        records = uncompressed_records(buffer, position, header)
        try:
            self._builder.add(
                records,
                0,
                len(records),
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                header.append_time_ms,
                wanted,
            )
        except ValueError as error:  # 2 GiB in one chunk, which no valid batch has
            raise CorruptBatchError(str(error)) from error

    def take(self) -> pa.RecordBatch:
        """Return the collected records and remove them."""
        taken = self._builder.take()
        makers: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _bytes_array(pa.binary(), taken.keys),
            "value": lambda: _bytes_array(pa.binary(), taken.values),
            "topic": lambda: self._constant("topic", taken.count),
            "partition": lambda: self._constant("partition", taken.count),
            "offset": lambda: _fixed(TYPES["offset"], taken.offsets, taken),
            "timestamp": lambda: _fixed(TYPES["timestamp"], taken.timestamps_us, taken),
            "timestampType": lambda: _fixed(TYPES["timestampType"], taken.timestamp_types, taken),
            "headers": lambda: _headers_array(taken.headers),
        }
        return pa.RecordBatch.from_arrays([makers[name]() for name in self._columns], schema=self._schema)

    def _constant(self, name: str, count: int) -> pa.Array:
        made = self._repeated.get(name)
        if made is None or len(made) < count:
            # A small split has only this chunk, which must not retain larger buffers in memory.
            size = count if made is None else max(count, CHUNK_RECORDS)
            made = pa.repeat(pa.scalar(self._constants[name], TYPES[name]), size)
            self._repeated[name] = made
        return made.slice(0, count)


def _fixed(kind: pa.DataType, buffer: Any, taken: Columns) -> pa.Array:
    return pa.Array.from_buffers(kind, taken.count, [None, pa.py_buffer(buffer)])


def _bytes_array(kind: pa.DataType, column: BytesColumn | None) -> pa.Array:
    assert column is not None, "the builder was asked for it"
    buffers = [_buffer(column.validity), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.count, buffers, null_count=column.null_count)


def _headers_array(column: HeaderColumn | None) -> pa.Array:
    assert column is not None, "the builder was asked for it"
    keys, values = _bytes_array(pa.string(), column.keys), _bytes_array(pa.binary(), column.values)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS.value_type))
    buffers = [_buffer(column.validity), pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(_HEADERS, column.count, buffers, null_count=column.null_count, children=[pairs])


def _buffer(buffer: Any) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)


def record_batches(decoder: ArrowDecoder, steps: Iterator[None]) -> Iterator[pa.RecordBatch]:
    """Run the steps, and yield the records that they add to the decoder as record batches."""
    for _ in steps:
        if decoder.is_full:
            yield decoder.take()
    if decoder.count:
        yield decoder.take()
