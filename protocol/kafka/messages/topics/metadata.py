"""Metadata (0 to 13) and DescribeTopicPartitions (0).

In version 0 of Metadata an empty list requests all topics, in later versions null. Topics may be requested by id from
version 12 on; versions 10 and 11 have the field, but such requests are refused.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, ClassVar

from msgspec import UNSET

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID, InvalidRequestError
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT16, INT32, STRING, TOPIC_ID, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    CLUSTER_OPERATIONS,
    ERROR_CODE,
    NOT_REQUESTED,
    THROTTLE_TIME,
    TOPIC_OPERATIONS,
    UNKNOWN_TOPIC_NAME,
    rack_of,
    refused_each,
    since,
    topic_id_text,
)
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import MetadataRequest, Value
from warmlog.protocol.response import BrokerMetadata, ErrorResponse, MetadataResponse, PartitionMetadata, TopicMetadata


class KafkaPartitionMetadata(PartitionMetadata, frozen=True, kw_only=True, gc=False):
    """A partition with a field specific to Kafka's protocol: the replicas on brokers that are not alive."""

    offline: tuple[int, ...] = ()


class AuthorizedTopic(TopicMetadata, frozen=True, kw_only=True, gc=False):
    """A topic with the operations that the client may perform on it, as bits."""

    operations: int


class AuthorizedMetadata(MetadataResponse, frozen=True, kw_only=True, gc=False):
    """A response with the operations that the client may perform on the cluster, as bits."""

    operations: int


class KafkaMetadataRequest(MetadataRequest, frozen=True, kw_only=True, gc=False):
    """A metadata request. `topic_ids` runs parallel to `topics`; NO_TOPIC_ID for a topic identified by name.

    `topic_operations` and `cluster_operations` request the authorized operations.
    """

    topic_ids: tuple[bytes, ...] = ()
    topic_operations: bool = False
    cluster_operations: bool = False


def requested_topics(request: MetadataRequest) -> Iterator[tuple[str, bytes]]:
    """Yield the requested topics as (name, id); the name is UNKNOWN_TOPIC_NAME for an unknown id."""
    names = request.topics or ()
    topic_ids = request.topic_ids if isinstance(request, KafkaMetadataRequest) else None
    return zip(names, topic_ids or repeat(NO_TOPIC_ID, len(names)), strict=True)


class DescribeTopicPartitionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe up to `limit` partitions of these topics, or of all topics if empty (KIP-966).

    `cursor`, the topic and partition to start at, comes from the previous response.
    """

    api: ClassVar[str] = "describe_topic_partitions"
    topics: tuple[str, ...] = ()
    limit: int = 2000
    cursor: TopicPartition | None = None


class DescribeTopicPartitionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Topics sorted by name, and the cursor for the next request if there are more."""

    topics: tuple[TopicMetadata, ...] = ()
    next_cursor: TopicPartition | None = None


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__warmlog_audit"})

_FIRST_WITH_ALL_AS_NULL = 1
_FIRST_WITH_TOPIC_ID = 12


class _RequestedTopic(Value, frozen=True, kw_only=True, gc=False):
    """A requested topic; `topic` is the current name of its id."""

    name: str | None
    topic_id: bytes = NO_TOPIC_ID
    topic: str = ""


def _topics(request: KafkaMetadataRequest, *_: Any) -> list[_RequestedTopic] | None:
    if request.topics is None:
        return None
    return [_RequestedTopic(name=name or None, topic_id=topic_id) for name, topic_id in requested_topics(request)]


def _request(*, topics: tuple[_RequestedTopic, ...] | None, version: int, **wishes: Any) -> KafkaMetadataRequest:
    if topics is None or (version < _FIRST_WITH_ALL_AS_NULL and not topics):
        return KafkaMetadataRequest(**wishes)
    by_id = version >= _FIRST_WITH_TOPIC_ID
    names = [topic.topic if by_id and topic.topic_id != NO_TOPIC_ID else topic.name for topic in topics]
    request = KafkaMetadataRequest(
        topics=tuple([name or UNKNOWN_TOPIC_NAME for name in names]),
        topic_ids=tuple([topic.topic_id for topic in topics]),
        **wishes,
    )
    for topic in topics:
        if topic.name is None and topic.topic_id == NO_TOPIC_ID:
            raise InvalidRequestError(request, ErrorCode.INVALID_REQUEST, "a topic with neither name nor id")
        if not by_id and (topic.name is None or topic.topic_id != NO_TOPIC_ID):
            raise InvalidRequestError(request, ErrorCode.INVALID_REQUEST, "a topic id before version 12")
    return request


def _name(topic: TopicMetadata, *_: Any) -> str | None:
    """Return the topic's name, or None if it was requested by an unknown id, which is then its only name."""
    is_unknown = topic.name == UNKNOWN_TOPIC_NAME and topic.error is ErrorCode.UNKNOWN_TOPIC_ID
    return None if is_unknown else topic.name


def _is_internal(topic: TopicMetadata, *_: Any) -> bool:
    return topic.name in INTERNAL_TOPICS


def _topic_operations(topic: TopicMetadata, request: KafkaMetadataRequest, _: int) -> int:
    if not request.topic_operations or _name(topic) is None or topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return NOT_REQUESTED
    return topic.operations if isinstance(topic, AuthorizedTopic) else TOPIC_OPERATIONS


def _page_operations(topic: TopicMetadata, *_: Any) -> int:
    if topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return NOT_REQUESTED
    return topic.operations if isinstance(topic, AuthorizedTopic) else TOPIC_OPERATIONS


def _cluster_operations(response: MetadataResponse, request: KafkaMetadataRequest, _: int) -> int:
    if not request.cluster_operations:
        return NOT_REQUESTED
    return response.operations if isinstance(response, AuthorizedMetadata) else CLUSTER_OPERATIONS


def _offline(partition: PartitionMetadata, *_: Any) -> tuple[int, ...]:
    """Return the offline replicas; the only replica counts as offline if the partition has no leader."""
    if isinstance(partition, KafkaPartitionMetadata) and partition.offline:
        return partition.offline
    return partition.replicas if partition.leader < 0 and len(partition.replicas) == 1 else ()


def _eligible(partition: PartitionMetadata, *_: Any) -> tuple[int, ...]:
    return () if partition.eligible is UNSET else partition.eligible


REQUEST = Struct(
    Field(
        "topics",
        array(Field("topic_id", TOPIC_ID, since=10), Field("name", STRING, nullable=10), into=_RequestedTopic),
        nullable=1,
        get=_topics,
    ),
    Field("allow_auto_topic_creation", BOOLEAN, since=4, default=True, attr="auto_create"),
    Field("include_cluster_authorized_operations", BOOLEAN, since=8, until=10, attr="cluster_operations"),
    Field("include_topic_authorized_operations", BOOLEAN, since=8, attr="topic_operations"),
    into=_request,
    given=lambda version: {"version": version},
)
_LEADER = (
    ERROR_CODE,
    Field("partition_index", INT32, attr="partition"),
    Field("leader_id", INT32, attr="leader"),
)
_EPOCH = Field("leader_epoch", INT32, default=-1)
_REPLICAS = (
    Field("replica_nodes", Array(INT32), attr="replicas"),
    Field("isr_nodes", Array(INT32), attr="in_sync"),
)
_OFFLINE_REPLICAS = Field("offline_replicas", Array(INT32), default=(), attr=None, get=_offline)


def _topic(*, name: str, topic_id: bytes = NO_TOPIC_ID, topic: str = "", **fields: Any) -> TopicMetadata:
    """Build the metadata of a topic received from a broker."""
    text = None if topic_id == NO_TOPIC_ID else topic_id_text(topic_id)
    return TopicMetadata(name=name or topic, topic_id=text, **fields)


RESPONSE = Struct(
    since(3, THROTTLE_TIME),
    Field(
        "brokers",
        array(
            Field("node_id", INT32),
            Field("host", STRING),
            Field("port", INT32),
            Field("rack", STRING, since=1, nullable=1, default=None, attr=None, get=rack_of),
            into=BrokerMetadata,
        ),
    ),
    Field(
        "cluster_id",
        STRING,
        since=2,
        nullable=2,
        default=None,
        null="",
        get=lambda response, *_: response.cluster_id or None,
    ),
    Field("controller_id", INT32, since=1, default=-1, attr="controller"),
    Field(
        "topics",
        array(
            ERROR_CODE,
            Field("name", STRING, nullable=12, null="", get=_name),
            Field("topic_id", TOPIC_ID, since=10),
            Field("is_internal", BOOLEAN, since=1, attr=None, get=_is_internal),
            Field(
                "partitions",
                array(
                    *_LEADER,
                    since(7, _EPOCH),
                    *_REPLICAS,
                    since(5, _OFFLINE_REPLICAS),
                    into=PartitionMetadata,
                    kept=True,
                ),
            ),
            Field(
                "topic_authorized_operations", INT32, since=8, default=NOT_REQUESTED, attr=None, get=_topic_operations
            ),
            into=_topic,
        ),
    ),
    Field(
        "cluster_authorized_operations",
        INT32,
        since=8,
        until=10,
        default=NOT_REQUESTED,
        attr=None,
        get=_cluster_operations,
    ),
    Field("error_code", INT16, since=13, default=0, attr=None),
    into=MetadataResponse,
)


def failed(request: MetadataRequest, error: ErrorResponse) -> MetadataResponse:
    """Respond to a request that failed as a whole: without brokers, and with the error for each topic."""
    topics = [
        TopicMetadata(name=name, topic_id=topic_id_text(topic_id), error=error.error)
        for name, topic_id in requested_topics(request)
    ]
    return MetadataResponse(cluster_id="", controller=-1, brokers=(), topics=tuple(topics))


# -- DescribeTopicPartitions --


def _cursor(topic_name: str, partition_index: int) -> TopicPartition:
    return topic_name, partition_index


PAGE_REQUEST = Struct(
    Field("topics", array(Field("name", STRING), into=lambda name: name)),
    Field("response_partition_limit", INT32, default=2000, attr="limit"),
    Field(
        "cursor",
        Struct(Field("topic_name", STRING), Field("partition_index", INT32), into=_cursor),
        nullable=0,
        default=None,
    ),
    into=DescribeTopicPartitionsRequest,
)
PAGE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "topics",
        array(
            ERROR_CODE,
            Field("name", STRING, nullable=0),
            Field("topic_id", TOPIC_ID),
            Field("is_internal", BOOLEAN, get=_is_internal),
            Field(
                "partitions",
                array(
                    *_LEADER,
                    _EPOCH,
                    *_REPLICAS,
                    Field("eligible_leader_replicas", Array(INT32), nullable=0, default=None, get=_eligible),
                    Field("last_known_elr", Array(INT32), nullable=0, default=None, per_reply=lambda *_: ()),
                    _OFFLINE_REPLICAS,
                ),
            ),
            Field("topic_authorized_operations", INT32, default=NOT_REQUESTED, get=_page_operations),
        ),
    ),
    Field(
        "next_cursor",
        Struct(
            Field("topic_name", STRING, get=lambda cursor, *_: cursor[0]),
            Field("partition_index", INT32, get=lambda cursor, *_: cursor[1]),
        ),
        nullable=0,
        default=None,
    ),
)
failed_page = refused_each(DescribeTopicPartitionsResponse, "topics", TopicMetadata, "name")
