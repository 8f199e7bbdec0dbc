"""Requests and responses for ACLs, quotas, SCRAM credentials, SASL and delegation tokens.

They only have the fields needed to reject such requests, since this broker has no security.
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Value

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
