"""InitializeShareGroupState to ReadShareGroupStateSummary (API keys 83 to 87), sent by brokers.

A share-partition is a partition as consumed by one share group. Its state epoch increases when the group's offsets are
reset, its leader epoch with each new leader of the partition. A start offset of -1 means unknown.
"""

from typing import ClassVar, NamedTuple

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import INT8, INT16, INT32, INT64, STRING, UUID, Field, Struct, array, flat
from warmlog.protocol.kafka.messages.common import OPTIONAL_FAILURE, refused_each
from warmlog.protocol.request import Value

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
UNKNOWN_COUNT = -1


class StateBatch(NamedTuple):
    """A range of offsets with the same state, inclusive.

    `state`: 0 available, 2 acknowledged, 4 archived; 1, acquired, is never stored. `deliveries`: attempts so far.
    """

    first_offset: int
    last_offset: int
    state: int
    deliveries: int


class SharePartitionToInitialize(Value, frozen=True, kw_only=True, gc=False):
    """A share-partition and its start offset. Topic ids are 16 bytes, here and below."""

    topic_id: bytes
    partition: int
    state_epoch: int
    start_offset: int


class InitializeShareGroupStateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set the initial state of share-partitions of a group, or replace their state under a higher epoch."""

    api: ClassVar[str] = "initialize_share_group_state"
    group: str
    partitions: tuple[SharePartitionToInitialize, ...] = ()


class SharePartitionInEpoch(Value, frozen=True, kw_only=True, gc=False):
    """A share-partition, with the leader epoch known to the sender."""

    topic_id: bytes
    partition: int
    leader_epoch: int


class ReadShareGroupStateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Read the state of share-partitions. A higher leader epoch fences later writes of earlier leaders."""

    api: ClassVar[str] = "read_share_group_state"
    group: str
    partitions: tuple[SharePartitionInEpoch, ...] = ()


class SharePartitionToWrite(Value, frozen=True, kw_only=True, gc=False):
    """Changed batches of a share-partition.

    `delivery_complete_count`: offsets from the start offset on that are acknowledged or archived, -1 if unknown.
    """

    topic_id: bytes
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int = UNKNOWN_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()


class WriteShareGroupStateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change the state of share-partitions."""

    api: ClassVar[str] = "write_share_group_state"
    group: str
    partitions: tuple[SharePartitionToWrite, ...] = ()


class NamedSharePartition(Value, frozen=True, kw_only=True, gc=False):
    """A share-partition."""

    topic_id: bytes
    partition: int


class DeleteShareGroupStateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete the state of share-partitions."""

    api: ClassVar[str] = "delete_share_group_state"
    group: str
    partitions: tuple[NamedSharePartition, ...] = ()


class ReadShareGroupStateSummaryRequest(Value, frozen=True, kw_only=True, gc=False):
    """Read the state of share-partitions without its batches, and without fencing."""

    api: ClassVar[str] = "read_share_group_state_summary"
    group: str
    partitions: tuple[SharePartitionInEpoch, ...] = ()


class SharePartitionResult(Value, frozen=True, kw_only=True, gc=False):
    """Whether the state of a share-partition was initialized, written or deleted."""

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class SharePartitionState(Value, frozen=True, kw_only=True, gc=False):
    """The state of a share-partition, or why it was not read."""

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state_epoch: int = 0
    start_offset: int = 0
    batches: tuple[StateBatch, ...] = ()


class SharePartitionSummary(Value, frozen=True, kw_only=True, gc=False):
    """The state of a share-partition without its batches, or why it was not read."""

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = UNKNOWN_COUNT


class InitializeShareGroupStateResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per share-partition."""

    partitions: tuple[SharePartitionResult, ...] = ()


class ReadShareGroupStateResponse(Value, frozen=True, kw_only=True, gc=False):
    """One state per share-partition."""

    partitions: tuple[SharePartitionState, ...] = ()


class WriteShareGroupStateResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per share-partition."""

    partitions: tuple[SharePartitionResult, ...] = ()


class DeleteShareGroupStateResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per share-partition."""

    partitions: tuple[SharePartitionResult, ...] = ()


class ReadShareGroupStateSummaryResponse(Value, frozen=True, kw_only=True, gc=False):
    """One summary per share-partition."""

    partitions: tuple[SharePartitionSummary, ...] = ()


_GROUP = Field("group_id", STRING, attr="group")
_TOPIC = Field("topic_id", UUID)
_PARTITION = Field("partition", INT32)
_STATE_EPOCH = Field("state_epoch", INT32)
_LEADER_EPOCH = Field("leader_epoch", INT32)
_START_OFFSET = Field("start_offset", INT64)
_COMPLETE_COUNT = Field("delivery_complete_count", INT32, since=1, default=UNKNOWN_COUNT)
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


def _partitions(name: str, kind: type, *fields: Field) -> Field:
    """Return the field with the topics of a message; `fields` follow the index of each partition."""
    topics = flat(_TOPIC, Field("partitions", array(_PARTITION, *fields)), into=kind)
    return Field(name, topics, attr="partitions")


_RESULTS = _partitions("results", SharePartitionResult, *OPTIONAL_FAILURE)

INITIALIZE_REQUEST = Struct(
    _GROUP,
    _partitions("topics", SharePartitionToInitialize, _STATE_EPOCH, _START_OFFSET),
    into=InitializeShareGroupStateRequest,
)
INITIALIZE_RESPONSE = Struct(_RESULTS, into=InitializeShareGroupStateResponse)
READ_REQUEST = Struct(
    _GROUP, _partitions("topics", SharePartitionInEpoch, _LEADER_EPOCH), into=ReadShareGroupStateRequest
)
READ_RESPONSE = Struct(
    _partitions("results", SharePartitionState, *OPTIONAL_FAILURE, _STATE_EPOCH, _START_OFFSET, _BATCHES),
    into=ReadShareGroupStateResponse,
)
WRITE_REQUEST = Struct(
    _GROUP,
    _partitions("topics", SharePartitionToWrite, _STATE_EPOCH, _LEADER_EPOCH, _START_OFFSET, _COMPLETE_COUNT, _BATCHES),
    into=WriteShareGroupStateRequest,
)
WRITE_RESPONSE = Struct(_RESULTS, into=WriteShareGroupStateResponse)
DELETE_REQUEST = Struct(_GROUP, _partitions("topics", NamedSharePartition), into=DeleteShareGroupStateRequest)
DELETE_RESPONSE = Struct(_RESULTS, into=DeleteShareGroupStateResponse)
SUMMARY_REQUEST = Struct(
    _GROUP, _partitions("topics", SharePartitionInEpoch, _LEADER_EPOCH), into=ReadShareGroupStateSummaryRequest
)
SUMMARY_RESPONSE = Struct(
    _partitions(
        "results",
        SharePartitionSummary,
        *OPTIONAL_FAILURE,
        _STATE_EPOCH,
        _LEADER_EPOCH,
        _START_OFFSET,
        _COMPLETE_COUNT,
    ),
    into=ReadShareGroupStateSummaryResponse,
)

_EACH = ("topic_id", "partition")
failed_initialize = refused_each(InitializeShareGroupStateResponse, "partitions", SharePartitionResult, *_EACH)
failed_read = refused_each(ReadShareGroupStateResponse, "partitions", SharePartitionState, *_EACH)
failed_write = refused_each(WriteShareGroupStateResponse, "partitions", SharePartitionResult, *_EACH)
failed_delete = refused_each(DeleteShareGroupStateResponse, "partitions", SharePartitionResult, *_EACH)
failed_summary = refused_each(ReadShareGroupStateSummaryResponse, "partitions", SharePartitionSummary, *_EACH)
