"""ListGroups (0 to 5), DescribeGroups (0 to 6), DeleteGroups (0 to 2).

Owns: the tables of these messages, and how they meet the values of protocol/groups.py. Must not know: groups.
"""

from typing import Any

from protocol.errors import ErrorCode
from protocol.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.kafka.cluster import NOT_ASKED
from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, DATA, INT16, INT32, STRING, Array, Field, Struct, array
from protocol.kafka.values import GROUP_OPERATIONS, TopicNames
from protocol.response import ErrorResponse

_FIRST_DESCRIBE_WITH_UNKNOWN_GROUP = 6  # before, an unknown group is a dead one (KIP-1043)

LIST_REQUEST = Struct(
    Field("states_filter", Array(STRING), since=4),
    Field("types_filter", Array(STRING), since=5),
)
LIST_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field("error_code", INT16),
    Field(
        "groups",
        array(
            Field("group_id", STRING),
            Field("protocol_type", STRING),
            Field("group_state", STRING, since=4),
            Field("group_type", STRING, since=5),
        ),
    ),
)
DESCRIBE_REQUEST = Struct(
    Field("groups", Array(STRING)),
    Field("include_authorized_operations", BOOLEAN, since=3),
)
DESCRIBE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32, since=1),
    Field(
        "groups",
        array(
            Field("error_code", INT16),
            Field("error_message", STRING, since=6, nullable=6, default=None),
            Field("group_id", STRING),
            Field("group_state", STRING),
            Field("protocol_type", STRING),
            Field("protocol_data", STRING),
            Field(
                "members",
                array(
                    Field("member_id", STRING),
                    Field("group_instance_id", STRING, since=4, nullable=4, default=None),
                    Field("client_id", STRING),
                    Field("client_host", STRING),
                    Field("member_metadata", DATA),
                    Field("member_assignment", DATA),
                ),
            ),
            Field("authorized_operations", INT32, since=3, default=NOT_ASKED),
        ),
    ),
)
DELETE_REQUEST = Struct(Field("groups_names", Array(STRING)))
DELETE_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("results", array(Field("group_id", STRING), Field("error_code", INT16))),
)


def decode_list(reader: Reader, version: int, _: TopicNames) -> ListGroupsRequest:
    """Which groups are wanted."""
    values = LIST_REQUEST.read(reader, version)
    return ListGroupsRequest(states=values["states_filter"], types=values["types_filter"])


def encode_list(writer: Writer, version: int, _: ListGroupsRequest, response: ListGroupsResponse) -> None:
    """The groups."""
    groups = list(map(_listed_fields, response.groups))
    values = {"throttle_time_ms": writer.throttle_ms, "error_code": response.error, "groups": groups}
    LIST_RESPONSE.write(writer, version, values)


def failed_list(_: ListGroupsRequest, error: ErrorResponse) -> ListGroupsResponse:
    """The reply where the request failed as a whole."""
    return ListGroupsResponse(error=error.error, message=error.message)


def _listed_fields(group: ListedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.type,
    }


def decode_describe(reader: Reader, version: int, _: TopicNames) -> DescribeGroupsRequest:
    """Which groups are to be described."""
    return DescribeGroupsRequest(**DESCRIBE_REQUEST.read(reader, version))


def encode_describe(
    writer: Writer, version: int, request: DescribeGroupsRequest, response: DescribeGroupsResponse
) -> None:
    """The groups and their members."""
    operations = request.include_authorized_operations
    groups = [_group_fields(group, version, operations=operations) for group in response.groups]
    DESCRIBE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "groups": groups})


def failed_describe(request: DescribeGroupsRequest, error: ErrorResponse) -> DescribeGroupsResponse:
    """The reply where the request failed as a whole."""
    groups = [
        DescribedGroup(group=group, state="", error=error.error, message=error.message) for group in request.groups
    ]
    return DescribeGroupsResponse(groups=tuple(groups))


def _group_fields(group: DescribedGroup, version: int, *, operations: bool) -> dict[str, Any]:
    error = group.error
    if error is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_DESCRIBE_WITH_UNKNOWN_GROUP:
        error = ErrorCode.NONE
    return {
        "error_code": error,
        "error_message": group.message,
        "group_id": group.group,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": list(map(_member_fields, group.members)),
        "authorized_operations": GROUP_OPERATIONS if operations and error is ErrorCode.NONE else NOT_ASKED,
    }


def _member_fields(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


def decode_delete(reader: Reader, version: int, _: TopicNames) -> DeleteGroupsRequest:
    """Which groups are to be deleted."""
    return DeleteGroupsRequest(groups=DELETE_REQUEST.read(reader, version)["groups_names"])


def encode_delete(writer: Writer, version: int, _: DeleteGroupsRequest, response: DeleteGroupsResponse) -> None:
    """What became of them."""
    results = [{"group_id": group.group, "error_code": group.error} for group in response.groups]
    DELETE_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "results": results})


def failed_delete(request: DeleteGroupsRequest, error: ErrorResponse) -> DeleteGroupsResponse:
    """The reply where the request failed as a whole."""
    return DeleteGroupsResponse(
        groups=tuple([DeletedGroup(group=group, error=error.error) for group in request.groups])
    )
