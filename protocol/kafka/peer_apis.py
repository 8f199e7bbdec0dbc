"""The APIs that can be requested from a peer, with the versions used.

Kafka 3.0 and later support the lowest of these versions.
"""

from warmlog.protocol.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import LAST_VERSION
from warmlog.protocol.kafka.messages.cluster.configs import DescribeConfigsRequest, DescribeConfigsResponse
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest, ApiVersionsResponse
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchRequest, KafkaFetchResponse
from warmlog.protocol.kafka.messages.records.offsets import (
    FIRST_WITH_TIME,
    KafkaListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog.protocol.kafka.messages.share.state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest, requested_topics
from warmlog.protocol.kafka.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.request import ProduceRequest
from warmlog.protocol.response import ListOffsetsResponse, MetadataResponse, ProduceResponse
from warmlog.protocol.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

FIRST_FETCH_WITH_TOPIC_IDS = 13
_FIRST_METADATA_WITH_TOPIC_IDS = 12
_FIRST_LIST_WITH_TYPES = 5


def _metadata_span(request: KafkaMetadataRequest) -> tuple[int, int]:
    by_id = any(topic_id != NO_TOPIC_ID for _, topic_id in requested_topics(request))
    return _FIRST_METADATA_WITH_TOPIC_IDS if by_id else 0, LAST_VERSION


def _fetch_span(request: KafkaFetchRequest) -> tuple[int, int]:
    first = FIRST_FETCH_WITH_TOPIC_IDS
    return (first, LAST_VERSION) if request.uses_topic_ids else (0, first - 1)


def _offsets_span(request: KafkaListOffsetsRequest) -> tuple[int, int]:
    return max((FIRST_WITH_TIME.get(query.timestamp, 0) for query in request.partitions), default=0), LAST_VERSION


def _list_span(request: ListGroupsRequest) -> tuple[int, int]:
    return _FIRST_LIST_WITH_TYPES if request.types else 0, LAST_VERSION


# Version 5 would require one more exchange with older peers.
API_VERSIONS: PeerApi[ApiVersionsRequest, ApiVersionsResponse] = PeerApi(API_BY_KEY[18], 0, 4)
# Version 13 adds only an error that tells clients to rebootstrap.
METADATA: PeerApi[KafkaMetadataRequest, MetadataResponse] = PeerApi(API_BY_KEY[3], 7, 12, _metadata_span)
# Version 13 names topics by id.
PRODUCE: PeerApi[ProduceRequest, ProduceResponse] = PeerApi(API_BY_KEY[0], 9, 12)
FETCH: PeerApi[KafkaFetchRequest, KafkaFetchResponse] = PeerApi(API_BY_KEY[1], 12, 18, _fetch_span)
LIST_OFFSETS: PeerApi[KafkaListOffsetsRequest, ListOffsetsResponse] = PeerApi(API_BY_KEY[2], 4, 11, _offsets_span)
OFFSET_FOR_LEADER_EPOCH: PeerApi[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse] = PeerApi(
    API_BY_KEY[23], 2, 4
)
DESCRIBE_CONFIGS: PeerApi[DescribeConfigsRequest, DescribeConfigsResponse] = PeerApi(API_BY_KEY[32], 3, 4)
FIND_COORDINATOR: PeerApi[FindCoordinatorRequest, FindCoordinatorResponse] = PeerApi(API_BY_KEY[10], 4, 6)
LIST_GROUPS: PeerApi[ListGroupsRequest, ListGroupsResponse] = PeerApi(API_BY_KEY[16], 4, 5, _list_span)
# Version 10 names topics by id, and cannot carry the offsets of a deleted topic.
OFFSET_FETCH: PeerApi[OffsetFetchRequest, OffsetFetchResponse] = PeerApi(API_BY_KEY[9], 8, 9)
ADD_PARTITIONS: PeerApi[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse] = PeerApi(API_BY_KEY[24], 4, 5)
WRITE_MARKERS: PeerApi[WriteTxnMarkersRequest, WriteTxnMarkersResponse] = PeerApi(API_BY_KEY[27], 1, 2)
INITIALIZE_STATE: PeerApi[InitializeShareGroupStateRequest, InitializeShareGroupStateResponse] = PeerApi(
    API_BY_KEY[83], 0, 0
)
READ_STATE: PeerApi[ReadShareGroupStateRequest, ReadShareGroupStateResponse] = PeerApi(API_BY_KEY[84], 0, 0)
WRITE_STATE: PeerApi[WriteShareGroupStateRequest, WriteShareGroupStateResponse] = PeerApi(API_BY_KEY[85], 0, 1)
DELETE_STATE: PeerApi[DeleteShareGroupStateRequest, DeleteShareGroupStateResponse] = PeerApi(API_BY_KEY[86], 0, 0)
SUMMARIZE_STATE: PeerApi[ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse] = PeerApi(
    API_BY_KEY[87], 0, 1
)
