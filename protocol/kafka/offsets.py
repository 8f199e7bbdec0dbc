"""ListOffsets (1 to 11), OffsetForLeaderEpoch (2 to 4), DeleteRecords (0 to 2): questions and orders about offsets.

Owns: the tables of these messages, and how they meet the values. Must not know: logs.
"""

from collections.abc import Iterator
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import INT8, INT16, INT32, INT64, STRING, Field, Struct, array
from protocol.kafka.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEnd,
    EpochQuery,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    RecordsToDelete,
    TopicNames,
    by_topic,
    check_isolation,
    isolation_of,
)
from protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsRequest,
)
from protocol.response import ErrorResponse, FoundOffset, ListOffsetsResponse

# The special times of ListOffsets, and the version from which on each has its meaning. Source: ReplicaManager.
_FIRST_WITH_TIME = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}

LIST_REQUEST = Struct(
    Field("replica_id", INT32),
    Field("isolation_level", INT8, since=2),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("current_leader_epoch", INT32, since=4, default=-1),
                    Field("timestamp", INT64),
                ),
            ),
        ),
    ),
    Field("timeout_ms", INT32, since=10),
)
LIST_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=2),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("error_code", INT16),
                    Field("timestamp", INT64, since=1, default=-1),
                    Field("offset", INT64, since=1, default=-1),
                    Field("leader_epoch", INT32, since=4, default=-1),
                ),
            ),
        ),
    ),
)
EPOCH_REQUEST = Struct(
    Field("replica_id", INT32, since=3, default=-2),
    Field(
        "topics",
        array(
            Field("topic", STRING),
            Field(
                "partitions",
                array(
                    Field("partition", INT32),
                    Field("current_leader_epoch", INT32, since=2, default=-1),
                    Field("leader_epoch", INT32),
                ),
            ),
        ),
    ),
)
EPOCH_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=2),
    Field(
        "topics",
        array(
            Field("topic", STRING),
            Field(
                "partitions",
                array(
                    Field("error_code", INT16),
                    Field("partition", INT32),
                    Field("leader_epoch", INT32, since=1, default=-1),
                    Field("end_offset", INT64, default=-1),
                ),
            ),
        ),
    ),
)
DELETE_REQUEST = Struct(
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field("partitions", array(Field("partition_index", INT32), Field("offset", INT64))),
        ),
    ),
    Field("timeout_ms", INT32),
)
DELETE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(Field("partition_index", INT32), Field("low_watermark", INT64), Field("error_code", INT16)),
            ),
        ),
    ),
)


def _asked(values: dict[str, Any], name: str = "name") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each partition of a decoded message with its topic."""
    return ((topic[name], partition) for topic in values["topics"] for partition in topic["partitions"])


def decode_list(reader: Reader, version: int, _: TopicNames) -> KafkaListOffsetsRequest:
    """A request for offsets by time. Raises InvalidRequestError for an unknown isolation level."""
    values = LIST_REQUEST.read(reader, version)
    level = values["isolation_level"]
    request = KafkaListOffsetsRequest(
        partitions=tuple(
            [
                KafkaOffsetQuery(
                    topic=topic,
                    partition=asked["partition_index"],
                    timestamp=asked["timestamp"],
                    current_leader_epoch=asked["current_leader_epoch"],
                    error=_judged(asked["timestamp"], version),
                )
                for topic, asked in _asked(values)
            ]
        ),
        isolation=isolation_of(level),
        timeout_ms=max(values["timeout_ms"], 0),
    )
    check_isolation(level, request)
    return request


def _judged(timestamp: int, version: int) -> ErrorCode:
    """Whether a time may be asked for in a version: those below 0 have meanings, or none."""
    if timestamp >= 0 or version >= _FIRST_WITH_TIME.get(timestamp, version + 1):
        return ErrorCode.NONE
    return ErrorCode.UNSUPPORTED_VERSION


def encode_list(writer: Writer, version: int, _: ListOffsetsRequest, response: ListOffsetsResponse) -> None:
    """The offsets found."""
    topics = [
        {"name": topic, "partitions": list(map(_found_fields, found))} for topic, found in by_topic(response.partitions)
    ]
    LIST_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": topics})


def failed_list(request: ListOffsetsRequest, error: ErrorResponse) -> ListOffsetsResponse:
    """The reply where the request failed as a whole."""
    return ListOffsetsResponse(
        partitions=tuple(
            [
                FoundOffset(topic=asked.topic, partition=asked.partition, error=error.error)
                for asked in request.partitions
            ]
        )
    )


def _found_fields(found: FoundOffset) -> dict[str, Any]:
    return {
        "partition_index": found.partition,
        "error_code": found.error,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


def decode_epoch(reader: Reader, version: int, _: TopicNames) -> OffsetForLeaderEpochRequest:
    """A question for the ends of leader epochs."""
    return OffsetForLeaderEpochRequest(
        partitions=tuple(
            [
                EpochQuery(
                    topic=topic,
                    partition=asked["partition"],
                    leader_epoch=asked["leader_epoch"],
                    current_leader_epoch=asked["current_leader_epoch"],
                )
                for topic, asked in _asked(EPOCH_REQUEST.read(reader, version), "topic")
            ]
        )
    )


def encode_epoch(
    writer: Writer, version: int, _: OffsetForLeaderEpochRequest, response: OffsetForLeaderEpochResponse
) -> None:
    """The ends of epochs."""
    topics = [
        {"topic": topic, "partitions": list(map(_epoch_fields, ends))} for topic, ends in by_topic(response.partitions)
    ]
    EPOCH_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": topics})


def failed_epoch(request: OffsetForLeaderEpochRequest, error: ErrorResponse) -> OffsetForLeaderEpochResponse:
    """The reply where the request failed as a whole."""
    return OffsetForLeaderEpochResponse(
        partitions=tuple(
            [EpochEnd(topic=asked.topic, partition=asked.partition, error=error.error) for asked in request.partitions]
        )
    )


def _epoch_fields(end: EpochEnd) -> dict[str, Any]:
    return {
        "error_code": end.error,
        "partition": end.partition,
        "leader_epoch": end.leader_epoch,
        "end_offset": end.end_offset,
    }


def decode_delete(reader: Reader, version: int, _: TopicNames) -> DeleteRecordsRequest:
    """An order to move the beginnings of logs."""
    values = DELETE_REQUEST.read(reader, version)
    return DeleteRecordsRequest(
        partitions=tuple(
            [
                RecordsToDelete(topic=topic, partition=asked["partition_index"], offset=asked["offset"])
                for topic, asked in _asked(values)
            ]
        ),
        timeout_ms=max(values["timeout_ms"], 0),
    )


def encode_delete(writer: Writer, version: int, _: DeleteRecordsRequest, response: DeleteRecordsResponse) -> None:
    """Where logs now begin."""
    topics = [
        {"name": topic, "partitions": list(map(_deleted_fields, deleted))}
        for topic, deleted in by_topic(response.partitions)
    ]
    DELETE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": topics})


def failed_delete(request: DeleteRecordsRequest, error: ErrorResponse) -> DeleteRecordsResponse:
    """The reply where the request failed as a whole."""
    return DeleteRecordsResponse(
        partitions=tuple(
            [
                DeletedRecords(topic=asked.topic, partition=asked.partition, error=error.error)
                for asked in request.partitions
            ]
        )
    )


def _deleted_fields(deleted: DeletedRecords) -> dict[str, Any]:
    return {
        "partition_index": deleted.partition,
        "low_watermark": deleted.low_watermark,
        "error_code": deleted.error,
    }
