"""Records of groups in `__consumer_offsets`, in Kafka's format, described by tables of fields.

    key     int16 type and fields, never flexible
    value   int16 version, always 0, and its fields, flexible; a tombstone deletes the entity of the key

Fields that Kafka has added since 4.0 are tagged: optional when read, and written unless they have their default.

Source: Kafka's GroupCoordinatorRecordSerde, CoordinatorRecordSerde (4.4).
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from warmlog.protocol.kafka.codec.bounds import MalformedError, UnwritableError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.pure import MessageReader, MessageWriter
from warmlog.protocol.kafka.codec.schema import Struct

_VERSION = struct.Struct(">h")
_VALUE_VERSION = 0
_PREFIX = _VERSION.pack(_VALUE_VERSION)
_UNREADABLE = (MalformedError, UnicodeDecodeError, struct.error)

K = TypeVar("K")


class Kind(NamedTuple):
    """The type of a key, and the tables of key and value."""

    type: int
    key: Struct
    value: Struct


class RecordKinds(Generic[K]):
    """Encodes and decodes the records of one kind of group, selected by their key types."""

    def __init__(self, kinds: Mapping[type[K], Kind]) -> None:
        self._kinds = kinds
        self._key_tables = {kind.type: kind.key for kind in kinds.values()}
        self.key_types = frozenset(self._key_tables)

    def encode_key(self, key: K) -> bytes:
        """Encode the key of a record. Raises MalformedError for text that is longer than 32,767 bytes."""
        kind = self._kinds[type(key)]
        return _encode(kind.key, key, _VERSION.pack(kind.type), flexible=False)

    def encode_value(self, key: K, value: object) -> bytes:
        """Encode the value of a record. Raises MalformedError for a field that is too long or out of range."""
        return encode_record_value(self._kinds[type(key)].value, value)

    def decode_key(self, kind: int, data: bytes) -> K:
        """Decode a key of a type in `key_types`; `data` begins with the type. Raises MalformedError."""
        try:
            key: K = _reader(self._key_tables[kind], flexible=False).read(memoryview(data), _VERSION.size)[0]
        except _UNREADABLE as error:
            raise MalformedError(f"invalid key of a group record: {error}") from None
        return key

    def decode_value(self, key: K, data: bytes) -> Any:
        """Decode the value of a record with this key. Raises MalformedError."""
        return _decode(self._kinds[type(key)].value, data, bound=True)

    def decode_fields(self, key: K, data: bytes) -> dict[str, Any]:
        """Decode the value of a record with this key into a dict by Kafka's field names. Raises MalformedError."""
        fields: dict[str, Any] = _decode(self._kinds[type(key)].value, data, bound=False)
        return fields


def encode_record_value(table: Struct, value: object) -> bytes:
    """Encode a value by its table. Raises MalformedError for a field that is too long or out of range."""
    return _encode(table, value, _PREFIX, flexible=True)


def _decode(table: Struct, data: bytes, *, bound: bool) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version != _VALUE_VERSION:
            raise MalformedError(f"version {version}, expected {_VALUE_VERSION}")
        reader = _reader(table, flexible=True, bound=bound)
        # No further limit on elements: any stored value must be readable.
        return reader.read(memoryview(data), _VERSION.size, elements=len(data))[0]
    except _UNREADABLE as error:
        raise MalformedError(f"invalid value of a group record: {error}") from None


def _encode(table: Struct, value: object, prefix: bytes, *, flexible: bool) -> bytes:
    try:
        return _writer(table, flexible=flexible).write(value, prefix)
    except UnwritableError as error:
        raise MalformedError(f"cannot encode a group record: {error}") from None


@cache
def _reader(table: Struct, *, flexible: bool, bound: bool = True) -> MessageReader:
    return ENGINE.reader(table, _VALUE_VERSION, flexible=flexible, bound=bound)


@cache
def _writer(table: Struct, *, flexible: bool) -> MessageWriter:
    return ENGINE.writer(table, _VALUE_VERSION, flexible=flexible, bound=True)
