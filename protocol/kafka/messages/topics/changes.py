"""CreateTopics (2 to 7), DeleteTopics (1 to 6), CreatePartitions (0 to 3)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    STRING,
    TOPIC_ID,
    Array,
    Field,
    Struct,
    array,
)
from warmlog.protocol.kafka.messages.cluster.configs import ConfigEntry
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    ERROR_MESSAGE,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    TIMEOUT,
    UNKNOWN_TOPIC_NAME,
    refused_each,
    since,
)
from warmlog.protocol.request import CreateTopicsRequest, DeleteTopicsRequest, NewTopic, Value
from warmlog.protocol.response import CreatedTopic, CreateTopicsResponse, DeleteTopicsResponse, TopicResult


class KafkaNewTopic(NewTopic, frozen=True, kw_only=True, gc=False):
    """A topic to create. `assignments` are (partition, broker ids); the broker assigns replicas if it is empty.

    `null_configs` are settings sent without a value, which are rejected.
    """

    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    null_configs: tuple[str, ...] = ()


class KafkaCreateTopicsRequest(CreateTopicsRequest, frozen=True, kw_only=True, gc=False):
    """A CreateTopics request, whose `topics` are KafkaNewTopics."""

    timeout_ms: int = 0


class KafkaDeleteTopicsRequest(DeleteTopicsRequest, frozen=True, kw_only=True, gc=False):
    """A DeleteTopics request. `topic_ids` runs parallel to `topics`, as in KafkaMetadataRequest."""

    topic_ids: tuple[bytes, ...] = ()
    timeout_ms: int = 0


class NewPartitions(Value, frozen=True, kw_only=True, gc=False):
    """A topic's new partition count. `assignments` are the broker ids of each new partition, None to let it choose."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Add partitions to topics. Each succeeds or fails independently."""

    api: ClassVar[str] = "create_partitions"
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 0
    validate_only: bool = False


class CreatePartitionsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of CreatePartitionsRequest, in its order."""

    topics: tuple[TopicResult, ...]


class KafkaCreatedTopic(CreatedTopic, frozen=True, kw_only=True, gc=False):
    """A created topic with its replication factor and effective settings (CreateTopics from version 5)."""

    replication_factor: int = 1
    configs: tuple[ConfigEntry, ...] = ()
    config_error: ErrorCode = ErrorCode.NONE  # why there are no settings


_TOPIC_NAME = Field("name", STRING)

# -- CreateTopics --


def _new_topic(*, configs: tuple[tuple[str, str | None], ...], **fields: Any) -> KafkaNewTopic:
    return KafkaNewTopic(
        configs={name: value for name, value in configs if value is not None},
        null_configs=tuple([name for name, value in configs if value is None]),
        **fields,
    )


def _if_created(attribute: str, default: Any) -> Callable[..., Any]:
    """Return a getter for an attribute of a created topic; a plain CreatedTopic may lack it."""

    def get(topic: CreatedTopic, *_: Any) -> Any:
        return getattr(topic, attribute, default) if topic.error is ErrorCode.NONE else -1

    return get


CREATE_REQUEST = Struct(
    Field(
        "topics",
        array(
            _TOPIC_NAME,
            Field("num_partitions", INT32, attr="partitions"),
            Field("replication_factor", INT16),
            Field(
                "assignments",
                array(
                    Field("partition_index", INT32),
                    Field("broker_ids", Array(INT32)),
                    into=lambda partition_index, broker_ids: (partition_index, broker_ids),
                ),
            ),
            Field(
                "configs",
                array(_TOPIC_NAME, Field("value", STRING, nullable=0), into=lambda name, value: (name, value)),
            ),
            into=_new_topic,
        ),
    ),
    replace(TIMEOUT, default=60_000),
    Field("validate_only", BOOLEAN, since=1),
    into=KafkaCreateTopicsRequest,
)


def _each_once(response: Any, *_: Any) -> list[Any]:
    """Return one outcome per name; all occurrences of a repeated name have the same error."""
    outcomes: dict[str, Any] = {}
    for topic in response.topics:
        outcomes.setdefault(topic.name, topic)
    return list(outcomes.values())


CREATE_RESPONSE = Struct(
    since(2, THROTTLE_TIME),
    Field(
        "topics",
        array(
            _TOPIC_NAME,
            Field("topic_id", TOPIC_ID, since=7),
            ERROR_CODE,
            since(1, ERROR_MESSAGE),
            Field(
                "topic_config_error_code",
                INT16,
                since=5,
                tag=0,
                attr=None,
                get=lambda topic, *_: getattr(topic, "config_error", ErrorCode.NONE),
            ),
            Field("num_partitions", INT32, since=5, default=-1, get=_if_created("partitions", -1)),
            Field("replication_factor", INT16, since=5, default=-1, get=_if_created("replication_factor", 1)),
            Field(
                "configs",
                array(
                    _TOPIC_NAME,
                    Field("value", STRING, nullable=5),
                    Field("read_only", BOOLEAN),
                    Field("config_source", INT8, default=-1, attr="source"),
                    Field("is_sensitive", BOOLEAN),
                ),
                since=5,
                nullable=5,
                get=lambda topic, *_: getattr(topic, "configs", ()),
            ),
        ),
        get=_each_once,
    ),
)
failed_create = refused_each(CreateTopicsResponse, "topics", CreatedTopic, "name")


# -- DeleteTopics --


class _Deleted(NamedTuple):
    """The outcome for one topic. Only the id names a topic that was requested by an unknown id."""

    name: str | None
    topic_id: bytes
    error: ErrorCode
    message: str | None


def _to_delete(name: str | None, topic_id: bytes, topic: str) -> tuple[str | None, bytes]:
    """Return the topic's name and id; no name if the request has both, which might not refer to the same topic."""
    if topic_id == NO_TOPIC_ID:
        return name, topic_id
    return (topic if name is None else None), topic_id


def _delete_request(
    *, topics: tuple[tuple[str | None, bytes], ...], topic_names: tuple[str, ...], timeout_ms: int
) -> KafkaDeleteTopicsRequest:
    requested = [*topics, *[(name, NO_TOPIC_ID) for name in topic_names]]
    return KafkaDeleteTopicsRequest(
        topics=tuple([name or UNKNOWN_TOPIC_NAME for name, _ in requested]),
        topic_ids=tuple([topic_id for _, topic_id in requested]),
        timeout_ms=timeout_ms,
    )


def _deleted(response: DeleteTopicsResponse, request: KafkaDeleteTopicsRequest, _: int) -> list[_Deleted]:
    """Return one outcome per name and per unknown id."""
    outcomes: dict[str | bytes, _Deleted] = {}
    for topic_id, topic in zip(request.topic_ids, response.topics, strict=True):
        if topic.name == UNKNOWN_TOPIC_NAME and topic_id != NO_TOPIC_ID:
            outcomes[topic_id] = _Deleted(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        else:
            outcomes.setdefault(topic.name, _Deleted(topic.name, topic_id, topic.error, topic.message))
    return list(outcomes.values())


DELETE_REQUEST = Struct(
    Field(
        "topics",
        array(
            Field("name", STRING, nullable=6, default=None),
            Field("topic_id", TOPIC_ID),
            into=_to_delete,
        ),
        since=6,
    ),
    Field("topic_names", Array(STRING), until=5),
    TIMEOUT,
    into=_delete_request,
)
DELETE_RESPONSE = Struct(
    since(1, THROTTLE_TIME),
    Field(
        "responses",
        array(
            Field("name", STRING, nullable=6),
            Field("topic_id", TOPIC_ID, since=6),
            ERROR_CODE,
            Field("error_message", STRING, since=5, nullable=5, default=None, attr="message"),
        ),
        get=_deleted,
    ),
)
failed_delete = refused_each(DeleteTopicsResponse, "topics", TopicResult, "name")


# -- CreatePartitions --

PARTITIONS_REQUEST = Struct(
    Field(
        "topics",
        array(
            _TOPIC_NAME,
            Field("count", INT32),
            Field(
                "assignments",
                array(Field("broker_ids", Array(INT32)), into=lambda broker_ids: broker_ids),
                nullable=0,
            ),
            into=NewPartitions,
        ),
    ),
    TIMEOUT,
    Field("validate_only", BOOLEAN),
    into=CreatePartitionsRequest,
)
PARTITIONS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("results", array(_TOPIC_NAME, *OPTIONAL_FAILURE), get=_each_once),
)
failed_partitions = refused_each(CreatePartitionsResponse, "topics", TopicResult, "name")
