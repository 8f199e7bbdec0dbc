"""Keys and values of the records in `__consumer_offsets`, in Kafka's format.

    key     int16 type
            0, 1         committed offset: string group, string topic, int32 partition
            2            classic group: string group
            3 to 8, 16   consumer group of KIP-848 (`consumer_group_records.py`)
            10 to 15     share group of KIP-932 (`share_group_records.py`)
            17 to 23     streams group of KIP-1071 (`streams_group_records.py`)
            others       not decoded, stored unchanged
    value   int16 version and the fields of that version; a tombstone deletes the offset or group
            offset   versions 0 to 4, flexible from 4; only version 1 has an expire timestamp
            group    versions 0 to 4, flexible from 4

The versions written are those of Kafka 4.3: 4 for offsets (1 with an expire timestamp), 3 for groups.

Source: Kafka's OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json, GroupMetadataValue.json,
GroupCoordinatorRecordHelpers.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, MalformedError, UnwritableError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.pure import MessageReader, MessageWriter
from warmlog.protocol.kafka.codec.schema import BYTES, INT32, INT64, STRING, UUID, Field, Struct, array
from warmlog.protocol.kafka.consumer_group_records import KEY_TYPES, ConsumerGroupKey, decode_consumer_key
from warmlog.protocol.kafka.consumer_protocol import SUBSCRIPTION
from warmlog.protocol.kafka.share_group_records import SHARE_KEY_TYPES, ShareGroupKey, decode_share_key
from warmlog.protocol.kafka.streams_group_records import STREAMS_KEY_TYPES, StreamsGroupKey, decode_streams_key
from warmlog.protocol.request import Value

NO_TIME = -1  # timestamp that is not set
NO_EPOCH = -1
MAX_TEXT_BYTES = (1 << 15) - 1  # limit of a non-compact string

_OFFSET_KINDS = range(2)
_GROUP_KIND = 2
_LAST_VERSION = 4
_FIRST_FLEXIBLE = 4
_OFFSET_VERSION = 4
_EXPIRING_OFFSET_VERSION = 1
_GROUP_VERSION = 3
_VERSION = struct.Struct(">h")
_PREFIXES = [_VERSION.pack(version) for version in range(_LAST_VERSION + 1)]  # encoded versions of keys and values
_UNREADABLE = (MalformedError, UnicodeDecodeError, struct.error)


class OffsetKey(NamedTuple):
    """Key of a group's committed offset for a partition."""

    group: str
    topic: str
    partition: int


class PartitionOfTopic(Protocol):
    """Anything that names a partition."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def partition(self) -> int:
        """Index of the partition."""


class GroupKey(NamedTuple):
    """Key of a group's generation and members."""

    group: str


class ForeignKey(NamedTuple):
    """A key of a newer group protocol, which is not decoded."""

    type: int


Key: TypeAlias = OffsetKey | GroupKey | ConsumerGroupKey | ShareGroupKey | StreamsGroupKey | ForeignKey


class OffsetAndMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A committed offset: the next record to consume. With `expire_ms` NO_TIME the broker's retention applies."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int
    expire_ms: int = NO_TIME
    topic_id: bytes = NO_TOPIC_ID


class StoredMember(Value, frozen=True, kw_only=True, gc=False):
    """A member of a stored generation; `subscription` is its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(Value, frozen=True, kw_only=True, gc=False):
    """A stored generation of a group. `protocol_type` is empty for a group that never had members.

    `state_since_ms` is the time at which it became stable or empty; NO_TIME in old records.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int = NO_TIME
    members: tuple[StoredMember, ...] = ()


_OFFSET_KEY = Struct(Field("group", STRING), Field("topic", STRING), Field("partition", INT32), into=OffsetKey)
# The same key written of a partition, in reply to the group.
_KEY_IN_GROUP = Struct(
    Field("group", STRING, per_reply=lambda group, _: group), Field("topic", STRING), Field("partition", INT32)
)
_GROUP_KEY = Struct(Field("group", STRING), into=GroupKey)
_OFFSET = Struct(
    Field("offset", INT64),
    Field("leader_epoch", INT32, since=3, default=NO_EPOCH),
    Field("metadata", STRING),
    Field("commit_timestamp", INT64, attr="commit_ms"),
    Field("expire_timestamp", INT64, since=1, until=1, default=NO_TIME, attr="expire_ms"),
    Field("topic_id", UUID, since=4, tag=0, default=NO_TOPIC_ID),
    into=OffsetAndMetadata,
)


def _member(*, rebalance_timeout_ms: int, session_timeout_ms: int, **others: Any) -> StoredMember:
    """Create a member; in version 0, the session timeout is also the rebalance timeout."""
    return StoredMember(
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms == NO_TIME else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        **others,
    )


_GROUP = Struct(
    Field("protocol_type", STRING),
    Field("generation", INT32),
    Field("protocol", STRING, nullable=0),
    Field("leader", STRING, nullable=0),
    Field("current_state_timestamp", INT64, since=2, default=NO_TIME, attr="state_since_ms"),
    Field(
        "members",
        array(
            Field("member_id", STRING),
            Field("group_instance_id", STRING, since=3, nullable=3, default=None, attr="instance_id"),
            Field("client_id", STRING),
            Field("client_host", STRING),
            Field("rebalance_timeout", INT32, since=1, default=NO_TIME, attr="rebalance_timeout_ms"),
            Field("session_timeout", INT32, attr="session_timeout_ms"),
            Field("subscription", BYTES),
            Field("assignment", BYTES),
            into=_member,
        ),
    ),
    into=StoredGroup,
)


def decode_key(data: bytes) -> Key:
    """Decode the key of a record. Raises MalformedError."""
    try:
        (kind,) = _VERSION.unpack_from(data)
        if kind in KEY_TYPES:
            return decode_consumer_key(kind, data)
        if kind in SHARE_KEY_TYPES:
            return decode_share_key(kind, data)
        if kind in STREAMS_KEY_TYPES:
            return decode_streams_key(kind, data)
        table = _OFFSET_KEY if kind in _OFFSET_KINDS else _GROUP_KEY if kind == _GROUP_KIND else None
        return ForeignKey(kind) if table is None else _read(table, kind, data)
    except _UNREADABLE as error:
        raise MalformedError(f"invalid key of a group record: {error}") from None


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed offset. Raises MalformedError for a name that is too long."""
    return _encode(_OFFSET_KEY, 1, OffsetKey(group, topic, partition))


def encode_group_key(group: str) -> bytes:
    """Encode the key of a group. Raises MalformedError for a name that is too long."""
    return _encode(_GROUP_KEY, _GROUP_KIND, GroupKey(group))


def decode_offset(data: bytes) -> OffsetAndMetadata:
    """Decode a committed offset of any version. Raises MalformedError."""
    offset: OffsetAndMetadata = _decode(_OFFSET, data)
    return offset


def encode_offset(committed: OffsetAndMetadata) -> bytes:
    """Encode a committed offset. Raises MalformedError for metadata that is too long."""
    return _encode(_OFFSET, _OFFSET_VERSION if committed.expire_ms == NO_TIME else _EXPIRING_OFFSET_VERSION, committed)


def encode_offsets(
    group: str, partitions: Sequence[PartitionOfTopic], offsets: Sequence[OffsetAndMetadata]
) -> list[tuple[bytes, bytes]]:
    """Encode the keys and values of offsets that a group commits: all with `expire_ms`, or all without.

    Equals `encode_offset_key` and `encode_offset` of each. Raises MalformedError for a name or metadata that is too
    long.
    """
    expires = bool(offsets) and offsets[0].expire_ms != NO_TIME
    version = _EXPIRING_OFFSET_VERSION if expires else _OFFSET_VERSION
    try:
        keys = _writer(_KEY_IN_GROUP, 1).write_each(partitions, _PREFIXES[1], group)
        values = _writer(_OFFSET, version).write_each(offsets, _PREFIXES[version])
    except UnwritableError as error:
        raise MalformedError(f"cannot encode a group record: {error}") from None
    return list(zip(keys, values, strict=True))


def decode_group(data: bytes) -> StoredGroup:
    """Decode a generation of a group, of any version. Raises MalformedError."""
    group: StoredGroup = _decode(_GROUP, data)
    return group


def encode_group(group: StoredGroup) -> bytes:
    """Encode a generation of a group. Raises MalformedError for text that is too long."""
    return _encode(_GROUP, _GROUP_VERSION, group)


def subscribed_topics(subscription: bytes) -> frozenset[str]:
    """Return the topics that a member of protocol type "consumer" subscribes to. Raises MalformedError.

    Reads the fields of version 0, with which all versions start.
    """
    try:
        _VERSION.unpack_from(subscription)
        reader = ENGINE.reader(SUBSCRIPTION, 0, flexible=False, bound=True)
        return frozenset(reader.read(memoryview(subscription), _VERSION.size)[0].topics)
    except _UNREADABLE as error:
        raise MalformedError(f"invalid subscription: {error}") from None


def _decode(table: Struct, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        if not 0 <= version <= _LAST_VERSION:
            raise MalformedError(f"version {version}, expected 0 to {_LAST_VERSION}")
        return _read(table, version, data)
    except _UNREADABLE as error:
        raise MalformedError(f"invalid value of a group record: {error}") from None


def _read(table: Struct, version: int, data: bytes) -> Any:
    return _reader(table, version).read(memoryview(data), _VERSION.size)[0]


def _encode(table: Struct, version: int, value: Any) -> bytes:
    try:
        return _writer(table, version).write(value, _PREFIXES[version])
    except UnwritableError as error:
        raise MalformedError(f"cannot encode a group record: {error}") from None


@cache
def _reader(table: Struct, version: int) -> MessageReader:
    return ENGINE.reader(table, version, flexible=version >= _FIRST_FLEXIBLE, bound=True)


@cache
def _writer(table: Struct, version: int) -> MessageWriter:
    return ENGINE.writer(table, version, flexible=version >= _FIRST_FLEXIBLE, bound=True)
