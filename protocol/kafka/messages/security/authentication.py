"""SASL, and delegation tokens.

SaslHandshake (0 and 1), SaslAuthenticate (0 to 2), CreateDelegationToken, DescribeDelegationToken (1 to 3),
RenewDelegationToken, ExpireDelegationToken (1 and 2).
"""

from typing import ClassVar, TypeAlias

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import DATA, INT64, STRING, Array, Field, Struct, array
from warmlog.protocol.kafka.messages.common import ERROR_CODE, FAILURE, THROTTLE_TIME, Failure, refused
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
    """The mechanism's answer, and how long a completed login is valid; 0 means forever."""

    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


Named: TypeAlias = tuple[str, str]  # the type and the name of a principal


class CreateDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create a delegation token for an owner, by default the requester. `max_lifetime_ms`: -1 for the broker's."""

    api: ClassVar[str] = "create_delegation_token"
    owner: Named | None = None
    renewers: tuple[Named, ...] = ()
    max_lifetime_ms: int = -1


class _WithHmac(Value, frozen=True, kw_only=True, gc=False):
    hmac: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"  # anyone who knows the hmac can log in


class RenewDelegationTokenRequest(_WithHmac, frozen=True, kw_only=True, gc=False):
    """Extend the lifetime of a delegation token. `period_ms`: -1 for the broker's default."""

    api: ClassVar[str] = "renew_delegation_token"
    period_ms: int = -1


class ExpireDelegationTokenRequest(_WithHmac, frozen=True, kw_only=True, gc=False):
    """Let a delegation token expire after a period, or immediately if the period is negative."""

    api: ClassVar[str] = "expire_delegation_token"
    period_ms: int = -1


class DescribeDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the delegation tokens of these owners; None for all."""

    api: ClassVar[str] = "describe_delegation_token"
    owners: tuple[Named, ...] | None = None


class CreateDelegationTokenResponse(Value, frozen=True, kw_only=True, gc=False):
    """The new token. Times are in milliseconds since 1970."""

    error: ErrorCode = ErrorCode.NONE
    owner: Named = ANONYMOUS
    requester: Named = ANONYMOUS
    issued_at: int = -1
    expires_at: int = -1
    max_at: int = -1
    token_id: str = ""
    hmac: bytes = b""

    def __repr__(self) -> str:
        return "CreateDelegationTokenResponse(...)"


class TokenExpiryResponse(Value, frozen=True, kw_only=True, gc=False):
    """The time at which a renewed or expired token expires."""

    error: ErrorCode = ErrorCode.NONE
    expires_at: int = -1


class DescribedToken(Value, frozen=True, kw_only=True, gc=False):
    """A delegation token and its owner."""

    owner: Named
    requester: Named
    issued_at: int
    expires_at: int
    max_at: int
    token_id: str
    hmac: bytes
    renewers: tuple[Named, ...]

    def __repr__(self) -> str:
        return "DescribedToken(...)"


class DescribeDelegationTokenResponse(Value, frozen=True, kw_only=True, gc=False):
    """The tokens that the sender may see."""

    error: ErrorCode = ErrorCode.NONE
    tokens: tuple[DescribedToken, ...] = ()


failed_token_expiry = refused(TokenExpiryResponse)
failed_describe_tokens = refused(DescribeDelegationTokenResponse)


def failed_create_token(request: CreateDelegationTokenRequest, error: ErrorResponse) -> CreateDelegationTokenResponse:
    """Refuse to create a token."""
    return CreateDelegationTokenResponse(error=error.error, owner=request.owner or ANONYMOUS)


failed_authenticate = refused(SaslAuthenticateResponse)
failed_handshake = refused(SaslHandshakeResponse)


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

# -- delegation tokens --


def _named(principal_type: str, principal_name: str) -> Named:
    return principal_type, principal_name


def _create_token_request(
    *, renewers: tuple[Named, ...], max_lifetime_ms: int, owner_type: str | None = None, owner_name: str | None = None
) -> CreateDelegationTokenRequest:
    owner = (owner_type or "", owner_name) if owner_name else None
    return CreateDelegationTokenRequest(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms)


_PRINCIPALS = array(
    Field("principal_type", STRING, get=lambda named, *_: named[0]),
    Field("principal_name", STRING, get=lambda named, *_: named[1]),
    into=_named,
)
_OWNER = (
    Field("principal_type", STRING, get=lambda token, *_: token.owner[0]),
    Field("principal_name", STRING, get=lambda token, *_: token.owner[1]),
    Field("token_requester_principal_type", STRING, since=3, get=lambda token, *_: token.requester[0]),
    Field("token_requester_principal_name", STRING, since=3, get=lambda token, *_: token.requester[1]),
)
_HMAC = Field("hmac", DATA)
_ID = (Field("token_id", STRING), _HMAC)
_EXPIRY = Field("expiry_timestamp_ms", INT64, attr="expires_at")

CREATE_TOKEN_REQUEST = Struct(
    Field("owner_principal_type", STRING, since=3, nullable=3, attr="owner_type"),
    Field("owner_principal_name", STRING, since=3, nullable=3, attr="owner_name"),
    Field("renewers", _PRINCIPALS),
    Field("max_lifetime_ms", INT64),
    into=_create_token_request,
)
CREATE_TOKEN_RESPONSE = Struct(
    ERROR_CODE,
    *_OWNER,
    Field("issue_timestamp_ms", INT64, attr="issued_at"),
    _EXPIRY,
    Field("max_timestamp_ms", INT64, attr="max_at"),
    *_ID,
    THROTTLE_TIME,
)
RENEW_TOKEN_REQUEST = Struct(_HMAC, Field("renew_period_ms", INT64, attr="period_ms"), into=RenewDelegationTokenRequest)
EXPIRE_TOKEN_REQUEST = Struct(
    _HMAC, Field("expiry_time_period_ms", INT64, attr="period_ms"), into=ExpireDelegationTokenRequest
)
TOKEN_TIME_RESPONSE = Struct(ERROR_CODE, _EXPIRY, THROTTLE_TIME)
DESCRIBE_TOKENS_REQUEST = Struct(Field("owners", _PRINCIPALS, nullable=0), into=DescribeDelegationTokenRequest)
DESCRIBE_TOKENS_RESPONSE = Struct(
    ERROR_CODE,
    Field(
        "tokens",
        array(
            *_OWNER,
            Field("issue_timestamp", INT64, attr="issued_at"),
            Field("expiry_timestamp", INT64, attr="expires_at"),
            Field("max_timestamp", INT64, attr="max_at"),
            *_ID,
            Field("renewers", _PRINCIPALS),
        ),
    ),
    THROTTLE_TIME,
)
