"""StreamsGroupHeartbeat (0 and 1): members of Kafka Streams applications (KIP-1071), their topologies and tasks."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    Array,
    Field,
    Struct,
    array,
)
from warmlog.protocol.kafka.messages.common import OPTIONAL_FAILURE, THROTTLE_TIME, refused
from warmlog.protocol.request import Value


class KeyValue(Value, frozen=True, kw_only=True, gc=False):
    """A setting of a topic, or a tag of a client."""

    key: str
    value: str


class Endpoint(Value, frozen=True, kw_only=True, gc=False):
    """The address at which an application answers interactive queries."""

    host: str
    port: int


class InternalTopic(Value, frozen=True, kw_only=True, gc=False):
    """A topic that an application creates. `partitions` and `replication_factor`: the broker chooses if they are 0."""

    topic: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[KeyValue, ...] = ()


class CopartitionGroup(Value, frozen=True, kw_only=True, gc=False):
    """Source topics with equal numbers of partitions, as indexes into the lists of their subtopology."""

    sources: tuple[int, ...] = ()
    source_regexes: tuple[int, ...] = ()
    repartition_sources: tuple[int, ...] = ()


class Subtopology(Value, frozen=True, kw_only=True, gc=False):
    """A part of a topology whose tasks share state: the topics it reads and the topics it creates."""

    subtopology_id: str
    sources: tuple[str, ...] = ()
    source_regexes: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()


class Topology(Value, frozen=True, kw_only=True, gc=False):
    """The topology of an application; `epoch` is its version."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()


class TaskIds(Value, frozen=True, kw_only=True, gc=False):
    """Tasks of a subtopology: one for each partition."""

    subtopology_id: str
    partitions: tuple[int, ...] = ()


class TaskOffset(Value, frozen=True, kw_only=True, gc=False):
    """The sum of the offsets in the changelogs of a task."""

    subtopology_id: str
    partition: int
    offset: int


class StreamsGroupHeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group (epoch 0), keep the membership, or leave (epoch -1, a static member for a restart -2).

    None, and -1 for the timeout, mean "unchanged". `active`, `standby`, `warmup`: the tasks the member has now.
    """

    api: ClassVar[str] = "streams_group_heartbeat"
    group: str
    member_id: str
    member_epoch: int
    endpoint_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    active: tuple[TaskIds, ...] | None = None
    standby: tuple[TaskIds, ...] | None = None
    warmup: tuple[TaskIds, ...] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] | None = None
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False


class StreamsStatus(Value, frozen=True, kw_only=True, gc=False):
    """A status of a group: Kafka's StreamsGroupHeartbeatResponse.Status, and its explanation."""

    code: int
    detail: str


class NamedTopicPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic by its name."""

    topic: str
    partitions: tuple[int, ...] = ()


class EndpointPartitions(Value, frozen=True, kw_only=True, gc=False):
    """The partitions whose state can be queried at an endpoint."""

    endpoint: Endpoint
    active: tuple[NamedTopicPartitions, ...] = ()
    standby: tuple[NamedTopicPartitions, ...] = ()


class StreamsGroupHeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member's epoch, and its tasks if they changed or were requested; or why it is not a member.

    `endpoints`: None if the member's `endpoint_epoch` is current.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = -1
    task_offset_interval_ms: int = 0
    status: tuple[StreamsStatus, ...] | None = ()
    active: tuple[TaskIds, ...] | None = None
    standby: tuple[TaskIds, ...] | None = None
    warmup: tuple[TaskIds, ...] | None = None
    topology_description_required: bool = False
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None


_UNCHANGED = -1
_KEY_VALUES = array(Field("key", STRING), Field("value", STRING), into=KeyValue)
ENDPOINT = Struct(Field("host", STRING), Field("port", UINT16), into=Endpoint)
CLIENT_TAGS = Field("client_tags", _KEY_VALUES)
SUBTOPOLOGY_ID = Field("subtopology_id", STRING)
_INTERNAL_TOPICS = array(
    Field("name", STRING, attr="topic"),
    Field("partitions", INT32),
    Field("replication_factor", INT16),
    Field("topic_configs", _KEY_VALUES, attr="configs"),
    into=InternalTopic,
)
TASK_IDS = array(SUBTOPOLOGY_ID, Field("partitions", Array(INT32)), into=TaskIds)
TASK_OFFSETS = array(SUBTOPOLOGY_ID, Field("partition", INT32), Field("offset", INT64), into=TaskOffset)
SOURCES = Field("source_topics", Array(STRING), attr="sources")
SINKS = Field("repartition_sink_topics", Array(STRING), attr="repartition_sinks")
CHANGELOGS = Field("state_changelog_topics", _INTERNAL_TOPICS, attr="changelogs")
REPARTITION_SOURCES = Field("repartition_source_topics", _INTERNAL_TOPICS, attr="repartition_sources")

#: The topology as members send it; the stored one has the same fields.
TOPOLOGY = Struct(
    Field("epoch", INT32),
    Field(
        "subtopologies",
        array(
            SUBTOPOLOGY_ID,
            SOURCES,
            Field("source_topic_regex", Array(STRING), attr="source_regexes"),
            CHANGELOGS,
            SINKS,
            REPARTITION_SOURCES,
            Field(
                "copartition_groups",
                array(
                    Field("source_topics", Array(INT16), attr="sources"),
                    Field("source_topic_regex", Array(INT16), attr="source_regexes"),
                    Field("repartition_source_topics", Array(INT16), attr="repartition_sources"),
                    into=CopartitionGroup,
                ),
            ),
            into=Subtopology,
        ),
    ),
    into=Topology,
)


def _maybe_tasks(kind: str) -> Field:
    return Field(f"{kind}_tasks", TASK_IDS, nullable=0, default=None, attr=kind)


_MAYBE_TASKS = (_maybe_tasks("active"), _maybe_tasks("standby"), _maybe_tasks("warmup"))

HEARTBEAT_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field("member_id", STRING),
    Field("member_epoch", INT32),
    Field("endpoint_information_epoch", INT32, attr="endpoint_epoch"),
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("rebalance_timeout_ms", INT32, default=_UNCHANGED),
    Field("topology", TOPOLOGY, nullable=0, default=None),
    *_MAYBE_TASKS,
    Field("process_id", STRING, nullable=0, default=None),
    Field("user_endpoint", ENDPOINT, nullable=0, default=None),
    Field("client_tags", _KEY_VALUES, nullable=0, default=None),
    Field("task_offsets", TASK_OFFSETS, nullable=0, default=None),
    Field("task_end_offsets", TASK_OFFSETS, nullable=0, default=None),
    Field("shutdown_application", BOOLEAN, default=False),
    into=StreamsGroupHeartbeatRequest,
)


_TOPIC_PARTITIONS = array(Field("topic", STRING), Field("partitions", Array(INT32)), into=NamedTopicPartitions)
HEARTBEAT_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field("member_id", STRING),
    Field("member_epoch", INT32),
    Field("heartbeat_interval_ms", INT32),
    Field("acceptable_recovery_lag_legacy", INT32, until=0, attr=None),
    Field("task_offset_interval_ms", INT32),
    Field("acceptable_recovery_lag", INT64, since=1, default=-1),
    Field(
        "status",
        array(
            Field("status_code", INT8, attr="code"), Field("status_detail", STRING, attr="detail"), into=StreamsStatus
        ),
        nullable=0,
    ),
    *_MAYBE_TASKS,
    Field("topology_description_required", BOOLEAN, since=1, default=False),
    Field("endpoint_information_epoch", INT32, attr="endpoint_epoch"),
    Field(
        "partitions_by_user_endpoint",
        array(
            Field("user_endpoint", ENDPOINT, attr="endpoint"),
            Field("active_partitions", _TOPIC_PARTITIONS, attr="active"),
            Field("standby_partitions", _TOPIC_PARTITIONS, attr="standby"),
            into=EndpointPartitions,
        ),
        nullable=0,
        default=None,
        attr="endpoints",
    ),
    into=StreamsGroupHeartbeatResponse,
)
failed_heartbeat = refused(StreamsGroupHeartbeatResponse)
