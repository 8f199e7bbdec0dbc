"""SCRAM credentials: DescribeUserScramCredentials, AlterUserScramCredentials (0)."""

from typing import ClassVar

from warmlog.protocol.kafka.codec.schema import DATA, INT8, INT32, STRING, Field, Struct, array
from warmlog.protocol.kafka.messages.common import FAILURE, THROTTLE_TIME, Failure, refused
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse


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
