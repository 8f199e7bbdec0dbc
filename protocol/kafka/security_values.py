"""Requests about security: ACLs, quotas, SCRAM credentials, SASL and delegation tokens.

Value types without their layouts. What a broker without security does not look at is not decoded into them.
"""

from typing import ClassVar

from protocol.errors import ErrorCode
from protocol.request import Value

ANONYMOUS = ("User", "ANONYMOUS")  # the principal of a client that was not authenticated


class Failure(Value, frozen=True, kw_only=True, gc=False):
    """The outcome of one part of a request."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DescribeAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the ACLs that match a filter."""

    api: ClassVar[str] = "describe_acls"


class DescribeAclsResponse(Failure, frozen=True, kw_only=True, gc=False):
    """No ACLs, and why."""


class CreateAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Create `count` ACLs."""

    api: ClassVar[str] = "create_acls"
    count: int


class DeleteAclsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete the ACLs that match each of `count` filters."""

    api: ClassVar[str] = "delete_acls"
    count: int


class AlterAclsResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per ACL to create, or per filter of ACLs to delete."""

    results: tuple[Failure, ...]


class QuotaFilter(Value, frozen=True, kw_only=True, gc=False):
    """Which entities of one type to describe; `match_type`: 0 the one named, 1 the default, 2 any of that type."""

    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """List the quotas of entities that match all filters."""

    api: ClassVar[str] = "describe_client_quotas"
    filters: tuple[QuotaFilter, ...]


class DescribeClientQuotasResponse(Failure, frozen=True, kw_only=True, gc=False):
    """No quotas, or what is wrong with the filters."""


class QuotaAlteration(Value, frozen=True, kw_only=True, gc=False):
    """Changes to the quotas of an entity, (type, name) pairs; None names the default. `sets`: quotas to be set."""

    entity: tuple[tuple[str, str | None], ...]
    sets: tuple[str, ...]


class AlterClientQuotasRequest(Value, frozen=True, kw_only=True, gc=False):
    """Set and remove quotas."""

    api: ClassVar[str] = "alter_client_quotas"
    alterations: tuple[QuotaAlteration, ...]


class AlterClientQuotasResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per alteration asked for, in that order."""

    results: tuple[Failure, ...]


class UserResult(Failure, frozen=True, kw_only=True, gc=False):
    """The outcome for one user."""

    user: str


class DescribeUserScramCredentialsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe the SCRAM credentials of these users, None or empty: of all."""

    api: ClassVar[str] = "describe_user_scram_credentials"
    users: tuple[str, ...] | None


class DescribeUserScramCredentialsResponse(Failure, frozen=True, kw_only=True, gc=False):
    """One result per user, none of whom has credentials."""

    results: tuple[UserResult, ...] = ()


class AlterUserScramCredentialsRequest(Value, frozen=True, kw_only=True, gc=False):
    """Delete and set SCRAM credentials: the names of the users."""

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
    """Create a delegation token for an owner, (type, name): the requester where none is named."""

    api: ClassVar[str] = "create_delegation_token"
    owner: tuple[str, str] = ANONYMOUS


class RenewDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Renew a delegation token."""

    api: ClassVar[str] = "renew_delegation_token"


class ExpireDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """Let a delegation token expire."""

    api: ClassVar[str] = "expire_delegation_token"


class DescribeDelegationTokenRequest(Value, frozen=True, kw_only=True, gc=False):
    """List delegation tokens."""

    api: ClassVar[str] = "describe_delegation_token"


class RefusedResponse(Failure, frozen=True, kw_only=True, gc=False):
    """A request about SASL or delegation tokens that is refused."""
