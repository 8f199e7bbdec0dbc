"""Quotas and SCRAM credentials.

DescribeClientQuotas, AlterClientQuotas (0 and 1), DescribeUserScramCredentials, AlterUserScramCredentials (0).
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.schema import BOOLEAN, DATA, FLOAT64, INT8, INT16, INT32, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import FAILURE, THROTTLE_TIME, refused
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse


class Failure(Value, frozen=True, kw_only=True, gc=False):
    """The result of one part of a request."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


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


class CredentialInfo(Value, frozen=True, kw_only=True, gc=False):
    """A mechanism, by Kafka's number, for which a user has a credential."""

    mechanism: int
    iterations: int


class UserCredentials(UserResult, frozen=True, kw_only=True, gc=False):
    """The credentials of a user."""

    credentials: tuple[CredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(Failure, frozen=True, kw_only=True, gc=False):
    """One result per user."""

    results: tuple[UserCredentials, ...] = ()


class ScramDeletion(Value, frozen=True, kw_only=True, gc=False):
    """A credential to delete."""

    user: str
    mechanism: int


class ScramUpsertion(ScramDeletion, frozen=True, kw_only=True, gc=False):
    """A credential to set."""

    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return "ScramUpsertion(...)"  # the salted password is a secret


class AlterUserScramCredentialsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete or set the SCRAM credentials of the named users."""

    api: ClassVar[str] = "alter_user_scram_credentials"
    deletions: tuple[ScramDeletion, ...]
    upsertions: tuple[ScramUpsertion, ...]


class AlterUserScramCredentialsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per user."""

    results: tuple[UserResult, ...]


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


_NAME = Field("name", STRING, attr="user")
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
            Field("credential_infos", array(_MECHANISM, _ITERATIONS), attr="credentials"),
        ),
    ),
)
failed_describe_scram = refused(DescribeUserScramCredentialsResponse)
ALTER_SCRAM_REQUEST = Struct(
    Field("deletions", array(_NAME, _MECHANISM, into=ScramDeletion)),
    Field(
        "upsertions",
        array(
            _NAME,
            _MECHANISM,
            _ITERATIONS,
            Field("salt", DATA),
            Field("salted_password", DATA),
            into=ScramUpsertion,
        ),
    ),
    into=AlterUserScramCredentialsRequest,
)
ALTER_SCRAM_RESPONSE = Struct(THROTTLE_TIME, Field("results", array(Field("user", STRING), *FAILURE)))


def failed_alter_scram(
    request: AlterUserScramCredentialsRequest, error: ErrorResponse
) -> AlterUserScramCredentialsResponse:
    """Refuse the change of each user."""
    users = dict.fromkeys([each.user for each in (*request.deletions, *request.upsertions)])
    results = [UserResult(user=user, error=error.error, message=error.message) for user in users]
    return AlterUserScramCredentialsResponse(results=tuple(results))
