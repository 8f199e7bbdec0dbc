"""The operations of the native protocol, and the version of it that two ends agree on.

Owns: the one table of operations (name on the wire, request, response), and the versions spoken here. Must not know:
how a map is laid out in bytes.

A request on the wire is a map of "op", "id" and the fields of the request value by their names; a reply is "id" and the
fields of the response value, or "id", "error" and "message" where the request failed as a whole. So the neutral values
of `protocol.request` and `protocol.response` are the schema, and a field added there is a change of the protocol: it
needs a version of its own.
"""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from protocol.errors import ErrorCode, ProtocolError
from protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.native.explain import ExplainRequest, ExplainResponse
from protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
)
from protocol.native.producers import DescribeProducerRequest, DescribeProducerResponse
from protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    FetchRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    Request,
    Value,
)
from protocol.response import (
    AlterTopicsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    FetchedPartition,
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    ProduceResponse,
)

VERSIONS = (1, 2, 3)  # oldest first; version 2 adds the operations of groups, version 3 those of producers, and explain

NativeRequest: TypeAlias = (
    Request
    | JoinConsumerGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | ListGroupsRequest
    | DescribeConsumerGroupsRequest
    | DeleteGroupsRequest
    | DescribeProducerRequest
    | ExplainRequest
)


class VersionError(ProtocolError):
    """The two ends have no version of the protocol in common."""

    code = ErrorCode.UNSUPPORTED_VERSION


class ReceivedPartition(FetchedPartition, frozen=True, kw_only=True):
    """A FetchedPartition as a client gets it: the records are bytes by now, a view of the reply's frame."""

    records: memoryview = memoryview(b"")


class ReceivedFetch(FetchResponse, frozen=True, kw_only=True):
    """A FetchResponse as a client gets it."""

    partitions: tuple[ReceivedPartition, ...]


class Operation(Struct, frozen=True):
    """One row of the table; `received` is the response as a client decodes it."""

    request: type[NativeRequest]
    response: type[Value]
    received: type[Value]

    @property
    def name(self) -> str:
        """What a frame calls it."""
        return self.request.api


OPERATIONS: tuple[Operation, ...] = (
    Operation(HelloRequest, HelloResponse, HelloResponse),
    Operation(MetadataRequest, MetadataResponse, MetadataResponse),
    Operation(CreateTopicsRequest, CreateTopicsResponse, CreateTopicsResponse),
    Operation(DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicsResponse),
    Operation(DescribeTopicsRequest, DescribeTopicsResponse, DescribeTopicsResponse),
    Operation(AlterTopicsRequest, AlterTopicsResponse, AlterTopicsResponse),
    Operation(ProduceRequest, ProduceResponse, ProduceResponse),
    Operation(FetchRequest, FetchResponse, ReceivedFetch),
    Operation(ListOffsetsRequest, ListOffsetsResponse, ListOffsetsResponse),
    Operation(JoinConsumerGroupRequest, JoinConsumerGroupResponse, JoinConsumerGroupResponse),
    Operation(HeartbeatRequest, HeartbeatResponse, HeartbeatResponse),
    Operation(LeaveGroupRequest, LeaveGroupResponse, LeaveGroupResponse),
    Operation(OffsetCommitRequest, OffsetCommitResponse, OffsetCommitResponse),
    Operation(OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponse),
    Operation(OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponse),
    Operation(ListGroupsRequest, ListGroupsResponse, ListGroupsResponse),
    Operation(DescribeConsumerGroupsRequest, DescribeConsumerGroupsResponse, DescribeConsumerGroupsResponse),
    Operation(DeleteGroupsRequest, DeleteGroupsResponse, DeleteGroupsResponse),
    Operation(DescribeProducerRequest, DescribeProducerResponse, DescribeProducerResponse),
    Operation(ExplainRequest, ExplainResponse, ExplainResponse),
)
OPERATION_NAMES = tuple(operation.name for operation in OPERATIONS)


def choose_version(offered: Iterable[int]) -> int:
    """The greatest version that both ends speak. Raises VersionError where there is none."""
    common = set(offered) & set(VERSIONS)
    if not common:
        spoken = ", ".join(map(str, VERSIONS))
        raise VersionError(f"no version of the native protocol in common: spoken here {spoken}")
    return max(common)
