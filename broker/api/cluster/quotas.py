"""Clients' quotas, with Kafka's semantics. Source: ClientQuotaControlManager, ClientQuotasImage.

A request with many entities is committed in several transactions, unlike in Kafka. Host names are not resolved.
"""

from collections.abc import Container, Mapping

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError, shortened
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster.access.quotas import QuotaChanges, change_quotas
from warmlog.broker.cluster.admin import in_time
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.security.acls import host_of
from warmlog.broker.security.quotas.entities import (
    CLIENT_ID,
    IP,
    USER,
    InvalidQuotaError,
    QuotaEntity,
    check_quota,
)
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.security.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityQuotas,
    QuotaAlteration,
    QuotaFilter,
)

_EXACT, _DEFAULT, _ANY = 0, 1, 2  # types of matches


class QuotasApi:
    """Answers DescribeClientQuotas and AlterClientQuotas."""

    def __init__(self, node: StoreNode) -> None:
        self._node = node

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeClientQuotasRequest.api: self.describe,
            AlterClientQuotasRequest.api: self.alter,
        }

    async def describe(self, request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
        """List the quotas of the entities that all filters match."""
        filters: dict[str, QuotaFilter] = {}
        for each in request.filters:
            await context.checkpoint()
            _check_filter(each)
            if each.entity_type in filters:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"entity type {each.entity_type} occurs twice")
            filters[each.entity_type] = each
        if IP in filters and len(filters) > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, "an ip filter cannot be combined with user or client-id")
        entries: list[EntityQuotas] = []
        for entity, values in list(self._node.image.quotas.items()):
            parts = dict(entity.parts)
            if all(_matches(each, parts) for each in filters.values()) and (
                not request.strict or len(parts) == len(filters)
            ):
                entries.append(EntityQuotas(entity=entity.parts, values=tuple(values.items())))
            await context.checkpoint()
        return DescribeClientQuotasResponse(entries=tuple(entries))

    async def alter(self, request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
        """Change the quotas of each valid entity; only the first occurrence of a repeated entity counts."""
        results: list[AlteredQuotas] = []
        changes: dict[QuotaEntity, Mapping[str, float | None]] = {}
        for alteration in request.alterations:
            await context.checkpoint()
            try:
                entity, changed = _checked(alteration, changes)
                changes[entity] = changed
                results.append(AlteredQuotas(entity=alteration.entity))
            except InvalidQuotaError as error:
                results.append(
                    AlteredQuotas(
                        entity=alteration.entity, error=ErrorCode.INVALID_REQUEST, message=shortened(str(error))
                    )
                )
        if changes and not request.validate_only:
            await context.wait(in_time(lambda: change_quotas(self._node, list(changes.items()))))
        return AlterClientQuotasResponse(results=tuple(results))


def _check_filter(wanted: QuotaFilter) -> None:
    """Raise RequestError for an invalid filter."""
    if not wanted.entity_type:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the entity type is empty")
    if wanted.entity_type not in {USER, CLIENT_ID, IP}:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"unknown entity type {wanted.entity_type}")
    if wanted.match_type not in {_EXACT, _DEFAULT, _ANY}:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown match type {wanted.match_type}")
    if (wanted.match is None) == (wanted.match_type == _EXACT):
        raise RequestError(ErrorCode.INVALID_REQUEST, "an exact match needs a name, other matches must not have one")


def _matches(wanted: QuotaFilter, parts: Mapping[str, str | None]) -> bool:
    """Return whether an entity matches a filter."""
    if wanted.entity_type not in parts:
        return False
    if wanted.match_type == _ANY:
        return True
    match = wanted.match
    if match is not None and wanted.entity_type == IP:
        match = host_of(match).text
    return parts[wanted.entity_type] == match


def _checked(alteration: QuotaAlteration, earlier: Container[QuotaEntity]) -> QuotaChanges:
    """Return the changes of an entity, which must not repeat an earlier one. Raises InvalidQuotaError."""
    entity = QuotaEntity.of(alteration.entity)
    if entity in earlier:
        raise InvalidQuotaError("the entity occurs twice")
    changed: dict[str, float | None] = {}
    for change in alteration.changes:
        if change.key in changed:
            raise InvalidQuotaError(f"quota {change.key} occurs twice")
        if not change.remove:
            check_quota(entity, change.key, change.value)
        changed[change.key] = None if change.remove else change.value
    return entity, changed
