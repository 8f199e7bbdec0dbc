"""DescribeTopicPartitions (0): partitions of topics, page by page (KIP-966)."""

from typing import Any

from protocol.kafka.admin_values import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from protocol.kafka.metadata import INTERNAL_TOPICS, NOT_ASKED
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT16, INT32, STRING, UUID, Array, Field, Struct, array
from protocol.kafka.values import TOPIC_OPERATIONS, TopicNames, topic_id_bytes
from protocol.response import ErrorResponse, PartitionMetadata, TopicMetadata

_CURSOR = Struct(Field("topic_name", STRING), Field("partition_index", INT32))
REQUEST = Struct(
    Field("topics", array(Field("name", STRING))),
    Field("response_partition_limit", INT32, default=2000),
    Field("cursor", _CURSOR, nullable=0, default=None),
)
RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "topics",
        array(
            Field("error_code", INT16),
            Field("name", STRING, nullable=0),
            Field("topic_id", UUID),
            Field("is_internal", BOOLEAN),
            Field(
                "partitions",
                array(
                    Field("error_code", INT16),
                    Field("partition_index", INT32),
                    Field("leader_id", INT32),
                    Field("leader_epoch", INT32, default=-1),
                    Field("replica_nodes", Array(INT32)),
                    Field("isr_nodes", Array(INT32)),
                    Field("eligible_leader_replicas", Array(INT32), nullable=0, default=None),
                    Field("last_known_elr", Array(INT32), nullable=0, default=None),
                    Field("offline_replicas", Array(INT32)),
                ),
            ),
            Field("topic_authorized_operations", INT32, default=NOT_ASKED),
        ),
    ),
    Field("next_cursor", _CURSOR, nullable=0, default=None),
)


def decode(reader: Reader, version: int, _: TopicNames) -> DescribeTopicPartitionsRequest:
    """Read the topics, and where to begin."""
    values = REQUEST.read(reader, version)
    cursor = values["cursor"]
    return DescribeTopicPartitionsRequest(
        topics=tuple([topic["name"] for topic in values["topics"]]),
        limit=values["response_partition_limit"],
        cursor=None if cursor is None else (cursor["topic_name"], cursor["partition_index"]),
    )


def encode(
    writer: Writer, version: int, _: DescribeTopicPartitionsRequest, response: DescribeTopicPartitionsResponse
) -> None:
    """Write a page."""
    cursor = response.next_cursor
    values = {
        "throttle_time_ms": writer.throttle_ms,
        "topics": list(map(_topic_fields, response.topics)),
        "next_cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    RESPONSE.write(writer, version, values)


def failed(request: DescribeTopicPartitionsRequest, error: ErrorResponse) -> DescribeTopicPartitionsResponse:
    """Refuse each topic."""
    topics = [TopicMetadata(name=name, error=error.error) for name in request.topics]
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _topic_fields(topic: TopicMetadata) -> dict[str, Any]:
    return {
        "error_code": topic.error,
        "name": topic.name,
        "topic_id": topic_id_bytes(topic.topic_id),
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": list(map(_partition_fields, topic.partitions)),
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


def _partition_fields(partition: PartitionMetadata) -> dict[str, Any]:
    return {
        "error_code": partition.error,
        "partition_index": partition.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.in_sync,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": partition.replicas if partition.leader < 0 else (),
    }
