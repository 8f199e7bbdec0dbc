"""SASL, and delegation tokens, of which there are none.

SaslHandshake (0 and 1), SaslAuthenticate (0 to 2), CreateDelegationToken, DescribeDelegationToken (1 to 3),
RenewDelegationToken, ExpireDelegationToken (1 and 2).
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import DATA, INT64, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import ERROR_CODE, FAILURE, THROTTLE_TIME, ignored, refused
from warmlog.protocol.kafka.messages.security import Failure
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse

ANONYMOUS = ("User", "ANONYMOUS")  # the principal of an unauthenticated client


class SaslHandshakeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Choose a SASL mechanism."""

    api: ClassVar[str] = "sasl_handshake"
    mechanism: str


class SaslHandshakeResponse(Value, frozen=True, kw_only=True, gc=False):
    """The mechanisms of the listener; `error` if the chosen mechanism is none of them."""

    error: ErrorCode = ErrorCode.NONE
    mechanisms: tuple[str, ...] = ()


class SaslAuthenticateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Exchange SASL tokens."""

    api: ClassVar[str] = "sasl_authenticate"
    auth_bytes: bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(...)"  # the bytes may be a password


class SaslAuthenticateResponse(Failure, frozen=True, kw_only=True, gc=False):
    """The answer of the mechanism, and for how long a complete login is valid; 0 for ever."""

    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class CreateDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create a delegation token for an owner (type, name), by default the requester."""

    api: ClassVar[str] = "create_delegation_token"
    owner: tuple[str, str] = ANONYMOUS


class RenewDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Renew a delegation token."""

    api: ClassVar[str] = "renew_delegation_token"


class ExpireDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Change when a delegation token expires."""

    api: ClassVar[str] = "expire_delegation_token"


class DescribeDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """List delegation tokens."""

    api: ClassVar[str] = "describe_delegation_token"


class RefusedResponse(Failure, frozen=True, kw_only=True, gc=False):
    """Rejects a request for delegation tokens."""


failed = refused(RefusedResponse)
failed_authenticate = refused(SaslAuthenticateResponse)


def failed_handshake(_: SaslHandshakeRequest, error: ErrorResponse) -> SaslHandshakeResponse:
    """Refuse a mechanism."""
    return SaslHandshakeResponse(error=error.error)


# -- SASL --

HANDSHAKE_REQUEST = Struct(Field("mechanism", STRING), into=SaslHandshakeRequest)
HANDSHAKE_RESPONSE = Struct(ERROR_CODE, Field("mechanisms", Array(STRING)), into=SaslHandshakeResponse)
AUTHENTICATE_REQUEST = Struct(Field("auth_bytes", DATA), into=SaslAuthenticateRequest)
AUTHENTICATE_RESPONSE = Struct(
    *FAILURE,
    Field("auth_bytes", DATA),
    Field("session_lifetime_ms", INT64, since=1, default=0),
    into=SaslAuthenticateResponse,
)

# -- delegation tokens: -1 stands for the times of a token that there is not --

_PRINCIPAL = (Field("principal_type", STRING), Field("principal_name", STRING))
_REQUESTER = (
    Field("token_requester_principal_type", STRING, since=3, per_reply=lambda *_: ANONYMOUS[0]),
    Field("token_requester_principal_name", STRING, since=3, per_reply=lambda *_: ANONYMOUS[1]),
)
_HMAC = Field("hmac", DATA, attr=None)


def _create_token_request(*, owner_type: str | None, owner_name: str | None) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(owner=(owner_type or "", owner_name) if owner_name else ANONYMOUS)


def _no_time(name: str) -> Field:
    return Field(name, INT64, per_reply=lambda *_: -1)


CREATE_TOKEN_REQUEST = Struct(
    Field("owner_principal_type", STRING, since=3, nullable=3, attr="owner_type"),
    Field("owner_principal_name", STRING, since=3, nullable=3, attr="owner_name"),
    *ignored(Field("renewers", array(*_PRINCIPAL)), Field("max_lifetime_ms", INT64)),
    into=_create_token_request,
)
CREATE_TOKEN_RESPONSE = Struct(
    ERROR_CODE,
    Field("principal_type", STRING, per_reply=lambda request, _: request.owner[0]),
    Field("principal_name", STRING, per_reply=lambda request, _: request.owner[1]),
    *_REQUESTER,
    _no_time("issue_timestamp_ms"),
    _no_time("expiry_timestamp_ms"),
    _no_time("max_timestamp_ms"),
    Field("token_id", STRING, attr=None),
    _HMAC,
    THROTTLE_TIME,
)
RENEW_TOKEN_REQUEST = Struct(_HMAC, *ignored(Field("renew_period_ms", INT64)), into=RenewDelegationTokenRequest)
EXPIRE_TOKEN_REQUEST = Struct(_HMAC, *ignored(Field("expiry_time_period_ms", INT64)), into=ExpireDelegationTokenRequest)
TOKEN_TIME_RESPONSE = Struct(ERROR_CODE, _no_time("expiry_timestamp_ms"), THROTTLE_TIME)
DESCRIBE_TOKENS_REQUEST = Struct(
    Field("owners", array(*_PRINCIPAL), nullable=0, attr=None), into=DescribeDelegationTokenRequest
)
DESCRIBE_TOKENS_RESPONSE = Struct(
    ERROR_CODE,
    Field(
        "tokens",
        array(
            *_PRINCIPAL,
            *_REQUESTER,
            Field("issue_timestamp", INT64),
            Field("expiry_timestamp", INT64),
            Field("max_timestamp", INT64),
            Field("token_id", STRING),
            Field("hmac", DATA),
            Field("renewers", array(*_PRINCIPAL)),
        ),
        attr=None,
    ),
    THROTTLE_TIME,
)
