"""Requests about ACLs. Without an authorizer they are refused, as in Kafka.

Source: kafka.server.AclApis; org.apache.kafka.controller.AclControlManager.
"""

from collections.abc import Mapping
from uuid import UUID

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError, shortened
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster.access import acls as acl_admin
from warmlog.broker.cluster.admin import in_time
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.security.acls import Acl, AclFilter, InvalidAclError, check_acl, check_filter
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

MAX_DELETED = 10_000  # per request, as in Kafka (MAX_RECORDS_PER_USER_OP)


class AclsApi:
    """Answers DescribeAcls, CreateAcls and DeleteAcls."""

    def __init__(self, node: StoreNode, *, is_enabled: bool) -> None:
        """Answer from the store. `is_enabled`: whether an authorizer is configured."""
        self._node = node
        self._is_enabled = is_enabled

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeAclsRequest.api: self.describe,
            CreateAclsRequest.api: self.create,
            DeleteAclsRequest.api: self.delete,
        }

    def _require(self) -> None:
        if not self._is_enabled:
            raise RequestError(ErrorCode.SECURITY_DISABLED, "no authorizer is configured, so every request is allowed")

    async def describe(self, request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
        """List the ACLs that match the filter, grouped by pattern."""
        self._require()
        try:
            selected = await self._selected(_filter(request.filter), context)
        except InvalidAclError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None
        by_pattern: dict[tuple[int, str, int], list[AclEntry]] = {}
        for _, acl in selected:
            by_pattern.setdefault((acl.resource_type, acl.name, acl.pattern), []).append(_entry(acl))
            await context.checkpoint()
        return DescribeAclsResponse(acls=tuple([acl for acls in by_pattern.values() for acl in acls]))

    async def create(self, request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
        """Create each valid ACL; an existing one counts as created."""
        self._require()
        results: list[CreatedAcl] = []
        acls: list[Acl] = []
        for entry in request.acls:
            await context.checkpoint()
            try:
                acls.append(_checked(entry))
                results.append(CreatedAcl())
            except InvalidAclError as error:
                results.append(CreatedAcl(error=ErrorCode.INVALID_REQUEST, message=shortened(str(error))))
        await context.wait(in_time(lambda: acl_admin.create_acls(self._node, acls)))
        return CreateAclsResponse(results=tuple(results))

    async def delete(self, request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
        """Delete the ACLs that each valid filter selects. Raises RequestError for more than MAX_DELETED ACLs."""
        self._require()
        results: list[DeletedAcls] = []
        ids: dict[UUID, None] = {}
        selected: dict[AclQuery, DeletedAcls] = {}
        for query in request.filters:
            if query not in selected:
                selected[query] = await self._deleted(query, ids, context)
            results.append(selected[query])
        await context.wait(in_time(lambda: acl_admin.delete_acls(self._node, list(ids))))
        return DeleteAclsResponse(results=tuple(results))

    async def _deleted(self, query: AclQuery, ids: dict[UUID, None], context: Context) -> DeletedAcls:
        """Add the ids of the ACLs that a filter selects; return its result."""
        try:
            selected = await self._selected(_filter(query), context)
        except InvalidAclError as error:
            return DeletedAcls(error=ErrorCode.INVALID_REQUEST, message=shortened(str(error)))
        ids.update(dict.fromkeys([acl_id for acl_id, _ in selected]))
        if len(ids) > MAX_DELETED:
            message = f"the filters select more than {MAX_DELETED:,} ACLs: delete them with narrower ones"
            raise RequestError(ErrorCode.INVALID_REQUEST, message)
        return DeletedAcls(acls=await context.map(_entry, [acl for _, acl in selected]))

    async def _selected(self, wanted: AclFilter, context: Context) -> list[tuple[UUID, Acl]]:
        """Return the ACLs that a filter selects, found in pieces. Raises InvalidAclError."""
        check_filter(wanted)
        selected = []
        for acl in list(self._node.image.acls.items()):
            if wanted.matches(acl[1]):
                selected.append(acl)
            await context.checkpoint()
        return selected


def _filter(query: AclQuery) -> AclFilter:
    return AclFilter(
        query.resource_type,
        query.name,
        query.pattern,
        query.principal,
        query.host,
        query.operation,
        query.permission,
    )


def _checked(entry: AclEntry) -> Acl:
    """Return a valid ACL. Raises InvalidAclError."""
    return check_acl(
        (
            entry.resource_type,
            entry.name,
            entry.pattern,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission,
        )
    )


def _entry(acl: Acl) -> AclEntry:
    return AclEntry(
        resource_type=int(acl.resource_type),
        name=acl.name,
        pattern=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission=int(acl.permission),
    )
