"""ListOffsets (1 to 11), OffsetForLeaderEpoch (2 to 4), DeleteRecords (0 to 2)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import ERROR, INT8, INT32, INT64, STRING, Field, Struct, array, flat
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    KNOWN_ISOLATION,
    THROTTLE_TIME,
    TIMEOUT,
    isolation_level,
    isolation_of,
    refused_partitions,
    since,
)
from warmlog.protocol.request import MAX_TIMESTAMP, ListOffsetsRequest, OffsetQuery, Value
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse

# ListOffsets timestamps for tiered storage, and their results without it.
EARLIEST_LOCAL_TIMESTAMP = -4  # first offset on local disk: the log start offset
LATEST_TIERED_TIMESTAMP = -5  # last offset in remote storage: none
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6  # first offset not yet uploaded: none


class KafkaOffsetQuery(OffsetQuery, frozen=True, kw_only=True, gc=False):
    """A timestamp to look up, or one of Kafka's further special values, from -4 (earliest local) down."""

    current_leader_epoch: int = -1


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


# The later special timestamps of ListOffsets, and the first version of each; other negative ones have no meaning.
# Source: ReplicaManager.
FIRST_WITH_TIME = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


LIST_REQUEST = Struct(
    Field("replica_id", INT32),
    Field(
        "isolation_level",
        INT8,
        since=2,
        attr="isolation",
        only=KNOWN_ISOLATION,
        convert=isolation_of,
        get=isolation_level,
    ),
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    Field("current_leader_epoch", INT32, since=4, default=-1),
                    Field("timestamp", INT64),
                ),
            ),
            into=KafkaOffsetQuery,
        ),
        attr="partitions",
    ),
    since(10, TIMEOUT),
    into=KafkaListOffsetsRequest,
)
LIST_RESPONSE = Struct(
    since(2, THROTTLE_TIME),
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32, attr="partition"),
                    Field(
                        "error_code",
                        ERROR,
                        attr="error",
                        before={5: {ErrorCode.OFFSET_NOT_AVAILABLE: ErrorCode.LEADER_NOT_AVAILABLE}},
                    ),
                    Field("timestamp", INT64, since=1, default=-1),
                    Field("offset", INT64, since=1, default=-1),
                    Field("leader_epoch", INT32, since=4, default=-1),
                ),
            ),
            into=ListedOffset,
        ),
        attr="partitions",
    ),
    into=ListOffsetsResponse,
)
failed_list = refused_partitions(ListOffsetsResponse, ListedOffset)

EPOCH_REQUEST = Struct(
    Field("replica_id", INT32, since=3, default=-2, attr=None, per_reply=lambda *_: -1),
    Field(
        "topics",
        flat(
            Field("topic", STRING),
            Field(
                "partitions",
                array(
                    Field("partition", INT32),
                    Field("current_leader_epoch", INT32, since=2, default=-1),
                    Field("leader_epoch", INT32),
                ),
            ),
            into=EpochQuery,
        ),
        attr="partitions",
    ),
    into=OffsetForLeaderEpochRequest,
)
EPOCH_RESPONSE = Struct(
    since(2, THROTTLE_TIME),
    Field(
        "topics",
        flat(
            Field("topic", STRING),
            Field(
                "partitions",
                array(
                    ERROR_CODE,
                    Field("partition", INT32),
                    Field("leader_epoch", INT32, since=1, default=-1),
                    Field("end_offset", INT64, default=-1),
                ),
            ),
            into=EpochEnd,
        ),
        attr="partitions",
    ),
    into=OffsetForLeaderEpochResponse,
)
failed_epoch = refused_partitions(OffsetForLeaderEpochResponse, EpochEnd)

DELETE_REQUEST = Struct(
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field("partitions", array(Field("partition_index", INT32, attr="partition"), Field("offset", INT64))),
            into=RecordsToDelete,
        ),
        attr="partitions",
    ),
    TIMEOUT,
    into=DeleteRecordsRequest,
)
DELETE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "topics",
        flat(
            Field("name", STRING, attr="topic"),
            Field(
                "partitions",
                array(Field("partition_index", INT32, attr="partition"), Field("low_watermark", INT64), ERROR_CODE),
            ),
            into=DeletedRecords,
        ),
        attr="partitions",
    ),
    into=DeleteRecordsResponse,
)
failed_delete = refused_partitions(DeleteRecordsResponse, DeletedRecords)
