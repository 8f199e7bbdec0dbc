"""ConsumerGroupHeartbeat, ConsumerGroupDescribe (0 and 1)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT8, INT32, STRING, UUID, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    NOT_REQUESTED,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    ignored,
    refused,
    refused_each,
)
from warmlog.protocol.request import Value


class ConsumerGroupHeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group, keep the membership, or leave."""

    api: ClassVar[str] = "consumer_group_heartbeat"


class ConsumerGroupHeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The reason why there is no membership."""

    error: ErrorCode
    message: str | None = None


class ConsumerGroupDescribeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe groups of the consumer protocol."""

    api: ClassVar[str] = "consumer_group_describe"
    groups: tuple[str, ...] = ()


class UndescribedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group, and the reason why it is not described."""

    group: str
    error: ErrorCode
    message: str | None = None


class ConsumerGroupDescribeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[UndescribedGroup, ...] = ()


_UNCHANGED = -1
_NOT_REPORTED = -1
_PARTITIONS = (Field("topic_id", UUID), Field("partitions", Array(INT32)))

HEARTBEAT_REQUEST = Struct(
    *ignored(
        Field("group_id", STRING),
        Field("member_id", STRING),
        Field("member_epoch", INT32),
        Field("instance_id", STRING, nullable=0, default=None),
        Field("rack_id", STRING, nullable=0, default=None),
        Field("rebalance_timeout_ms", INT32, default=_UNCHANGED),
        Field("subscribed_topic_names", Array(STRING), nullable=0, default=None),
        Field("subscribed_topic_regex", STRING, since=1, nullable=1, default=None),
        Field("server_assignor", STRING, nullable=0, default=None),
        Field("topic_partitions", array(*_PARTITIONS), nullable=0, default=None),
    ),
    into=ConsumerGroupHeartbeatRequest,
)
HEARTBEAT_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field("member_id", STRING, nullable=0, default=None, attr=None),
    Field("member_epoch", INT32, attr=None),
    Field("heartbeat_interval_ms", INT32, attr=None),
    Field(
        "assignment",
        Struct(Field("topic_partitions", array(*_PARTITIONS))),
        nullable=0,
        default=None,
        get=lambda *_: None,
    ),
)
failed_heartbeat = refused(ConsumerGroupHeartbeatResponse)

_ASSIGNMENT = Struct(
    Field("topic_partitions", array(Field("topic_id", UUID), Field("topic_name", STRING), _PARTITIONS[1]))
)
_MEMBER = (
    Field("member_id", STRING),
    Field("instance_id", STRING, nullable=0, default=None),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("member_epoch", INT32),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING)),
    Field("subscribed_topic_regex", STRING, nullable=0, default=None),
    Field("assignment", _ASSIGNMENT),
    Field("target_assignment", _ASSIGNMENT),
    Field("member_type", INT8, since=1, default=_NOT_REPORTED),
)
DESCRIBE_REQUEST = Struct(
    Field("group_ids", Array(STRING), attr="groups"),
    *ignored(Field("include_authorized_operations", BOOLEAN)),
    into=ConsumerGroupDescribeRequest,
)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "groups",
        array(
            *OPTIONAL_FAILURE,
            Field("group_id", STRING, attr="group"),
            Field("group_state", STRING, attr=None),
            Field("group_epoch", INT32, attr=None),
            Field("assignment_epoch", INT32, attr=None),
            Field("assignor_name", STRING, attr=None),
            Field("members", array(*_MEMBER), attr=None),
            Field("authorized_operations", INT32, default=NOT_REQUESTED, attr=None),
        ),
    ),
)
failed_describe = refused_each(ConsumerGroupDescribeResponse, "groups", UndescribedGroup, "group")
