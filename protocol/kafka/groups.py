"""FindCoordinator (0 to 6), JoinGroup (0 to 9), SyncGroup (0 to 5), Heartbeat (0 to 4), LeaveGroup (0 to 5).

Owns: the tables of these messages, and how they meet the values of protocol/groups.py. Must not know: groups.

A member's metadata and assignment are copied out of the frame: a group keeps them for as long as it lives.
"""

from typing import Any

from protocol.errors import ErrorCode
from protocol.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.kafka.codec.bounds import InvalidRequestError
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, DATA, INT8, INT16, INT32, STRING, Array, Field, Struct, array
from protocol.kafka.values import TopicNames
from protocol.response import ErrorResponse

_FIRST_FIND_OF_SEVERAL = 4
_FIRST_JOIN_WITH_REBALANCE_TIMEOUT = 1
_FIRST_JOIN_IN_TWO_STEPS = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT = 9
_FIRST_LEAVE_OF_SEVERAL = 3
_FIRST_SYNC_WITH_PROTOCOL = 5

FIND_REQUEST = Struct(
    Field("key", STRING, until=3),
    Field("key_type", INT8, since=1, default=0),
    Field("coordinator_keys", Array(STRING), since=4),
)
FIND_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field("error_code", INT16, until=3),
    Field("error_message", STRING, since=1, until=3, nullable=1),
    Field("node_id", INT32, until=3),
    Field("host", STRING, until=3),
    Field("port", INT32, until=3),
    Field(
        "coordinators",
        array(
            Field("key", STRING),
            Field("node_id", INT32),
            Field("host", STRING),
            Field("port", INT32),
            Field("error_code", INT16),
            Field("error_message", STRING, nullable=4),
        ),
        since=4,
    ),
)
JOIN_REQUEST = Struct(
    Field("group_id", STRING),
    Field("session_timeout_ms", INT32),
    Field("rebalance_timeout_ms", INT32, since=1, default=-1),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, since=5, nullable=5, default=None),
    Field("protocol_type", STRING),
    Field("protocols", array(Field("name", STRING), Field("metadata", DATA))),
    Field("reason", STRING, since=8, nullable=8, default=None),
)
JOIN_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=2),
    Field("error_code", INT16),
    Field("generation_id", INT32, default=-1),
    Field("protocol_type", STRING, since=7, nullable=7, default=None),
    Field("protocol_name", STRING, nullable=7),
    Field("leader", STRING),
    Field("skip_assignment", BOOLEAN, since=9),
    Field("member_id", STRING),
    Field(
        "members",
        array(
            Field("member_id", STRING),
            Field("group_instance_id", STRING, since=5, nullable=5, default=None),
            Field("metadata", DATA),
        ),
    ),
)
SYNC_REQUEST = Struct(
    Field("group_id", STRING),
    Field("generation_id", INT32),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, since=3, nullable=3, default=None),
    Field("protocol_type", STRING, since=5, nullable=5, default=None),
    Field("protocol_name", STRING, since=5, nullable=5, default=None),
    Field("assignments", array(Field("member_id", STRING), Field("assignment", DATA))),
)
SYNC_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field("error_code", INT16),
    Field("protocol_type", STRING, since=5, nullable=5, default=None),
    Field("protocol_name", STRING, since=5, nullable=5, default=None),
    Field("assignment", DATA),
)
HEARTBEAT_REQUEST = Struct(
    Field("group_id", STRING),
    Field("generation_id", INT32),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, since=3, nullable=3, default=None),
)
HEARTBEAT_RESPONSE = Struct(Field("throttle_time_ms", INT32, since=1), Field("error_code", INT16))
LEAVE_REQUEST = Struct(
    Field("group_id", STRING),
    Field("member_id", STRING, until=2),
    Field(
        "members",
        array(
            Field("member_id", STRING),
            Field("group_instance_id", STRING, nullable=3, default=None),
            Field("reason", STRING, since=5, nullable=5, default=None),
        ),
        since=3,
    ),
)
LEAVE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field("error_code", INT16),
    Field(
        "members",
        array(
            Field("member_id", STRING),
            Field("group_instance_id", STRING, nullable=3),
            Field("error_code", INT16),
        ),
        since=3,
    ),
)


def decode_find(reader: Reader, version: int, _: TopicNames) -> FindCoordinatorRequest:
    """A question for coordinators: of one key, from version 4 on of several."""
    values = FIND_REQUEST.read(reader, version)
    keys = (values["key"],) if version < _FIRST_FIND_OF_SEVERAL else values["coordinator_keys"]
    return FindCoordinatorRequest(keys=keys, key_type=values["key_type"])


def encode_find(writer: Writer, version: int, _: FindCoordinatorRequest, response: FindCoordinatorResponse) -> None:
    """The coordinators."""
    found = list(map(_coordinator_fields, response.coordinators))
    only = found[0] if version < _FIRST_FIND_OF_SEVERAL else {}
    FIND_RESPONSE.write(writer, version, only | {"throttle_time_ms": writer.throttle_ms, "coordinators": found})


def failed_find(request: FindCoordinatorRequest, error: ErrorResponse) -> FindCoordinatorResponse:
    """The reply where the request failed as a whole."""
    return FindCoordinatorResponse(
        coordinators=tuple(
            [FoundCoordinator(key=key, error=error.error, message=error.message) for key in request.keys]
        )
    )


def _coordinator_fields(found: FoundCoordinator) -> dict[str, Any]:
    return {
        "key": found.key,
        "node_id": found.node_id,
        "host": found.host,
        "port": found.port,
        "error_code": found.error,
        "error_message": found.message,
    }


def decode_join(reader: Reader, version: int, _: TopicNames) -> JoinGroupRequest:
    """Who joins. In version 0 a rebalance may take as long as a session."""
    values = JOIN_REQUEST.read(reader, version)
    has_rebalance_timeout = version >= _FIRST_JOIN_WITH_REBALANCE_TIMEOUT
    return JoinGroupRequest(
        group=values["group_id"],
        member_id=values["member_id"],
        instance_id=values["group_instance_id"],
        protocol_type=values["protocol_type"],
        protocols=tuple(
            [GroupProtocol(name=one["name"], metadata=bytes(one["metadata"])) for one in values["protocols"]]
        ),
        session_timeout_ms=values["session_timeout_ms"],
        rebalance_timeout_ms=values["rebalance_timeout_ms" if has_rebalance_timeout else "session_timeout_ms"],
        reason=values["reason"],
        requires_known_member=version >= _FIRST_JOIN_IN_TWO_STEPS,
        can_skip_assignment=version >= _FIRST_JOIN_WITH_SKIPPED_ASSIGNMENT,
    )


def encode_join(writer: Writer, version: int, _: JoinGroupRequest, response: JoinGroupResponse) -> None:
    """The generation, and for its leader the members."""
    protocol = response.protocol_name
    if protocol is None and version < _FIRST_JOIN_WITH_NULL_PROTOCOL:
        protocol = ""
    JOIN_RESPONSE.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "error_code": response.error,
            "generation_id": response.generation,
            "protocol_type": response.protocol_type,
            "protocol_name": protocol,
            "leader": response.leader,
            "skip_assignment": response.skip_assignment,
            "member_id": response.member_id,
            "members": list(map(_joined_fields, response.members)),
        },
    )


def failed_join(request: JoinGroupRequest, error: ErrorResponse) -> JoinGroupResponse:
    """The reply where the request failed as a whole."""
    return JoinGroupResponse(member_id=request.member_id, error=error.error, message=error.message)


def _joined_fields(member: JoinedMember) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}


def decode_sync(reader: Reader, version: int, _: TopicNames) -> SyncGroupRequest:
    """Who asks for an assignment, and a leader's assignments.

    Raises InvalidRequestError where a client does not name the protocol that it takes for the group's (KIP-559).
    """
    values = SYNC_REQUEST.read(reader, version)
    request = SyncGroupRequest(
        group=values["group_id"],
        generation=values["generation_id"],
        member_id=values["member_id"],
        instance_id=values["group_instance_id"],
        protocol_type=values["protocol_type"],
        protocol_name=values["protocol_name"],
        assignments=tuple(
            [
                MemberAssignment(member_id=one["member_id"], assignment=bytes(one["assignment"]))
                for one in values["assignments"]
            ]
        ),
    )
    if version >= _FIRST_SYNC_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        raise InvalidRequestError(
            request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol's type and name must be given"
        )
    return request


def encode_sync(writer: Writer, version: int, _: SyncGroupRequest, response: SyncGroupResponse) -> None:
    """The assignment."""
    SYNC_RESPONSE.write(
        writer,
        version,
        {
            "throttle_time_ms": writer.throttle_ms,
            "error_code": response.error,
            "protocol_type": response.protocol_type,
            "protocol_name": response.protocol_name,
            "assignment": response.assignment,
        },
    )


def failed_sync(_: SyncGroupRequest, error: ErrorResponse) -> SyncGroupResponse:
    """The reply where the request failed as a whole."""
    return SyncGroupResponse(error=error.error, message=error.message)


def decode_heartbeat(reader: Reader, version: int, _: TopicNames) -> HeartbeatRequest:
    """Who is still there."""
    values = HEARTBEAT_REQUEST.read(reader, version)
    return HeartbeatRequest(
        group=values["group_id"],
        generation=values["generation_id"],
        member_id=values["member_id"],
        instance_id=values["group_instance_id"],
    )


def encode_heartbeat(writer: Writer, version: int, _: HeartbeatRequest, response: HeartbeatResponse) -> None:
    """Whether it may go on."""
    values = {"throttle_time_ms": writer.throttle_ms, "error_code": response.error}
    HEARTBEAT_RESPONSE.write(writer, version, values)


def failed_heartbeat(_: HeartbeatRequest, error: ErrorResponse) -> HeartbeatResponse:
    """The reply where the request failed as a whole."""
    return HeartbeatResponse(error=error.error, message=error.message)


def decode_leave(reader: Reader, version: int, _: TopicNames) -> LeaveGroupRequest:
    """Who leaves: one member, from version 3 on several."""
    values = LEAVE_REQUEST.read(reader, version)
    if version < _FIRST_LEAVE_OF_SEVERAL:
        return LeaveGroupRequest(group=values["group_id"], members=(LeavingMember(member_id=values["member_id"]),))
    members = [
        LeavingMember(member_id=one["member_id"], instance_id=one["group_instance_id"], reason=one["reason"])
        for one in values["members"]
    ]
    return LeaveGroupRequest(group=values["group_id"], members=tuple(members))


def encode_leave(writer: Writer, version: int, _: LeaveGroupRequest, response: LeaveGroupResponse) -> None:
    """What became of them. Before version 3 the only member's error is that of the reply."""
    error = response.error
    if version < _FIRST_LEAVE_OF_SEVERAL and error is ErrorCode.NONE and response.members:
        error = response.members[0].error
    members = list(map(_left_fields, response.members))
    values = {"throttle_time_ms": writer.throttle_ms, "error_code": error, "members": members}
    LEAVE_RESPONSE.write(writer, version, values)


def failed_leave(_: LeaveGroupRequest, error: ErrorResponse) -> LeaveGroupResponse:
    """The reply where the request failed as a whole."""
    return LeaveGroupResponse(error=error.error, message=error.message)


def _left_fields(member: LeftMember) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": member.error}
