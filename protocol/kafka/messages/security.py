"""ACLs, quotas, SCRAM credentials, SASL and delegation tokens.

DescribeAcls, CreateAcls, DeleteAcls (1 to 3), DescribeClientQuotas, AlterClientQuotas (0 and 1),
DescribeUserScramCredentials, AlterUserScramCredentials (0), SaslHandshake (0 and 1), SaslAuthenticate (0 to 2),
CreateDelegationToken, DescribeDelegationToken (1 to 3), RenewDelegationToken, ExpireDelegationToken (1 and 2).
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import (
    BOOLEAN,
    DATA,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Array,
    Field,
    Struct,
    array,
)
from warmlog.protocol.kafka.messages.common import ERROR_CODE, FAILURE, THROTTLE_TIME, ignored, refused
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse

ANONYMOUS = ("User", "ANONYMOUS")  # the principal of an unauthenticated client


class Failure(Value, frozen=True, kw_only=True, gc=False):
    """The result of one part of a request."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the ACLs that match a filter."""

    api: ClassVar[str] = "describe_acls"


class DescribeAclsResponse(Failure, frozen=True, kw_only=True, gc=False):
    """An empty list of ACLs, with the reason."""


class CreateAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create `count` ACLs."""

    api: ClassVar[str] = "create_acls"
    count: int


class DeleteAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete the ACLs that match each of `count` filters."""

    api: ClassVar[str] = "delete_acls"
    count: int


class AlterAclsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per ACL to create, or per deletion filter."""

    results: tuple[Failure, ...]


class QuotaFilter(Value, frozen=True, kw_only=True, gc=False):
    """A filter for quota entities of one type; `match_type`: 0 exact name, 1 default entity, 2 any entity."""

    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the quotas of the entities that match all filters."""

    api: ClassVar[str] = "describe_client_quotas"
    filters: tuple[QuotaFilter, ...]


class DescribeClientQuotasResponse(Failure, frozen=True, kw_only=True, gc=False):
    """An empty list of quotas, or an error in the filters."""


class QuotaAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to the quotas of an entity of (type, name) pairs, None naming the default. `sets`: quotas to set."""

    entity: tuple[tuple[str, str | None], ...]
    sets: tuple[str, ...]


class AlterClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set and remove quotas."""

    api: ClassVar[str] = "alter_client_quotas"
    alterations: tuple[QuotaAlteration, ...]


class AlterClientQuotasResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per alteration, in the order of the request."""

    results: tuple[Failure, ...]


class UserResult(Failure, frozen=True, kw_only=True, gc=False):
    """The result for one user."""

    user: str


class DescribeUserScramCredentialsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the SCRAM credentials of these users, or of all if None or empty."""

    api: ClassVar[str] = "describe_user_scram_credentials"
    users: tuple[str, ...] | None


class DescribeUserScramCredentialsResponse(Failure, frozen=True, kw_only=True, gc=False):
    """One result per user; no user has credentials."""

    results: tuple[UserResult, ...] = ()


class AlterUserScramCredentialsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete or set the SCRAM credentials of the named users."""

    api: ClassVar[str] = "alter_user_scram_credentials"
    deletions: tuple[str, ...]
    upsertions: tuple[str, ...]


class AlterUserScramCredentialsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per user."""

    results: tuple[UserResult, ...]


class SaslHandshakeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Choose a SASL mechanism."""

    api: ClassVar[str] = "sasl_handshake"
    mechanism: str


class SaslAuthenticateRequest(Value, frozen=True, kw_only=True, gc=False):
    """Exchange SASL tokens."""

    api: ClassVar[str] = "sasl_authenticate"


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
    """Rejects a request for SASL or delegation tokens."""


_LITERAL = 3  # a pattern type of ACLs

failed = refused(RefusedResponse)  # of SASL and delegation tokens

# -- ACLs --

_FILTER = ignored(
    Field("resource_type_filter", INT8),
    Field("resource_name_filter", STRING, nullable=0),
    Field("pattern_type_filter", INT8, default=_LITERAL),
    Field("principal_filter", STRING, nullable=0),
    Field("host_filter", STRING, nullable=0),
    Field("operation", INT8),
    Field("permission_type", INT8),
)
_ACL = (
    Field("principal", STRING),
    Field("host", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8),
)
_RESOURCE = (
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("pattern_type", INT8, default=_LITERAL),
)
DESCRIBE_ACLS_REQUEST = Struct(*_FILTER, into=DescribeAclsRequest)
DESCRIBE_ACLS_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field("resources", array(*_RESOURCE, Field("acls", array(*_ACL))), attr=None),
)
failed_describe_acls = refused(DescribeAclsResponse)
CREATE_ACLS_REQUEST = Struct(
    Field(
        "creations",
        array(
            *ignored(
                Field("resource_type", INT8),
                Field("resource_name", STRING),
                Field("resource_pattern_type", INT8, default=_LITERAL),
                *_ACL,
            )
        ),
        attr="count",
        convert=len,
    ),
    into=CreateAclsRequest,
)
CREATE_ACLS_RESPONSE = Struct(THROTTLE_TIME, Field("results", array(*FAILURE)))
DELETE_ACLS_REQUEST = Struct(Field("filters", array(*_FILTER), attr="count", convert=len), into=DeleteAclsRequest)
DELETE_ACLS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "filter_results",
        array(*FAILURE, Field("matching_acls", array(*FAILURE, *_RESOURCE, *_ACL), attr=None)),
        attr="results",
    ),
)


def failed_alter_acls(request: CreateAclsRequest | DeleteAclsRequest, error: ErrorResponse) -> AlterAclsResponse:
    """Refuse each part of the request."""
    return AlterAclsResponse(results=(Failure(error=error.error, message=error.message),) * request.count)


# -- quotas --


def _keys_set(changes: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple([key for key in changes if key is not None])


def _outcomes(
    response: AlterClientQuotasResponse, request: AlterClientQuotasRequest, _: int
) -> list[tuple[Failure, QuotaAlteration]]:
    return list(zip(response.results, request.alterations, strict=True))


DESCRIBE_QUOTAS_REQUEST = Struct(
    Field(
        "components",
        array(
            Field("entity_type", STRING),
            Field("match_type", INT8),
            Field("match", STRING, nullable=0),
            into=QuotaFilter,
        ),
        attr="filters",
    ),
    Field("strict", BOOLEAN, attr=None),
    into=DescribeClientQuotasRequest,
)
DESCRIBE_QUOTAS_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field(
        "entries",
        array(
            Field("entity", array(Field("entity_type", STRING), Field("entity_name", STRING, nullable=0))),
            Field("values", array(Field("key", STRING), Field("value", FLOAT64))),
        ),
        nullable=0,
        get=lambda response, *_: None if response.error else (),
    ),
)
failed_describe_quotas = refused(DescribeClientQuotasResponse)
ALTER_QUOTAS_REQUEST = Struct(
    Field(
        "entries",
        array(
            Field(
                "entity",
                array(
                    Field("entity_type", STRING),
                    Field("entity_name", STRING, nullable=0),
                    into=lambda entity_type, entity_name: (entity_type, entity_name),
                ),
            ),
            Field(
                "ops",
                array(
                    Field("key", STRING),
                    Field("value", FLOAT64, attr=None),
                    Field("remove", BOOLEAN),
                    into=lambda key, remove: None if remove else key,
                ),
                attr="sets",
                convert=_keys_set,
            ),
            into=QuotaAlteration,
        ),
        attr="alterations",
    ),
    Field("validate_only", BOOLEAN, attr=None),
    into=AlterClientQuotasRequest,
)
ALTER_QUOTAS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field(
        "entries",
        array(
            Field("error_code", INT16, get=lambda outcome, *_: outcome[0].error),
            Field("error_message", STRING, nullable=0, get=lambda outcome, *_: outcome[0].message),
            Field(
                "entity",
                array(
                    Field("entity_type", STRING, get=lambda part, *_: part[0]),
                    Field("entity_name", STRING, nullable=0, get=lambda part, *_: part[1]),
                ),
                get=lambda outcome, *_: outcome[1].entity,
            ),
        ),
        get=_outcomes,
    ),
)


def failed_alter_quotas(request: AlterClientQuotasRequest, error: ErrorResponse) -> AlterClientQuotasResponse:
    """Refuse each alteration."""
    failure = Failure(error=error.error, message=error.message)
    return AlterClientQuotasResponse(results=(failure,) * len(request.alterations))


# -- SCRAM credentials --


def _user(name: str) -> str:
    return name


_MECHANISM = Field("mechanism", INT8)
_ITERATIONS = Field("iterations", INT32)
DESCRIBE_SCRAM_REQUEST = Struct(
    Field("users", array(Field("name", STRING), into=_user), nullable=0),
    into=DescribeUserScramCredentialsRequest,
)
DESCRIBE_SCRAM_RESPONSE = Struct(
    THROTTLE_TIME,
    *FAILURE,
    Field(
        "results",
        array(
            Field("user", STRING),
            *FAILURE,
            Field("credential_infos", array(_MECHANISM, _ITERATIONS), attr=None),
        ),
    ),
)
failed_describe_scram = refused(DescribeUserScramCredentialsResponse)
ALTER_SCRAM_REQUEST = Struct(
    Field("deletions", array(Field("name", STRING), *ignored(_MECHANISM), into=_user)),
    Field(
        "upsertions",
        array(
            Field("name", STRING),
            *ignored(_MECHANISM, _ITERATIONS, Field("salt", DATA), Field("salted_password", DATA)),
            into=_user,
        ),
    ),
    into=AlterUserScramCredentialsRequest,
)
ALTER_SCRAM_RESPONSE = Struct(THROTTLE_TIME, Field("results", array(Field("user", STRING), *FAILURE)))


def failed_alter_scram(
    request: AlterUserScramCredentialsRequest, error: ErrorResponse
) -> AlterUserScramCredentialsResponse:
    """Refuse the change of each user."""
    users = dict.fromkeys((*request.deletions, *request.upsertions))
    results = [UserResult(user=user, error=error.error, message=error.message) for user in users]
    return AlterUserScramCredentialsResponse(results=tuple(results))


# -- SASL: no mechanism is enabled --

HANDSHAKE_REQUEST = Struct(Field("mechanism", STRING), into=SaslHandshakeRequest)
HANDSHAKE_RESPONSE = Struct(ERROR_CODE, Field("mechanisms", Array(STRING), attr=None))
AUTHENTICATE_REQUEST = Struct(Field("auth_bytes", DATA, attr=None), into=SaslAuthenticateRequest)
AUTHENTICATE_RESPONSE = Struct(
    *FAILURE,
    Field("auth_bytes", DATA, attr=None),
    Field("session_lifetime_ms", INT64, since=1, default=0, attr=None),
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
