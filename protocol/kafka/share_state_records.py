"""Records of `__share_group_state` in Kafka's format: the delivery state of share-partitions.

    key     int16 type (0: snapshot, 1: update), group, topic id, int32 partition; never flexible
    value   int16 version, always 0, and its fields, flexible; a tombstone of a snapshot deletes the state

A snapshot has the complete state of a share-partition, an update the changes since the previous record. So loading
needs all records from the last snapshot of a share-partition on, in order.

Source: Kafka's ShareSnapshotKey.json, ShareSnapshotValue.json, ShareUpdateKey.json, ShareUpdateValue.json (4.4),
ShareCoordinatorRecordHelpers.
"""

import struct
from functools import cache
from typing import NamedTuple, TypeAlias

from warmlog.protocol.kafka.codec.bounds import MalformedError, UnwritableError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.pure import MessageReader, MessageWriter
from warmlog.protocol.kafka.codec.schema import INT8, INT16, INT32, INT64, STRING, UUID, Field, Struct, array
from warmlog.protocol.kafka.messages.share.state import UNKNOWN_COUNT, StateBatch
from warmlog.protocol.request import Value

_VERSION = struct.Struct(">h")
_VALUE_VERSION = 0
_PREFIX = _VERSION.pack(_VALUE_VERSION)
_UNREADABLE = (MalformedError, UnicodeDecodeError, struct.error)
_SNAPSHOT, _UPDATE = 0, 1


class SharePartitionKey(NamedTuple):
    """A partition as consumed by a share group; `topic_id` is 16 bytes."""

    group: str
    topic_id: bytes
    partition: int


class ShareSnapshot(Value, frozen=True, kw_only=True, gc=False):
    """The complete state of a share-partition. Timestamps are in ms since the epoch.

    `delivery_complete_count`: offsets from the start offset on that are acknowledged or archived, -1 if unknown.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNKNOWN_COUNT
    created_ms: int = 0
    written_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class ShareUpdate(Value, frozen=True, kw_only=True, gc=False):
    """Batches that have changed, and the start offset unless it is -1. The epoch is that of the last snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()


ShareRecord: TypeAlias = ShareSnapshot | ShareUpdate

_KEY = Struct(
    Field("group_id", STRING, attr="group"),
    Field("topic_id", UUID),
    Field("partition", INT32),
    into=SharePartitionKey,
)
_COMPLETE_COUNT = Field("delivery_complete_count", INT32, tag=0, default=UNKNOWN_COUNT)
_BATCHES = Field(
    "state_batches",
    array(
        Field("first_offset", INT64),
        Field("last_offset", INT64),
        Field("delivery_state", INT8, attr="state"),
        Field("delivery_count", INT16, attr="deliveries"),
        into=StateBatch,
    ),
    attr="batches",
)
_SNAPSHOT_VALUE = Struct(
    Field("snapshot_epoch", INT32),
    Field("state_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    _COMPLETE_COUNT,
    Field("create_timestamp", INT64, attr="created_ms"),
    Field("write_timestamp", INT64, attr="written_ms"),
    _BATCHES,
    into=ShareSnapshot,
)
_UPDATE_VALUE = Struct(
    Field("snapshot_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    _COMPLETE_COUNT,
    _BATCHES,
    into=ShareUpdate,
)
_VALUES = {_SNAPSHOT: _SNAPSHOT_VALUE, _UPDATE: _UPDATE_VALUE}


def encode_record(key: SharePartitionKey, record: ShareRecord | None) -> tuple[bytes, bytes | None]:
    """Encode the key and the value of a record; the value None is the tombstone that deletes a state.

    Raises MalformedError for a field that is too long or out of range.
    """
    kind = _UPDATE if isinstance(record, ShareUpdate) else _SNAPSHOT
    try:
        name = _writer(_KEY, flexible=False).write(key, _VERSION.pack(kind))
        value = None if record is None else _writer(_VALUES[kind], flexible=True).write(record, _PREFIX)
    except UnwritableError as error:
        raise MalformedError(f"cannot encode a record of share group state: {error}") from None
    return name, value


def decode_record(key: bytes, value: bytes | None) -> tuple[SharePartitionKey, ShareRecord | None] | None:
    """Decode a record; return None for an unknown type. Raises MalformedError."""
    try:
        (kind,) = _VERSION.unpack_from(key)
        table = _VALUES.get(kind)
        if table is None:
            return None
        name: SharePartitionKey = _reader(_KEY, flexible=False).read(memoryview(key), _VERSION.size)[0]
        if value is None:
            return name, None
        (version,) = _VERSION.unpack_from(value)
        if version != _VALUE_VERSION:
            raise MalformedError(f"version {version}, expected {_VALUE_VERSION}")
        # No further limit on elements: any stored value must be readable.
        record: ShareRecord = _reader(table, flexible=True).read(memoryview(value), _VERSION.size, elements=len(value))[
            0
        ]
    except _UNREADABLE as error:
        raise MalformedError(f"invalid record of share group state: {error}") from None
    return name, record


@cache
def _reader(table: Struct, *, flexible: bool) -> MessageReader:
    return ENGINE.reader(table, _VALUE_VERSION, flexible=flexible, bound=True)


@cache
def _writer(table: Struct, *, flexible: bool) -> MessageWriter:
    return ENGINE.writer(table, _VALUE_VERSION, flexible=flexible, bound=True)
