"""ShareGroupHeartbeat, ShareGroupDescribe (1)."""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, INT32, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    NOT_REQUESTED,
    OPTIONAL_FAILURE,
    THROTTLE_TIME,
    refused,
    refused_each,
)
from warmlog.protocol.kafka.messages.groups.admin import GROUP_OPERATIONS
from warmlog.protocol.kafka.messages.groups.consumer import (
    ASSIGNED,
    DESCRIBED_ASSIGNMENT,
    AssignedPartitions,
    DescribedAssignment,
)
from warmlog.protocol.request import Value


class ShareGroupHeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a share group (epoch 0), keep the membership, or leave (epoch -1). None means "unchanged"."""

    api: ClassVar[str] = "share_group_heartbeat"
    group: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None


class ShareGroupHeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The member's epoch, and its assignment if that changed or was requested; or why it is not a member."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: AssignedPartitions | None = None


class ShareGroupDescribeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe share groups."""

    api: ClassVar[str] = "share_group_describe"
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


class DescribedShareMember(Value, frozen=True, kw_only=True, gc=False):
    """A member of a described share group."""

    member_id: str
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedShareGroup(Value, frozen=True, kw_only=True, gc=False):
    """A described share group, or why it is not described."""

    group: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedShareMember, ...] = ()


class AuthorizedShareGroup(DescribedShareGroup, frozen=True, kw_only=True, gc=False):
    """A share group with the operations that the client may perform on it, as bits."""

    operations: int


class ShareGroupDescribeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[DescribedShareGroup, ...] = ()


HEARTBEAT_REQUEST = Struct(
    Field("group_id", STRING, attr="group"),
    Field("member_id", STRING),
    Field("member_epoch", INT32),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("subscribed_topic_names", Array(STRING), nullable=0, default=None, attr="topics"),
    into=ShareGroupHeartbeatRequest,
)
HEARTBEAT_RESPONSE = Struct(
    THROTTLE_TIME,
    *OPTIONAL_FAILURE,
    Field("member_id", STRING, nullable=0, default=None),
    Field("member_epoch", INT32),
    Field("heartbeat_interval_ms", INT32),
    Field("assignment", ASSIGNED, nullable=0, default=None),
    into=ShareGroupHeartbeatResponse,
)
failed_heartbeat = refused(ShareGroupHeartbeatResponse)


def _operations(group: DescribedShareGroup, request: ShareGroupDescribeRequest, _: int) -> int:
    if not request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return NOT_REQUESTED
    return group.operations if isinstance(group, AuthorizedShareGroup) else GROUP_OPERATIONS


_MEMBER = (
    Field("member_id", STRING),
    Field("rack_id", STRING, nullable=0, default=None),
    Field("member_epoch", INT32),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING), attr="topics"),
    Field("assignment", DESCRIBED_ASSIGNMENT),
)
DESCRIBE_REQUEST = Struct(
    Field("group_ids", Array(STRING), attr="groups"),
    Field("include_authorized_operations", BOOLEAN),
    into=ShareGroupDescribeRequest,
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
            Field("assignor_name", STRING, attr="assignor"),
            Field("members", array(*_MEMBER, into=DescribedShareMember)),
            Field("authorized_operations", INT32, default=NOT_REQUESTED, get=_operations),
            into=DescribedShareGroup,
        ),
    ),
    into=ShareGroupDescribeResponse,
)
failed_describe = refused_each(ShareGroupDescribeResponse, "groups", DescribedShareGroup, "group")
