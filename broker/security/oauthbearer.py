"""The broker's side of OAUTHBEARER, without I/O: `begin`, `check` in a worker thread, `end`.

A rejected token is first answered with a refusal, and the exchange fails with the client's next message, as RFC 7628
requires. Source: OAuthBearerSaslServer.
"""

from typing import TYPE_CHECKING

from warmlog.protocol.oauthbearer import ACKNOWLEDGED, REFUSAL, ClientFirst, parse_first
from warmlog.protocol.scram import SaslError

if TYPE_CHECKING:
    from warmlog.broker.security.tokens import Identity, TokenChecker  # imports joserfc, which most brokers do not need


class RefusedTokenError(SaslError):
    """The client has acknowledged the refusal of its token, which was already counted and logged."""


class OAuthServer:
    """One exchange. `user` and `expires_at` (seconds since 1970) are known when `is_complete`."""

    __slots__ = ("_checker", "_first", "_identity", "_lacks_key", "is_complete", "refusal")

    def __init__(self, checker: "TokenChecker") -> None:
        self._checker = checker
        self._first: ClientFirst | None = None
        self._identity: Identity | None = None
        self._lacks_key = False
        self.refusal: str | None = None  # why the token was rejected
        self.is_complete = False

    def begin(self, message: bytes) -> None:
        """Parse a message of the client. Raises SaslError."""
        if self.refusal is not None:
            if message == ACKNOWLEDGED:
                raise RefusedTokenError(REFUSAL.decode())
            raise SaslError("the token was refused")
        if self._first is not None:
            raise SaslError("the exchange is complete")
        self._first = parse_first(message)

    def check(self) -> bool:
        """Return whether the token is accepted."""
        from warmlog.broker.security.tokens import TokenError, UnknownKeyError

        assert self._first is not None
        try:
            self._identity = self._checker.check(self._first.token)
        except TokenError as error:
            self.refusal = str(error)
            self._lacks_key = isinstance(error, UnknownKeyError)
            return False
        return True

    def end(self, *, is_right: bool) -> bytes:
        """Complete the exchange, or return the refusal. Raises SaslError."""
        assert self._first is not None
        if not is_right:
            if self.refusal is None:
                raise SaslError("the token was not checked in time")
            if self._lacks_key:
                self._checker.ring.wanted()
            return REFUSAL
        if self._first.authorized not in {"", self.user}:
            raise SaslError("a client cannot act for another user")
        self.is_complete = True
        return b""

    @property
    def user(self) -> str:
        """The name in the token."""
        return "" if self._identity is None else self._identity.name

    @property
    def expires_at(self) -> float:
        """When the token expires."""
        return 0.0 if self._identity is None else self._identity.expires_at
