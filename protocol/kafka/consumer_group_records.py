"""Records of consumer groups (KIP-848) in `__consumer_offsets`: keys of the types 3 to 8 and 16 (`record_kinds.py`).

Source: Kafka's ConsumerGroup*Key.json and ConsumerGroup*Value.json, GroupCoordinatorRecordHelpers (4.4).
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from warmlog.protocol.groups import GroupProtocol
from warmlog.protocol.kafka.codec.schema import BYTES, INT8, INT32, INT64, STRING, UUID, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.groups.consumer import TopicPartitions
from warmlog.protocol.kafka.record_kinds import Kind, RecordKinds, encode_record_value
from warmlog.protocol.request import Value


class EpochKey(Value, frozen=True, gc=False):
    """Type 3: the group's epoch."""

    group: str


class PartitionMetadataKey(Value, frozen=True, gc=False):
    """Type 4: the topics to which a group is subscribed; written only by Kafka 4.0, deleted when the group changes."""

    group: str


class MemberKey(Value, frozen=True, gc=False):
    """Type 5: a member and its subscription."""

    group: str
    member_id: str


class TargetEpochKey(Value, frozen=True, gc=False):
    """Type 6: the group epoch for which the target assignment was computed."""

    group: str


class TargetKey(Value, frozen=True, gc=False):
    """Type 7: the target assignment of a member."""

    group: str
    member_id: str


class CurrentKey(Value, frozen=True, gc=False):
    """Type 8: the current assignment and epoch of a member."""

    group: str
    member_id: str


class RegexKey(Value, frozen=True, gc=False):
    """Type 16: a regular expression to which members subscribe."""

    group: str
    regex: str


ConsumerGroupKey: TypeAlias = (
    EpochKey | PartitionMetadataKey | MemberKey | TargetEpochKey | TargetKey | CurrentKey | RegexKey
)


class GroupEpoch(Value, frozen=True, kw_only=True, gc=False):
    """A group's epoch, and the hash of the topics to which it is subscribed (0: unknown, from Kafka 4.0)."""

    epoch: int
    metadata_hash: int = 0


class PartitionMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A record of Kafka 4.0 whose topics are skipped: `GroupEpoch.metadata_hash` replaced them."""


class ClassicMember(Value, frozen=True, kw_only=True, gc=False):
    """The session timeout of a classic member, and its protocols in order of preference."""

    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...] = ()


class MemberMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A member and its subscription. `classic`: None for a member of the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


class TargetEpoch(Value, frozen=True, kw_only=True, gc=False):
    """The group epoch of the target assignment, and when it was computed (0: unknown, written by Kafka up to 4.2)."""

    epoch: int
    timestamp_ms: int = 0


class TargetAssignment(Value, frozen=True, kw_only=True, gc=False):
    """The target assignment of a member."""

    partitions: tuple[TopicPartitions, ...] = ()


class HeldPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic that a member has; `topic_id` is 16 bytes.

    `epochs`: for each partition the epoch in which the member got it, which fences commits of an earlier owner. If it
    is None (Kafka up to 4.2) or differs in length from `partitions`, the member's epoch applies to all.
    """

    topic_id: bytes
    partitions: tuple[int, ...] = ()
    epochs: tuple[int, ...] | None = None


class CurrentAssignment(Value, frozen=True, kw_only=True, gc=False):
    """A member's assignment, epoch and state (Kafka's MemberState: 1 stable, 2 unrevoked, 3 unreleased partitions)."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: tuple[HeldPartitions, ...] = ()
    to_revoke: tuple[HeldPartitions, ...] = ()


class ResolvedRegex(Value, frozen=True, kw_only=True, gc=False):
    """The topics that a regular expression matched at a version of the topics' metadata, and the time of the match."""

    topics: tuple[str, ...] = ()
    version: int = 0
    timestamp_ms: int = 0


ConsumerGroupValue: TypeAlias = (
    GroupEpoch | PartitionMetadata | MemberMetadata | TargetEpoch | TargetAssignment | CurrentAssignment | ResolvedRegex
)


_GROUP_ID = Field("group_id", STRING, attr="group")
_MEMBER_ID = Field("member_id", STRING)
_HELD = array(
    Field("topic_id", UUID),
    Field("partitions", Array(INT32)),
    Field("assignment_epochs", Array(INT32), nullable=0, tag=0, default=None, attr="epochs"),
    into=HeldPartitions,
)
_EPOCH = Struct(Field("epoch", INT32), Field("metadata_hash", INT64, tag=0, default=0), into=GroupEpoch)
_PARTITION_METADATA = Struct(
    Field(
        "topics",
        array(
            Field("topic_id", UUID),
            Field("topic_name", STRING),
            Field("num_partitions", INT32),
            Field("partition_metadata", array(Field("partition", INT32), Field("racks", Array(STRING)))),
        ),
        default=(),
        attr=None,
    ),
    into=PartitionMetadata,
)
_MEMBER = Struct(
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING), attr="topics"),
    Field("subscribed_topic_regex", STRING, nullable=0, default=None, attr="regex"),
    Field("rebalance_timeout_ms", INT32, default=-1),
    Field("server_assignor", STRING, nullable=0, default=None, attr="assignor"),
    Field(
        "classic_member_metadata",
        Struct(
            Field("session_timeout_ms", INT32),
            Field(
                "supported_protocols",
                array(Field("name", STRING), Field("metadata", BYTES), into=GroupProtocol),
                attr="protocols",
            ),
            into=ClassicMember,
        ),
        nullable=0,
        tag=0,
        default=ClassicMember(session_timeout_ms=0),  # Kafka's value for a missing field
        attr="classic",
    ),
    into=MemberMetadata,
)
TARGET_EPOCH = Struct(
    Field("assignment_epoch", INT32, attr="epoch"),
    Field("assignment_timestamp", INT64, tag=0, default=0, attr="timestamp_ms"),
    into=TargetEpoch,
)
TARGET = Struct(
    Field(
        "topic_partitions",
        array(Field("topic_id", UUID), Field("partitions", Array(INT32)), into=TopicPartitions),
        attr="partitions",
    ),
    into=TargetAssignment,
)
_CURRENT = Struct(
    Field("member_epoch", INT32, attr="epoch"),
    Field("previous_member_epoch", INT32, attr="previous_epoch"),
    Field("state", INT8),
    Field("assigned_partitions", _HELD, attr="assigned"),
    Field("partitions_pending_revocation", _HELD, attr="to_revoke"),
    into=CurrentAssignment,
)
_REGEX = Struct(
    Field("topics", Array(STRING)),
    Field("version", INT64),
    Field("timestamp", INT64, attr="timestamp_ms"),
    into=ResolvedRegex,
)


_VALUE_TABLES: Mapping[type[ConsumerGroupValue], Struct] = {
    GroupEpoch: _EPOCH,
    PartitionMetadata: _PARTITION_METADATA,
    MemberMetadata: _MEMBER,
    TargetEpoch: TARGET_EPOCH,
    TargetAssignment: TARGET,
    CurrentAssignment: _CURRENT,
    ResolvedRegex: _REGEX,
}
_RECORDS: RecordKinds[ConsumerGroupKey] = RecordKinds(
    {
        EpochKey: Kind(3, Struct(_GROUP_ID, into=EpochKey), _EPOCH),
        PartitionMetadataKey: Kind(4, Struct(_GROUP_ID, into=PartitionMetadataKey), _PARTITION_METADATA),
        MemberKey: Kind(5, Struct(_GROUP_ID, _MEMBER_ID, into=MemberKey), _MEMBER),
        TargetEpochKey: Kind(6, Struct(_GROUP_ID, into=TargetEpochKey), TARGET_EPOCH),
        TargetKey: Kind(7, Struct(_GROUP_ID, _MEMBER_ID, into=TargetKey), TARGET),
        CurrentKey: Kind(8, Struct(_GROUP_ID, _MEMBER_ID, into=CurrentKey), _CURRENT),
        RegexKey: Kind(16, Struct(_GROUP_ID, Field("regular_expression", STRING, attr="regex"), into=RegexKey), _REGEX),
    }
)
KEY_TYPES = _RECORDS.key_types


def encode_key(key: ConsumerGroupKey) -> bytes:
    """Encode the key of a record. Raises MalformedError for text that is longer than 32,767 bytes."""
    return _RECORDS.encode_key(key)


def encode_value(value: ConsumerGroupValue) -> bytes:
    """Encode the value of a record. Raises MalformedError for a field that is too long or out of range."""
    return encode_record_value(_VALUE_TABLES[type(value)], value)


def decode_consumer_key(kind: int, data: bytes) -> ConsumerGroupKey:
    """Decode a key of a type in KEY_TYPES; `data` begins with the type. Raises MalformedError."""
    return _RECORDS.decode_key(kind, data)


def decode_consumer_value(key: ConsumerGroupKey, data: bytes) -> ConsumerGroupValue:
    """Decode the value of a record with this key. Raises MalformedError."""
    value: ConsumerGroupValue = _RECORDS.decode_value(key, data)
    return value


def decode_consumer_fields(key: ConsumerGroupKey, data: bytes) -> dict[str, Any]:
    """Decode the value of a record with this key into a dict by Kafka's field names. Raises MalformedError."""
    return _RECORDS.decode_fields(key, data)
