"""DescribeAcls, CreateAcls, DeleteAcls (1 to 3)."""

from itertools import groupby
from operator import attrgetter
from typing import Any

from warmlog.protocol.acls import (
    AclEntry,
    AclQuery,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import INT8, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import FAILURE, THROTTLE_TIME, refused, refused_each

_LITERAL = 3

_FILTER = (
    Field("resource_type_filter", INT8, attr="resource_type"),
    Field("resource_name_filter", STRING, nullable=0, attr="name"),
    Field("pattern_type_filter", INT8, default=_LITERAL, attr="pattern"),
    Field("principal_filter", STRING, nullable=0, attr="principal"),
    Field("host_filter", STRING, nullable=0, attr="host"),
    Field("operation", INT8),
    Field("permission_type", INT8, attr="permission"),
)
_ACL = (
    Field("principal", STRING),
    Field("host", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8, attr="permission"),
)
_RESOURCE = (
    Field("resource_type", INT8),
    Field("resource_name", STRING, attr="name"),
    Field("pattern_type", INT8, default=_LITERAL, attr="pattern"),
)
_pattern_of = attrgetter("resource_type", "name", "pattern")


def _described(**fields: Any) -> DescribeAclsRequest:
    return DescribeAclsRequest(filter=AclQuery(**fields))


class _Resource:
    """A resource pattern and its ACLs."""

    __slots__ = ("acls", "name", "pattern", "resource_type")

    def __init__(self, acls: list[AclEntry]) -> None:
        self.resource_type, self.name, self.pattern = _pattern_of(acls[0])
        self.acls = acls


def _by_pattern(response: DescribeAclsResponse, *_: Any) -> list[_Resource]:
    """Group the ACLs by resource pattern."""
    return [_Resource(list(acls)) for _, acls in groupby(response.acls, _pattern_of)]


DESCRIBE_REQUEST = Struct(*_FILTER, into=_described)
DESCRIBE_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field("resources", array(*_RESOURCE, Field("acls", array(*_ACL))), attr=None, get=_by_pattern),
)
failed_describe = refused(DescribeAclsResponse)
CREATE_REQUEST = Struct(
    Field(
        "creations",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING, attr="name"),
            Field("resource_pattern_type", INT8, default=_LITERAL, attr="pattern"),
            *_ACL,
            into=AclEntry,
        ),
        attr="acls",
    ),
    into=CreateAclsRequest,
)
CREATE_RESPONSE = Struct(THROTTLE_TIME, Field("results", array(*FAILURE)))
DELETE_REQUEST = Struct(Field("filters", array(*_FILTER, into=AclQuery)), into=DeleteAclsRequest)
_NO_FAILURE = (
    Field(FAILURE[0].name, FAILURE[0].kind, attr=None, get=lambda *_: ErrorCode.NONE),
    Field(FAILURE[1].name, FAILURE[1].kind, nullable=0, attr=None, get=lambda *_: None),
)
DELETE_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "filter_results",
        array(*FAILURE, Field("matching_acls", array(*_NO_FAILURE, *_RESOURCE, *_ACL), attr="acls")),
        attr="results",
    ),
)
failed_create = refused_each(CreateAclsResponse, "results", CreatedAcl, of="acls")
failed_delete = refused_each(DeleteAclsResponse, "results", DeletedAcls, of="filters")
