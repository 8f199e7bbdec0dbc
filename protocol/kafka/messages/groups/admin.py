"""ListGroups (0 to 5), DescribeGroups (0 to 6), DeleteGroups (0 to 3)."""

from collections.abc import Mapping
from dataclasses import replace

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupType,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from warmlog.protocol.kafka.codec.schema import BOOLEAN, BYTES, ERROR, INT32, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import (
    ERROR_CODE,
    NOT_REQUESTED,
    OPTIONAL_MESSAGE,
    THROTTLE_TIME,
    refused,
    refused_each,
    since,
)

GROUP_OPERATIONS = 0b1101_0100_1000


_GROUP = Field("group_id", STRING, attr="group")
_FIRST_WITH_UNKNOWN_GROUP = 6  # earlier versions of DescribeGroups report such a group as dead (KIP-1043)
_KNOWN_AS_DEAD: Mapping[int, int] = {ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.NONE}

LIST_REQUEST = Struct(
    Field("states_filter", Array(STRING), since=4, attr="states"),
    Field("types_filter", Array(STRING), since=5, attr="types"),
    into=ListGroupsRequest,
)
LIST_RESPONSE = Struct(
    since(1, THROTTLE_TIME),
    ERROR_CODE,
    Field(
        "groups",
        array(
            _GROUP,
            Field("protocol_type", STRING),
            Field("group_state", STRING, since=4, attr="state"),
            Field("group_type", STRING, since=5, attr="type", convert=lambda kind: kind or GroupType.CLASSIC),
            into=ListedGroup,
        ),
    ),
    into=ListGroupsResponse,
)
failed_list = refused(ListGroupsResponse)


class AuthorizedGroup(DescribedGroup, frozen=True, kw_only=True, gc=False):
    """A group with the operations that the client may perform on it, as bits."""

    operations: int


def _operations(group: DescribedGroup, request: DescribeGroupsRequest, version: int) -> int:
    is_sound = group.error is ErrorCode.NONE or (version < _FIRST_WITH_UNKNOWN_GROUP and group.error in _KNOWN_AS_DEAD)
    if not request.include_authorized_operations or not is_sound:
        return NOT_REQUESTED
    return group.operations if isinstance(group, AuthorizedGroup) else GROUP_OPERATIONS


DESCRIBE_REQUEST = Struct(
    Field("groups", Array(STRING)),
    Field("include_authorized_operations", BOOLEAN, since=3),
    into=DescribeGroupsRequest,
)
DESCRIBE_RESPONSE = Struct(
    since(1, THROTTLE_TIME),
    Field(
        "groups",
        array(
            Field("error_code", ERROR, attr="error", before={_FIRST_WITH_UNKNOWN_GROUP: _KNOWN_AS_DEAD}),
            Field("error_message", STRING, since=6, nullable=6, default=None, attr="message"),
            _GROUP,
            Field("group_state", STRING, attr="state"),
            Field("protocol_type", STRING),
            Field("protocol_data", STRING, attr="protocol"),
            Field(
                "members",
                array(
                    Field("member_id", STRING),
                    Field("group_instance_id", STRING, since=4, nullable=4, default=None, attr="instance_id"),
                    Field("client_id", STRING),
                    Field("client_host", STRING),
                    Field("member_metadata", BYTES, attr="metadata"),
                    Field("member_assignment", BYTES, attr="assignment"),
                ),
            ),
            Field("authorized_operations", INT32, since=3, default=NOT_REQUESTED, get=_operations),
        ),
    ),
)
failed_describe = refused_each(DescribeGroupsResponse, "groups", DescribedGroup, "group", state="")


DELETE_REQUEST = Struct(Field("groups_names", Array(STRING), attr="groups"), into=DeleteGroupsRequest)
DELETE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("results", array(_GROUP, ERROR_CODE, replace(OPTIONAL_MESSAGE, since=3, nullable=3)), attr="groups"),
)
failed_delete = refused_each(DeleteGroupsResponse, "groups", DeletedGroup, "group")
