"""Convert keys and values between a program's own types and bytes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from msgspec import Struct

from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.client.producing.producer import GivenHeaders, Message, Timestamp

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Serializer(Generic[T]):
    """Two functions, from a type to bytes and back. Their exceptions propagate to the caller."""

    dump: Callable[[T], bytes]
    load: Callable[[bytes], T]


class TypedRecord(Struct, Generic[K, V], frozen=True):
    """A record as read, with the program's types. `value` is None for a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Packed(TypedDict):
    """Keyword arguments of `produce`."""

    value: bytes | None
    key: bytes | None


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


BYTES: Serializer[bytes] = Serializer(bytes, bytes)
TEXT: Serializer[str] = Serializer(str.encode, bytes.decode)
JSON: Serializer[Any] = Serializer(_dump_json, json.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[K, V]):
    """The types of a topic's keys and values: `orders = Format(key=TEXT, value=JSON)`.

    It creates messages and reads records, for all ways to produce and consume.
    """

    key: Serializer[K]
    value: Serializer[V]

    def message(
        self,
        value: V | None,
        key: K | None = None,
        headers: GivenHeaders = (),
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> Message:
        """Return a message for `produce_many`. Exceptions of the serializers propagate."""
        packed = self.pack(value, key)
        return Message(packed["value"], packed["key"], headers, timestamp, partition)

    def pack(self, value: V | None, key: K | None = None) -> Packed:
        """Return arguments for `produce` and `produce_nowait`: `client.produce("orders", **orders.pack(value))`."""
        return Packed(
            value=None if value is None else self.value.dump(value), key=None if key is None else self.key.dump(key)
        )

    def read(self, record: ConsumedRecord) -> TypedRecord[K, V]:
        """Return a record with its key and value deserialized. Exceptions of the serializers propagate."""
        return TypedRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            None if record.key is None else self.key.load(record.key),
            None if record.value is None else self.value.load(record.value),
            record.headers,
        )
