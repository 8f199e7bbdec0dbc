"""Log in to a native listener with SASL: `authenticate`, until the exchange is complete."""

from typing import Annotated, ClassVar

from msgspec import Meta

from warmlog.protocol.request import Value


class AuthenticateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Send a token of a SASL mechanism. All requests of an exchange name the same mechanism."""

    api: ClassVar[str] = "authenticate"
    mechanism: Annotated[str, Meta(max_length=64)]
    token: bytes

    def __repr__(self) -> str:
        return "AuthenticateRequest(...)"  # the token may be a password


class AuthenticateResponse(Value, frozen=True, kw_only=True, gc=False):
    """The mechanism's answer. The last answer also has the time for which the login is valid; 0 means forever."""

    token: bytes
    complete: bool
    session_lifetime_ms: int = 0
