"""Authenticate and authorize readers of `/metrics`: by password, token or certificate, and the right that a path needs.

A wrong password or token is answered `connection.failed.authentication.delay.ms` after its request. As on other
listeners, checks run in one worker thread, addresses in turn.
"""

from base64 import b64decode
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from warmlog.broker.api.authorization.table import HTTP_PATHS
from warmlog.broker.api.logins import Logins
from warmlog.broker.security.acls import CLUSTER_NAME, ResourceType
from warmlog.broker.security.authorizer import Authorizer
from warmlog.broker.security.principal import ANONYMOUS, Principal
from warmlog.broker.security.sasl import Users
from warmlog.broker.security.scram import PlainServer
from warmlog.broker.settings.http import BASIC, BEARER, CERTIFICATE, HTTP
from warmlog.protocol.scram import SaslError

if TYPE_CHECKING:
    from warmlog.broker.security.tokens import TokenChecker  # imports joserfc, which most brokers do not need

_CHALLENGES: Final = {BASIC: 'Basic realm="warmlog", charset="UTF-8"', BEARER: 'Bearer realm="warmlog"'}


class Caller(NamedTuple):
    """The source of a request: address, certificate of the connection, Authorization header."""

    peer: tuple[str, int]
    certified: Principal
    authorization: str


class Refused(NamedTuple):
    """A response that refuses a request."""

    status: int
    text: bytes
    headers: list[tuple[str, str]]


class HttpAccess:
    """Authorizes the requests of one listener."""

    def __init__(
        self, ways: tuple[str, ...], logins: Logins, users: Users, *, authorizer: Callable[[], Authorizer | None],
        tokens: "TokenChecker | None", failure_delay_s: float,
    ) -> None:  # fmt: skip
        self._ways = ways
        self._logins = logins
        self._users = users
        self._authorizer = authorizer
        self._tokens = tokens
        self._failure_delay_s = failure_delay_s

    async def refusal(self, path: str, caller: Caller) -> Refused | None:
        """Return the refusal; None if the caller may read the path."""
        operation = HTTP_PATHS.get(path)
        if operation is None:
            return None
        principal = await self.identify(caller)
        if isinstance(principal, Refused):
            return principal
        authorizer = self._authorizer()
        if authorizer is not None:
            decisions = authorizer.decisions(None, principal, caller.peer[0])
            if not authorizer.allows(decisions, operation, ResourceType.CLUSTER, CLUSTER_NAME):
                needs = f"{path} needs {operation.name} on the cluster\n"
                return Refused(403, needs.encode(), [])
        return None

    async def identify(self, caller: Caller) -> Principal | Refused:
        """Return the caller's principal, or the refusal."""
        principal = await self._principal(caller)
        if principal is not None:
            return principal
        challenges = [("www-authenticate", _CHALLENGES[way]) for way in self._ways if way in _CHALLENGES]
        return Refused(401, b"log in\n" if challenges else b"show a certificate\n", challenges)

    async def _principal(self, caller: Caller) -> Principal | None:
        """Return the caller's principal; None if unknown."""
        scheme, _, secret = caller.authorization.partition(" ")
        way = scheme.lower()
        if not caller.authorization or way not in self._ways or way == CERTIFICATE:
            return caller.certified if CERTIFICATE in self._ways and caller.certified != ANONYMOUS else None
        began_at = trio.current_time()
        try:
            check = self._basic if way == BASIC else self._bearer
            principal = await check(secret.strip(), caller.peer[0])
        except SaslError as error:
            self._logins.failed(HTTP, caller.peer, way.upper(), error)
            await trio.sleep_until(began_at + self._failure_delay_s)
            return None
        self._logins.succeeded(HTTP, way.upper())
        return principal

    async def _basic(self, secret: str, address: str) -> Principal:
        """Check `USER:PASSWORD` in base64. Raises SaslError."""
        try:
            user, _, password = b64decode(secret, validate=True).decode().partition(":")
        except ValueError:
            raise SaslError("invalid basic authentication") from None
        exchange = PlainServer(self._users.lookup, self._users.unknown)
        exchange.begin(f"\0{user}\0{password}".encode())
        exchange.end(is_right=await self._logins.check(exchange.check, address))
        return Principal(exchange.user)

    async def _bearer(self, secret: str, address: str) -> Principal:
        """Check a token. Raises SaslError."""
        from warmlog.broker.security.tokens import TokenError, UnknownKeyError

        checker = self._tokens
        assert checker is not None
        principals: list[Principal] = []
        failures: list[TokenError] = []

        def check() -> bool:
            try:
                principals.append(Principal(checker.check(secret).name))
            except TokenError as error:
                failures.append(error)
            return bool(principals)

        if await self._logins.check(check, address):
            return principals[0]
        if isinstance(failures[0], UnknownKeyError):
            checker.ring.wanted()
        raise SaslError(str(failures[0]))
