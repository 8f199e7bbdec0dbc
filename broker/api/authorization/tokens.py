"""Checks of requests about delegation tokens."""

from typing import Any

from warmlog.broker.api.authorization.parts import CheckedCall, without_hidden
from warmlog.broker.api.errors import RequestError
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode


async def create(call: CheckedCall) -> Any:
    """Allow users to create tokens for themselves, and for others with CREATE_TOKENS on these users."""
    owner, requester = call.request.owner, call.context.session.principal
    name = "" if owner is None else f"{owner[0]}:{owner[1]}"
    if name and name != str(requester) and not call.access.may(Operation.CREATE_TOKENS, ResourceType.USER, name):
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "tokens for another user need CREATE_TOKENS on that user"
        )
    return await call.answer()


async def describe(call: CheckedCall) -> Any:
    """Omit the tokens of other owners, except with DESCRIBE on a token or DESCRIBE_TOKENS on its owner."""
    access, me = call.access, call.context.session.principal

    def may(token: Any) -> bool:
        if (me.type, me.name) in {token.owner, *token.renewers}:
            return True
        if access.may(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id):
            return True
        return access.may(Operation.DESCRIBE_TOKENS, ResourceType.USER, f"{token.owner[0]}:{token.owner[1]}")

    return await without_hidden(call, await call.answer(), "tokens", may)
