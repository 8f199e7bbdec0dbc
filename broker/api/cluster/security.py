"""Requests about quotas and delegation tokens.

Quotas and tokens do not exist and cannot be created, since they would have no effect. Kafka stores quotas, which are
refused here. Source: kafka.server.KafkaApis; org.apache.kafka.image.ClientQuotasImage.
"""

from collections.abc import Mapping
from typing import Any

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError, shortened
from warmlog.broker.api.handler import Handler
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.authentication import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from warmlog.protocol.kafka.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    Failure,
    QuotaAlteration,
    QuotaFilter,
)

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_ENTITY_TYPES = {_USER, _CLIENT_ID, _IP}
_EXACT, _DEFAULT, _ANY = 0, 1, 2  # types of matches


class SecurityApi:
    """Answers the requests about quotas and delegation tokens."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeClientQuotasRequest.api: self.describe_quotas,
            AlterClientQuotasRequest.api: self.alter_quotas,
            CreateDelegationTokenRequest.api: self._refuse_tokens,
            RenewDelegationTokenRequest.api: self._refuse_tokens,
            ExpireDelegationTokenRequest.api: self._refuse_tokens,
            DescribeDelegationTokenRequest.api: self._refuse_tokens,
        }

    async def _refuse_tokens(self, _: Any, __: Context) -> None:
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "delegation tokens need an authenticated connection"
        )

    # -- quotas --

    async def describe_quotas(
        self, request: DescribeClientQuotasRequest, context: Context
    ) -> DescribeClientQuotasResponse:
        """Validate the filters and return no quotas."""
        types: set[str] = set()
        for each in request.filters:
            await context.checkpoint()
            _check_filter(each)
            if each.entity_type in types:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"entity type {each.entity_type} occurs twice")
            types.add(each.entity_type)
        if _IP in types and len(types) > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, "an ip filter cannot be combined with user or client-id")
        return DescribeClientQuotasResponse()

    async def alter_quotas(self, request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
        """Refuse to set quotas; removing one succeeds, since none exists."""
        results: list[Failure] = []
        for alteration in request.alterations:
            await context.checkpoint()
            results.append(_alter_quotas(alteration))
        return AlterClientQuotasResponse(results=tuple(results))


def _check_filter(asked: QuotaFilter) -> None:
    """Raise RequestError for an invalid filter."""
    if not asked.entity_type:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the entity type is empty")
    if asked.entity_type not in _ENTITY_TYPES:
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"unknown entity type {asked.entity_type}")
    if asked.match_type not in {_EXACT, _DEFAULT, _ANY}:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown match type {asked.match_type}")
    if (asked.match is None) == (asked.match_type == _EXACT):
        raise RequestError(ErrorCode.INVALID_REQUEST, "an exact match needs a name, other matches must not have one")


def _alter_quotas(alteration: QuotaAlteration) -> Failure:
    try:
        _check_alteration(alteration)
    except RequestError as error:
        return Failure(error=error.code, message=shortened(str(error)))
    return Failure()


def _check_alteration(alteration: QuotaAlteration) -> None:
    """Raise RequestError unless the alteration only removes quotas."""
    if not alteration.entity:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the entity is empty")
    for entity_type, name in alteration.entity:
        if entity_type not in _ENTITY_TYPES:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown entity type {entity_type}")
        if name == "":
            raise RequestError(ErrorCode.INVALID_REQUEST, f"the name of the {entity_type} is empty")
    if alteration.sets:
        names = ", ".join(alteration.sets)
        raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"quotas are not supported and cannot be set: {names}")
