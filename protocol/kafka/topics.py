"""CreateTopics (2 to 7), DeleteTopics (1 to 6), CreatePartitions (0 to 3).

Owns: the tables of these messages, and how they meet the values. Must not know: topics.
"""

from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.primitives import NO_TOPIC_ID, Reader, Writer
from protocol.kafka.schema import BOOLEAN, INT8, INT16, INT32, STRING, UUID, Array, Field, Struct, array
from protocol.kafka.values import (
    UNKNOWN_TOPIC_NAME,
    ConfigEntry,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    KafkaCreatedTopic,
    KafkaCreateTopicsRequest,
    KafkaDeleteTopicsRequest,
    KafkaNewTopic,
    NewPartitions,
    TopicNames,
    topic_id_bytes,
)
from protocol.request import CreateTopicsRequest, DeleteTopicsRequest
from protocol.response import (
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    ErrorResponse,
    TopicResult,
)

_FIRST_DELETE_WITH_ID = 6

CREATE_REQUEST = Struct(
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field("num_partitions", INT32),
            Field("replication_factor", INT16),
            Field("assignments", array(Field("partition_index", INT32), Field("broker_ids", Array(INT32)))),
            Field("configs", array(Field("name", STRING), Field("value", STRING, nullable=0))),
        ),
    ),
    Field("timeout_ms", INT32, default=60_000),
    Field("validate_only", BOOLEAN, since=1),
)
CREATE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=2),
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field("topic_id", UUID, since=7),
            Field("error_code", INT16),
            Field("error_message", STRING, since=1, nullable=0),
            Field("topic_config_error_code", INT16, since=5, tag=0),
            Field("num_partitions", INT32, since=5, default=-1),
            Field("replication_factor", INT16, since=5, default=-1),
            Field(
                "configs",
                array(
                    Field("name", STRING),
                    Field("value", STRING, nullable=5),
                    Field("read_only", BOOLEAN),
                    Field("config_source", INT8, default=-1),
                    Field("is_sensitive", BOOLEAN),
                ),
                since=5,
                nullable=5,
            ),
        ),
    ),
)
DELETE_REQUEST = Struct(
    Field("topics", array(Field("name", STRING, nullable=6, default=None), Field("topic_id", UUID)), since=6),
    Field("topic_names", Array(STRING), until=5),
    Field("timeout_ms", INT32),
)
DELETE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field(
        "responses",
        array(
            Field("name", STRING, nullable=6),
            Field("topic_id", UUID, since=6),
            Field("error_code", INT16),
            Field("error_message", STRING, since=5, nullable=5, default=None),
        ),
    ),
)
PARTITIONS_REQUEST = Struct(
    Field(
        "topics",
        array(
            Field("name", STRING),
            Field("count", INT32),
            Field("assignments", array(Field("broker_ids", Array(INT32))), nullable=0),
        ),
    ),
    Field("timeout_ms", INT32),
    Field("validate_only", BOOLEAN),
)
PARTITIONS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "results",
        array(
            Field("name", STRING),
            Field("error_code", INT16),
            Field("error_message", STRING, nullable=0, default=None),
        ),
    ),
)


def decode_create(reader: Reader, version: int, _: TopicNames) -> KafkaCreateTopicsRequest:
    """Topics to create."""
    values = CREATE_REQUEST.read(reader, version)
    return KafkaCreateTopicsRequest(
        topics=tuple(map(_new_topic, values["topics"])),
        validate_only=values["validate_only"],
        timeout_ms=max(values["timeout_ms"], 0),
    )


def _new_topic(topic: dict[str, Any]) -> KafkaNewTopic:
    configs = topic["configs"]
    return KafkaNewTopic(
        name=topic["name"],
        partitions=topic["num_partitions"],
        configs={config["name"]: config["value"] for config in configs if config["value"] is not None},
        replication_factor=topic["replication_factor"],
        assignments=tuple([(given["partition_index"], given["broker_ids"]) for given in topic["assignments"]]),
        null_configs=tuple([config["name"] for config in configs if config["value"] is None]),
    )


def encode_create(writer: Writer, version: int, _: CreateTopicsRequest, response: CreateTopicsResponse) -> None:
    """What became of them. A KafkaCreatedTopic tells its settings, too."""
    topics = list(map(_created_fields, response.topics))
    CREATE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "topics": topics})


def failed_create(request: CreateTopicsRequest, error: ErrorResponse) -> CreateTopicsResponse:
    """The reply where the request failed as a whole."""
    return CreateTopicsResponse(
        topics=tuple(
            [CreatedTopic(name=topic.name, error=error.error, message=error.message) for topic in request.topics]
        )
    )


def _created_fields(topic: CreatedTopic) -> dict[str, Any]:
    is_created = topic.error is ErrorCode.NONE
    factor = topic.replication_factor if isinstance(topic, KafkaCreatedTopic) else 1
    configs = topic.configs if isinstance(topic, KafkaCreatedTopic) else ()
    return {
        "name": topic.name,
        "topic_id": topic_id_bytes(topic.topic_id),
        "error_code": topic.error,
        "error_message": topic.message,
        "num_partitions": topic.partitions if is_created else -1,
        "replication_factor": factor if is_created else -1,
        "configs": list(map(_config_fields, configs)),
    }


def _config_fields(config: ConfigEntry) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source,
        "is_sensitive": config.is_sensitive,
    }


def decode_delete(reader: Reader, version: int, names: TopicNames) -> KafkaDeleteTopicsRequest:
    """Topics to delete, by name or from version 6 on by id."""
    values = DELETE_REQUEST.read(reader, version)
    asked = [(topic["name"], topic["topic_id"]) for topic in values["topics"]]
    asked += [(name, NO_TOPIC_ID) for name in values["topic_names"]]
    return KafkaDeleteTopicsRequest(
        topics=tuple([_name_of(name, key, names) or UNKNOWN_TOPIC_NAME for name, key in asked]),
        topic_ids=tuple([key for _, key in asked]),
        timeout_ms=max(values["timeout_ms"], 0),
    )


def _name_of(name: str | None, topic_id: bytes, names: TopicNames) -> str | None:
    """The name; None for an id that nobody knows, and for both a name and an id, which may not mean the same topic."""
    if topic_id == NO_TOPIC_ID:
        return name
    return names(topic_id) if name is None else None


def encode_delete(
    writer: Writer, version: int, request: KafkaDeleteTopicsRequest, response: DeleteTopicsResponse
) -> None:
    """What became of them, one entry per topic of the request and in its order."""
    answered = zip(request.topic_ids, response.topics, strict=True)
    responses = [_deleted_fields(topic_id, topic) for topic_id, topic in answered]
    DELETE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "responses": responses})


def failed_delete(request: DeleteTopicsRequest, error: ErrorResponse) -> DeleteTopicsResponse:
    """The reply where the request failed as a whole."""
    return DeleteTopicsResponse(topics=_failed_topics(request.topics, error))


def _deleted_fields(topic_id: bytes, topic: TopicResult) -> dict[str, Any]:
    is_unknown = topic.name == UNKNOWN_TOPIC_NAME and topic_id != NO_TOPIC_ID
    return {
        "name": None if is_unknown else topic.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else topic.error,
        "error_message": None if is_unknown else topic.message,
    }


def decode_partitions(reader: Reader, version: int, _: TopicNames) -> CreatePartitionsRequest:
    """Topics and the partition counts that they shall have."""
    values = PARTITIONS_REQUEST.read(reader, version)
    return CreatePartitionsRequest(
        topics=tuple(map(_new_partitions, values["topics"])),
        timeout_ms=max(values["timeout_ms"], 0),
        validate_only=values["validate_only"],
    )


def _new_partitions(topic: dict[str, Any]) -> NewPartitions:
    given = topic["assignments"]
    assignments = None if given is None else tuple([assignment["broker_ids"] for assignment in given])
    return NewPartitions(name=topic["name"], count=topic["count"], assignments=assignments)


def encode_partitions(
    writer: Writer, version: int, _: CreatePartitionsRequest, response: CreatePartitionsResponse
) -> None:
    """What became of them."""
    results = [
        {"name": topic.name, "error_code": topic.error, "error_message": topic.message} for topic in response.topics
    ]
    PARTITIONS_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "results": results})


def failed_partitions(request: CreatePartitionsRequest, error: ErrorResponse) -> CreatePartitionsResponse:
    """The reply where the request failed as a whole."""
    return CreatePartitionsResponse(topics=_failed_topics([topic.name for topic in request.topics], error))


def _failed_topics(names: Any, error: ErrorResponse) -> tuple[TopicResult, ...]:
    return tuple([TopicResult(name=name, error=error.error, message=error.message) for name in names])
