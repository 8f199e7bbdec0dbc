"""ElectLeaders (0 to 2), AlterPartitionReassignments (0 and 1), ListPartitionReassignments (0)."""

from dataclasses import replace

from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT32, STRING, Array, Field, Struct, array, flat
from warmlog.protocol.kafka.controller_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    Reassignment,
)
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    FAILURE,
    THROTTLE_TIME,
    TIMEOUT,
    failed_partitions,
    refused,
    since,
)
from warmlog.protocol.response import ErrorResponse

_TIMEOUT = replace(TIMEOUT, default=60_000, attr=None)  # a single node answers at once
_TOPIC = Field("name", STRING, attr="topic")
_PARTITION = Field("partition_index", INT32, attr="partition")

ELECT_REQUEST = Struct(
    Field("election_type", INT8, since=1, default=0),
    Field(
        "topic_partitions",
        flat(Field("topic", STRING), Field("partitions", Array(INT32), attr="partition"), into=TopicPartition),
        nullable=0,
        attr="partitions",
    ),
    _TIMEOUT,
    into=ElectLeadersRequest,
)
ELECT_RESPONSE = Struct(
    THROTTLE_TIME,
    since(1, ERROR_CODE),
    Field(
        "replica_election_results",
        flat(
            Field("topic", STRING),
            Field("partition_result", array(Field("partition_id", INT32, attr="partition"), *FAILURE)),
        ),
        attr="partitions",
    ),
)


def failed_elect(request: ElectLeadersRequest, error: ErrorResponse) -> ElectLeadersResponse:
    """Refuse the request: version 0 has the error in its entries alone."""
    return ElectLeadersResponse(
        partitions=failed_partitions(PartitionResult, request.partitions or (), error),
        error=error.error,
        message=error.message,
    )


ALTER_REQUEST = Struct(
    _TIMEOUT,
    Field("allow_replication_factor_change", BOOLEAN, since=1, default=True, attr="may_change_factor"),
    Field(
        "topics",
        flat(
            _TOPIC,
            Field("partitions", array(_PARTITION, Field("replicas", Array(INT32), nullable=0, default=None))),
            into=Reassignment,
        ),
        attr="partitions",
    ),
    into=AlterPartitionReassignmentsRequest,
)
ALTER_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "allow_replication_factor_change",
        BOOLEAN,
        since=1,
        default=True,
        per_reply=lambda request, _: request.may_change_factor,
    ),
    *FAILURE,
    Field("responses", flat(_TOPIC, Field("partitions", array(_PARTITION, *FAILURE))), attr="partitions"),
)


def failed_alter(
    request: AlterPartitionReassignmentsRequest, error: ErrorResponse
) -> AlterPartitionReassignmentsResponse:
    """Refuse the request."""
    return AlterPartitionReassignmentsResponse(
        partitions=failed_partitions(PartitionResult, request.partitions, error),
        error=error.error,
        message=error.message,
    )


LIST_REQUEST = Struct(
    _TIMEOUT,
    Field(
        "topics",
        flat(_TOPIC, Field("partition_indexes", Array(INT32), attr="partition"), into=TopicPartition),
        nullable=0,
        default=None,
        attr="partitions",
    ),
    into=ListPartitionReassignmentsRequest,
)
LIST_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field(
        "topics",
        flat(
            _TOPIC,
            Field(
                "partitions",
                array(
                    _PARTITION,
                    Field("replicas", Array(INT32)),
                    Field("adding_replicas", Array(INT32), attr="adding"),
                    Field("removing_replicas", Array(INT32), attr="removing"),
                ),
            ),
        ),
        attr="partitions",
    ),
)
failed_list = refused(ListPartitionReassignmentsResponse)
