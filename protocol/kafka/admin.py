"""DescribeLogDirs (1 to 5), DescribeProducers (0): what only tools ask.

Owns: the tables of these messages, and how they meet the values. Must not know: directories or logs.
"""

from typing import Any

from protocol.groups import TopicPartition
from protocol.kafka.admin_values import (
    ActiveProducer,
    DescribedLogDir,
    DescribedProducers,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    LogDirPartition,
)
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT16, INT32, INT64, STRING, Array, Field, Struct, array
from protocol.kafka.values import TopicNames, by_topic
from protocol.response import ErrorResponse

LOG_DIRS_REQUEST = Struct(
    Field("topics", array(Field("topic", STRING), Field("partitions", Array(INT32))), nullable=0),
)
LOG_DIRS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, since=3),
    Field(
        "results",
        array(
            Field("error_code", INT16),
            Field("log_dir", STRING),
            Field(
                "topics",
                array(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Field("partition_index", INT32),
                            Field("partition_size", INT64),
                            Field("offset_lag", INT64),
                            Field("is_future_key", BOOLEAN),
                        ),
                    ),
                ),
            ),
            Field("total_bytes", INT64, since=4, default=-1),
            Field("usable_bytes", INT64, since=4, default=-1),
            Field("is_cordoned", BOOLEAN, since=5),
        ),
    ),
)
PRODUCERS_REQUEST = Struct(
    Field("topics", array(Field("name", STRING), Field("partition_indexes", Array(INT32)))),
)
PRODUCERS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("error_code", INT16),
                    Field("error_message", STRING, nullable=0, default=None),
                    Field(
                        "active_producers",
                        array(
                            Field("producer_id", INT64),
                            Field("producer_epoch", INT32),
                            Field("last_sequence", INT32, default=-1),
                            Field("last_timestamp", INT64, default=-1),
                            Field("coordinator_epoch", INT32),
                            Field("current_txn_start_offset", INT64, default=-1),
                        ),
                    ),
                ),
            ),
        ),
    ),
)


def _asked(topics: Any, name: str = "name", indexes: str = "partition_indexes") -> tuple[TopicPartition, ...]:
    """Each partition of a decoded message with its topic."""
    return tuple([TopicPartition(topic=one[name], partition=index) for one in topics for index in one[indexes]])


def decode_log_dirs(reader: Reader, version: int, _: TopicNames) -> DescribeLogDirsRequest:
    """A question for what lies in the directories."""
    topics = LOG_DIRS_REQUEST.read(reader, version)["topics"]
    return DescribeLogDirsRequest(partitions=None if topics is None else _asked(topics, "topic", "partitions"))


def encode_log_dirs(writer: Writer, version: int, _: DescribeLogDirsRequest, response: DescribeLogDirsResponse) -> None:
    """The directories."""
    results = list(map(_log_dir_fields, response.log_dirs))
    values = {"throttle_time_ms": writer.throttle_ms, "error_code": response.error, "results": results}
    LOG_DIRS_RESPONSE.write(writer, version, values)


def failed_log_dirs(_: DescribeLogDirsRequest, error: ErrorResponse) -> DescribeLogDirsResponse:
    """The reply where the request failed as a whole; before version 3 it can only be empty."""
    return DescribeLogDirsResponse(error=error.error, message=error.message)


def _log_dir_fields(log_dir: DescribedLogDir) -> dict[str, Any]:
    return {
        "error_code": log_dir.error,
        "log_dir": log_dir.path,
        "topics": [
            {"name": topic, "partitions": list(map(_lying_fields, lying))}
            for topic, lying in by_topic(log_dir.partitions)
        ],
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.usable_bytes,
        "is_cordoned": log_dir.is_cordoned,
    }


def _lying_fields(lying: LogDirPartition) -> dict[str, Any]:
    return {
        "partition_index": lying.partition,
        "partition_size": lying.size,
        "offset_lag": lying.offset_lag,
        "is_future_key": lying.is_future,
    }


def decode_producers(reader: Reader, version: int, _: TopicNames) -> DescribeProducersRequest:
    """A question for producers."""
    return DescribeProducersRequest(partitions=_asked(PRODUCERS_REQUEST.read(reader, version)["topics"]))


def encode_producers(
    writer: Writer, version: int, _: DescribeProducersRequest, response: DescribeProducersResponse
) -> None:
    """The producers."""
    topics = [
        {"name": topic, "partitions": list(map(_producers_fields, described))}
        for topic, described in by_topic(response.partitions)
    ]
    PRODUCERS_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": topics})


def failed_producers(request: DescribeProducersRequest, error: ErrorResponse) -> DescribeProducersResponse:
    """The reply where the request failed as a whole."""
    return DescribeProducersResponse(
        partitions=tuple(
            [
                DescribedProducers(topic=one.topic, partition=one.partition, error=error.error, message=error.message)
                for one in request.partitions
            ]
        )
    )


def _producers_fields(described: DescribedProducers) -> dict[str, Any]:
    return {
        "partition_index": described.partition,
        "error_code": described.error,
        "error_message": described.message,
        "active_producers": list(map(_producer_fields, described.producers)),
    }


def _producer_fields(producer: ActiveProducer) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.transaction_start_offset,
    }
