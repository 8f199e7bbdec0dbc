"""Records of share groups (KIP-932) in `__consumer_offsets`: keys of the types 10 to 15 (`record_kinds.py`).

Source: Kafka's ShareGroup*Key.json and ShareGroup*Value.json, GroupCoordinatorRecordHelpers (4.4).
"""

from typing import Any, TypeAlias

from warmlog.protocol.kafka.codec.schema import INT8, INT32, INT64, STRING, UUID, Array, Field, Struct, array
from warmlog.protocol.kafka.consumer_group_records import (
    TARGET,
    TARGET_EPOCH,
    GroupEpoch,
    TargetAssignment,
    TargetEpoch,
)
from warmlog.protocol.kafka.messages.groups.consumer import NamedPartitions, TopicPartitions
from warmlog.protocol.kafka.record_kinds import Kind, RecordKinds
from warmlog.protocol.request import Value


class ShareMemberKey(Value, frozen=True, gc=False):
    """Type 10: a member and its subscription."""

    group: str
    member_id: str


class ShareEpochKey(Value, frozen=True, gc=False):
    """Type 11: the group's epoch."""

    group: str


class ShareTargetEpochKey(Value, frozen=True, gc=False):
    """Type 12: the group epoch for which the target assignment was computed."""

    group: str


class ShareTargetKey(Value, frozen=True, gc=False):
    """Type 13: the target assignment of a member."""

    group: str
    member_id: str


class ShareCurrentKey(Value, frozen=True, gc=False):
    """Type 14: the current assignment and epoch of a member."""

    group: str
    member_id: str


class SharePartitionsKey(Value, frozen=True, gc=False):
    """Type 15: the partitions for which the share coordinator stores state."""

    group: str


ShareGroupKey: TypeAlias = (
    ShareMemberKey | ShareEpochKey | ShareTargetEpochKey | ShareTargetKey | ShareCurrentKey | SharePartitionsKey
)


class ShareMemberMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A member and its subscription."""

    rack_id: str | None = None
    client_id: str
    client_host: str
    topics: tuple[str, ...] = ()


class ShareCurrentAssignment(Value, frozen=True, kw_only=True, gc=False):
    """A member's assignment, epoch and state (Kafka's MemberState: always 1, stable)."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: tuple[TopicPartitions, ...] = ()


class NamedTopic(Value, frozen=True, kw_only=True, gc=False):
    """A topic; `topic_id` is 16 bytes."""

    topic_id: bytes
    topic: str


class SharePartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions whose state is being initialized, partitions with state, and topics whose state is being deleted."""

    initializing: tuple[NamedPartitions, ...] = ()
    initialized: tuple[NamedPartitions, ...] = ()
    deleting: tuple[NamedTopic, ...] = ()


ShareGroupValue: TypeAlias = (
    ShareMemberMetadata | GroupEpoch | TargetEpoch | TargetAssignment | ShareCurrentAssignment | SharePartitions
)

_GROUP_ID = Field("group_id", STRING, attr="group")
_MEMBER_ID = Field("member_id", STRING)
_TOPIC_ID = Field("topic_id", UUID)
_TOPIC = Field("topic_name", STRING, attr="topic")
_NAMED = array(_TOPIC_ID, _TOPIC, Field("partitions", Array(INT32)), into=NamedPartitions)
_MEMBER = Struct(
    Field("rack_id", STRING, nullable=0),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING), attr="topics"),
    into=ShareMemberMetadata,
)
_CURRENT = Struct(
    Field("member_epoch", INT32, attr="epoch"),
    Field("previous_member_epoch", INT32, attr="previous_epoch"),
    Field("state", INT8),
    Field(
        "assigned_partitions",
        array(_TOPIC_ID, Field("partitions", Array(INT32)), into=TopicPartitions),
        attr="assigned",
    ),
    into=ShareCurrentAssignment,
)
_PARTITIONS = Struct(
    Field("initializing_topics", _NAMED, attr="initializing"),
    Field("initialized_topics", _NAMED, attr="initialized"),
    Field("deleting_topics", array(_TOPIC_ID, _TOPIC, into=NamedTopic), attr="deleting"),
    into=SharePartitions,
)
_EPOCH = Struct(Field("epoch", INT32), Field("metadata_hash", INT64), into=GroupEpoch)
_RECORDS: RecordKinds[ShareGroupKey] = RecordKinds(
    {
        ShareMemberKey: Kind(10, Struct(_GROUP_ID, _MEMBER_ID, into=ShareMemberKey), _MEMBER),
        ShareEpochKey: Kind(11, Struct(_GROUP_ID, into=ShareEpochKey), _EPOCH),
        ShareTargetEpochKey: Kind(12, Struct(_GROUP_ID, into=ShareTargetEpochKey), TARGET_EPOCH),
        ShareTargetKey: Kind(13, Struct(_GROUP_ID, _MEMBER_ID, into=ShareTargetKey), TARGET),
        ShareCurrentKey: Kind(14, Struct(_GROUP_ID, _MEMBER_ID, into=ShareCurrentKey), _CURRENT),
        SharePartitionsKey: Kind(15, Struct(_GROUP_ID, into=SharePartitionsKey), _PARTITIONS),
    }
)
SHARE_KEY_TYPES = _RECORDS.key_types


def encode_share_key(key: ShareGroupKey) -> bytes:
    """Encode the key of a record. Raises MalformedError for text that is longer than 32,767 bytes."""
    return _RECORDS.encode_key(key)


def encode_share_value(key: ShareGroupKey, value: ShareGroupValue) -> bytes:
    """Encode the value of a record. Raises MalformedError for a field that is too long or out of range."""
    return _RECORDS.encode_value(key, value)


def decode_share_key(kind: int, data: bytes) -> ShareGroupKey:
    """Decode a key of a type in SHARE_KEY_TYPES; `data` begins with the type. Raises MalformedError."""
    return _RECORDS.decode_key(kind, data)


def decode_share_value(key: ShareGroupKey, data: bytes) -> ShareGroupValue:
    """Decode the value of a record with this key. Raises MalformedError."""
    value: ShareGroupValue = _RECORDS.decode_value(key, data)
    return value


def decode_share_fields(key: ShareGroupKey, data: bytes) -> dict[str, Any]:
    """Decode the value of a record with this key into a dict by Kafka's field names. Raises MalformedError."""
    return _RECORDS.decode_fields(key, data)
