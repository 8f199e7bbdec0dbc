"""ElectLeaders (0 to 2), AlterPartitionReassignments (0 and 1), ListPartitionReassignments (0).

Tables of these messages, and how they meet the values.
"""

from typing import Any

from protocol.groups import TopicPartition
from protocol.kafka.controller_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
)
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT8, INT16, INT32, STRING, Array, Field, Struct, array
from protocol.kafka.values import TopicNames, by_topic
from protocol.response import ErrorResponse

_FAILURE = (Field("error_code", INT16), Field("error_message", STRING, nullable=0))
_TIMEOUT = Field("timeout_ms", INT32, default=60_000)
ELECT_REQUEST = Struct(
    Field("election_type", INT8, since=1, default=0),
    Field("topic_partitions", array(Field("topic", STRING), Field("partitions", Array(INT32))), nullable=0),
    _TIMEOUT,
)
ELECT_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, since=1),
    Field(
        "replica_election_results",
        array(Field("topic", STRING), Field("partition_result", array(Field("partition_id", INT32), *_FAILURE))),
    ),
)
ALTER_REQUEST = Struct(
    _TIMEOUT,
    Field("allow_replication_factor_change", BOOLEAN, since=1, default=True),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(Field("partition_index", INT32), Field("replicas", Array(INT32), nullable=0, default=None)),
            ),
        ),
    ),
)
ALTER_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("allow_replication_factor_change", BOOLEAN, since=1, default=True),
    *_FAILURE,
    Field(
        "responses",
        array(Field("name", STRING), Field("partitions", array(Field("partition_index", INT32), *_FAILURE))),
    ),
)
LIST_REQUEST = Struct(
    _TIMEOUT,
    Field(
        "topics",
        array(Field("name", STRING), Field("partition_indexes", Array(INT32))),
        nullable=0,
        default=None,
    ),
)
LIST_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    *_FAILURE,
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field(
                "partitions",
                array(
                    Field("partition_index", INT32),
                    Field("replicas", Array(INT32)),
                    Field("adding_replicas", Array(INT32)),
                    Field("removing_replicas", Array(INT32)),
                ),
            ),
        ),
    ),
)


def decode_elect(reader: Reader, version: int, _: TopicNames) -> ElectLeadersRequest:
    """Read which leaders are to be elected."""
    values = ELECT_REQUEST.read(reader, version)
    topics = values["topic_partitions"]
    partitions = None
    if topics is not None:
        partitions = tuple(
            [TopicPartition(topic=one["topic"], partition=index) for one in topics for index in one["partitions"]]
        )
    return ElectLeadersRequest(election_type=values["election_type"], partitions=partitions)


def encode_elect(writer: Writer, version: int, _: ElectLeadersRequest, response: ElectLeadersResponse) -> None:
    """Write the outcomes."""
    results = [
        {
            "topic": topic,
            "partition_result": [_failure_fields(one) | {"partition_id": one.partition} for one in outcomes],
        }
        for topic, outcomes in by_topic(response.partitions)
    ]
    values = {
        "throttle_time_ms": writer.throttle_ms,
        "error_code": response.error,
        "replica_election_results": results,
    }
    ELECT_RESPONSE.write(writer, version, values)


def failed_elect(request: ElectLeadersRequest, error: ErrorResponse) -> ElectLeadersResponse:
    """Refuse the request: version 0 has the error in its entries alone."""
    return ElectLeadersResponse(
        partitions=_all_failed(request.partitions or (), error), error=error.error, message=error.message
    )


def decode_alter(reader: Reader, version: int, _: TopicNames) -> AlterPartitionReassignmentsRequest:
    """Read where partitions are to move."""
    values = ALTER_REQUEST.read(reader, version)
    return AlterPartitionReassignmentsRequest(
        partitions=tuple(
            [
                Reassignment(topic=topic["name"], partition=one["partition_index"], replicas=one["replicas"])
                for topic in values["topics"]
                for one in topic["partitions"]
            ]
        ),
        may_change_factor=values["allow_replication_factor_change"],
    )


def encode_alter(
    writer: Writer,
    version: int,
    request: AlterPartitionReassignmentsRequest,
    response: AlterPartitionReassignmentsResponse,
) -> None:
    """Write the outcomes."""
    responses = [
        {"name": topic, "partitions": [_failure_fields(one) | {"partition_index": one.partition} for one in outcomes]}
        for topic, outcomes in by_topic(response.partitions)
    ]
    values = {
        "throttle_time_ms": writer.throttle_ms,
        "allow_replication_factor_change": request.may_change_factor,
        "error_code": response.error,
        "error_message": response.message,
        "responses": responses,
    }
    ALTER_RESPONSE.write(writer, version, values)


def failed_alter(
    request: AlterPartitionReassignmentsRequest, error: ErrorResponse
) -> AlterPartitionReassignmentsResponse:
    """Refuse the request."""
    return AlterPartitionReassignmentsResponse(
        partitions=_all_failed(request.partitions, error), error=error.error, message=error.message
    )


def decode_list(reader: Reader, version: int, _: TopicNames) -> ListPartitionReassignmentsRequest:
    """Read which partitions are asked for."""
    topics = LIST_REQUEST.read(reader, version)["topics"]
    if topics is None:
        return ListPartitionReassignmentsRequest()
    partitions = [
        TopicPartition(topic=one["name"], partition=index) for one in topics for index in one["partition_indexes"]
    ]
    return ListPartitionReassignmentsRequest(partitions=tuple(partitions))


def encode_list(
    writer: Writer, version: int, _: ListPartitionReassignmentsRequest, response: ListPartitionReassignmentsResponse
) -> None:
    """Write the partitions that move."""
    LIST_RESPONSE.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "error_code": response.error,
            "error_message": response.message,
            "topics": [
                {"name": topic, "partitions": list(map(_ongoing_fields, ongoing))}
                for topic, ongoing in by_topic(response.partitions)
            ],
        },
    )


def failed_list(_: ListPartitionReassignmentsRequest, error: ErrorResponse) -> ListPartitionReassignmentsResponse:
    """Refuse the request."""
    return ListPartitionReassignmentsResponse(error=error.error, message=error.message)


def _ongoing_fields(ongoing: OngoingReassignment) -> dict[str, Any]:
    return {
        "partition_index": ongoing.partition,
        "replicas": ongoing.replicas,
        "adding_replicas": ongoing.adding,
        "removing_replicas": ongoing.removing,
    }


def _failure_fields(outcome: PartitionResult) -> dict[str, Any]:
    return {"error_code": outcome.error, "error_message": outcome.message}


def _all_failed(
    partitions: tuple[TopicPartition, ...] | tuple[Reassignment, ...], error: ErrorResponse
) -> tuple[PartitionResult, ...]:
    return tuple(
        [
            PartitionResult(topic=one.topic, partition=one.partition, error=error.error, message=error.message)
            for one in partitions
        ]
    )
