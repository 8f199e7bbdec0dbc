"""The APIs that can be asked of a peer: their requests as fields of the tables, and their responses as values.

Requests and responses are the values that the handlers of this broker use, except those of Fetch: within a
session it has partitions that the request does not name, by topic id or by name (`PeerFetchedPartition`).

Kafka 3.0 and later support the lowest versions used here. The others are in `peer_admin_apis.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, TypeVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import LAST_VERSION
from warmlog.protocol.kafka.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, VersionRange
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.fetch import NO_SESSION, KafkaFetchRequest
from warmlog.protocol.kafka.messages.metadata import KafkaMetadataRequest, asked_topics
from warmlog.protocol.kafka.messages.offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    EpochEnd,
    KafkaListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.request import MAX_TIMESTAMP, Isolation, ListOffsetsRequest, MetadataRequest, Value
from warmlog.protocol.response import (
    AbortedTransaction,
    BrokerMetadata,
    FetchedPartition,
    FoundOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

T = TypeVar("T")
Fields = Mapping[str, Any]

FIRST_FETCH_WITH_TOPIC_IDS = 13
_FIRST_METADATA_WITH_TOPIC_IDS = 12
_FIRST_WITH_TIMESTAMP = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
_NO_RECORDS = memoryview(b"")


def error_of(code: int) -> ErrorCode:
    """Convert an error code from the wire; unknown ones become UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def by_topic(partitions: Iterable[T], key: Callable[[T], Any]) -> list[tuple[Any, tuple[T, ...]]]:
    """Group consecutive partitions of the same topic."""
    return [(topic, tuple(found)) for topic, found in groupby(partitions, key)]


def _topic(one: Any) -> Any:
    return one.topic


def _isolation(isolation: Isolation) -> int:
    return 1 if isolation is Isolation.READ_COMMITTED else 0


# -- ApiVersions --


def _versions_fields(request: ApiVersionsRequest, _: int) -> dict[str, Any]:
    return {"client_software_name": request.software_name, "client_software_version": request.software_version}


def _versions_response(fields: Fields, _: ApiVersionsRequest, __: int) -> ApiVersionsResponse:
    apis = [
        VersionRange(key=one["api_key"], first=one["min_version"], last=one["max_version"])
        for one in fields["api_keys"]
    ]
    return ApiVersionsResponse(apis=tuple(apis), error=error_of(fields["error_code"]))


API_VERSIONS = PeerApi(API_BY_KEY[18], 0, 4, _versions_fields, _versions_response)


# -- Metadata: version 13 adds only an error that asks clients to start from their bootstrap addresses --


def _metadata_fields(request: MetadataRequest, _: int) -> dict[str, Any]:
    asked = [{"name": name or None, "topic_id": topic_id} for name, topic_id in asked_topics(request)]
    wishes = request if isinstance(request, KafkaMetadataRequest) else KafkaMetadataRequest()
    return {
        "topics": None if request.topics is None else tuple(asked),
        "allow_auto_topic_creation": request.auto_create,
        "include_cluster_authorized_operations": wishes.cluster_operations,
        "include_topic_authorized_operations": wishes.topic_operations,
    }


def _metadata_span(request: MetadataRequest) -> tuple[int, int]:
    by_id = any(topic_id != NO_TOPIC_ID for _, topic_id in asked_topics(request))
    return _FIRST_METADATA_WITH_TOPIC_IDS if by_id else 0, LAST_VERSION


def _metadata_response(fields: Fields, _: MetadataRequest, __: int) -> MetadataResponse:
    brokers = [BrokerMetadata(node_id=one["node_id"], host=one["host"], port=one["port"]) for one in fields["brokers"]]
    return MetadataResponse(
        cluster_id=fields["cluster_id"] or "",
        controller=fields["controller_id"],
        brokers=tuple(brokers),
        topics=tuple([_topic_metadata(one) for one in fields["topics"]]),
    )


def _topic_metadata(fields: Fields) -> TopicMetadata:
    partitions = [
        PartitionMetadata(
            partition=one["partition_index"],
            leader=one["leader_id"],
            leader_epoch=one["leader_epoch"],
            replicas=one["replica_nodes"],
            in_sync=one["isr_nodes"],
            error=error_of(one["error_code"]),
        )
        for one in fields["partitions"]
    ]
    topic_id = fields["topic_id"]
    return TopicMetadata(
        name=fields["name"] or "",
        topic_id=None if topic_id == NO_TOPIC_ID else topic_id_text(topic_id),
        partitions=tuple(partitions),
        error=error_of(fields["error_code"]),
    )


METADATA = PeerApi(API_BY_KEY[3], 7, 12, _metadata_fields, _metadata_response, _metadata_span)


# -- Fetch --


class PeerFetchedPartition(FetchedPartition, frozen=True, kw_only=True, gc=False):
    """The fetched batches of a partition, which is identified by `topic_id`, or by `topic` before version 13.

    `records` is a view of the received frame. `diverging_epoch` is -1, or the largest epoch of the leader not above
    the last fetched one, which ends at `diverging_end_offset`: the log must be truncated (KIP-595). A consumer should
    read from `preferred_replica` if that is not -1 (KIP-392).
    """

    topic_id: bytes = NO_TOPIC_ID
    diverging_epoch: int = -1
    diverging_end_offset: int = -1
    preferred_replica: int = -1
    records: memoryview = _NO_RECORDS


class PeerFetchResponse(Value, frozen=True, kw_only=True, gc=False):
    """Fetched partitions; those of a session that have not changed are missing. `error` concerns the session."""

    partitions: tuple[PeerFetchedPartition, ...]
    error: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    throttle_ms: int = 0


def _fetch_span(request: KafkaFetchRequest) -> tuple[int, int]:
    first = FIRST_FETCH_WITH_TOPIC_IDS
    return (first, LAST_VERSION) if request.uses_topic_ids else (0, first - 1)


def _fetch_fields(request: KafkaFetchRequest, _: int) -> dict[str, Any]:
    topics = [
        {
            "topic": topic,
            "topic_id": topic_id,
            "partitions": tuple(
                [
                    {
                        "partition": one.partition,
                        "current_leader_epoch": one.current_leader_epoch,
                        "fetch_offset": one.offset,
                        "last_fetched_epoch": one.last_fetched_epoch,
                        "log_start_offset": one.log_start_offset,
                        "partition_max_bytes": one.max_bytes,
                    }
                    for one in partitions
                ]
            ),
        }
        for (topic, topic_id), partitions in by_topic(request.partitions, lambda one: (one.topic, one.topic_id))
    ]
    forgotten = [
        {"topic": one.topic, "topic_id": one.topic_id, "partitions": one.partitions} for one in request.forgotten
    ]
    return {
        "replica_id": request.replica.broker,
        "replica_state": {"replica_id": request.replica.broker, "replica_epoch": request.replica.epoch},
        "max_wait_ms": request.max_wait_ms,
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": _isolation(request.isolation),
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": tuple(topics),
        "forgotten_topics_data": tuple(forgotten),
        "rack_id": request.rack,
    }


def _fetch_response(fields: Fields, _: KafkaFetchRequest, __: int) -> PeerFetchResponse:
    partitions = [
        _fetched_partition(topic["topic"], topic["topic_id"], one)
        for topic in fields["responses"]
        for one in topic["partitions"]
    ]
    return PeerFetchResponse(
        partitions=tuple(partitions),
        error=error_of(fields["error_code"]),
        session_id=fields["session_id"],
        throttle_ms=fields["throttle_time_ms"],
    )


def _fetched_partition(topic: str, topic_id: bytes, fields: Fields) -> PeerFetchedPartition:
    diverging, records, aborted = fields["diverging_epoch"], fields["records"], fields["aborted_transactions"]
    return PeerFetchedPartition(
        topic=topic,
        topic_id=topic_id,
        partition=fields["partition_index"],
        error=error_of(fields["error_code"]),
        high_watermark=fields["high_watermark"],
        last_stable_offset=fields["last_stable_offset"],
        log_start_offset=fields["log_start_offset"],
        aborted_transactions=None if aborted is None else tuple([AbortedTransaction(**one) for one in aborted]),
        diverging_epoch=diverging["epoch"],
        diverging_end_offset=diverging["end_offset"],
        preferred_replica=fields["preferred_read_replica"],
        records=_NO_RECORDS if records is None else records,
    )


FETCH = PeerApi(API_BY_KEY[1], 12, 18, _fetch_fields, _fetch_response, _fetch_span)


# -- ListOffsets, OffsetForLeaderEpoch --


def _offsets_fields(request: ListOffsetsRequest, _: int) -> dict[str, Any]:
    topics = [
        {
            "name": topic,
            "partitions": tuple(
                [
                    {
                        "partition_index": one.partition,
                        "current_leader_epoch": getattr(one, "current_leader_epoch", -1),
                        "timestamp": one.timestamp,
                    }
                    for one in partitions
                ]
            ),
        }
        for topic, partitions in by_topic(request.partitions, _topic)
    ]
    return {
        "replica_id": request.replica_id if isinstance(request, KafkaListOffsetsRequest) else -1,
        "isolation_level": _isolation(request.isolation),
        "topics": tuple(topics),
        "timeout_ms": request.timeout_ms if isinstance(request, KafkaListOffsetsRequest) else 0,
    }


def _offsets_span(request: ListOffsetsRequest) -> tuple[int, int]:
    first = max((_FIRST_WITH_TIMESTAMP.get(one.timestamp, 0) for one in request.partitions), default=0)
    return first, LAST_VERSION


def _offsets_response(fields: Fields, _: ListOffsetsRequest, __: int) -> ListOffsetsResponse:
    found = [
        FoundOffset(
            topic=topic["name"],
            partition=one["partition_index"],
            timestamp=one["timestamp"],
            offset=one["offset"],
            leader_epoch=one["leader_epoch"],
            error=error_of(one["error_code"]),
        )
        for topic in fields["topics"]
        for one in topic["partitions"]
    ]
    return ListOffsetsResponse(partitions=tuple(found))


LIST_OFFSETS = PeerApi(API_BY_KEY[2], 4, 11, _offsets_fields, _offsets_response, _offsets_span)


def _epochs_fields(request: OffsetForLeaderEpochRequest, _: int) -> dict[str, Any]:
    topics = [
        {
            "topic": topic,
            "partitions": tuple(
                [
                    {
                        "partition": one.partition,
                        "current_leader_epoch": one.current_leader_epoch,
                        "leader_epoch": one.leader_epoch,
                    }
                    for one in partitions
                ]
            ),
        }
        for topic, partitions in by_topic(request.partitions, _topic)
    ]
    return {"replica_id": -1, "topics": tuple(topics)}


def _epochs_response(fields: Fields, _: OffsetForLeaderEpochRequest, __: int) -> OffsetForLeaderEpochResponse:
    ends = [
        EpochEnd(
            topic=topic["topic"],
            partition=one["partition"],
            leader_epoch=one["leader_epoch"],
            end_offset=one["end_offset"],
            error=error_of(one["error_code"]),
        )
        for topic in fields["topics"]
        for one in topic["partitions"]
    ]
    return OffsetForLeaderEpochResponse(partitions=tuple(ends))


OFFSET_FOR_LEADER_EPOCH = PeerApi(API_BY_KEY[23], 2, 4, _epochs_fields, _epochs_response)
