"""Requests about delegation tokens, with Kafka's semantics. Source: DelegationTokenControlManager, KafkaApis."""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final
from uuid import uuid4

import trio

from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster.access.delegation_tokens import change_expiry, create_token, delete_tokens
from warmlog.broker.cluster.admin import in_time
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.security.delegation_tokens import (
    MAX_OF_OWNER,
    MAX_RENEWERS,
    DelegationToken,
    TokenSecret,
    fingerprint,
)
from warmlog.broker.security.principal import ANONYMOUS, USER, Principal
from warmlog.broker.security.scram import MAX_NAME
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.security.authentication import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribedToken,
    ExpireDelegationTokenRequest,
    Named,
    RenewDelegationTokenRequest,
    TokenExpiryResponse,
)
from warmlog.protocol.records.record import MAX_INT64

_AT_ONCE: Final = 2  # new credentials computed concurrently


class DelegationTokensApi:
    """Answers the requests about delegation tokens, which are refused without a secret."""

    def __init__(
        self, node: StoreNode, secret: TokenSecret | None, *, max_lifetime_ms: int, expiry_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._node = node
        self._secret = secret
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_ms = expiry_ms
        self._clock_ms = clock_ms
        self._worker = trio.CapacityLimiter(_AT_ONCE)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            CreateDelegationTokenRequest.api: self.create,
            RenewDelegationTokenRequest.api: self.renew,
            ExpireDelegationTokenRequest.api: self.expire,
            DescribeDelegationTokenRequest.api: self.describe,
        }

    async def create(self, request: CreateDelegationTokenRequest, context: Context) -> CreateDelegationTokenResponse:
        """Create a token."""
        requester = _authenticated(context.session)
        kinds = await context.map(itemgetter(0), request.renewers)
        if any(kind != USER for kind in {*kinds, USER if request.owner is None else request.owner[0]}):
            raise RequestError(ErrorCode.INVALID_PRINCIPAL_TYPE, "owners and renewers of tokens are users")
        secret = self._require()
        owner = str(requester) if request.owner is None else _text(request.owner)
        renewers = tuple(await _texts(request.renewers, context))
        if len(renewers) > MAX_RENEWERS or any(len(each) > MAX_NAME for each in (owner, *renewers)):
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"at most {MAX_RENEWERS} renewers, and {MAX_NAME} characters of each name"
            )
        if self._node.image.tokens_of[owner] >= MAX_OF_OWNER:
            raise RequestError(ErrorCode.POLICY_VIOLATION, f"{owner} has {MAX_OF_OWNER} delegation tokens, the maximum")
        token_id, now = str(uuid4()), self._clock_ms()
        context.subject = token_id
        lifetime_ms = self._max_lifetime_ms
        if request.max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
        max_at = min(now + lifetime_ms, MAX_INT64)
        hmac = secret.hmac(token_id)
        token = DelegationToken(
            owner=owner,
            requester=str(requester),
            renewers=renewers,
            issued_at=now,
            expires_at=min(max_at, now + self._expiry_ms),
            max_at=max_at,
            fingerprint=fingerprint(hmac),
            credentials=await context.wait(trio.to_thread.run_sync(secret.credentials, token_id, limiter=self._worker)),
        )
        await context.wait(in_time(lambda: create_token(self._node, token_id, token)))
        return CreateDelegationTokenResponse(
            owner=_named(owner),
            requester=_named(token.requester),
            issued_at=token.issued_at,
            expires_at=token.expires_at,
            max_at=token.max_at,
            token_id=token_id,
            hmac=hmac,
        )

    async def renew(self, request: RenewDelegationTokenRequest, context: Context) -> TokenExpiryResponse:
        """Extend a token's validity."""
        requester = _authenticated(context.session)
        token_id, token = self._find(request.hmac, context)
        now = self._clock_ms()
        if token.has_expired(now):
            raise RequestError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the delegation token has expired")
        _check_owner(token, requester)
        period_ms = self._expiry_ms if request.period_ms <= 0 else min(self._expiry_ms, request.period_ms)
        return await self._change(token_id, min(token.max_at, now + period_ms), context)

    async def expire(self, request: ExpireDelegationTokenRequest, context: Context) -> TokenExpiryResponse:
        """Set an earlier expiry, or remove the token immediately."""
        requester = _authenticated(context.session)
        token_id, token = self._find(request.hmac, context)
        _check_owner(token, requester)
        now = self._clock_ms()
        if request.period_ms < 0:
            await context.wait(in_time(lambda: delete_tokens(self._node, [token_id])))
            return TokenExpiryResponse(expires_at=now)
        if token.has_expired(now):
            raise RequestError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the delegation token has expired")
        return await self._change(token_id, min(token.max_at, now + request.period_ms), context)

    async def describe(
        self, request: DescribeDelegationTokenRequest, context: Context
    ) -> DescribeDelegationTokenResponse:
        """List the tokens of owners, or all."""
        _authenticated(context.session)
        secret = self._require()
        wanted = None if request.owners is None else await _texts(request.owners, context)
        described = []
        for token_id, token in list(self._node.image.delegation_tokens.items()):
            await context.checkpoint()
            if wanted is not None and not token.is_of_any(wanted.keys()):
                continue
            if secret.has_made(token_id, token):
                described.append(_described(token_id, token, secret.hmac(token_id)))
        return DescribeDelegationTokenResponse(tokens=tuple(described))

    async def _change(self, token_id: str, expires_at: int, context: Context) -> TokenExpiryResponse:
        await context.wait(in_time(lambda: change_expiry(self._node, token_id, expires_at)))
        return TokenExpiryResponse(expires_at=expires_at)

    def _require(self) -> TokenSecret:
        if self._secret is None:
            raise RequestError(
                ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set on this broker"
            )
        return self._secret

    def _find(self, token_hmac: bytes, context: Context) -> tuple[str, DelegationToken]:
        """Return the token with the client's HMAC. Raises RequestError."""
        self._require()
        image = self._node.image
        token_id = image.token_ids.get(fingerprint(bytes(token_hmac)))
        if token_id is None:
            raise RequestError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such delegation token")
        context.subject = token_id
        return token_id, image.delegation_tokens[token_id]


def _authenticated(session: Session) -> Principal:
    """Return the requester. Raises RequestError for a client that has not logged in, or has logged in with a token."""
    if session.principal == ANONYMOUS or (session.login is not None and session.login.is_by_token):
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "delegation tokens need a connection that is authenticated, and not by a delegation token",
        )
    return session.principal


def _check_owner(token: DelegationToken, principal: Principal) -> None:
    if not token.is_of(str(principal)):
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "only its owner and its renewers may change a delegation token"
        )


def _described(token_id: str, token: DelegationToken, token_hmac: bytes) -> DescribedToken:
    return DescribedToken(
        owner=_named(token.owner),
        requester=_named(token.requester),
        issued_at=token.issued_at,
        expires_at=token.expires_at,
        max_at=token.max_at,
        token_id=token_id,
        hmac=token_hmac,
        renewers=tuple([_named(each) for each in token.renewers]),
    )


async def _texts(principals: Iterable[Named], context: Context) -> dict[str, None]:
    """Return the distinct texts of principals, in order. A request may name a million."""
    texts: dict[str, None] = {}
    for each in principals:
        texts[_text(each)] = None
        await context.checkpoint()
    return texts


def _text(named: Named) -> str:
    return f"{named[0]}:{named[1]}"


def _named(text: str) -> Named:
    kind, _, name = text.partition(":")
    return kind, name
