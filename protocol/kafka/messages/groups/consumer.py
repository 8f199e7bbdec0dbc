"""ConsumerGroupHeartbeat, ConsumerGroupDescribe (0 and 1)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT32, STRING, UUID, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    NOT_REQUESTED,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    refused,
    refused_each,
)
from warmlog.protocol.kafka.messages.groups.admin import GROUP_OPERATIONS
from warmlog.protocol.request import Value


class TopicPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic; `topic_id` is 16 bytes."""

    topic_id: bytes
    partitions: tuple[int, ...] = ()


class ConsumerGroupHeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group (epoch 0), keep the membership, or leave (epoch -1, a static member for a restart -2).

    None, and -1 for the timeout, mean "unchanged". `owned`: the partitions that the member has now.
    """

    api: ClassVar[str] = "consumer_group_heartbeat"
    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: tuple[TopicPartitions, ...] | None = None


class AssignedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """The partitions that a member may have."""

    partitions: tuple[TopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member's epoch, and its assignment if that changed or was requested; or why it is not a member."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: AssignedPartitions | None = None


class ConsumerGroupDescribeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe groups of the consumer protocol."""

    api: ClassVar[str] = "consumer_group_describe"
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class NamedPartitions(Value, frozen=True, kw_only=True, gc=False):
    """Partitions of a topic, with its name."""

    topic_id: bytes
    topic: str
    partitions: tuple[int, ...] = ()


class DescribedAssignment(Value, frozen=True, kw_only=True, gc=False):
    """The partitions that a member has, or will have."""

    partitions: tuple[NamedPartitions, ...] = ()


class DescribedConsumer(Value, frozen=True, kw_only=True, gc=False):
    """A member of a described group. `type`: 0 for the classic protocol, 1 for the consumer protocol."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignment: DescribedAssignment = DescribedAssignment()
    target: DescribedAssignment = DescribedAssignment()
    type: int = -1


class DescribedConsumerGroup(Value, frozen=True, kw_only=True, gc=False):
    """A described group, or why it is not described."""

    group: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


class AuthorizedConsumerGroup(DescribedConsumerGroup, frozen=True, kw_only=True, gc=False):
    """A group with the operations that the client may perform on it, as bits."""

    operations: int


class ConsumerGroupDescribeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[DescribedConsumerGroup, ...] = ()


_UNCHANGED = -1
_NOT_REPORTED = -1
_PARTITIONS = array(Field("topic_id", UUID), Field("partitions", Array(INT32)), into=TopicPartitions)

ASSIGNED = Struct(Field("topic_partitions", _PARTITIONS, attr="partitions"), into=AssignedPartitions)

HEARTBEAT_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field("member_id", STRING),
    Field("member_epoch", INT32),
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("rebalance_timeout_ms", INT32, default=_UNCHANGED),
    Field("subscribed_topic_names", Array(STRING), nullable=0, default=None, attr="topics"),
    Field("subscribed_topic_regex", STRING, since=1, nullable=1, default=None, attr="regex"),
    Field("server_assignor", STRING, nullable=0, default=None, attr="assignor"),
    Field("topic_partitions", _PARTITIONS, nullable=0, default=None, attr="owned"),
    into=ConsumerGroupHeartbeatRequest,
)
HEARTBEAT_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field("member_id", STRING, nullable=0, default=None),
    Field("member_epoch", INT32),
    Field("heartbeat_interval_ms", INT32),
    Field("assignment", ASSIGNED, nullable=0, default=None),
    into=ConsumerGroupHeartbeatResponse,
)
failed_heartbeat = refused(ConsumerGroupHeartbeatResponse)

DESCRIBED_ASSIGNMENT = Struct(
    Field(
        "topic_partitions",
        array(
            Field("topic_id", UUID),
            Field("topic_name", STRING, attr="topic"),
            Field("partitions", Array(INT32)),
            into=NamedPartitions,
        ),
        attr="partitions",
    ),
    into=DescribedAssignment,
)
_MEMBER = (
    Field("member_id", STRING),
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("member_epoch", INT32),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING), attr="topics"),
    Field("subscribed_topic_regex", STRING, nullable=0, default=None, attr="regex"),
    Field("assignment", DESCRIBED_ASSIGNMENT),
    Field("target_assignment", DESCRIBED_ASSIGNMENT, attr="target"),
    Field("member_type", INT8, since=1, default=_NOT_REPORTED, attr="type"),
)
DESCRIBE_REQUEST = Struct(
    Field("group_ids", Array(STRING), attr="groups"),
    Field("include_authorized_operations", BOOLEAN),
    into=ConsumerGroupDescribeRequest,
)


def _operations(group: DescribedConsumerGroup, request: ConsumerGroupDescribeRequest, _: int) -> int:
    if not request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return NOT_REQUESTED
    return group.operations if isinstance(group, AuthorizedConsumerGroup) else GROUP_OPERATIONS


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
            Field("assignor_name", STRING, attr="assignor"),
            Field("members", array(*_MEMBER, into=DescribedConsumer)),
            Field("authorized_operations", INT32, default=NOT_REQUESTED, get=_operations),
            into=DescribedConsumerGroup,
        ),
    ),
    into=ConsumerGroupDescribeResponse,
)
failed_describe = refused_each(ConsumerGroupDescribeResponse, "groups", DescribedConsumerGroup, "group")
