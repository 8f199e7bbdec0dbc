"""The published rules of Kafka's authorization, as a scan over all ACLs. Shares no code with the index."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from warmlog.broker.security.acls import Acl

INCLUDED = {"DESCRIBE": {"READ", "WRITE", "DELETE", "ALTER"}, "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"}}


def names(acl: Acl, resource: str) -> bool:
    if acl.pattern.name == "PREFIXED":
        return resource[: len(acl.name)] == acl.name
    return acl.name in ("*", resource)


def is_for(acl: Acl, principal: str, host: str) -> bool:
    if acl.principal not in ("User:*", principal):
        return False
    if acl.host in ("*", host):
        return True
    return "/" in acl.host and ip_address(host) in ip_network(acl.host, strict=False)


def decide(acls: Sequence[Acl], principal: str, host: str, operation: str, kind: str, resource: str) -> bool | None:
    there = [acl for acl in acls if acl.resource_type.name == kind and names(acl, resource)]
    mine = [acl for acl in there if is_for(acl, principal, host)]
    for acl in mine:
        if acl.permission.name == "DENY" and acl.operation.name in (operation, "ALL"):
            return False
    for acl in mine:
        given = {operation, "ALL"} | INCLUDED.get(operation, set())
        if acl.permission.name == "ALLOW" and acl.operation.name in given:
            return True
    return False if there else None


def allows_some(acls: Sequence[Acl], principal: str, host: str, operation: str, kind: str) -> bool:
    mine = [
        acl
        for acl in acls
        if acl.resource_type.name == kind and is_for(acl, principal, host) and acl.operation.name in (operation, "ALL")
    ]
    denied = [acl for acl in mine if acl.permission.name == "DENY"]
    allowed = [acl for acl in mine if acl.permission.name == "ALLOW"]
    if any(acl.pattern.name == "LITERAL" and acl.name == "*" for acl in denied):
        return False
    for acl in allowed:
        if acl.pattern.name == "LITERAL" and acl.name == "*":
            return True
        is_denied = any(
            (one.pattern.name == "PREFIXED" and acl.name.startswith(one.name))
            or (one.pattern.name == acl.pattern.name == "LITERAL" and acl.name == one.name)
            for one in denied
        )
        if not is_denied:
            return True
    return False
