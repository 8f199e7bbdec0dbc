"""Records of streams groups (KIP-1071) in `__consumer_offsets`: keys of the types 17 to 23 (`record_kinds.py`).

Source: Kafka's StreamsGroup*Key.json and StreamsGroup*Value.json, StreamsCoordinatorRecordHelpers (4.4).
"""

from typing import Any, TypeAlias

from warmlog.protocol.kafka.codec.schema import INT8, INT32, INT64, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.consumer_group_records import TARGET_EPOCH, TargetEpoch
from warmlog.protocol.kafka.messages.groups.streams import (
    CLIENT_TAGS,
    ENDPOINT,
    TASK_IDS,
    TOPOLOGY,
    Endpoint,
    KeyValue,
    TaskIds,
    Topology,
)
from warmlog.protocol.kafka.record_kinds import Kind, RecordKinds
from warmlog.protocol.request import Value

_NONE = -1


class StreamsEpochKey(Value, frozen=True, gc=False):
    """Type 17: the group's epoch."""

    group: str


class StreamsMemberKey(Value, frozen=True, gc=False):
    """Type 19: a member and its declarations."""

    group: str
    member_id: str


class StreamsTargetEpochKey(Value, frozen=True, gc=False):
    """Type 20: the group epoch for which the target assignment was computed."""

    group: str


class StreamsTargetKey(Value, frozen=True, gc=False):
    """Type 21: the target tasks of a member."""

    group: str
    member_id: str


class StreamsCurrentKey(Value, frozen=True, gc=False):
    """Type 22: the current tasks and epoch of a member."""

    group: str
    member_id: str


class TopologyKey(Value, frozen=True, gc=False):
    """Type 23: the group's topology."""

    group: str


StreamsGroupKey: TypeAlias = (
    StreamsEpochKey | StreamsMemberKey | StreamsTargetEpochKey | StreamsTargetKey | StreamsCurrentKey | TopologyKey
)


class StreamsGroupEpoch(Value, frozen=True, kw_only=True, gc=False):
    """A group's epoch.

    metadata_hash: hash of the topology's topics.
    validated_topology_epoch: epoch of the last topology whose topics existed with valid partition counts, or -1.
    assignment_configs: the settings of the last assignment; None if written by Kafka 4.1 or 4.2.
    stored_description_epoch, failed_description_epoch: epochs of the topologies whose description was stored or
    refused.
    """

    epoch: int
    metadata_hash: int = 0
    validated_topology_epoch: int = _NONE
    assignment_configs: tuple[KeyValue, ...] | None = None
    stored_description_epoch: int = _NONE
    failed_description_epoch: int = _NONE


class StreamsMemberMetadata(Value, frozen=True, kw_only=True, gc=False):
    """A member and its declarations."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] = ()


class StreamsTarget(Value, frozen=True, kw_only=True, gc=False):
    """The target tasks of a member."""

    active: tuple[TaskIds, ...] = ()
    standby: tuple[TaskIds, ...] = ()
    warmup: tuple[TaskIds, ...] = ()


class HeldTasks(Value, frozen=True, kw_only=True, gc=False):
    """Tasks of a subtopology that a member has.

    `epochs`: for active tasks, the epoch in which the member got each partition. If it is None (Kafka 4.1, standby and
    warm-up tasks), the member's epoch applies to all.
    """

    subtopology_id: str
    partitions: tuple[int, ...] = ()
    epochs: tuple[int, ...] | None = None


class StreamsCurrentAssignment(Value, frozen=True, kw_only=True, gc=False):
    """A member's tasks, epoch and state (Kafka's MemberState: 1 stable, 2 unrevoked tasks, 3 unreleased tasks)."""

    epoch: int
    previous_epoch: int
    state: int
    active: tuple[HeldTasks, ...] = ()
    standby: tuple[HeldTasks, ...] = ()
    warmup: tuple[HeldTasks, ...] = ()
    active_to_revoke: tuple[HeldTasks, ...] = ()
    standby_to_revoke: tuple[HeldTasks, ...] = ()
    warmup_to_revoke: tuple[HeldTasks, ...] = ()


StreamsGroupValue: TypeAlias = (
    StreamsGroupEpoch | StreamsMemberMetadata | TargetEpoch | StreamsTarget | StreamsCurrentAssignment | Topology
)

_GROUP_ID = Field("group_id", STRING, attr="group")
_MEMBER_ID = Field("member_id", STRING)
_EPOCH = Struct(
    Field("epoch", INT32),
    Field("metadata_hash", INT64),
    Field("validated_topology_epoch", INT32, tag=0, default=_NONE),
    Field(
        "last_assignment_configs",
        array(Field("key", STRING), Field("value", STRING), into=KeyValue),
        nullable=0,
        tag=1,
        default=None,
        attr="assignment_configs",
    ),
    Field("stored_description_topology_epoch", INT32, tag=2, default=_NONE, attr="stored_description_epoch"),
    Field("failed_description_topology_epoch", INT32, tag=3, default=_NONE, attr="failed_description_epoch"),
    into=StreamsGroupEpoch,
)
_MEMBER = Struct(
    Field("instance_id", STRING, nullable=0),
    Field("rack_id", STRING, nullable=0),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("rebalance_timeout_ms", INT32, default=-1),
    Field("topology_epoch", INT32),
    Field("process_id", STRING),
    Field("user_endpoint", ENDPOINT, nullable=0, default=None),
    CLIENT_TAGS,
    into=StreamsMemberMetadata,
)
_TARGET = Struct(
    Field("active_tasks", TASK_IDS, attr="active"),
    Field("standby_tasks", TASK_IDS, attr="standby"),
    Field("warmup_tasks", TASK_IDS, attr="warmup"),
    into=StreamsTarget,
)
_HELD = array(
    Field("subtopology_id", STRING),
    Field("partitions", Array(INT32)),
    Field("assignment_epochs", Array(INT32), nullable=0, tag=0, default=None, attr="epochs"),
    into=HeldTasks,
)
_CURRENT = Struct(
    Field("member_epoch", INT32, attr="epoch"),
    Field("previous_member_epoch", INT32, attr="previous_epoch"),
    Field("state", INT8),
    Field("active_tasks", _HELD, attr="active"),
    Field("standby_tasks", _HELD, attr="standby"),
    Field("warmup_tasks", _HELD, attr="warmup"),
    Field("active_tasks_pending_revocation", _HELD, attr="active_to_revoke"),
    Field("standby_tasks_pending_revocation", _HELD, attr="standby_to_revoke"),
    Field("warmup_tasks_pending_revocation", _HELD, attr="warmup_to_revoke"),
    into=StreamsCurrentAssignment,
)
_RECORDS: RecordKinds[StreamsGroupKey] = RecordKinds(
    {
        StreamsEpochKey: Kind(17, Struct(_GROUP_ID, into=StreamsEpochKey), _EPOCH),
        StreamsMemberKey: Kind(19, Struct(_GROUP_ID, _MEMBER_ID, into=StreamsMemberKey), _MEMBER),
        StreamsTargetEpochKey: Kind(20, Struct(_GROUP_ID, into=StreamsTargetEpochKey), TARGET_EPOCH),
        StreamsTargetKey: Kind(21, Struct(_GROUP_ID, _MEMBER_ID, into=StreamsTargetKey), _TARGET),
        StreamsCurrentKey: Kind(22, Struct(_GROUP_ID, _MEMBER_ID, into=StreamsCurrentKey), _CURRENT),
        TopologyKey: Kind(23, Struct(_GROUP_ID, into=TopologyKey), TOPOLOGY),
    }
)
STREAMS_KEY_TYPES = _RECORDS.key_types


def encode_streams_key(key: StreamsGroupKey) -> bytes:
    """Encode the key of a record. Raises MalformedError for text that is longer than 32,767 bytes."""
    return _RECORDS.encode_key(key)


def encode_streams_value(key: StreamsGroupKey, value: StreamsGroupValue) -> bytes:
    """Encode the value of a record. Raises MalformedError for a field that is too long or out of range."""
    return _RECORDS.encode_value(key, value)


def decode_streams_key(kind: int, data: bytes) -> StreamsGroupKey:
    """Decode a key of a type in STREAMS_KEY_TYPES; `data` begins with the type. Raises MalformedError."""
    return _RECORDS.decode_key(kind, data)


def decode_streams_value(key: StreamsGroupKey, data: bytes) -> StreamsGroupValue:
    """Decode the value of a record with this key. Raises MalformedError."""
    value: StreamsGroupValue = _RECORDS.decode_value(key, data)
    return value


def decode_streams_fields(key: StreamsGroupKey, data: bytes) -> dict[str, Any]:
    """Decode the value of a record with this key into a dict by Kafka's field names. Raises MalformedError."""
    return _RECORDS.decode_fields(key, data)
