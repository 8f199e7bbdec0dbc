"""What `__consumer_offsets` holds: keys and values of its records, as Kafka lays them out.

Owns: the layouts, and the values they decode to. Must not know: who commits, or in which partition a record lies.

    key     int16 type
            0, 1   an offset: string group, string topic, int32 partition
            2      a classic group: string group
            3...   the newer protocols' (KIP-848 and later): foreign here, kept as they are
    value   int16 version, then the fields of that version; no value at all: what the key names is gone
            of an offset   0 to 4, of which 4 is flexible; 1 alone has a time of expiry
            of a group     0 to 4, of which 4 is flexible

Written are the versions that Kafka 4.3 writes: an offset as 4 (1 where it expires at a time of its own), a group as 3.

Source: Kafka's OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json, GroupMetadataValue.json,
GroupCoordinatorRecordHelpers.
"""

from typing import Any, NamedTuple, TypeAlias

from protocol.kafka.codec.bounds import UnwritableError
from protocol.kafka.consumer_protocol import SUBSCRIPTION
from protocol.kafka.primitives import (
    NO_TOPIC_ID,
    UNREADABLE,
    FlexibleReader,
    FlexibleWriter,
    MalformedError,
    Reader,
    Writer,
)
from protocol.kafka.schema import DATA, INT32, INT64, STRING, UUID, Field, Struct, array
from protocol.request import Value

NO_TIME = -1  # of a time in ms: there is none
NO_EPOCH = -1
MAX_TEXT_BYTES = (1 << 15) - 1  # what a classic string can hold

_OFFSET_KEYS = range(2)
_GROUP_KEY = 2
_LAST_VERSION = 4
_FIRST_FLEXIBLE = 4
_OFFSET_VERSION = 4
_EXPIRING_OFFSET_VERSION = 1
_GROUP_VERSION = 3

_OFFSET_KEY = Struct(Field("group", STRING), Field("topic", STRING), Field("partition", INT32))
_GROUP_NAME = Struct(Field("group", STRING))
_OFFSET = Struct(
    Field("offset", INT64),
    Field("leader_epoch", INT32, since=3, default=NO_EPOCH),
    Field("metadata", STRING),
    Field("commit_timestamp", INT64),
    Field("expire_timestamp", INT64, since=1, until=1, default=NO_TIME),
    Field("topic_id", UUID, since=4, tag=0, default=NO_TOPIC_ID),
)
_GROUP = Struct(
    Field("protocol_type", STRING),
    Field("generation", INT32),
    Field("protocol", STRING, nullable=0),
    Field("leader", STRING, nullable=0),
    Field("current_state_timestamp", INT64, since=2, default=NO_TIME),
    Field(
        "members",
        array(
            Field("member_id", STRING),
            Field("group_instance_id", STRING, since=3, nullable=3, default=None),
            Field("client_id", STRING),
            Field("client_host", STRING),
            Field("rebalance_timeout", INT32, since=1, default=-1),
            Field("session_timeout", INT32),
            Field("subscription", DATA),
            Field("assignment", DATA),
        ),
    ),
)


class OffsetKey(NamedTuple):
    """Names what a group has committed for a partition."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Names a group's members and generation."""

    group: str


class ForeignKey(NamedTuple):
    """A key that is not ours to understand: of a newer group protocol."""

    type: int


Key: TypeAlias = OffsetKey | GroupKey | ForeignKey


class OffsetAndMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A committed offset: the next record to consume. Times in ms; `expire_ms` NO_TIME: by the broker's retention."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int
    expire_ms: int = NO_TIME
    topic_id: bytes = NO_TOPIC_ID


class StoredMember(Value, frozen=True, kw_only=True, gc=False):
    """A member of a stored generation. `subscription`: its metadata for the protocol that was chosen."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(Value, frozen=True, kw_only=True, gc=False):
    """A generation of a group. `protocol_type` is empty for a group that never had members.

    `state_since_ms`: since when it is stable, or empty; NO_TIME in old records.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int = NO_TIME
    members: tuple[StoredMember, ...] = ()


def decode_key(data: bytes) -> Key:
    """What a record is about. Raises MalformedError."""
    reader = Reader(memoryview(data))
    try:
        kind = reader.int16()
        if kind in _OFFSET_KEYS:
            values = _OFFSET_KEY.read(reader, kind)
            return OffsetKey(values["group"], values["topic"], values["partition"])
        return GroupKey(reader.string()) if kind == _GROUP_KEY else ForeignKey(kind)
    except UNREADABLE as error:
        raise MalformedError(f"a key of no group record: {error}") from None


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset. Raises MalformedError for a name that is too long."""
    return _encode(_OFFSET_KEY, 1, {"group": group, "topic": topic, "partition": partition})


def encode_group_key(group: str) -> bytes:
    """The key of a group. Raises MalformedError for a name that is too long."""
    return _encode(_GROUP_NAME, _GROUP_KEY, {"group": group})


def decode_offset(data: bytes) -> OffsetAndMetadata:
    """A committed offset, of any version. Raises MalformedError."""
    values = _decode(_OFFSET, data)
    return OffsetAndMetadata(
        offset=values["offset"],
        leader_epoch=values["leader_epoch"],
        metadata=values["metadata"],
        commit_ms=values["commit_timestamp"],
        expire_ms=values["expire_timestamp"],
        topic_id=values["topic_id"],
    )


def encode_offset(committed: OffsetAndMetadata) -> bytes:
    """The value of a committed offset. Raises MalformedError for metadata that is too long."""
    values = {
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commit_timestamp": committed.commit_ms,
        "expire_timestamp": committed.expire_ms,
        "topic_id": committed.topic_id,
    }
    return _encode(_OFFSET, _OFFSET_VERSION if committed.expire_ms == NO_TIME else _EXPIRING_OFFSET_VERSION, values)


def decode_group(data: bytes) -> StoredGroup:
    """A generation of a group, of any version. Raises MalformedError."""
    values = _decode(_GROUP, data)
    return StoredGroup(
        protocol_type=values["protocol_type"],
        generation=values["generation"],
        protocol=values["protocol"],
        leader=values["leader"],
        state_since_ms=values["current_state_timestamp"],
        members=tuple(map(_member, values["members"])),
    )


def encode_group(group: StoredGroup) -> bytes:
    """The value of a group. Raises MalformedError for a text that is too long."""
    values = {
        "protocol_type": group.protocol_type,
        "generation": group.generation,
        "protocol": group.protocol,
        "leader": group.leader,
        "current_state_timestamp": group.state_since_ms,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rebalance_timeout": member.rebalance_timeout_ms,
                "session_timeout": member.session_timeout_ms,
                "subscription": member.subscription,
                "assignment": member.assignment,
            }
            for member in group.members
        ],
    }
    return _encode(_GROUP, _GROUP_VERSION, values)


def subscribed_topics(subscription: bytes) -> frozenset[str]:
    """The topics that a member with protocol type "consumer" subscribes to, from its metadata. Raises MalformedError.

    All versions begin as version 0 does, so that is what is read: what a newer client appends does not matter.
    """
    reader = Reader(memoryview(subscription))
    try:
        reader.int16()
        return frozenset(SUBSCRIPTION.read(reader, 0)["topics"])
    except UNREADABLE as error:
        raise MalformedError(f"a subscription that cannot be read: {error}") from None


def _member(values: dict[str, Any]) -> StoredMember:
    """The oldest records know one time-out for both."""
    rebalance_timeout_ms = values["rebalance_timeout"]
    return StoredMember(
        member_id=values["member_id"],
        instance_id=values["group_instance_id"],
        client_id=values["client_id"],
        client_host=values["client_host"],
        rebalance_timeout_ms=values["session_timeout"] if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms=values["session_timeout"],
        subscription=bytes(values["subscription"]),
        assignment=bytes(values["assignment"]),
    )


def _decode(layout: Struct, data: bytes) -> dict[str, Any]:
    try:
        version = Reader(memoryview(data)).int16()
        if not 0 <= version <= _LAST_VERSION:
            raise MalformedError(f"version {version}")
        kind = FlexibleReader if version >= _FIRST_FLEXIBLE else Reader
        return layout.read(kind(memoryview(data), 2), version)
    except UNREADABLE as error:
        raise MalformedError(f"a value of no group record: {error}") from None


def _encode(layout: Struct, version: int, values: dict[str, Any]) -> bytes:
    kind = FlexibleWriter if version >= _FIRST_FLEXIBLE else Writer
    writer = kind(version.to_bytes(2, "big"))
    try:
        layout.write(writer, version, values)
    except UnwritableError as error:
        raise MalformedError(f"a group record cannot hold this: {error}") from None
    return writer.written()
