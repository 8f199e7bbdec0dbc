"""Debezium's envelopes: a change of a row in a database as a record's value.

    {"before": {…} or null, "after": {…} or null, "op": "u", "source": {…}, "ts_ms": 1700000000000}

`after` is the row of the record's key, unless `op` says that it was deleted:

    c, u, r    created, updated, read by a snapshot: the row is `after`
    d          deleted
    t, m       truncated table, message: not a change of one row, so such a record does not fit

A schema of Avro or Protobuf, and one of JSON in a registry, is of the whole envelope. A JSON Schema in a file is of the
rows: envelopes may be wrapped by Kafka Connect as `{"schema": …, "payload": {"op": …}}` or not.

Source: Debezium 3, "Data change events".
"""

from typing import Any, Protocol

import msgspec

from warmlog.pipeline.lakehouse.schemas.types import BadValueError, SchemaError

UPSERTS = frozenset({"c", "u", "r"})
DELETE = "d"
NAMES = {"t": "the source's table was truncated, which deletes no row here", "m": "a message, not a change of a row"}


class _Deleted:
    """The type of DELETED."""


DELETED = _Deleted()  # decoded from an envelope that deletes the row of its key


class Inner(Protocol):
    """Reads envelopes or rows."""

    @property
    def type(self) -> Any:
        """The Arrow type in the table."""

    @property
    def raw_type(self) -> Any:
        """The Arrow type of the objects that `decode` returns."""

    def decode(self, data: bytes) -> Any:
        """Return an object. Raises BadValueError."""


class EnvelopeReader:
    """Reads the rows of envelopes. `inner`: reads envelopes. The constructor raises SchemaError."""

    def __init__(self, inner: Inner) -> None:
        import pyarrow as pa

        self._inner = inner
        names = [field.name for field in inner.type] if pa.types.is_struct(inner.type) else []
        if "op" not in names or "after" not in names or not pa.types.is_struct(inner.type.field("after").type):
            raise SchemaError("not the schema of Debezium's envelopes: it has no field op, or no record after")
        self.type = inner.type.field("after").type
        self.raw_type = inner.raw_type.field("after").type

    def decode(self, data: bytes) -> Any:
        """Return the row, or DELETED. Raises BadValueError."""
        envelope = self._inner.decode(data)
        return _row(envelope.get("op"), envelope.get("after"))


class _Envelope(msgspec.Struct):
    op: str | None = None
    after: msgspec.Raw = msgspec.Raw(b"null")


class _Wrapped(_Envelope):
    payload: _Envelope | None = None


class JsonEnvelopeReader:
    """Reads the rows of envelopes in JSON. `rows`: reads rows."""

    def __init__(self, rows: Inner) -> None:
        self._rows = rows
        self.type = rows.type
        self.raw_type = rows.raw_type
        self._decoder = msgspec.json.Decoder(_Wrapped)

    def decode(self, data: bytes) -> Any:
        """Return the row, or DELETED. Raises BadValueError."""
        try:
            outer = self._decoder.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadValueError(f"not an envelope in JSON: {error}") from error
        envelope = outer if outer.payload is None else outer.payload
        after = bytes(envelope.after)
        row = _row(envelope.op, None if after == b"null" else after)
        return row if row is DELETED else self._rows.decode(row)


def _row(op: Any, after: Any) -> Any:
    if op == DELETE:
        return DELETED
    if op not in UPSERTS:
        raise BadValueError(f"op {op}: {NAMES[op]}" if op in NAMES else f"not an envelope of Debezium: op is {op!r}")
    if after is None:
        raise BadValueError(f"op {op}: it has no row after the change")
    return after
