"""Wire formats of connections that have to log in: only login requests are accepted before the login is complete.

    CHOOSING, EXCHANGING    ApiVersions, SaslHandshake, SaslAuthenticate       hello, authenticate
    COMPLETE                everything, until the login expires; then the login only

The native protocol accepts everything during re-authentication, since its clients send requests concurrently.

Anything else raises, and the connection closes. One object per connection, on listeners with SASL only.
"""

from collections.abc import Sized
from struct import Struct
from typing import Any, Final

import msgspec

from warmlog.broker.api.context import Context
from warmlog.broker.net.wire import LOOP_WORK, ErrorReply, KafkaWire, Wire
from warmlog.broker.security.sasl import Login, Stage
from warmlog.protocol.errors import ErrorCode, LoginRequiredError, ProtocolError, UnauthenticatedError
from warmlog.protocol.frame import LENGTH
from warmlog.protocol.kafka.api import API_BY_KEY, API_VERSIONS_KEY
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT
from warmlog.protocol.kafka.messages.security.authentication import SaslAuthenticateRequest
from warmlog.protocol.native.login import AuthenticateRequest
from warmlog.protocol.request import HelloRequest
from warmlog.protocol.response import Response

HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
_ALLOWED: Final = frozenset({API_VERSIONS_KEY, HANDSHAKE_KEY, AUTHENTICATE_KEY})
_KEY: Final = Struct(">h")


class _RawToken(msgspec.Struct, frozen=True, gc=False):
    """The `call` of a token without Kafka's headers."""

    request: SaslAuthenticateRequest


class KafkaGuard(Wire):
    """Kafka's protocol, with a login."""

    __slots__ = ("_inner", "_login")

    def __init__(self, inner: Wire, login: Login) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._login = login

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Any]:
        """Decode a frame that the state of the login permits. Raises ProtocolError."""
        login = self._login
        if login.stage is not Stage.COMPLETE or login.expires_at is not None:
            if login.is_raw and login.stage is Stage.EXCHANGING:
                request = SaslAuthenticateRequest(auth_bytes=bytes(frame))
                return _RawToken(request), request
            self._check(frame)
        return self._inner.decode(frame, context, limit)

    def _check(self, frame: memoryview) -> None:
        """Raise UnauthenticatedError for a request other than those of a login."""
        login = self._login
        if login.stage is Stage.COMPLETE and not login.has_expired():
            return
        key = _KEY.unpack_from(frame)[0] if len(frame) >= _KEY.size else -1
        if key in _ALLOWED and (key != API_VERSIONS_KEY or login.stage is Stage.CHOOSING):
            return
        what = API_BY_KEY[key].name if key in API_BY_KEY else "an unknown request"
        raise UnauthenticatedError(
            f"{what} after the login has expired" if login.has_expired() else f"{what} before the login"
        )

    def encode(
        self, call: Any, response: Response, *, throttle_ms: int = 0, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame; a failed login without Kafka's headers has none."""
        if type(call) is not _RawToken:
            return self._inner.encode(call, response, throttle_ms=throttle_ms, limit=limit, max_bytes=max_bytes)
        answer: Any = response
        if answer.error is not ErrorCode.NONE:
            return []
        return [LENGTH.pack(len(answer.auth_bytes)) + answer.auth_bytes]

    def refusal(self, error: ProtocolError) -> ErrorReply | None:
        """Return the reply to a frame that could not be decoded; None if the connection must close."""
        return self._inner.refusal(error)


class NativeGuard(Wire):
    """The native protocol, with a login."""

    __slots__ = ("_inner", "_login")

    def __init__(self, inner: Wire, login: Login) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._login = login

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Any]:
        """Decode a frame that the state of the login permits. Raises ProtocolError."""
        login = self._login
        request_id, request = self._inner.decode(frame, context, limit)
        is_open = login.principal is not None and login.stage is not Stage.FAILED and not login.has_expired()
        if is_open or isinstance(request, AuthenticateRequest):
            return request_id, request
        if isinstance(request, HelloRequest) and login.stage is Stage.CHOOSING:
            return request_id, request
        why = "the login has expired" if login.has_expired() else "the listener needs a login"
        raise LoginRequiredError(request_id, f"{request.api}: {why}: authenticate with a user and a password first")

    def encode(
        self, call: Any, response: Response, *, throttle_ms: int = 0, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame."""
        return self._inner.encode(call, response, throttle_ms=throttle_ms, limit=limit, max_bytes=max_bytes)

    def refusal(self, error: ProtocolError) -> ErrorReply | None:
        """Return the reply to a frame that could not be decoded; before the login, that a login is required."""
        is_known = self._login.principal is not None or isinstance(error, LoginRequiredError)
        return self._inner.refusal(error) if is_known else None


def guarded(inner: Wire, login: Login) -> Wire:
    """Wrap a connection's wire format with a login."""
    return KafkaGuard(inner, login) if isinstance(inner, KafkaWire) else NativeGuard(inner, login)
