"""ShareFetch, ShareAcknowledge (1 and 2).

Requests and responses name topics only by id, so values have the id and no name.
"""

from collections.abc import Sized
from dataclasses import replace
from typing import Any, ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Array,
    Field,
    Only,
    Struct,
    array,
    error_of,
    flat,
    not_negative,
)
from warmlog.protocol.kafka.messages.common import (
    OPTIONAL_FAILURE,
    OPTIONAL_MESSAGE,
    THROTTLE_TIME,
    KafkaBrokerMetadata,
    rack_of,
    refused,
)
from warmlog.protocol.request import Value

_NO_RECORDS = memoryview(b"")
#: How a fetch applies its record limit (KIP-1206): whole batches may exceed it, or it is never exceeded.
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
#: A member's verdict on a record. GAP: no record has that offset. RENEW: restart its lock (KIP-1222).
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class AcknowledgedRange(Value, frozen=True, kw_only=True, gc=False):
    """A range of acknowledged offsets, inclusive; `types` has one entry for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...] = ()


class AcknowledgedPartition(Value, frozen=True, kw_only=True, gc=False):
    """A partition with acknowledgements; `topic_id` is 16 bytes."""

    topic_id: bytes
    partition: int
    acknowledgements: tuple[AcknowledgedRange, ...] = ()


class ForgottenSharePartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions to remove from a share session."""

    topic_id: bytes
    partitions: tuple[int, ...] = ()


class ShareFetchRequest(Value, frozen=True, kw_only=True, gc=False):
    """Acquire records in a share session, and acknowledge records acquired before.

    `epoch`: 0 opens a session, -1 closes it. `partitions`: partitions to add to the session, or with acknowledgements.
    """

    api: ClassVar[str] = "share_fetch"
    may_wait: ClassVar[bool] = True
    group: str = ""
    member_id: str = ""
    epoch: int
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = (1 << 31) - 1
    max_records: int = 0
    batch_size: int = 0
    acquire_mode: int = BATCH_OPTIMIZED
    is_renewal: bool = False
    partitions: tuple[AcknowledgedPartition, ...] = ()
    forgotten: tuple[ForgottenSharePartitions, ...] = ()


class AcquiredRange(Value, frozen=True, kw_only=True, gc=False):
    """A range of offsets (inclusive) that the member now holds, and their delivery count."""

    first_offset: int
    last_offset: int
    deliveries: int


class SharedPartition(Value, frozen=True, kw_only=True, gc=False):
    """Records of a partition (the member holds only those in `acquired`), and the result of acknowledgements.

    `leader_id` and `leader_epoch` are those of the current leader if this broker is not the leader, otherwise -1.
    """

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    acknowledge_error: ErrorCode = ErrorCode.NONE
    acknowledge_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    records: Sized = _NO_RECORDS
    acquired: tuple[AcquiredRange, ...] = ()


class ShareFetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """Acquired records; partitions of the session without any are missing. `error` concerns the session."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[SharedPartition, ...] = ()
    nodes: tuple[KafkaBrokerMetadata, ...] = ()


class ShareAcknowledgeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Acknowledge records acquired in a share session; epoch -1 closes it."""

    api: ClassVar[str] = "share_acknowledge"
    group: str = ""
    member_id: str = ""
    epoch: int
    is_renewal: bool = False
    partitions: tuple[AcknowledgedPartition, ...] = ()


class AcknowledgeResult(Value, frozen=True, kw_only=True, gc=False):
    """The result of the acknowledgements of a partition; see `SharedPartition`."""

    topic_id: bytes
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class ShareAcknowledgeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per partition. `error` concerns the session."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[AcknowledgeResult, ...] = ()
    nodes: tuple[KafkaBrokerMetadata, ...] = ()


_KNOWN_MODE = Only((BATCH_OPTIMIZED, RECORD_LIMIT), ErrorCode.INVALID_REQUEST, "unknown share acquire mode {}")

_SESSION = (
    Field("group_id", STRING, nullable=0, default=None, attr="group", null=""),
    Field("member_id", STRING, nullable=0, null=""),
    Field("share_session_epoch", INT32, attr="epoch"),
)
_RENEWAL = Field("is_renew_ack", BOOLEAN, since=2, default=False, attr="is_renewal")
_ACKNOWLEDGEMENTS = Field(
    "acknowledgement_batches",
    array(
        Field("first_offset", INT64),
        Field("last_offset", INT64),
        Field("acknowledge_types", Array(INT8), attr="types"),
        into=AcknowledgedRange,
    ),
    attr="acknowledgements",
)
_TOPICS = Field(
    "topics",
    flat(
        Field("topic_id", UUID),
        Field("partitions", array(Field("partition_index", INT32, attr="partition"), _ACKNOWLEDGEMENTS)),
        into=AcknowledgedPartition,
    ),
    attr="partitions",
)


def _leader(partition: SharedPartition | AcknowledgeResult, *_: Any) -> Any:
    return partition


_CURRENT_LEADER = Field(
    "current_leader",
    Struct(Field("leader_id", INT32), Field("leader_epoch", INT32)),
    attr="leader",
    get=_leader,
)
_NODES = Field(
    "node_endpoints",
    array(
        Field("node_id", INT32),
        Field("host", STRING),
        Field("port", INT32),
        Field("rack", STRING, nullable=0, default=None, get=rack_of),
        into=KafkaBrokerMetadata,
    ),
    attr="nodes",
)
_LOCK_TIMEOUT = Field("acquisition_lock_timeout_ms", INT32, attr="lock_timeout_ms")


def _fetched(*, leader: Any, **fields: Any) -> SharedPartition:
    return SharedPartition(**leader, **fields)


def _acknowledged(*, leader: Any, **fields: Any) -> AcknowledgeResult:
    return AcknowledgeResult(**leader, **fields)


FETCH_REQUEST = Struct(
    *_SESSION,
    Field("max_wait_ms", INT32, convert=not_negative),
    Field("min_bytes", INT32, convert=not_negative),
    Field("max_bytes", INT32, default=(1 << 31) - 1),
    Field("max_records", INT32, since=1),
    Field("batch_size", INT32, since=1),
    Field("share_acquire_mode", INT8, since=2, default=0, attr="acquire_mode", only=_KNOWN_MODE),
    _RENEWAL,
    _TOPICS,
    Field(
        "forgotten_topics_data",
        array(Field("topic_id", UUID), Field("partitions", Array(INT32)), into=ForgottenSharePartitions),
        attr="forgotten",
    ),
    into=ShareFetchRequest,
)
FETCH_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    replace(_LOCK_TIMEOUT, since=1),
    Field(
        "responses",
        flat(
            Field("topic_id", UUID),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    *OPTIONAL_FAILURE,
                    Field("acknowledge_error_code", INT16, attr="acknowledge_error", convert=error_of),
                    replace(OPTIONAL_MESSAGE, name="acknowledge_error_message", attr="acknowledge_message"),
                    _CURRENT_LEADER,
                    Field("records", RECORDS),
                    Field(
                        "acquired_records",
                        array(
                            Field("first_offset", INT64),
                            Field("last_offset", INT64),
                            Field("delivery_count", INT16, attr="deliveries"),
                            into=AcquiredRange,
                        ),
                        attr="acquired",
                    ),
                ),
            ),
            into=_fetched,
        ),
        attr="partitions",
    ),
    _NODES,
    into=ShareFetchResponse,
)
failed_fetch = refused(ShareFetchResponse)

ACKNOWLEDGE_REQUEST = Struct(*_SESSION, _RENEWAL, _TOPICS, into=ShareAcknowledgeRequest)
ACKNOWLEDGE_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    replace(_LOCK_TIMEOUT, since=2),
    Field(
        "responses",
        flat(
            Field("topic_id", UUID),
            Field(
                "partitions",
                array(Field("partition_index", INT32, attr="partition"), *OPTIONAL_FAILURE, _CURRENT_LEADER),
            ),
            into=_acknowledged,
        ),
        attr="partitions",
    ),
    _NODES,
    into=ShareAcknowledgeResponse,
)
failed_acknowledge = refused(ShareAcknowledgeResponse)
