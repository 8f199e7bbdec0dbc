"""Check the columns of a frame to write, and convert its rows to lists.

The schema is that of Spark's Kafka sink, with headers, partition and timestamp.

1. A missing, misspelt or wrongly typed column is reported before the first task begins. Other columns are ignored, as
   in Spark's sink: a frame read from a topic has offsets, and a query adds its own columns.
2. An invalid value is reported, with its column, before any row of the same Arrow batch is sent.

Source: org.apache.spark.sql.kafka010.KafkaWriter.validateQuery.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from warmlog.pipeline.errors import PipelineError
from warmlog.protocol.records.layout import NO_TIMESTAMP

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_BYTES = r"binary|string|varchar\(\d+\)|char\(\d+\)"
# The types of each column: a pattern for Spark's name, and the description for errors.
COLUMN_TYPES: dict[str, tuple[str, str]] = {
    "key": (_BYTES, "binary or string"),
    "value": (_BYTES, "binary or string"),
    "headers": (r"array<struct<key:string,value:binary>>", "array<struct<key:string,value:binary>>"),
    "topic": (r"string|varchar\(\d+\)|char\(\d+\)", "string"),
    "partition": (r"int", "int"),
    "timestamp": (r"timestamp", "timestamp"),
}
MICROSECONDS = 1000  # microseconds in a millisecond
ROWS_AT_A_TIME = 10_000  # rows converted together, as many as in Spark's Arrow batches
# Upper bounds in bytes: of a record without its key, value and headers, and of a header without its key and value.
RECORD_OVERHEAD = 40
HEADER_OVERHEAD = 10
SIMILAR = 0.8  # a column whose name is this similar to an absent one (keys, Header) counts as misspelt
READ_ONLY = frozenset({"offset", "timestamptype"})  # columns of a frame read from a topic, which cannot be written


class Rows(NamedTuple):
    """Rows as lists of the same length; None for a column that the frame does not have. `times`: ms.

    `largest`: upper bound for the size of each record in a batch, in bytes, uncompressed.
    """

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    topics: list[str | None] | None
    partitions: list[int | None] | None
    times: list[int | None] | None
    largest: int


def check_columns(columns: Sequence[tuple[str, str]], *, topic: str | None) -> None:
    """Check names and types (as Spark writes them) of a frame's columns. Raises PipelineError.

    `topic`: the option; without it the frame must have a column topic.
    """
    names = [name.lower() for name, _ in columns]
    absent = COLUMN_TYPES.keys() - set(names)
    for (name, kind), plain in zip(columns, names, strict=True):
        if plain not in COLUMN_TYPES:
            if plain not in READ_ONLY and (meant := get_close_matches(plain, absent, n=1, cutoff=SIMILAR)):
                raise PipelineError(f"column {name} cannot be written; did you mean {meant[0]}?")
            continue
        if names.count(plain) > 1:
            raise PipelineError(f"the frame has column {name} twice")
        pattern, readable = COLUMN_TYPES[plain]
        if not re.fullmatch(pattern, kind):
            raise PipelineError(f"column {name} is {kind}: it must be {readable}")
    if "value" not in names:
        raise PipelineError(f"column value is missing; the frame has {', '.join(names) or 'no columns'}")
    if topic is None and "topic" not in names:
        raise PipelineError("no topic: give option topic or a column topic")


def rows_of(batch: pa.RecordBatch, *, with_headers: bool = True) -> Rows:
    """Convert an Arrow batch whose columns were checked. Raises PipelineError."""
    columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
    if not with_headers:
        columns.pop("headers", None)

    def read(name: str, make: Callable[[pa.Array], list[Any]]) -> list[Any] | None:
        return make(columns[name]) if name in columns else None

    headers = read("headers", _headers)
    largest = RECORD_OVERHEAD + _longest(columns["value"])
    largest += _longest(columns["key"]) if "key" in columns else 0
    largest += max(map(_header_size, headers), default=0) if headers else 0
    return Rows(
        values=_bytes(columns["value"]),
        keys=read("key", _bytes),
        headers=headers,
        topics=read("topic", pa.Array.to_pylist),
        partitions=read("partition", pa.Array.to_pylist),
        times=read("timestamp", _milliseconds),
        largest=largest,
    )


def _longest(column: pa.Array) -> int:
    return int(pc.max(pc.binary_length(column)).as_py() or 0)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _milliseconds(column: pa.Array) -> list[int | None]:
    microseconds = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    _check_time(pc.min(microseconds).as_py())
    return [None if each is None else each // MICROSECONDS for each in microseconds.to_pylist()]


def _check_time(microseconds: int | None) -> None:
    """Raise PipelineError if a record cannot have this time."""
    if microseconds is not None and microseconds // MICROSECONDS < NO_TIMESTAMP:
        seconds = microseconds // MICROSECONDS
        raise PipelineError(f"column timestamp: {seconds} ms is before 1970, the earliest time of a record")


def _headers(column: pa.Array) -> list[Headers]:
    keys, values = column.values.flatten()
    pairs = list(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    ends = column.offsets.to_pylist()
    there = column.is_valid().to_pylist()
    rows = [tuple(pairs[ends[at] : ends[at + 1]]) if there[at] else () for at in range(len(column))]
    if keys.null_count and any(key is None for headers in rows for key, _ in headers):
        raise _no_header_key()
    return rows


def _no_header_key() -> PipelineError:
    return PipelineError("column headers: the key of a header is null")


def _header_size(headers: Headers) -> int:
    return sum(len(key) * 4 + len(value or b"") + HEADER_OVERHEAD for key, value in headers)


def row_size_bound(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound for the size of a record in a batch, in bytes, uncompressed."""
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + _header_size(headers)


# -- for versions of Spark that pass rows -----------------------------------------------------------------------------


def rows_of_spark(rows: Iterable[Any], names: Sequence[str], *, with_headers: bool = True) -> Iterator[Rows]:
    """Convert Spark's rows, `ROWS_AT_A_TIME` at a time. `names`: names of their columns. Raises PipelineError."""
    columns = {name.lower(): at for at, name in enumerate(names)}
    if not with_headers:
        columns.pop("headers", None)
    given = iter(rows)
    while some := list(islice(given, ROWS_AT_A_TIME)):
        yield _rows_of_some(some, columns)


def _rows_of_some(some: list[Any], columns: dict[str, int]) -> Rows:
    def read(name: str, make: Callable[[Any], Any]) -> list[Any] | None:
        at = columns.get(name)
        return None if at is None else [make(row[at]) for row in some]

    values = read("value", _plain_bytes)
    assert values is not None, "the columns were checked"
    keys, headers = read("key", _plain_bytes), read("headers", _plain_headers)
    sizes = map(row_size_bound, keys or [None] * len(some), values, headers or [()] * len(some))
    return Rows(
        values=values,
        keys=keys,
        headers=headers,
        topics=read("topic", lambda topic: topic),
        partitions=read("partition", lambda partition: partition),
        times=read("timestamp", _plain_milliseconds),
        largest=max(sizes),
    )


def _plain_bytes(given: bytes | bytearray | str | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else None if given is None else bytes(given)


def _plain_headers(given: Iterable[Any] | None) -> Headers:
    headers = tuple((key, _plain_bytes(value)) for key, value in given or ())
    if any(key is None for key, _ in headers):
        raise _no_header_key()
    return headers


def _plain_milliseconds(given: datetime | None) -> int | None:
    """Convert a time passed by Spark to milliseconds; a time without a zone is local time."""
    if given is None:
        return None
    microseconds = round(given.timestamp() * 1_000_000)
    _check_time(microseconds)
    return microseconds // MICROSECONDS
