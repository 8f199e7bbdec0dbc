"""Metadata, versions 0 to 13: which topics there are, and where.

Owns: the tables of both messages, and how they meet the neutral values. Must not know: how topics are found.

Up to version 0 an empty list asks for all topics, later null does. Topics may be asked for by id from version 12 on;
versions 10 and 11 have the field, and such a request is refused there.
"""

from collections.abc import Sequence
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.codec.bounds import InvalidRequestError
from protocol.kafka.primitives import NO_TOPIC_ID, Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT16, INT32, STRING, UUID, Array, Field, Primitive, Struct, array
from protocol.kafka.values import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    UNKNOWN_TOPIC_NAME,
    KafkaMetadataRequest,
    TopicNames,
    asked_topics,
    topic_id_bytes,
    topic_id_text,
)
from protocol.request import MetadataRequest
from protocol.response import ErrorResponse, MetadataResponse, PartitionMetadata, TopicMetadata

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
NOT_ASKED = -(1 << 31)  # authorized operations, where nobody asked or nothing is authorized

_MANY = 100  # topics in a reply that is worth keeping in pieces: all topics, as consumers by pattern and tools ask
_FIRST_WITH_ALL_AS_NULL = 1
_FIRST_WITH_TOPIC_ID = 12

REQUEST = Struct(
    Field("topics", array(Field("topic_id", UUID, since=10), Field("name", STRING, nullable=10)), nullable=1),
    Field("allow_auto_topic_creation", BOOLEAN, since=4, default=True),
    Field("include_cluster_authorized_operations", BOOLEAN, since=8, until=10),
    Field("include_topic_authorized_operations", BOOLEAN, since=8),
)
_PARTITION = (
    Field("error_code", INT16),
    Field("partition_index", INT32),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32, since=7, default=-1),
    Field("replica_nodes", Array(INT32)),
    Field("isr_nodes", Array(INT32)),
    Field("offline_replicas", Array(INT32), since=5, default=()),
)
_TOPIC = (
    Field("error_code", INT16),
    Field("name", STRING, nullable=12),
    Field("topic_id", UUID, since=10),
    Field("is_internal", BOOLEAN, since=1),
    Field("partitions", array(*_PARTITION)),
    Field("topic_authorized_operations", INT32, since=8, default=NOT_ASKED),
)
_BROKER = (
    Field("node_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, since=1, nullable=1, default=None),
)
_HEAD = (
    Field("throttle_time_ms", INT32, since=3),
    Field("brokers", array(*_BROKER)),
    Field("cluster_id", STRING, since=2, nullable=2, default=None),
    Field("controller_id", INT32, since=1, default=-1),
)
_TAIL = (
    Field("cluster_authorized_operations", INT32, since=8, until=10, default=NOT_ASKED),
    Field("error_code", INT16, since=13, default=0),
)
_TOPIC_TABLE = Struct(*_TOPIC)
_ENCODED = Primitive("raw", b"")  # a topic that has been written already
RESPONSE = Struct(*_HEAD, Field("topics", Array(_TOPIC_TABLE)), *_TAIL)
_RESPONSE_OF_ENCODED = Struct(*_HEAD, Field("topics", Array(_ENCODED)), *_TAIL)

# By version and whether operations are told: each topic's value by its id, with what it was written as.
_kept: dict[tuple[int, bool], dict[int, tuple[TopicMetadata, bytes]]] = {}


def decode(reader: Reader, version: int, names: TopicNames) -> KafkaMetadataRequest:
    """A metadata request. Raises InvalidRequestError for ids where names are needed."""
    values = REQUEST.read(reader, version)
    topics, auto_create = values["topics"], values["allow_auto_topic_creation"]
    operations = {
        "topic_operations": values["include_topic_authorized_operations"],
        "cluster_operations": values["include_cluster_authorized_operations"],
    }
    if topics is None or (version < _FIRST_WITH_ALL_AS_NULL and not topics):
        return KafkaMetadataRequest(auto_create=auto_create, **operations)
    request = KafkaMetadataRequest(
        topics=tuple([_name_of(topic, version, names) for topic in topics]),
        topic_ids=tuple([topic["topic_id"] for topic in topics]),
        auto_create=auto_create,
        **operations,
    )
    for topic in topics:
        _check_topic(topic, version, request)
    return request


def _check_topic(topic: dict[str, Any], version: int, request: KafkaMetadataRequest) -> None:
    if topic["name"] is None and topic["topic_id"] == NO_TOPIC_ID:
        raise InvalidRequestError(request, ErrorCode.INVALID_REQUEST, "a topic with neither name nor id")
    if version < _FIRST_WITH_TOPIC_ID and (topic["name"] is None or topic["topic_id"] != NO_TOPIC_ID):
        raise InvalidRequestError(request, ErrorCode.INVALID_REQUEST, "a topic id before version 12")


def _name_of(topic: dict[str, Any], version: int, names: TopicNames) -> str:
    """Return the name, or that of the id where the topic is asked for by id."""
    has_id = version >= _FIRST_WITH_TOPIC_ID and topic["topic_id"] != NO_TOPIC_ID
    name: str | None = names(topic["topic_id"]) if has_id else topic["name"]
    return name or UNKNOWN_TOPIC_NAME


def encode(writer: Writer, version: int, request: MetadataRequest, response: MetadataResponse) -> None:
    """The reply. Topics that were asked for by an id that nobody knows are named by that id alone."""
    is_told = isinstance(request, KafkaMetadataRequest) and request.cluster_operations
    _RESPONSE_OF_ENCODED.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "brokers": [
                {"node_id": broker.node_id, "host": broker.host, "port": broker.port} for broker in response.brokers
            ],
            "cluster_id": response.cluster_id or None,
            "controller_id": response.controller,
            "topics": _encoded_topics(writer, version, request, response.topics),
            "cluster_authorized_operations": CLUSTER_OPERATIONS if is_told else NOT_ASKED,
        },
    )


def _encoded_topics(
    writer: Writer, version: int, request: MetadataRequest, topics: Sequence[TopicMetadata]
) -> list[bytes]:
    """Each topic's part of a reply.

    Those of a large reply are kept until the next large one of the same version, by the values that they were made of:
    who answers with the same value again has it written already.
    """
    unknown = iter(_unknown_ids(request))
    operations = isinstance(request, KafkaMetadataRequest) and request.topic_operations
    key, kind = (version, operations), type(writer)
    kept = _kept.get(key, {})
    encoded = []
    for topic in topics:
        found = kept.get(id(topic))
        if found is None or topic.name == UNKNOWN_TOPIC_NAME:
            part = kind(b"")
            _TOPIC_TABLE.write(part, version, _topic_fields(topic, unknown, operations=operations))
            found = topic, part.written()
        encoded.append(found)
    if len(topics) >= _MANY:
        _kept[key] = {id(topic): found for topic, found in zip(topics, encoded, strict=True)}
    return [data for _, data in encoded]


def failed(request: MetadataRequest, error: ErrorResponse) -> MetadataResponse:
    """The reply where the request failed as a whole: no brokers, and each topic with the error."""
    topics = [
        TopicMetadata(name=name, topic_id=topic_id_text(topic_id), error=error.error)
        for name, topic_id in asked_topics(request)
    ]
    return MetadataResponse(cluster_id="", controller=-1, brokers=(), topics=tuple(topics))


def _unknown_ids(request: MetadataRequest) -> list[bytes]:
    return [
        topic_id for name, topic_id in asked_topics(request) if name == UNKNOWN_TOPIC_NAME and topic_id != NO_TOPIC_ID
    ]


def _topic_fields(topic: TopicMetadata, unknown: Any, *, operations: bool) -> dict[str, Any]:
    error, topic_id = topic.error, topic_id_bytes(topic.topic_id)
    name: str | None = topic.name
    if topic.name == UNKNOWN_TOPIC_NAME and error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        error, topic_id, name = ErrorCode.UNKNOWN_TOPIC_ID, next(unknown), None
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": list(map(_partition_fields, topic.partitions)),
        "topic_authorized_operations": TOPIC_OPERATIONS if operations and name is not None else NOT_ASKED,
    }


def _partition_fields(partition: PartitionMetadata) -> dict[str, Any]:
    return {
        "error_code": partition.error,
        "partition_index": partition.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.in_sync,
        "offline_replicas": partition.replicas if partition.leader < 0 else (),
    }
