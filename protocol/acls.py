"""Neutral requests and responses about access control lists, for both wire formats.

Resource types, pattern types, operations and permissions are Kafka's numbers; handlers refuse unknown ones.
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Entries, Int16, Value


class AclEntry(Value, frozen=True, kw_only=True, gc=False):
    """An ACL: whether a principal at a host may perform an operation on the resources of a pattern."""

    resource_type: Int16
    name: str
    pattern: Int16
    principal: str
    host: str
    operation: Int16
    permission: Int16


class AclQuery(Value, frozen=True, kw_only=True, gc=False):
    """Selects ACLs. In each field, None or the number 1 matches any value."""

    resource_type: Int16 = 1
    name: str | None = None
    pattern: Int16 = 1
    principal: str | None = None
    host: str | None = None
    operation: Int16 = 1
    permission: Int16 = 1


class DescribeAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the ACLs that match a filter."""

    api: ClassVar[str] = "describe_acls"
    filter: AclQuery


class DescribeAclsResponse(Value, frozen=True, kw_only=True, gc=False):
    """The ACLs, grouped by pattern."""

    acls: tuple[AclEntry, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class CreateAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create ACLs. Existing ACLs are not changed."""

    api: ClassVar[str] = "create_acls"
    acls: Entries[AclEntry]


class CreatedAcl(Value, frozen=True, kw_only=True, gc=False):
    """The result of creating one ACL."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class CreateAclsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of CreateAclsRequest, in its order."""

    results: tuple[CreatedAcl, ...]


class DeleteAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete the ACLs that match any of these filters."""

    api: ClassVar[str] = "delete_acls"
    filters: Entries[AclQuery]


class DeletedAcls(Value, frozen=True, kw_only=True, gc=False):
    """The ACLs that matched one filter."""

    acls: tuple[AclEntry, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeleteAclsResponse(Value, frozen=True, kw_only=True, gc=False):
    """Results of DeleteAclsRequest, in its order."""

    results: tuple[DeletedAcls, ...]
