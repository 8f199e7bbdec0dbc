"""Log clients in: SaslHandshake, SaslAuthenticate and `authenticate`, with the state of `security.sasl`.

A failed login is answered `connection.failed.authentication.delay.ms` after its request, regardless of how long the
check took, so that the time does not reveal whether a user exists. Source: SaslServerAuthenticator, KafkaApis.
"""

from collections.abc import Callable, Mapping

import trio

from warmlog.broker.api.audit.audit_log import AuditLog
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.logins import Logins
from warmlog.broker.security.oauthbearer import OAuthServer, RefusedTokenError
from warmlog.broker.security.sasl import (
    IllegalStateError,
    Login,
    NotNowError,
    Stage,
    UnsupportedMechanismError,
    Users,
)
from warmlog.broker.security.scram import ScramServer
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.security.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from warmlog.protocol.native.login import AuthenticateRequest, AuthenticateResponse
from warmlog.protocol.response import ErrorResponse
from warmlog.protocol.scram import SaslError


class AuthenticationApi:
    """Answers the requests of connections that log in."""

    def __init__(self, users: Users, logins: Logins, audit: AuditLog | None = None) -> None:
        self._users = users
        self._logins = logins
        self._audit = audit

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            SaslHandshakeRequest.api: self.handshake,
            SaslAuthenticateRequest.api: self.authenticate,
            AuthenticateRequest.api: self.authenticate_native,
        }

    async def handshake(
        self, request: SaslHandshakeRequest, context: Context, *, may_be_raw: bool = True
    ) -> SaslHandshakeResponse:
        """Begin a login with a mechanism."""
        login = _login(context.session)
        began_at = trio.current_time()
        try:
            login.choose(request.mechanism, self._users, is_raw=may_be_raw and context.version == 0)
        except SaslError as error:
            await self._refused(login, error, began_at, context)
            return SaslHandshakeResponse(error=_code(error), mechanisms=tuple(login.rules.mechanisms))
        return SaslHandshakeResponse(mechanisms=tuple(login.rules.mechanisms))

    async def authenticate(self, request: SaslAuthenticateRequest, context: Context) -> SaslAuthenticateResponse:
        """Pass a token to the mechanism; with the last one, the session gets its principal."""
        login = _login(context.session)
        began_at = trio.current_time()
        try:
            answer = await self._respond(login, bytes(request.auth_bytes), context)
            login.advanced()
        except SaslError as error:
            await self._refused(login, error, began_at, context)
            message = f"login with {login.mechanism} failed: {error}"
            return SaslAuthenticateResponse(error=_code(error), message=message)
        if not login.is_complete:
            return SaslAuthenticateResponse(auth_bytes=answer)
        assert login.principal is not None
        context.session.principal = login.principal
        self._logins.succeeded(context.session.listener, login.mechanism)
        if self._audit is not None:
            self._audit.login(context.session, str(login.principal), login.mechanism, is_ok=True)
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=int(login.session_s * 1000))

    async def authenticate_native(
        self, request: AuthenticateRequest, context: Context
    ) -> AuthenticateResponse | ErrorResponse:
        """Choose a mechanism and pass on a token in one request; later tokens must name the same mechanism."""
        login = _login(context.session)
        if login.stage is not Stage.EXCHANGING:
            chosen = await self.handshake(SaslHandshakeRequest(mechanism=request.mechanism), context, may_be_raw=False)
            if chosen.error is not ErrorCode.NONE:
                known = ", ".join(chosen.mechanisms)
                return ErrorResponse(error=chosen.error, message=f"login refused; the listener's mechanisms: {known}")
        elif login.mechanism != request.mechanism:
            login.failed()
            return ErrorResponse(error=ErrorCode.ILLEGAL_SASL_STATE, message="the SASL mechanism has changed")
        result = await self.authenticate(SaslAuthenticateRequest(auth_bytes=request.token), context)
        if result.error is not ErrorCode.NONE:
            return ErrorResponse(error=result.error, message=result.message or "")
        return AuthenticateResponse(
            token=result.auth_bytes, complete=login.is_complete, session_lifetime_ms=result.session_lifetime_ms
        )

    async def _respond(self, login: Login, token: bytes, context: Context) -> bytes:
        began_at = trio.current_time()
        exchange = login.exchange
        if isinstance(exchange, ScramServer):
            return exchange.respond(token)
        exchange.begin(token)
        answer = exchange.end(is_right=await context.wait(self._check(exchange.check, login, context.session)))
        if isinstance(exchange, OAuthServer) and exchange.refusal is not None:
            self._count_failed(context.session, login, exchange.refusal)
            await context.wait(trio.sleep_until(began_at + login.rules.failure_delay_s))
        return answer

    async def _check(self, check: Callable[[], bool], login: Login, session: Session) -> bool:
        """Check a password or token in a worker, unless the connection closes before its turn."""
        return await self._logins.check(
            check, session.peer[0], lambda: not login.has_failed and not login.overdue(login.rules.clock())
        )

    async def _refused(self, login: Login, error: SaslError, began_at: float, context: Context) -> None:
        """Count and log a failed login, and wait for the time at which to answer."""
        if isinstance(error, NotNowError):
            return
        login.failed()
        if not isinstance(error, RefusedTokenError):
            self._count_failed(context.session, login, error)
        await context.wait(trio.sleep_until(began_at + login.rules.failure_delay_s))

    def _count_failed(self, session: Session, login: Login, why: SaslError | str) -> None:
        if self._audit is not None:
            self._audit.login(session, "", login.mechanism, is_ok=False, reason=str(why))
        self._logins.failed(session.listener, session.peer, login.mechanism, why)


def _login(session: Session) -> Login:
    if session.login is None:
        raise RequestError(ErrorCode.ILLEGAL_SASL_STATE, "this listener does not use SASL: connect without it")
    return session.login


def _code(error: SaslError) -> ErrorCode:
    if isinstance(error, IllegalStateError):
        return ErrorCode.ILLEGAL_SASL_STATE
    if isinstance(error, UnsupportedMechanismError):
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return ErrorCode.SASL_AUTHENTICATION_FAILED
