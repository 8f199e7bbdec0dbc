"""StreamsGroupDescribe (0 and 1), StreamsGroupTopologyDescriptionUpdate (0).

Streams groups with their topology, members and tasks (KIP-1071), and the topology descriptions stored by a plugin of
the broker (KIP-1331).
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT32, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    NOT_REQUESTED,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    refused,
    refused_each,
)
from warmlog.protocol.kafka.messages.groups.admin import GROUP_OPERATIONS
from warmlog.protocol.kafka.messages.groups.streams import (
    CHANGELOGS,
    CLIENT_TAGS,
    ENDPOINT,
    REPARTITION_SOURCES,
    SINKS,
    SOURCES,
    SUBTOPOLOGY_ID,
    TASK_IDS,
    TASK_OFFSETS,
    Endpoint,
    InternalTopic,
    KeyValue,
    TaskIds,
    TaskOffset,
)
from warmlog.protocol.request import Value


class StreamsGroupDescribeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe streams groups."""

    api: ClassVar[str] = "streams_group_describe"
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False
    include_topology_description: bool = False


class DescribedSubtopology(Value, frozen=True, kw_only=True, gc=False):
    """A subtopology with its configured topics."""

    subtopology_id: str
    sources: tuple[str, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()


class DescribedTopology(Value, frozen=True, kw_only=True, gc=False):
    """The topology of a described group."""

    epoch: int
    subtopologies: tuple[DescribedSubtopology, ...] | None = None


class DescribedTasks(Value, frozen=True, kw_only=True, gc=False):
    """The tasks that a member has, or will have."""

    active: tuple[TaskIds, ...] = ()
    standby: tuple[TaskIds, ...] = ()
    warmup: tuple[TaskIds, ...] = ()


class DescribedStreamsMember(Value, frozen=True, kw_only=True, gc=False):
    """A member of a described group."""

    member_id: str
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] = ()
    task_offsets: tuple[TaskOffset, ...] = ()
    task_end_offsets: tuple[TaskOffset, ...] = ()
    assignment: DescribedTasks = DescribedTasks()
    target: DescribedTasks = DescribedTasks()


class TopologyNode(Value, frozen=True, kw_only=True, gc=False):
    """A node in the description of a topology."""

    name: str
    type: int
    sources: tuple[str, ...] = ()
    sink: str | None = None
    stores: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()


class DescribedNodes(Value, frozen=True, kw_only=True, gc=False):
    """The nodes of a subtopology."""

    subtopology_id: str
    nodes: tuple[TopologyNode, ...] = ()


class GlobalStore(Value, frozen=True, kw_only=True, gc=False):
    """A global store in the description of a topology."""

    source: TopologyNode
    processor: TopologyNode


class TopologyDescription(Value, frozen=True, kw_only=True, gc=False):
    """The nodes of a topology (KIP-1331). A broker without a plugin that stores them has none."""

    subtopologies: tuple[DescribedNodes, ...] = ()
    global_stores: tuple[GlobalStore, ...] = ()


class DescribedStreamsGroup(Value, frozen=True, kw_only=True, gc=False):
    """A described group, or why it is not described."""

    group: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    topology: DescribedTopology | None = None
    members: tuple[DescribedStreamsMember, ...] = ()
    description: TopologyDescription | None = None
    description_status: int = 0
    assignor: str | None = None


class AuthorizedStreamsGroup(DescribedStreamsGroup, frozen=True, kw_only=True, gc=False):
    """A streams group with the operations that the client may perform on it, as bits."""

    operations: int


class StreamsGroupTopologyDescriptionUpdateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Pass the description of a topology to the plugin that stores it."""

    api: ClassVar[str] = "streams_group_topology_description_update"
    group: str
    member_id: str
    topology_epoch: int
    description: TopologyDescription


class StreamsGroupTopologyDescriptionUpdateResponse(Value, frozen=True, kw_only=True, gc=False):
    """Whether the description is stored."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class StreamsGroupDescribeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[DescribedStreamsGroup, ...] = ()


DESCRIBE_REQUEST = Struct(
    Field("group_ids", Array(STRING), attr="groups"),
    Field("include_authorized_operations", BOOLEAN),
    Field("include_topology_description", BOOLEAN, since=1, default=False),
    into=StreamsGroupDescribeRequest,
)


def _operations(group: DescribedStreamsGroup, request: StreamsGroupDescribeRequest, _: int) -> int:
    if not request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return NOT_REQUESTED
    return group.operations if isinstance(group, AuthorizedStreamsGroup) else GROUP_OPERATIONS


_DESCRIBED_TOPOLOGY = Struct(
    Field("epoch", INT32),
    Field(
        "subtopologies",
        array(SUBTOPOLOGY_ID, SOURCES, SINKS, CHANGELOGS, REPARTITION_SOURCES, into=DescribedSubtopology),
        nullable=0,
        default=None,
    ),
    into=DescribedTopology,
)
_DESCRIBED_TASKS = Struct(
    Field("active_tasks", TASK_IDS, attr="active"),
    Field("standby_tasks", TASK_IDS, attr="standby"),
    Field("warmup_tasks", TASK_IDS, attr="warmup"),
    into=DescribedTasks,
)
_MEMBER = (
    Field("member_id", STRING),
    Field("member_epoch", INT32),
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("topology_epoch", INT32),
    Field("process_id", STRING),
    Field("user_endpoint", ENDPOINT, nullable=0, default=None),
    CLIENT_TAGS,
    Field("task_offsets", TASK_OFFSETS),
    Field("task_end_offsets", TASK_OFFSETS),
    Field("assignment", _DESCRIBED_TASKS),
    Field("target_assignment", _DESCRIBED_TASKS, attr="target"),
    Field("is_classic", BOOLEAN, attr=None),
)
_NODE = Struct(
    Field("name", STRING),
    Field("node_type", INT8, attr="type"),
    SOURCES,
    Field("sink_topic", STRING, nullable=0, default=None, attr="sink"),
    Field("stores", Array(STRING)),
    Field("successors", Array(STRING)),
    into=TopologyNode,
)
_DESCRIPTION = Struct(
    Field("subtopologies", array(SUBTOPOLOGY_ID, Field("nodes", Array(_NODE)), into=DescribedNodes)),
    Field("global_stores", array(Field("source", _NODE), Field("processor", _NODE), into=GlobalStore)),
    into=TopologyDescription,
)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "groups",
        array(
            *OPTIONAL_FAILURE,
            Field("group_id", STRING, attr="group"),
            Field("group_state", STRING, attr="state"),
            Field("group_epoch", INT32, attr="epoch"),
            Field("assignment_epoch", INT32),
            Field("topology", _DESCRIBED_TOPOLOGY, nullable=0, default=None),
            Field("members", array(*_MEMBER, into=DescribedStreamsMember)),
            Field("authorized_operations", INT32, default=NOT_REQUESTED, get=_operations),
            Field("topology_description", _DESCRIPTION, since=1, nullable=1, default=None, attr="description"),
            Field("topology_description_status", INT8, since=1, default=0, attr="description_status"),
            Field("assignor_name", STRING, since=1, nullable=1, default=None, attr="assignor"),
            into=DescribedStreamsGroup,
        ),
    ),
    into=StreamsGroupDescribeResponse,
)
failed_describe = refused_each(StreamsGroupDescribeResponse, "groups", DescribedStreamsGroup, "group")

UPDATE_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field("member_id", STRING),
    Field("topology_epoch", INT32),
    Field("topology_description", _DESCRIPTION, attr="description"),
    into=StreamsGroupTopologyDescriptionUpdateRequest,
)
UPDATE_RESPONSE = Struct(THROTTLE_TIME, *OPTIONAL_FAILURE, into=StreamsGroupTopologyDescriptionUpdateResponse)
failed_update = refused(StreamsGroupTopologyDescriptionUpdateResponse)
