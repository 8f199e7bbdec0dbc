"""Requests and responses that only Kafka's protocol has.

A value with more fields than the native protocol needs is a subclass of the neutral value, so handlers can treat it as
such. Topic ids are 16 bytes here (NO_TOPIC_ID if unset), and text in the neutral values (`topic_id_text`).

A request may identify a topic by its id alone. It is decoded with the topic's current name, or with the empty name if
the id is unknown. The handler then reports an unknown topic, and the encoder, which has the request too, changes the
error to UNKNOWN_TOPIC_ID (`codec/schema.py`, ERROR).
"""

from typing import ClassVar, NamedTuple

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.common import KafkaBrokerMetadata
from warmlog.protocol.request import (
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetQuery,
    PartitionRecords,
    ProduceRequest,
    Value,
)
from warmlog.protocol.response import (
    FetchedPartition,
    FetchResponse,
    ProducedPartition,
    ProduceResponse,
)

NO_SESSION = 0
INITIAL_SESSION_EPOCH = 0
FINAL_SESSION_EPOCH = -1  # also used by fetches without a session
# ListOffsets timestamps for tiered storage, and their result without it.
EARLIEST_LOCAL_TIMESTAMP = -4  # first offset on local disk: the log start offset
LATEST_TIERED_TIMESTAMP = -5  # last offset in remote storage: none
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6  # first offset not yet uploaded: none


class KafkaProduceRequest(ProduceRequest, frozen=True, kw_only=True, gc=False):
    """A produce request. `knows_zstd`: its version allows zstd batches (KIP-110)."""

    knows_zstd: bool = True

    @property
    def is_one_batch_each(self) -> bool:
        """Kafka's clients send one batch to a partition; several at once are refused."""
        return True


class ProduceLedElsewhere(ProducedPartition, frozen=True, kw_only=True, gc=False):
    """A partition that another broker leads. Clients need not ask for metadata to find it (KIP-951)."""

    leader_id: int
    leader_epoch: int


class KafkaProduceResponse(ProduceResponse, frozen=True, kw_only=True, gc=False):
    """A produce response with the addresses of the leaders that it names."""

    nodes: tuple[KafkaBrokerMetadata, ...]


class IdentifiedRecords(PartitionRecords, frozen=True, kw_only=True, gc=False):
    """Batches for a partition, whose topic may be identified by `topic_id` (Produce from version 13)."""

    topic_id: bytes = NO_TOPIC_ID


class KafkaFetchPartition(FetchPartition, frozen=True, kw_only=True, gc=False):
    """A partition to fetch, with the leader epoch known to the client and that of its last record; -1 if unset.

    `log_start_offset` is that of a follower.
    """

    topic_id: bytes = NO_TOPIC_ID
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchingReplica(NamedTuple):
    """The broker that fetches, -1 for a consumer, and its epoch, -1 if the version has none (KIP-903)."""

    broker: int
    epoch: int = -1


CONSUMER = FetchingReplica(-1)
#: The replica id of tools, and of the controller, that ask whoever has a log (FetchRequest.DEBUGGING_CONSUMER_ID).
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


class DivergedPartition(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition whose log diverges from the client's; `epoch` is the last common one and ends at `end_offset`."""

    epoch: int
    end_offset: int


class RedirectedPartition(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition without records, which the consumer should read from a follower that is nearer to it (KIP-392)."""

    preferred_replica: int


class FetchLedElsewhere(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """A partition that another broker leads, or in another epoch; see `ProduceLedElsewhere`."""

    leader_id: int
    leader_epoch: int


class KafkaFetchResponse(FetchResponse, frozen=True, kw_only=True, gc=False):
    """A fetch response with an error for the session or the whole request.

    `asked` lists the partitions to which `partitions` correspond if they are a session's and not the request's. `nodes`
    has the addresses of the leaders that they name.
    """

    error: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    asked: tuple[KafkaFetchPartition, ...] | None = None
    nodes: tuple[KafkaBrokerMetadata, ...] = ()


class KafkaOffsetQuery(OffsetQuery, frozen=True, kw_only=True, gc=False):
    """A timestamp to look up, or one of Kafka's further special values, from -4 (earliest local) down.

    `error` is set by the decoder if the request's version does not have that special value; the handler returns it.
    """

    current_leader_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE


class KafkaListOffsetsRequest(ListOffsetsRequest, frozen=True, kw_only=True, gc=False):
    """A ListOffsets request; `timeout_ms` applies to offsets in remote storage. `replica_id` is -1 for clients."""

    timeout_ms: int = 0
    replica_id: int = -1


class EpochQuery(Value, frozen=True, kw_only=True, gc=False):
    """A leader epoch whose end offset in a partition is requested."""

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(Value, frozen=True, kw_only=True, gc=False):
    """Find the end offsets of leader epochs, so that clients can detect log truncation (KIP-320)."""

    api: ClassVar[str] = "offset_for_leader_epoch"
    partitions: tuple[EpochQuery, ...]


class EpochEnd(Value, frozen=True, kw_only=True, gc=False):
    """The largest epoch not above the requested one, and its end offset; both -1 if there is none."""

    topic: str
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class OffsetForLeaderEpochResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of OffsetForLeaderEpochRequest, in its order."""

    partitions: tuple[EpochEnd, ...]


class RecordsToDelete(Value, frozen=True, kw_only=True, gc=False):
    """Records to delete: those below `offset`, or below the high watermark if it is -1."""

    topic: str
    partition: int
    offset: int


class DeleteRecordsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Advance the log start offsets of partitions."""

    api: ClassVar[str] = "delete_records"
    partitions: tuple[RecordsToDelete, ...]
    timeout_ms: int = 0


class DeletedRecords(Value, frozen=True, kw_only=True, gc=False):
    """The new log start offset of a partition."""

    topic: str
    partition: int
    low_watermark: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteRecordsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DeleteRecordsRequest, in its order."""

    partitions: tuple[DeletedRecords, ...]
