"""FindCoordinator (0 to 6), JoinGroup (0 to 9), SyncGroup (0 to 5), Heartbeat (0 to 4), LeaveGroup (0 to 5).

A member's metadata and assignment are copied out of the frame, because the group retains them.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CoordinatorLocation,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.codec.bounds import InvalidRequestError
from warmlog.protocol.kafka.codec.schema import BOOLEAN, BYTES, INT8, INT16, INT32, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import ERROR_CODE, THROTTLE_TIME, refused, refused_each, since

_FIRST_JOIN_WITH_REBALANCE_TIMEOUT = 1
_FIRST_JOIN_IN_TWO_STEPS = 4
_FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT = 9
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_OF_SEVERAL = 3

_GROUP = Field("group_id", STRING, attr="group")
_GENERATION = Field("generation_id", INT32, attr="generation")
_MEMBER = Field("member_id", STRING)


def _instance(version: int) -> Field:
    return Field("group_instance_id", STRING, since=version, nullable=version, default=None, attr="instance_id")


# -- FindCoordinator --


def _first(attribute: str) -> Callable[..., Any]:
    """Return a getter for an attribute of the only coordinator, for versions that request one."""
    get = attrgetter(attribute)
    return lambda response, *_: get(response.coordinators[0])


FIND_REQUEST = Struct(
    Field("key", STRING, until=3, attr="keys", convert=lambda key: (key,), get=lambda request, *_: request.keys[0]),
    Field("key_type", INT8, since=1, default=0),
    Field("coordinator_keys", Array(STRING), since=4, attr="keys"),
    into=FindCoordinatorRequest,
)
FIND_RESPONSE = Struct(
    since(1, THROTTLE_TIME),
    Field("error_code", INT16, until=3, attr=None, get=_first("error")),
    Field("error_message", STRING, since=1, until=3, nullable=1, attr=None, get=_first("message")),
    Field("node_id", INT32, until=3, attr=None, get=_first("node_id")),
    Field("host", STRING, until=3, attr=None, get=_first("host")),
    Field("port", INT32, until=3, attr=None, get=_first("port")),
    Field(
        "coordinators",
        array(
            Field("key", STRING),
            Field("node_id", INT32),
            Field("host", STRING),
            Field("port", INT32),
            ERROR_CODE,
            Field("error_message", STRING, nullable=4, attr="message"),
            into=CoordinatorLocation,
        ),
        since=4,
    ),
    into=FindCoordinatorResponse,
)
failed_find = refused_each(FindCoordinatorResponse, "coordinators", CoordinatorLocation, "key", of="keys")


# -- JoinGroup --


def _join_request(
    *, session_timeout_ms: int, rebalance_timeout_ms: int, version: int, **others: Any
) -> JoinGroupRequest:
    """Build the request; in version 0, the session timeout is also the rebalance timeout."""
    has_both = version >= _FIRST_JOIN_WITH_REBALANCE_TIMEOUT
    return JoinGroupRequest(
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms if has_both else session_timeout_ms,
        requires_known_member=version >= _FIRST_JOIN_IN_TWO_STEPS,
        can_skip_assignment=version >= _FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT,
        **others,
    )


JOIN_REQUEST = Struct(
    _GROUP,
    Field("session_timeout_ms", INT32),
    Field("rebalance_timeout_ms", INT32, since=1, default=-1),
    _MEMBER,
    _instance(5),
    Field("protocol_type", STRING),
    Field("protocols", array(Field("name", STRING), Field("metadata", BYTES), into=GroupProtocol)),
    Field("reason", STRING, since=8, nullable=8, default=None),
    into=_join_request,
    given=lambda version: {"version": version},
)
JOIN_RESPONSE = Struct(
    since(2, THROTTLE_TIME),
    ERROR_CODE,
    replace(_GENERATION, default=-1),
    Field("protocol_type", STRING, since=7, nullable=7, default=None),
    Field("protocol_name", STRING, nullable=7, null=""),
    Field("leader", STRING),
    Field("skip_assignment", BOOLEAN, since=9),
    _MEMBER,
    Field("members", array(_MEMBER, _instance(5), Field("metadata", BYTES))),
)
failed_join = refused(JoinGroupResponse, "member_id")


# -- SyncGroup --


def _sync_request(*, version: int, **fields: Any) -> SyncGroupRequest:
    """Build the request. Raises InvalidRequestError if it lacks the group's protocol type or name (KIP-559)."""
    request = SyncGroupRequest(**fields)
    if version >= _FIRST_SYNC_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        raise InvalidRequestError(
            request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol's type and name must be given"
        )
    return request


_PROTOCOL = (
    Field("protocol_type", STRING, since=5, nullable=5, default=None),
    Field("protocol_name", STRING, since=5, nullable=5, default=None),
)
SYNC_REQUEST = Struct(
    _GROUP,
    _GENERATION,
    _MEMBER,
    _instance(3),
    *_PROTOCOL,
    Field("assignments", array(_MEMBER, Field("assignment", BYTES), into=MemberAssignment)),
    into=_sync_request,
    given=lambda version: {"version": version},
)
SYNC_RESPONSE = Struct(since(1, THROTTLE_TIME), ERROR_CODE, *_PROTOCOL, Field("assignment", BYTES))
failed_sync = refused(SyncGroupResponse)

# -- Heartbeat --

HEARTBEAT_REQUEST = Struct(_GROUP, _GENERATION, _MEMBER, _instance(3), into=HeartbeatRequest)
HEARTBEAT_RESPONSE = Struct(since(1, THROTTLE_TIME), ERROR_CODE)
failed_heartbeat = refused(HeartbeatResponse)

# -- LeaveGroup --


def _leave_error(response: LeaveGroupResponse, _: LeaveGroupRequest, version: int) -> ErrorCode:
    """Return the error of the whole request, or of the only member in versions without a field for that."""
    if version < _FIRST_LEAVE_OF_SEVERAL and response.error is ErrorCode.NONE and response.members:
        return response.members[0].error
    return response.error


LEAVE_REQUEST = Struct(
    _GROUP,
    Field("member_id", STRING, until=2, attr="members", convert=lambda member: (LeavingMember(member_id=member),)),
    Field(
        "members",
        array(
            _MEMBER,
            _instance(3),
            Field("reason", STRING, since=5, nullable=5, default=None),
            into=LeavingMember,
        ),
        since=3,
    ),
    into=LeaveGroupRequest,
)
LEAVE_RESPONSE = Struct(
    since(1, THROTTLE_TIME),
    Field("error_code", INT16, get=_leave_error),
    Field("members", array(_MEMBER, replace(_instance(3), default=""), ERROR_CODE), since=3),
)
failed_leave = refused(LeaveGroupResponse)
