"""A record as a line of JSON, both ways: what `consume --json` prints and `produce --json` reads.

Owns: the form. Must not know: where lines come from or go to.

| field | what it is |
|---|---|
| `topic`, `partition`, `offset` | where the record stands; reading ignores `topic` and `offset` |
| `timestamp` | milliseconds since the epoch |
| `key`, `value` | text, or null where there is none |
| `key_base64`, `value_base64` | in place of `key` or `value` whose bytes are not UTF-8: the bytes in base64 |
| `headers` | a list of `{"key": text, "value": text}` in the record's order, again with `value_base64` or null |

1. Nothing is lost: reading what was printed gives the same key, value, headers and timestamp, byte for byte.
2. Reading is kinder than printing: a key or value that is neither text nor null is stored as its JSON text, headers may
   be one object, and every field may be left out. A field of another name is refused, so that a misspelt `value` does
   not become a record without one.
"""

from binascii import b2a_base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from protocol.request import Int32, Int64

if TYPE_CHECKING:
    from protocol.records.record import Record  # names only: printing needs nothing of codec or client
    from warmlog.client import ConsumedRecord

Headers = tuple[tuple[str, bytes | None], ...]
NULL = Raw(b"null")
ENCODER = msgspec.json.Encoder()


class RecordInput(NamedTuple):
    """A record to be stored; `partition` and `timestamp` (ms) are None where the line does not say."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class HeaderForm(Struct, forbid_unknown_fields=True):
    """One header as it stands in the list."""

    key: str
    value: Raw = NULL
    value_base64: bytes | UnsetType = UNSET  # msgspec reads base64 by itself where bytes are asked for


class RecordForm(Struct, forbid_unknown_fields=True):
    """A line of `produce --json`."""

    topic: str | None = None
    partition: Int32 | None = None
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    key: Raw = NULL
    key_base64: bytes | UnsetType = UNSET
    value: Raw = NULL
    value_base64: bytes | UnsetType = UNSET
    headers: list[HeaderForm] | dict[str, Raw] | None = None


DECODER = msgspec.json.Decoder(RecordForm)


def record_lines(records: Iterable["ConsumedRecord"]) -> bytes:
    """The records as lines of JSON, each ended by a newline."""
    return ENCODER.encode_lines(
        [{"topic": record.topic, "partition": record.partition, **record_form(record)} for record in records]
    )


def record_form(record: "Record | ConsumedRecord") -> dict[str, Any]:
    """One record as the object that is printed, but for its place."""
    form: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(form, "key", record.key)
    put_bytes(form, "value", record.value)
    form["headers"] = [put_bytes({"key": key}, "value", value) for key, value in record.headers]
    return form


def put_bytes(form: dict[str, Any], name: str, data: bytes | None) -> dict[str, Any]:
    """Add `name` as text, or `name`_base64 where the bytes are no text; gives the form."""
    try:
        form[name] = None if data is None else str(data, "utf-8")
    except UnicodeDecodeError:
        form[f"{name}_base64"] = b2a_base64(data or b"", newline=False).decode("ascii")
    return form


def parse_record(line: bytes) -> RecordInput:
    """The record that a line of JSON describes. Raises ValueError, its text one clause for people."""
    try:
        form = DECODER.decode(line)
        return RecordInput(
            key=take_bytes("key", form.key, form.key_base64),
            value=take_bytes("value", form.value, form.value_base64),
            headers=take_headers(form.headers),
            partition=form.partition,
            timestamp=form.timestamp,
        )
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def take_headers(form: list[HeaderForm] | dict[str, Raw] | None) -> Headers:
    """The headers of a line, in their order."""
    if isinstance(form, dict):
        return tuple((key, take_bytes("value", raw, UNSET)) for key, raw in form.items())
    return tuple((header.key, take_bytes("value", header.value, header.value_base64)) for header in form or ())


def take_bytes(name: str, raw: Raw, base64: bytes | UnsetType) -> bytes | None:
    """The bytes of a field: text as UTF-8, any other JSON as it is written."""
    if base64 is not UNSET:
        if raw is not NULL:
            raise ValueError(f"both `{name}` and `{name}_base64`")
        return base64
    text = bytes(raw)
    if text == b"null":
        return None
    return msgspec.json.decode(text, type=str).encode() if text.startswith(b'"') else text
