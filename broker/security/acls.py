"""Access control entries and filters of Kafka's protocol.

Numbers are those of the wire. Source: org.apache.kafka.common.acl, org.apache.kafka.common.resource.
"""

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, TypeAlias, TypeVar

WILDCARD = "*"  # any resource of a type, any host, any principal of a type
CLUSTER_NAME = "kafka-cluster"  # name of the only resource of type CLUSTER
EVERYONE = "User:*"

Network: TypeAlias = IPv4Network | IPv6Network
E = TypeVar("E", bound=IntEnum)


class _Number(IntEnum):
    """A number of the wire, with the hash of an int: Enum's own is computed in Python."""

    __hash__ = int.__hash__


class ResourceType(_Number):
    """Types of resources that ACLs protect; ANY occurs only in filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Number):
    """How an ACL selects resources; ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2  # every pattern that matches the filter's name
    LITERAL = 3
    PREFIXED = 4


class Operation(_Number):
    """Operations on resources; ANY occurs only in filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Number):
    """Whether an ACL denies or allows; ANY occurs only in filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """A rule: whether a principal at a host may perform an operation on the resources of a pattern."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Selects ACLs. None and ANY select all; unknown numbers stay plain numbers."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter selects an ACL."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._matches_pattern(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern not in {PatternType.ANY, PatternType.MATCH, acl.pattern}:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != PatternType.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern is PatternType.PREFIXED else acl.name == WILDCARD


class InvalidAclError(Exception):
    """An ACL or filter is invalid. `str()` is one line for users."""


def check_acl(acl: tuple[int, str, int, str, str, int, int]) -> Acl:
    """Validate the fields of an ACL and return it. Raises InvalidAclError."""
    resource_type, name, pattern, principal, host, operation, permission = acl
    kind = _known(ResourceType, resource_type, "resource type", ResourceType.TOPIC)
    if not name:
        raise InvalidAclError("the resource's name is empty")
    if kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidAclError(f"the only resource of type CLUSTER is {CLUSTER_NAME}, not {name!r}")
    if ":" not in principal:
        raise InvalidAclError(f"a principal is written TYPE:NAME, such as User:alice, not {principal!r}")
    _check_host(host)
    return Acl(
        kind,
        name,
        _known(PatternType, pattern, "pattern type", PatternType.LITERAL),
        principal,
        host,
        _known(Operation, operation, "operation", Operation.ALL),
        _known(Permission, permission, "permission type", Permission.DENY),
    )


def _check_host(host: str) -> None:
    """Raise InvalidAclError for an empty host, and for a range that Kafka 4.4 does not accept."""
    if not host:
        raise InvalidAclError("the host is empty; * is any host")
    if "/" not in host:
        return
    try:
        network = ip_network(host, strict=False)
    except ValueError as error:
        raise InvalidAclError(f"the host {host!r} is not a range of addresses: {error}") from None
    if not host.rpartition("/")[2].isdecimal():
        raise InvalidAclError(f"the host {host!r} is not a range of addresses: expected ADDRESS/BITS")
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise InvalidAclError(f"the host {host!r} is not a range of addresses: write it as one of IPv4")


def check_filter(wanted: AclFilter) -> None:
    """Raise InvalidAclError for a filter with an unknown number."""
    _known(ResourceType, wanted.resource_type, "resource type", ResourceType.ANY)
    _known(PatternType, wanted.pattern, "pattern type", PatternType.ANY)
    _known(Operation, wanted.operation, "operation", Operation.ANY)
    _known(Permission, wanted.permission, "permission type", Permission.ANY)


def _known(kind: type[E], number: int, what: str, first: int) -> E:
    """Return the member of an enumeration, not below `first`. Raises InvalidAclError."""
    try:
        member = kind(number)
    except ValueError:
        raise InvalidAclError(f"unknown {what} {number}") from None
    if member < first:
        raise InvalidAclError(f"the {what} must not be {member.name}")
    return member


class Host(NamedTuple):
    """A client's address: its canonical text, and its value if it is one."""

    text: str
    address: IPv4Address | IPv6Address | None


def host_of(text: str) -> Host:
    """Parse an address. IPv4 addresses in IPv6 form count as IPv4 addresses."""
    try:
        address = ip_address(text)
    except ValueError:
        return Host(text, None)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Host(str(address), address)


def network_of(text: str) -> Network | None:
    """Return the range of addresses of an ACL's host; None if it is not a range."""
    if "/" not in text:
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
