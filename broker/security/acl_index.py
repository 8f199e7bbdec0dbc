"""An index of all ACLs, in which a decision examines only those that apply to one resource.

    literal     name -> rules          the resource's name, and `*`
    prefixed    prefix -> rules        sorted: prefixes of a name are located by bisection, each search with a shorter
                                       text, like the walk of StandardAuthorizerData.checkSection
    rules       principal -> entries   the principal's own, and those of `User:*`

A change takes time in proportion to its size, and advances the revision, by which decisions may be cached.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from sortedcontainers import SortedDict

from warmlog.broker.security.acls import (
    EVERYONE,
    WILDCARD,
    Acl,
    Host,
    Network,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    host_of,
    network_of,
)

# What an ALLOW of another operation implies. Source: StandardAuthorizerData.
IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_NONE: Final[frozenset[Operation]] = frozenset()


class _Entry(NamedTuple):
    """An ACL in the index. `host` is None for any host; `network` is set if it is a range."""

    acl: Acl
    host: str | None
    network: Network | None

    def is_for(self, host: Host) -> bool:
        """Return whether the ACL applies to a client at a host."""
        if self.host is None or self.host == host.text:
            return True
        return self.network is not None and host.address is not None and host.address in self.network


_Rules: TypeAlias = dict[str, dict[Acl, _Entry]]  # rules of one pattern, by principal


class _OfType:
    """The ACLs of one resource type."""

    __slots__ = ("literal", "of_principal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Rules] = {}
        self.prefixed: SortedDict[str, _Rules] = SortedDict()
        self.of_principal: dict[tuple[str, Permission], dict[Acl, _Entry]] = {}

    def matching(self, name: str) -> Iterator[_Rules]:
        """Yield the rules of each pattern that matches a name."""
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            rules = self.literal.get(literal)
            if rules is not None:
                yield rules
        prefixes, left = self.prefixed.keys(), name
        while left:
            index = self.prefixed.bisect_right(left)
            if not index:
                return
            prefix = prefixes[index - 1]
            if left.startswith(prefix):
                yield self.prefixed[prefix]
                left = prefix[:-1]
            else:
                left = _shared(left, prefix)

    def patterns(self, pattern: PatternType) -> dict[str, _Rules]:
        """Return the rules of the patterns of one type."""
        return self.literal if pattern is PatternType.LITERAL else self.prefixed


class AclIndex:
    """The ACLs of a cluster by id. `revision` advances with each change."""

    def __init__(self) -> None:
        self.revision = 0
        self._acls: dict[UUID, Acl] = {}
        self._ids: dict[Acl, set[UUID]] = {}
        self._types: dict[ResourceType, _OfType] = {}

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def items(self) -> Iterable[tuple[UUID, Acl]]:
        """Return all ids and ACLs."""
        return self._acls.items()

    def add(self, acl_id: UUID, acl: Acl) -> None:
        """Add an ACL, or replace the one with this id."""
        self.remove(acl_id)
        self.revision += 1
        self._acls[acl_id] = acl
        ids = self._ids.setdefault(acl, set())
        ids.add(acl_id)
        if len(ids) > 1:
            return
        host = None if acl.host == WILDCARD else host_of(acl.host).text
        entry = _Entry(acl, host, network_of(acl.host))
        of_type = self._types.get(acl.resource_type)
        if of_type is None:
            of_type = self._types[acl.resource_type] = _OfType()
        of_type.patterns(acl.pattern).setdefault(acl.name, {}).setdefault(acl.principal, {})[acl] = entry
        of_type.of_principal.setdefault((acl.principal, acl.permission), {})[acl] = entry

    def remove(self, acl_id: UUID) -> None:
        """Remove the ACL with this id, if there is one."""
        acl = self._acls.pop(acl_id, None)
        if acl is None:
            return
        self.revision += 1
        ids = self._ids[acl]
        ids.discard(acl_id)
        if ids:
            return  # another id has the same ACL
        del self._ids[acl]
        of_type = self._types[acl.resource_type]
        patterns = of_type.patterns(acl.pattern)
        rules = patterns[acl.name]
        del rules[acl.principal][acl]
        if not rules[acl.principal]:
            del rules[acl.principal]
        if not rules:
            del patterns[acl.name]
        own = of_type.of_principal[acl.principal, acl.permission]
        del own[acl]
        if not own:
            del of_type.of_principal[acl.principal, acl.permission]

    def decide(
        self, principal: str, host: Host, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool | None:
        """Return whether the ACLs allow an operation on a resource; None if no ACL names the resource."""
        of_type = self._types.get(resource_type)
        if of_type is None:
            return None
        implied_by = IMPLIED_BY.get(operation, _NONE)
        is_named = is_allowed = False
        for rules in of_type.matching(name):
            is_named = True
            for who in (principal, EVERYONE):
                for acl, entry in rules.get(who, {}).items():
                    is_exact = acl.operation in {operation, Operation.ALL}
                    if acl.permission is Permission.DENY:
                        if is_exact and entry.is_for(host):
                            return False
                    elif not is_allowed and (is_exact or acl.operation in implied_by):
                        is_allowed = entry.is_for(host)
        return is_allowed if is_named else None

    def allows_some(self, principal: str, host: Host, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether an ACL allows an operation on at least one resource of a type and none denies it.

        Source: org.apache.kafka.server.authorizer.Authorizer.authorizeByResourceType.
        """
        of_type = self._types.get(resource_type)
        if of_type is None:
            return False
        applying = partial(_applying, of_type, (principal, EVERYONE), host, operation)
        denied = {(acl.pattern, acl.name) for acl in applying(Permission.DENY)}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(_outlasts(acl, denied) for acl in applying(Permission.ALLOW))


def _applying(
    of_type: _OfType, principals: Iterable[str], host: Host, operation: Operation, permission: Permission
) -> Iterator[Acl]:
    """Yield the ACLs of principals that allow, or deny, exactly an operation to a client at a host."""
    for who in principals:
        for acl, entry in of_type.of_principal.get((who, permission), {}).items():
            if acl.operation in {operation, Operation.ALL} and entry.is_for(host):
                yield acl


def _outlasts(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Return whether an ALLOW covers a resource outside of the denied patterns."""
    if acl.pattern is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return True
        if (PatternType.LITERAL, acl.name) in denied:
            return False
    return not any((PatternType.PREFIXED, acl.name[:end]) in denied for end in range(1, len(acl.name) + 1))


def _shared(first: str, second: str) -> str:
    """Return the longest prefix that two texts share."""
    for length, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return first[:length]
    return min(first, second, key=len)
