"""ElectLeaders (0 to 2), AlterPartitionReassignments (0 and 1), ListPartitionReassignments (0)."""

from dataclasses import replace
from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT32, STRING, Array, Field, Struct, array, flat
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    FAILURE,
    THROTTLE_TIME,
    TIMEOUT,
    refused,
    refused_partitions,
    since,
)
from warmlog.protocol.request import Value


class ElectLeadersRequest(Value, frozen=True, kw_only=True, gc=False):
    """Elect leaders of these partitions, or of all if None. `election_type`: 0 preferred, 1 unclean."""

    api: ClassVar[str] = "elect_leaders"
    election_type: int
    partitions: tuple[PartitionEntry, ...] | None


class PartitionResult(Value, frozen=True, kw_only=True, gc=False):
    """The result for one partition."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ElectLeadersResponse(Value, frozen=True, kw_only=True, gc=False):
    """One entry per requested partition; if all were requested, only those whose election failed."""

    partitions: tuple[PartitionResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Reassignment(Value, frozen=True, kw_only=True, gc=False):
    """A partition's target replicas; None cancels its reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterPartitionReassignmentsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Start or cancel reassignments of partitions to other brokers."""

    api: ClassVar[str] = "alter_partition_reassignments"
    partitions: tuple[Reassignment, ...]
    may_change_factor: bool = True


class AlterPartitionReassignmentsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of AlterPartitionReassignmentsRequest, in its order."""

    partitions: tuple[PartitionResult, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ListPartitionReassignmentsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List ongoing reassignments of these partitions, or of all if None."""

    api: ClassVar[str] = "list_partition_reassignments"
    partitions: tuple[PartitionEntry, ...] | None = None


class OngoingReassignment(Value, frozen=True, kw_only=True, gc=False):
    """A partition being reassigned, with its current, added and removed replicas."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class ListPartitionReassignmentsResponse(Value, frozen=True, kw_only=True, gc=False):
    """The partitions being reassigned."""

    partitions: tuple[OngoingReassignment, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


_TIMEOUT = replace(TIMEOUT, default=60_000, attr=None)  # a single node answers immediately
_TOPIC = Field("name", STRING, attr="topic")
_PARTITION = Field("partition_index", INT32, attr="partition")

ELECT_REQUEST = Struct(
    Field("election_type", INT8, since=1, default=0),
    Field(
        "topic_partitions",
        flat(Field("topic", STRING), Field("partitions", Array(INT32), attr="partition"), into=PartitionEntry),
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
# version 0 reports errors only in its entries
failed_elect = refused_partitions(ElectLeadersResponse, PartitionResult, also_whole=True)


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
failed_alter = refused_partitions(AlterPartitionReassignmentsResponse, PartitionResult, also_whole=True)


LIST_REQUEST = Struct(
    _TIMEOUT,
    Field(
        "topics",
        flat(_TOPIC, Field("partition_indexes", Array(INT32), attr="partition"), into=PartitionEntry),
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
