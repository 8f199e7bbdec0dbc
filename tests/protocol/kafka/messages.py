"""Kafka's messages for tests: the field tables of all supported messages, values for them, and frames."""

import base64
import random
from collections.abc import Callable
from struct import Struct as Layout
from typing import Any

from hypothesis import strategies as st

from warmlog.protocol.kafka import consumer_protocol
from warmlog.protocol.kafka.api import APIS, Api
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.schema import Array, Field, Primitive, Struct

TABLES = {f"{api.name}Request": api.request for api in APIS} | {f"{api.name}Response": api.response for api in APIS}
# The consumer protocol, which belongs to no API and has no flexible versions.
DATA_TABLES = {
    "ConsumerProtocolSubscription": consumer_protocol.SUBSCRIPTION,
    "ConsumerProtocolAssignment": consumer_protocol.ASSIGNMENT,
}
DATA_MESSAGES = [(name, version) for name in DATA_TABLES for version in range(consumer_protocol.LAST_VERSION + 1)]
VERSIONS = [(api, version) for api in APIS for version in range(api.first, api.last + 1)]
MESSAGES = [(f"{api.name}{kind}", api, version) for api, version in VERSIONS for kind in ("Request", "Response")]

_HEADER = Layout(">hhih")
# Required values of some fields, for requests to be accepted and responses to be possible.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "acks": (-1, 0, 1),
    "isolation_level": (0, 1),
    "session_id": (0,),
    "session_epoch": (0, -1),
    "protocol_type": ("consumer", "connect"),
    "protocol_name": ("range", "é"),
    "error_code": (0, 3, 6, 100),
    "client_software_name": ("apache-kafka-java", "x"),
    "client_software_version": ("4.3.1",),
    "aborted_transactions": (None, ()),
    "preferred_read_replica": (-1,),
    "record_errors": ((),),
}
_SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_FLOATS = (0.0, 1.5, -0.25, 1e300)


def flexible(api: Api, version: int) -> bool:
    return version >= api.first_flexible


def body(name: str, api: Api, version: int, values: dict[str, Any]) -> bytes:
    return ENGINE.writer(TABLES[name], version, flexible=flexible(api, version)).write(values)


def parsed(name: str, api: Api, version: int, data: bytes) -> dict[str, Any]:
    """Parse a body to a dict; all bytes must be consumed."""
    values, end = ENGINE.reader(TABLES[name], version, flexible=flexible(api, version)).read(memoryview(data))
    assert end == len(data)
    assert isinstance(values, dict)
    return values


def frame(
    api: Api, version: int, data: bytes, *, correlation_id: int = 7, client: bytes | None = b"test"
) -> memoryview:
    """Return a request frame without its length."""
    name = b"" if client is None else client
    header = _HEADER.pack(api.key, version, correlation_id, -1 if client is None else len(name)) + name
    return memoryview(header + (b"\x00" if flexible(api, version) else b"") + data)


def reply_body(api: Api, version: int, pieces: list[Any], *, correlation_id: int = 7) -> bytes:
    """Check the length and header of a response frame, and return its body."""
    data = b"".join(map(bytes, pieces))
    assert int.from_bytes(data[:4]) == len(data) - 4
    assert int.from_bytes(data[4:8]) == correlation_id
    if not flexible(api, version) or api.name == "ApiVersions":
        return data[8:]
    assert data[8] == 0
    return data[9:]


def values_of(table: Struct, version: int, pick: Callable[[Field, bool], Any]) -> dict[str, Any]:
    """Return a value for every field of a version; `pick` chooses primitive values and array lengths."""
    return {field.name: _value(field, version, pick) for field in table.fields if field.is_in(version)}


def _value(field: Field, version: int, pick: Callable[[Field, bool], Any]) -> Any:
    kind = field.kind
    chosen = pick(field, version >= field.nullable)
    if field.name in _CHOICES or chosen is None or isinstance(kind, Primitive):
        return chosen
    if isinstance(kind, Struct):
        return values_of(kind, version, pick)
    if isinstance(kind.of, Struct):
        return tuple([values_of(kind.of, version, pick) for _ in range(chosen)])
    element = Field(field.name, kind.of)
    return tuple([pick(element, False) for _ in range(chosen)])


def with_defaults(table: Struct, version: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as decoded, with the default for fields that the version does not have."""
    return {field.name: _with_default(field, version, values) for field in table.fields}


def _with_default(field: Field, version: int, values: dict[str, Any]) -> Any:
    if not field.is_in(version) or field.name not in values:
        return field.absent
    value = values[field.name]
    if isinstance(field.kind, Struct) and value is not None:
        return with_defaults(field.kind, version, value)
    if isinstance(field.kind, Array) and isinstance(field.kind.of, Struct) and value is not None:
        return tuple([with_defaults(field.kind.of, version, one) for one in value])
    return value


def drawn(table: Struct, version: int, data: st.DataObject) -> dict[str, Any]:
    """Draw values with Hypothesis."""
    return values_of(table, version, lambda field, nullable: data.draw(_strategy(field, nullable=nullable)))


def _strategy(field: Field, *, nullable: bool) -> st.SearchStrategy[Any]:
    if field.name in _CHOICES:
        return st.sampled_from(_CHOICES[field.name])
    strategies = {
        "boolean": st.booleans(),
        "string": st.text(max_size=6) | st.just("ä" * 200),
        "data": st.binary(max_size=6) | st.just(b"d" * 300) | st.just(b"e" * 20_000),
        "uuid": st.binary(min_size=16, max_size=16),
        "uint16": st.integers(0, 65_535),
        "float64": st.floats(allow_nan=False),
    }
    kind = field.kind
    if isinstance(kind, Primitive) and kind.layout in _SIZES:
        limit = 1 << (_SIZES[kind.layout] - 1)
        return st.integers(-limit, limit - 1)
    plain = strategies[kind.layout] if isinstance(kind, Primitive) else st.integers(0, 2)
    return st.none() | plain if nullable else plain


def sample(table: Struct, version: int, source: random.Random) -> dict[str, Any]:
    """Return pseudorandom values, the same in every run."""

    def pick(field: Field, nullable: bool) -> Any:
        kind = field.kind
        if field.name in _CHOICES:
            return source.choice(_CHOICES[field.name])
        if nullable and source.random() < 0.3:
            return None
        if isinstance(kind, Array):
            return source.choice((0, 1, 2, 2))
        return _primitive(kind, source) if isinstance(kind, Primitive) else {}

    return values_of(table, version, pick)


def _primitive(kind: Primitive, source: random.Random) -> Any:
    if kind.layout in _SIZES:
        bits = _SIZES[kind.layout]
        return source.getrandbits(source.randrange(bits)) - source.choice((0, 0, 1))
    if kind.layout == "string":
        return "".join(source.choices("abcé-._", k=source.choice((0, 3, 8, 8, 140))))
    choices = {
        "boolean": lambda: source.random() < 0.5,
        "uuid": lambda: source.randbytes(16),
        "uint16": lambda: source.getrandbits(16),
        "float64": lambda: source.choice(_FLOATS),
        "data": lambda: source.randbytes(source.choice((0, 70, 200))),
    }
    return choices[kind.layout]()


def to_kafka_json(table: Struct, values: dict[str, Any]) -> dict[str, Any]:
    """Convert values for Kafka's JSON converters: camel case names, UUIDs as URL-safe base64, bytes as base64."""
    by_name = {field.name: field for field in table.fields}
    return {_camel(name): _json(by_name[name].kind, value) for name, value in values.items()}


def from_kafka_json(table: Struct, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Convert from Kafka's JSON; the inverse of the function above."""
    return {
        field.name: _unjson(field.kind, version, fields[_camel(field.name)])
        for field in table.fields
        if _camel(field.name) in fields
    }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _json(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Struct):
        return to_kafka_json(kind, value)
    if isinstance(kind, Array):
        return [_json(kind.of, one) for one in value]
    if kind.layout == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return base64.b64encode(value).decode() if kind.layout == "data" else value


def _unjson(kind: Any, version: int, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Struct):
        return from_kafka_json(kind, version, value)
    if isinstance(kind, Array):
        return tuple([_unjson(kind.of, version, one) for one in value])
    if kind.layout == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    return base64.b64decode(value) if kind.layout == "data" else value
