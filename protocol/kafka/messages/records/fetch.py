"""Fetch, versions 4 to 18.

Invariants:
1. Only the len() of a reply's records is used; they are separate from the surrounding bytes.
2. A reply to a request by topic ids repeats the ids of the request or its session, even if the topics have been deleted
   since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import (
    ERROR,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    TOPIC_ID,
    UUID,
    Array,
    Field,
    Struct,
    array,
    error_of,
    flat,
    not_negative,
)
from warmlog.protocol.kafka.messages.common import (
    KNOWN_ISOLATION,
    THROTTLE_TIME,
    KafkaBrokerMetadata,
    current_leader,
    isolation_level,
    isolation_of,
    node_endpoints,
    refused_partitions,
)
from warmlog.protocol.request import FetchPartition, FetchRequest, Value
from warmlog.protocol.response import AbortedTransaction, FetchedPartition, FetchResponse

NO_SESSION = 0
_NO_RECORDS = memoryview(b"")
INITIAL_SESSION_EPOCH = 0
FINAL_SESSION_EPOCH = -1  # also used by fetches without a session


class KafkaFetchPartition(FetchPartition, frozen=True, kw_only=True, gc=False):
    """A partition to fetch, with the leader epoch known to the client and that of its last record; -1 if unset.

    `log_start_offset` is that of a follower.
    """

    topic_id: bytes = NO_TOPIC_ID
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchingReplica(NamedTuple):
    """The fetching broker, -1 for a consumer, and its epoch, -1 if the version has none (KIP-903)."""

    broker: int
    epoch: int = -1


CONSUMER = FetchingReplica(-1)
#: The replica id of tools and the controller, which may read from any replica (FetchRequest.DEBUGGING_CONSUMER_ID).
DEBUGGER = -2


class ForgottenPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions to remove from a fetch session."""

    topic: str
    partitions: tuple[int, ...]
    topic_id: bytes = NO_TOPIC_ID


class KafkaFetchRequest(FetchRequest, frozen=True, kw_only=True, gc=False):
    """A fetch, in a session if `session_id` is not NO_SESSION or `session_epoch` is INITIAL_SESSION_EPOCH (KIP-227).

    `uses_topic_ids`: topics are identified by id. `knows_followers`: the version lets consumers read from followers
    (KIP-392).
    """

    partitions: tuple[KafkaFetchPartition, ...]
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten: tuple[ForgottenPartitions, ...] = ()
    rack: str = ""
    replica: FetchingReplica = CONSUMER
    uses_topic_ids: bool = False
    knows_followers: bool = True


class KafkaFetchedPartition(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """The fetched batches of a partition as a peer reads them, identified by `topic_id`, or by `topic` before 13.

    `records` is a view of the received frame. A broker also writes a `FetchedPartition`: the request has the ids.
    """

    topic_id: bytes = NO_TOPIC_ID
    records: memoryview = _NO_RECORDS


class DivergedPartition(KafkaFetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition whose log diverges from the client's, which must be truncated (KIP-595).

    `epoch` is the leader's largest one that is not above the last fetched one; it ends at `end_offset`.
    """

    epoch: int
    end_offset: int


class RedirectedPartition(KafkaFetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition without records, which the consumer should read from a nearer follower (KIP-392)."""

    preferred_replica: int


class FetchLedElsewhere(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition led by another broker, or in another epoch; see `ProduceLedElsewhere`."""

    leader_id: int
    leader_epoch: int


class KafkaFetchResponse(FetchResponse, frozen=True, kw_only=True, gc=False):
    """Fetched partitions, with an error for the session or the whole request. A session reports only changed ones.

    `requested` lists the partitions that `partitions` correspond to, if these come from a session and not the request.
    `nodes` has the addresses of the leaders named in `partitions`. A peer reads `throttle_ms` and `received`.
    """

    error: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    requested: tuple[KafkaFetchPartition, ...] | None = None
    nodes: tuple[KafkaBrokerMetadata, ...] = ()
    throttle_ms: int = 0

    @property
    def received(self) -> tuple[KafkaFetchedPartition, ...]:
        """The partitions of a response that a peer has read."""
        return cast("tuple[KafkaFetchedPartition, ...]", self.partitions)


_FIRST_WITH_FOLLOWERS = 11
_FIRST_WITH_TOPIC_ID = 13
NO_REPLICA = -1
NO_REPLICA_STATE = {"replica_id": NO_REPLICA, "replica_epoch": -1}
NOT_DIVERGING = {"epoch": -1, "end_offset": -1}


def _replica(state: Mapping[str, int]) -> FetchingReplica:
    return FetchingReplica(*state.values())


def _replica_state(request: KafkaFetchRequest, *_: Any) -> Any:
    return NO_REPLICA_STATE if request.replica == CONSUMER else request.replica


REQUEST = Struct(
    Field("cluster_id", STRING, since=12, nullable=12, tag=0, default=None, attr=None),
    Field(
        "replica_id",
        INT32,
        until=14,
        default=-1,
        attr="replica",
        convert=FetchingReplica,
        get=lambda request, *_: request.replica.broker,
    ),
    Field(
        "replica_state",
        Struct(
            Field("replica_id", INT32, default=-1, attr="broker"),
            Field("replica_epoch", INT64, default=-1, attr="epoch"),
        ),
        since=15,
        tag=1,
        default=NO_REPLICA_STATE,
        attr="replica",
        convert=_replica,
        get=_replica_state,
    ),
    Field("max_wait_ms", INT32, convert=not_negative),
    Field("min_bytes", INT32, convert=not_negative),
    Field("max_bytes", INT32, default=(1 << 31) - 1),
    Field("isolation_level", INT8, attr="isolation", only=KNOWN_ISOLATION, convert=isolation_of, get=isolation_level),
    Field("session_id", INT32, since=7, default=0),
    Field("session_epoch", INT32, since=7, default=-1),
    Field(
        "topics",
        flat(
            Field("topic", STRING, until=12),
            Field("topic_id", TOPIC_ID, since=13),
            Field(
                "partitions",
                array(
                    Field("partition", INT32),
                    Field("current_leader_epoch", INT32, since=9, default=-1),
                    Field("fetch_offset", INT64, attr="offset"),
                    Field("last_fetched_epoch", INT32, since=12, default=-1),
                    Field("log_start_offset", INT64, since=5, default=-1),
                    Field("partition_max_bytes", INT32, attr="max_bytes"),
                    Field("replica_directory_id", UUID, since=17, tag=0, attr=None),
                    Field("high_watermark", INT64, since=18, tag=1, default=(1 << 63) - 1, attr=None),
                ),
            ),
            into=KafkaFetchPartition,
        ),
        attr="partitions",
    ),
    Field(
        "forgotten_topics_data",
        array(
            Field("topic", STRING, until=12),
            Field("topic_id", TOPIC_ID, since=13),
            Field("partitions", Array(INT32)),
            into=ForgottenPartitions,
        ),
        since=7,
        attr="forgotten",
    ),
    Field("rack_id", STRING, since=11, default="", attr="rack"),
    into=KafkaFetchRequest,
    given=lambda version: {
        "uses_topic_ids": version >= _FIRST_WITH_TOPIC_ID,
        "knows_followers": version >= _FIRST_WITH_FOLLOWERS,
    },
)


def _error(response: Any, *_: Any) -> int:
    """Return the error of the whole request, which only responses that can carry session errors have."""
    return getattr(response, "error", ErrorCode.NONE)


def _session_id(response: Any, *_: Any) -> int:
    return getattr(response, "session_id", NO_SESSION)


def _requested(response: Any, request: FetchRequest) -> Sequence[Any]:
    requested: Sequence[Any] | None = getattr(response, "requested", None)
    return request.partitions if requested is None else requested


def _diverging(partition: FetchedPartition, *_: Any) -> Any:
    return partition if type(partition) is DivergedPartition else NOT_DIVERGING


def _preferred(partition: FetchedPartition, *_: Any) -> int:
    return partition.preferred_replica if type(partition) is RedirectedPartition else NO_REPLICA


def _received(
    *, diverging_epoch: Mapping[str, int] = NOT_DIVERGING, preferred_replica: int = NO_REPLICA, **fields: Any
) -> KafkaFetchedPartition:
    if diverging_epoch["epoch"] >= 0:
        return DivergedPartition(epoch=diverging_epoch["epoch"], end_offset=diverging_epoch["end_offset"], **fields)
    if preferred_replica >= 0:
        return RedirectedPartition(preferred_replica=preferred_replica, **fields)
    return KafkaFetchedPartition(**fields)


RESPONSE = Struct(
    replace(THROTTLE_TIME, attr="throttle_ms"),
    Field("error_code", INT16, since=7, attr="error", convert=error_of, get=_error),
    Field("session_id", INT32, since=7, default=0, get=_session_id),
    Field(
        "responses",
        flat(
            Field("topic", STRING, until=12),
            Field("topic_id", TOPIC_ID, since=13),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    # older clients do not know the storage error and would fail
                    Field(
                        "error_code",
                        ERROR,
                        attr="error",
                        before={6: {ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_LEADER_OR_FOLLOWER}},
                    ),
                    Field("high_watermark", INT64),
                    Field("last_stable_offset", INT64, default=-1),
                    Field("log_start_offset", INT64, since=5, default=-1),
                    Field(
                        "diverging_epoch",
                        Struct(Field("epoch", INT32, default=-1), Field("end_offset", INT64, default=-1)),
                        since=12,
                        tag=0,
                        default=NOT_DIVERGING,
                        get=_diverging,
                    ),
                    current_leader(12, 1, FetchLedElsewhere),
                    Field(
                        "snapshot_id",
                        Struct(Field("end_offset", INT64, default=-1), Field("epoch", INT32, default=-1)),
                        since=12,
                        tag=2,
                        default={"end_offset": -1, "epoch": -1},
                        attr=None,
                    ),
                    Field(
                        "aborted_transactions",
                        array(Field("producer_id", INT64), Field("first_offset", INT64), into=AbortedTransaction),
                        nullable=4,
                    ),
                    Field(
                        "preferred_read_replica",
                        INT32,
                        since=11,
                        default=NO_REPLICA,
                        attr="preferred_replica",
                        get=_preferred,
                    ),
                    Field("records", RECORDS, nullable=0, null=_NO_RECORDS),
                ),
            ),
            into=_received,
            keys=_requested,
        ),
        attr="partitions",
    ),
    node_endpoints(16),
    into=KafkaFetchResponse,
)
# versions without a top-level error report it for each partition
failed = refused_partitions(KafkaFetchResponse, FetchedPartition, also_whole=True, aborted_transactions=())
