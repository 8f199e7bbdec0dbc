"""The operations and versions of the native protocol.

A request is a map of "op", "id" and the fields of the request value by name; a response is a map of "id" and the fields
of the response value, or of "id", "error" and "message" if the whole request failed. The neutral values are therefore
the schema: adding a field to one changes the protocol and needs a new version.
"""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
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
from warmlog.protocol.native.explain import ExplainRequest
from warmlog.protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    HeartbeatConsumerGroupRequest,
    HeartbeatConsumerGroupResponse,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
)
from warmlog.protocol.native.login import AuthenticateRequest, AuthenticateResponse
from warmlog.protocol.native.mirrors import (
    DescribeMirrorRequest,
    DescribeMirrorResponse,
    PromoteTopicsRequest,
    PromoteTopicsResponse,
)
from warmlog.protocol.native.producers import DescribeProducerRequest, DescribeProducerResponse
from warmlog.protocol.native.share import (
    AcknowledgeShareGroupRequest,
    AcknowledgeShareGroupResponse,
    AlterGroupsRequest,
    AlterGroupsResponse,
    FetchShareGroupRequest,
    FetchShareGroupResponse,
    HeartbeatShareGroupRequest,
    HeartbeatShareGroupResponse,
    ReceivedShareFetch,
    ResetShareGroupRequest,
    ResetShareGroupResponse,
)
from warmlog.protocol.request import (
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
from warmlog.protocol.response import (
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
from warmlog.protocol.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Oldest first. Version 2 adds group operations, version 3 describe_producer and explain, version 4 the aborted
# transactions in replies to fetches of committed records, version 5 transactions of producers, version 6 mirrors,
# version 7 find_coordinator, version 8 the replication factor of new topics, version 9 racks and
# eligible replicas in metadata, version 10 authenticate, version 11 heartbeat_consumer_group, version 12 share groups
# and settings of groups.
VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
FIRST_WITH_COMMITTED_FETCH = 4
FIRST_WITH_COORDINATORS = 7
FIRST_WITH_REPLICATION_FACTOR = 8
FIRST_WITH_RACKS = 9
FIRST_WITH_LOGIN = 10
FIRST_WITH_CONSUMER_GROUPS = 11
FIRST_WITH_SHARE_GROUPS = 12

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
    | InitProducerIdRequest
    | EndTxnRequest
    | TxnOffsetCommitRequest
    | ListTransactionsRequest
    | DescribeTransactionsRequest
    | DescribeProducersRequest
    | WriteTxnMarkersRequest
    | DescribeMirrorRequest
    | PromoteTopicsRequest
    | FindCoordinatorRequest
    | AuthenticateRequest
    | HeartbeatConsumerGroupRequest
    | HeartbeatShareGroupRequest
    | FetchShareGroupRequest
    | AcknowledgeShareGroupRequest
    | ResetShareGroupRequest
    | AlterGroupsRequest
)


class VersionError(ProtocolError):
    """The client and the broker have no protocol version in common."""

    code = ErrorCode.UNSUPPORTED_VERSION


class ReceivedPartition(FetchedPartition, frozen=True, kw_only=True):
    """A FetchedPartition as decoded by a client; the records are a view of the response frame."""

    records: memoryview = memoryview(b"")


class ReceivedFetch(FetchResponse, frozen=True, kw_only=True):
    """A FetchResponse as decoded by a client."""

    partitions: tuple[ReceivedPartition, ...]


class Operation(Struct, frozen=True):
    """An operation's request and response. `received`: the type to which a client decodes the response."""

    request: type[NativeRequest]
    response: type[Value]
    received: type[Value]

    @property
    def name(self) -> str:
        """The name used in frames."""
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
    Operation(ExplainRequest, Explanation, Explanation),
    Operation(InitProducerIdRequest, InitProducerIdResponse, InitProducerIdResponse),
    Operation(EndTxnRequest, EndTxnResponse, EndTxnResponse),
    Operation(TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnOffsetCommitResponse),
    Operation(ListTransactionsRequest, ListTransactionsResponse, ListTransactionsResponse),
    Operation(DescribeTransactionsRequest, DescribeTransactionsResponse, DescribeTransactionsResponse),
    Operation(DescribeProducersRequest, DescribeProducersResponse, DescribeProducersResponse),
    Operation(WriteTxnMarkersRequest, WriteTxnMarkersResponse, WriteTxnMarkersResponse),
    Operation(DescribeMirrorRequest, DescribeMirrorResponse, DescribeMirrorResponse),
    Operation(PromoteTopicsRequest, PromoteTopicsResponse, PromoteTopicsResponse),
    Operation(FindCoordinatorRequest, FindCoordinatorResponse, FindCoordinatorResponse),
    Operation(AuthenticateRequest, AuthenticateResponse, AuthenticateResponse),
    Operation(HeartbeatConsumerGroupRequest, HeartbeatConsumerGroupResponse, HeartbeatConsumerGroupResponse),
    Operation(HeartbeatShareGroupRequest, HeartbeatShareGroupResponse, HeartbeatShareGroupResponse),
    Operation(FetchShareGroupRequest, FetchShareGroupResponse, ReceivedShareFetch),
    Operation(AcknowledgeShareGroupRequest, AcknowledgeShareGroupResponse, AcknowledgeShareGroupResponse),
    Operation(ResetShareGroupRequest, ResetShareGroupResponse, ResetShareGroupResponse),
    Operation(AlterGroupsRequest, AlterGroupsResponse, AlterGroupsResponse),
)
OPERATION_NAMES = tuple(operation.name for operation in OPERATIONS)


def choose_version(offered: Iterable[int]) -> int:
    """Return the highest version supported by both ends. Raises VersionError if there is none."""
    common = set(offered) & set(VERSIONS)
    if not common:
        supported = ", ".join(map(str, VERSIONS))
        raise VersionError(f"no common version of the native protocol; this side supports {supported}")
    return max(common)
