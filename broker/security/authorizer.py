"""Decide about operations of principals, with the semantics of Kafka's StandardAuthorizer.

1. A super user may do everything.
2. A DENY that matches denies.
3. An ALLOW that matches allows. READ, WRITE, DELETE and ALTER include DESCRIBE, and ALTER_CONFIGS includes
   DESCRIBE_CONFIGS.
4. A resource without an ACL is open if `allow.everyone.if.no.acl.found` is set. Everything else is denied.

A session caches its decisions until an ACL changes.

Source: org.apache.kafka.metadata.authorizer.StandardAuthorizerData.
"""

from collections.abc import Iterable
from typing import Final

from warmlog.broker.security.acl_index import AclIndex
from warmlog.broker.security.acls import Host, Operation, ResourceType, host_of
from warmlog.broker.security.principal import Principal

MAX_DECISIONS: Final = 250  # decisions cached per session: about 40 KB

#: The value of `authorizer.class.name` that enables authorization; the only other one is the empty text.
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals of `super.users`, which are separated by semicolons. Raises ValueError."""
    return frozenset(str(Principal.parse(part.strip())) for part in text.split(";") if part.strip())


class Decisions:
    """The cached decisions of a session: valid for one principal and one revision of the ACLs."""

    __slots__ = ("denials", "host", "is_super", "known", "name", "principal", "revision", "writable")

    def __init__(self, principal: Principal, host: Host, *, is_super: bool, revision: int) -> None:
        self.principal = principal
        self.name = str(principal)
        self.host = host
        self.is_super = is_super
        self.revision = revision
        self.denials = 0  # number of negative answers so far
        self.known: dict[tuple[int, str | None], bool] = {}  # by operation and type of resource, and by name
        self.writable: set[str] = set()  # topics to which produce was allowed


class Authorizer:
    """Decides by the current ACLs. Belongs to the event loop."""

    def __init__(self, acls: AclIndex, super_users: Iterable[str], *, allows_unnamed: bool) -> None:
        """`acls` follows the metadata store. `allows_unnamed`: whether a resource without an ACL is open to all."""
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._allows_unnamed = allows_unnamed

    def decisions(self, known: Decisions | None, principal: Principal, address: str) -> Decisions:
        """Return the cached decisions of a session if they are still valid, else empty ones."""
        if known is not None and self.holds(known, principal):
            return known
        host = host_of(address) if known is None else known.host
        is_super = str(principal) in self._super_users
        return Decisions(principal, host, is_super=is_super, revision=self._acls.revision)

    def holds(self, known: Decisions, principal: Principal) -> bool:
        """Return whether cached decisions of a session are still valid."""
        return known.revision == self._acls.revision and known.principal is principal

    def note_writable(self, decisions: Decisions, topic: str) -> None:
        """Cache that produce to a topic was allowed."""
        if len(decisions.writable) >= MAX_DECISIONS:
            decisions.writable.clear()
        decisions.writable.add(topic)

    def allows(self, decisions: Decisions, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether an operation on a resource is allowed; `decisions` caches the answer."""
        if decisions.is_super:
            return True
        question: tuple[int, str | None] = (operation << 8 | resource_type, name)  # enums are hashed in Python
        answer = decisions.known.get(question)
        if answer is None:
            decision = self._acls.decide(decisions.name, decisions.host, operation, resource_type, name)
            answer = self._allows_unnamed if decision is None else decision
            if len(decisions.known) >= MAX_DECISIONS:
                decisions.known.clear()
            decisions.known[question] = answer
        if not answer:
            decisions.denials += 1
        return answer

    def allows_some(self, decisions: Decisions, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether an operation is allowed on at least one resource of a type."""
        if self.allows(decisions, operation, resource_type, "hardcode"):  # Kafka also uses this name
            return True
        question = (operation << 8 | resource_type, None)
        answer = decisions.known.get(question)
        if answer is None:
            answer = self._acls.allows_some(decisions.name, decisions.host, operation, resource_type)
            decisions.known[question] = answer
        return answer
