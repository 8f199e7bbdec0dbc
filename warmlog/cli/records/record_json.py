"""A record as a line of JSON: printed by `consume --json`, read by `produce --json`.

| field | content |
|---|---|
| `topic`, `partition`, `offset` | where the record is stored; `topic` and `offset` are ignored when read |
| `timestamp` | milliseconds since the epoch |
| `key`, `value` | text or null |
| `key_base64`, `value_base64` | instead of `key` or `value` if the bytes are not UTF-8 |
| `headers` | list of `{"key": text, "value": text}` in the record's order, also with `value_base64` or null |

1. The round trip is lossless: reading a printed line gives the same key, value, headers and timestamp.
2. Input may have other forms as well: a key or value that is neither text nor null is stored as its JSON text, headers
may be one object, and every field is optional. Unknown fields are rejected, so that a misspelled `value` does not
create a record without a value.
"""

from binascii import b2a_base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from warmlog.protocol.request import Int32, Int64

if TYPE_CHECKING:
    from warmlog.client import ConsumedRecord
    from warmlog.protocol.records.record import Record  # imported only for types

Headers = tuple[tuple[str, bytes | None], ...]
NULL = Raw(b"null")
ENCODER = msgspec.json.Encoder()


class RecordInput(NamedTuple):
    """A record to store; `partition` and `timestamp` (ms) are None if not given."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class JsonHeader(Struct, forbid_unknown_fields=True):
    """One header of the list."""

    key: str
    value: Raw = NULL
    value_base64: bytes | UnsetType = UNSET  # msgspec decodes base64 for bytes


class JsonRecord(Struct, forbid_unknown_fields=True):
    """A line of `produce --json`."""

    topic: str | None = None
    partition: Int32 | None = None
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    key: Raw = NULL
    key_base64: bytes | UnsetType = UNSET
    value: Raw = NULL
    value_base64: bytes | UnsetType = UNSET
    headers: list[JsonHeader] | dict[str, Raw] | None = None


DECODER = msgspec.json.Decoder(JsonRecord)


def record_lines(records: Iterable["ConsumedRecord"]) -> bytes:
    """Encode records as lines of JSON, each terminated by a newline."""
    return ENCODER.encode_lines(
        [{"topic": record.topic, "partition": record.partition, **record_fields(record)} for record in records]
    )


def record_fields(record: "Record | ConsumedRecord") -> dict[str, Any]:
    """Return the fields of a record as printed, without topic and partition."""
    fields: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(fields, "key", record.key)
    put_bytes(fields, "value", record.value)
    fields["headers"] = [put_bytes({"key": key}, "value", value) for key, value in record.headers]
    return fields


def put_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> dict[str, Any]:
    """Add `name` as text, or `name`_base64 if the bytes are not UTF-8; return the object."""
    try:
        fields[name] = None if data is None else str(data, "utf-8")
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = b2a_base64(data or b"", newline=False).decode("ascii")
    return fields


def parse_record(line: bytes) -> RecordInput:
    """Parse a line of JSON. Raises ValueError with a message for the user."""
    try:
        fields = DECODER.decode(line)
        return RecordInput(
            key=take_bytes("key", fields.key, fields.key_base64),
            value=take_bytes("value", fields.value, fields.value_base64),
            headers=take_headers(fields.headers),
            partition=fields.partition,
            timestamp=fields.timestamp,
        )
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def take_headers(fields: list[JsonHeader] | dict[str, Raw] | None) -> Headers:
    """Return the headers of a line, in order."""
    if isinstance(fields, dict):
        return tuple((key, take_bytes("value", raw, UNSET)) for key, raw in fields.items())
    return tuple((header.key, take_bytes("value", header.value, header.value_base64)) for header in fields or ())


def take_bytes(name: str, raw: Raw, base64: bytes | UnsetType) -> bytes | None:
    """Return the bytes of a field: text as UTF-8, any other value as its JSON text."""
    if base64 is not UNSET:
        if raw is not NULL:
            raise ValueError(f"both `{name}` and `{name}_base64` are given; keep one of them")
        return base64
    text = bytes(raw)
    if text == b"null":
        return None
    return msgspec.json.decode(text, type=str).encode() if text.startswith(b'"') else text
