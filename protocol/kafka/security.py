"""ACLs, quotas, SCRAM credentials, SASL and delegation tokens: tables of their messages.

DescribeAcls, CreateAcls, DeleteAcls (1 to 3), DescribeClientQuotas, AlterClientQuotas (0 and 1),
DescribeUserScramCredentials, AlterUserScramCredentials (0), SaslHandshake (0 and 1), SaslAuthenticate (0 to 2),
CreateDelegationToken, DescribeDelegationToken (1 to 3), RenewDelegationToken, ExpireDelegationToken (1 and 2).
"""

from collections.abc import Callable
from typing import Any, TypeVar

from protocol.kafka.primitives import Reader, Writer
from protocol.kafka.schema import BOOLEAN, DATA, FLOAT64, INT8, INT16, INT32, INT64, STRING, Array, Field, Struct, array
from protocol.kafka.security_values import (
    ANONYMOUS,
    AlterAclsResponse,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    Failure,
    QuotaAlteration,
    QuotaFilter,
    RefusedResponse,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    UserResult,
)
from protocol.kafka.values import TopicNames
from protocol.response import ErrorResponse

R = TypeVar("R")
_LITERAL = 3  # a pattern type of ACLs
_NO_TIME = -1  # as Kafka tells the times of a token that there is not

_FAILURE = (Field("error_code", INT16), Field("error_message", STRING, nullable=0))
_FILTER = (
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
DESCRIBE_ACLS_REQUEST = Struct(*_FILTER)
DESCRIBE_ACLS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    *_FAILURE,
    Field(
        "resources",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("pattern_type", INT8, default=_LITERAL),
            Field("acls", array(*_ACL)),
        ),
    ),
)
CREATE_ACLS_REQUEST = Struct(
    Field(
        "creations",
        array(
            Field("resource_type", INT8),
            Field("resource_name", STRING),
            Field("resource_pattern_type", INT8, default=_LITERAL),
            *_ACL,
        ),
    ),
)
CREATE_ACLS_RESPONSE = Struct(Field("throttle_time_ms", INT32), Field("results", array(*_FAILURE)))
DELETE_ACLS_REQUEST = Struct(Field("filters", array(*_FILTER)))
DELETE_ACLS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field(
        "filter_results",
        array(
            *_FAILURE,
            Field(
                "matching_acls",
                array(
                    *_FAILURE,
                    Field("resource_type", INT8),
                    Field("resource_name", STRING),
                    Field("pattern_type", INT8, default=_LITERAL),
                    *_ACL,
                ),
            ),
        ),
    ),
)
_ENTITY = array(Field("entity_type", STRING), Field("entity_name", STRING, nullable=0))
DESCRIBE_QUOTAS_REQUEST = Struct(
    Field(
        "components",
        array(Field("entity_type", STRING), Field("match_type", INT8), Field("match", STRING, nullable=0)),
    ),
    Field("strict", BOOLEAN),
)
DESCRIBE_QUOTAS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    *_FAILURE,
    Field(
        "entries",
        array(Field("entity", _ENTITY), Field("values", array(Field("key", STRING), Field("value", FLOAT64)))),
        nullable=0,
    ),
)
ALTER_QUOTAS_REQUEST = Struct(
    Field(
        "entries",
        array(
            Field("entity", _ENTITY),
            Field("ops", array(Field("key", STRING), Field("value", FLOAT64), Field("remove", BOOLEAN))),
        ),
    ),
    Field("validate_only", BOOLEAN),
)
ALTER_QUOTAS_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("entries", array(*_FAILURE, Field("entity", _ENTITY))),
)
DESCRIBE_SCRAM_REQUEST = Struct(Field("users", array(Field("name", STRING)), nullable=0))
DESCRIBE_SCRAM_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    *_FAILURE,
    Field(
        "results",
        array(
            Field("user", STRING),
            *_FAILURE,
            Field("credential_infos", array(Field("mechanism", INT8), Field("iterations", INT32))),
        ),
    ),
)
ALTER_SCRAM_REQUEST = Struct(
    Field("deletions", array(Field("name", STRING), Field("mechanism", INT8))),
    Field(
        "upsertions",
        array(
            Field("name", STRING),
            Field("mechanism", INT8),
            Field("iterations", INT32),
            Field("salt", DATA),
            Field("salted_password", DATA),
        ),
    ),
)
ALTER_SCRAM_RESPONSE = Struct(
    Field("throttle_time_ms", INT32),
    Field("results", array(Field("user", STRING), *_FAILURE)),
)
HANDSHAKE_REQUEST = Struct(Field("mechanism", STRING))
HANDSHAKE_RESPONSE = Struct(Field("error_code", INT16), Field("mechanisms", Array(STRING)))
AUTHENTICATE_REQUEST = Struct(Field("auth_bytes", DATA))
AUTHENTICATE_RESPONSE = Struct(
    *_FAILURE,
    Field("auth_bytes", DATA),
    Field("session_lifetime_ms", INT64, since=1, default=0),
)
_PRINCIPAL = (Field("principal_type", STRING), Field("principal_name", STRING))
_OWNER = (
    *_PRINCIPAL,
    Field("token_requester_principal_type", STRING, since=3),
    Field("token_requester_principal_name", STRING, since=3),
)
CREATE_TOKEN_REQUEST = Struct(
    Field("owner_principal_type", STRING, since=3, nullable=3),
    Field("owner_principal_name", STRING, since=3, nullable=3),
    Field("renewers", array(*_PRINCIPAL)),
    Field("max_lifetime_ms", INT64),
)
CREATE_TOKEN_RESPONSE = Struct(
    Field("error_code", INT16),
    *_OWNER,
    Field("issue_timestamp_ms", INT64),
    Field("expiry_timestamp_ms", INT64),
    Field("max_timestamp_ms", INT64),
    Field("token_id", STRING),
    Field("hmac", DATA),
    Field("throttle_time_ms", INT32),
)
RENEW_TOKEN_REQUEST = Struct(Field("hmac", DATA), Field("renew_period_ms", INT64))
EXPIRE_TOKEN_REQUEST = Struct(Field("hmac", DATA), Field("expiry_time_period_ms", INT64))
TOKEN_TIME_RESPONSE = Struct(
    Field("error_code", INT16), Field("expiry_timestamp_ms", INT64), Field("throttle_time_ms", INT32)
)
DESCRIBE_TOKENS_REQUEST = Struct(Field("owners", array(*_PRINCIPAL), nullable=0))
DESCRIBE_TOKENS_RESPONSE = Struct(
    Field("error_code", INT16),
    Field(
        "tokens",
        array(
            *_OWNER,
            Field("issue_timestamp", INT64),
            Field("expiry_timestamp", INT64),
            Field("max_timestamp", INT64),
            Field("token_id", STRING),
            Field("hmac", DATA),
            Field("renewers", array(*_PRINCIPAL)),
        ),
    ),
    Field("throttle_time_ms", INT32),
)


def _without_content(table: Struct, kind: Callable[[], R]) -> Callable[[Reader, int, TopicNames], R]:
    """Return a decoder that checks the layout of a request and keeps none of its fields."""

    def decode(reader: Reader, version: int, _: TopicNames) -> R:
        table.read(reader, version)
        return kind()

    return decode


def failed(_: Any, error: ErrorResponse) -> RefusedResponse:
    """Refuse a request about SASL or delegation tokens."""
    return RefusedResponse(error=error.error, message=error.message)


def _failure_fields(failure: Failure) -> dict[str, Any]:
    return {"error_code": failure.error, "error_message": failure.message}


# -- ACLs --

decode_describe_acls = _without_content(DESCRIBE_ACLS_REQUEST, DescribeAclsRequest)


def encode_describe_acls(writer: Writer, version: int, _: DescribeAclsRequest, response: DescribeAclsResponse) -> None:
    """Write the error."""
    values = {"throttle_time_ms": writer.throttle_ms, **_failure_fields(response), "resources": ()}
    DESCRIBE_ACLS_RESPONSE.write(writer, version, values)


def failed_describe_acls(_: DescribeAclsRequest, error: ErrorResponse) -> DescribeAclsResponse:
    """Refuse the request."""
    return DescribeAclsResponse(error=error.error, message=error.message)


def decode_create_acls(reader: Reader, version: int, _: TopicNames) -> CreateAclsRequest:
    """Read how many ACLs are to be created."""
    return CreateAclsRequest(count=len(CREATE_ACLS_REQUEST.read(reader, version)["creations"]))


def encode_create_acls(writer: Writer, version: int, _: CreateAclsRequest, response: AlterAclsResponse) -> None:
    """Write a result per ACL."""
    results = list(map(_failure_fields, response.results))
    CREATE_ACLS_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "results": results})


def decode_delete_acls(reader: Reader, version: int, _: TopicNames) -> DeleteAclsRequest:
    """Read how many filters there are."""
    return DeleteAclsRequest(count=len(DELETE_ACLS_REQUEST.read(reader, version)["filters"]))


def encode_delete_acls(writer: Writer, version: int, _: DeleteAclsRequest, response: AlterAclsResponse) -> None:
    """Write a result per filter."""
    results = [_failure_fields(each) | {"matching_acls": ()} for each in response.results]
    DELETE_ACLS_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "filter_results": results})


def failed_alter_acls(request: CreateAclsRequest | DeleteAclsRequest, error: ErrorResponse) -> AlterAclsResponse:
    """Refuse each part of the request."""
    return AlterAclsResponse(results=(Failure(error=error.error, message=error.message),) * request.count)


# -- quotas --


def decode_describe_quotas(reader: Reader, version: int, _: TopicNames) -> DescribeClientQuotasRequest:
    """Read the filters."""
    components = DESCRIBE_QUOTAS_REQUEST.read(reader, version)["components"]
    return DescribeClientQuotasRequest(filters=tuple([QuotaFilter(**component) for component in components]))


def encode_describe_quotas(
    writer: Writer, version: int, _: DescribeClientQuotasRequest, response: DescribeClientQuotasResponse
) -> None:
    """Write that there are no quotas, or the error."""
    entries = None if response.error else ()
    values = {"throttle_time_ms": writer.throttle_ms, **_failure_fields(response), "entries": entries}
    DESCRIBE_QUOTAS_RESPONSE.write(writer, version, values)


def failed_describe_quotas(_: DescribeClientQuotasRequest, error: ErrorResponse) -> DescribeClientQuotasResponse:
    """Refuse the request."""
    return DescribeClientQuotasResponse(error=error.error, message=error.message)


def decode_alter_quotas(reader: Reader, version: int, _: TopicNames) -> AlterClientQuotasRequest:
    """Read which quotas of which entities are to be set."""
    return AlterClientQuotasRequest(
        alterations=tuple(
            [
                QuotaAlteration(
                    entity=tuple([(part["entity_type"], part["entity_name"]) for part in entry["entity"]]),
                    sets=tuple([op["key"] for op in entry["ops"] if not op["remove"]]),
                )
                for entry in ALTER_QUOTAS_REQUEST.read(reader, version)["entries"]
            ]
        )
    )


def encode_alter_quotas(
    writer: Writer, version: int, request: AlterClientQuotasRequest, response: AlterClientQuotasResponse
) -> None:
    """Write a result per entity."""
    entries = [
        {
            **_failure_fields(result),
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in alteration.entity],
        }
        for alteration, result in zip(request.alterations, response.results, strict=True)
    ]
    ALTER_QUOTAS_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "entries": entries})


def failed_alter_quotas(request: AlterClientQuotasRequest, error: ErrorResponse) -> AlterClientQuotasResponse:
    """Refuse each alteration."""
    failure = Failure(error=error.error, message=error.message)
    return AlterClientQuotasResponse(results=(failure,) * len(request.alterations))


# -- SCRAM credentials --


def decode_describe_scram(reader: Reader, version: int, _: TopicNames) -> DescribeUserScramCredentialsRequest:
    """Read the users."""
    users = DESCRIBE_SCRAM_REQUEST.read(reader, version)["users"]
    return DescribeUserScramCredentialsRequest(users=None if users is None else tuple([user["name"] for user in users]))


def encode_describe_scram(
    writer: Writer, version: int, _: DescribeUserScramCredentialsRequest, response: DescribeUserScramCredentialsResponse
) -> None:
    """Write a result per user."""
    results = [_user_fields(result) | {"credential_infos": ()} for result in response.results]
    values = {"throttle_time_ms": writer.throttle_ms, **_failure_fields(response), "results": results}
    DESCRIBE_SCRAM_RESPONSE.write(writer, version, values)


def failed_describe_scram(
    _: DescribeUserScramCredentialsRequest, error: ErrorResponse
) -> DescribeUserScramCredentialsResponse:
    """Refuse the request."""
    return DescribeUserScramCredentialsResponse(error=error.error, message=error.message)


def _user_fields(result: UserResult) -> dict[str, Any]:
    return {"user": result.user, **_failure_fields(result)}


def decode_alter_scram(reader: Reader, version: int, _: TopicNames) -> AlterUserScramCredentialsRequest:
    """Read whose credentials are to be deleted and set."""
    values = ALTER_SCRAM_REQUEST.read(reader, version)
    return AlterUserScramCredentialsRequest(
        deletions=tuple([one["name"] for one in values["deletions"]]),
        upsertions=tuple([one["name"] for one in values["upsertions"]]),
    )


def encode_alter_scram(
    writer: Writer, version: int, _: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> None:
    """Write a result per user."""
    results = list(map(_user_fields, response.results))
    ALTER_SCRAM_RESPONSE.write(writer, version, {"throttle_time_ms": writer.throttle_ms, "results": results})


def failed_alter_scram(
    request: AlterUserScramCredentialsRequest, error: ErrorResponse
) -> AlterUserScramCredentialsResponse:
    """Refuse the change of each user."""
    users = dict.fromkeys((*request.deletions, *request.upsertions))
    results = [UserResult(user=user, error=error.error, message=error.message) for user in users]
    return AlterUserScramCredentialsResponse(results=tuple(results))


# -- SASL --


def decode_handshake(reader: Reader, version: int, _: TopicNames) -> SaslHandshakeRequest:
    """Read the mechanism."""
    return SaslHandshakeRequest(**HANDSHAKE_REQUEST.read(reader, version))


def encode_handshake(writer: Writer, version: int, _: SaslHandshakeRequest, response: RefusedResponse) -> None:
    """Write the error, and that no mechanism is enabled."""
    HANDSHAKE_RESPONSE.write(writer, version, {"error_code": response.error, "mechanisms": ()})


decode_authenticate = _without_content(AUTHENTICATE_REQUEST, SaslAuthenticateRequest)


def encode_authenticate(writer: Writer, version: int, _: SaslAuthenticateRequest, response: RefusedResponse) -> None:
    """Write the error."""
    AUTHENTICATE_RESPONSE.write(writer, version, {**_failure_fields(response), "auth_bytes": b""})


# -- delegation tokens --


def decode_create_token(reader: Reader, version: int, _: TopicNames) -> CreateDelegationTokenRequest:
    """Read the owner."""
    values = CREATE_TOKEN_REQUEST.read(reader, version)
    name = values["owner_principal_name"]
    return CreateDelegationTokenRequest(owner=(values["owner_principal_type"] or "", name) if name else ANONYMOUS)


def encode_create_token(
    writer: Writer, version: int, request: CreateDelegationTokenRequest, response: RefusedResponse
) -> None:
    """Write the error."""
    CREATE_TOKEN_RESPONSE.write(
        writer,
        version,
        {
            "error_code": response.error,
            "principal_type": request.owner[0],
            "principal_name": request.owner[1],
            "token_requester_principal_type": ANONYMOUS[0],
            "token_requester_principal_name": ANONYMOUS[1],
            "issue_timestamp_ms": _NO_TIME,
            "expiry_timestamp_ms": _NO_TIME,
            "max_timestamp_ms": _NO_TIME,
            "token_id": "",
            "hmac": b"",
            "throttle_time_ms": writer.throttle_ms,
        },
    )


decode_renew_token = _without_content(RENEW_TOKEN_REQUEST, RenewDelegationTokenRequest)
decode_expire_token = _without_content(EXPIRE_TOKEN_REQUEST, ExpireDelegationTokenRequest)


def encode_token_time(
    writer: Writer,
    version: int,
    _: RenewDelegationTokenRequest | ExpireDelegationTokenRequest,
    response: RefusedResponse,
) -> None:
    """Write the error."""
    values = {
        "error_code": response.error,
        "expiry_timestamp_ms": _NO_TIME,
        "throttle_time_ms": writer.throttle_ms,
    }
    TOKEN_TIME_RESPONSE.write(writer, version, values)


decode_describe_tokens = _without_content(DESCRIBE_TOKENS_REQUEST, DescribeDelegationTokenRequest)


def encode_describe_tokens(
    writer: Writer, version: int, _: DescribeDelegationTokenRequest, response: RefusedResponse
) -> None:
    """Write the error."""
    values = {"error_code": response.error, "tokens": (), "throttle_time_ms": writer.throttle_ms}
    DESCRIBE_TOKENS_RESPONSE.write(writer, version, values)
