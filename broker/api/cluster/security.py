"""Requests about delegation tokens, which do not exist and cannot be created. Source: kafka.server.KafkaApis."""

from collections.abc import Mapping
from typing import Any

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.authentication import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)


class SecurityApi:
    """Answers the requests about delegation tokens."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            CreateDelegationTokenRequest.api: self._refuse_tokens,
            RenewDelegationTokenRequest.api: self._refuse_tokens,
            ExpireDelegationTokenRequest.api: self._refuse_tokens,
            DescribeDelegationTokenRequest.api: self._refuse_tokens,
        }

    async def _refuse_tokens(self, _: Any, __: Context) -> None:
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "delegation tokens need an authenticated connection"
        )
