"""`warmlog acl`: the access control lists of a cluster, of warmlog or Kafka."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import click

from warmlog.broker.security.principal import USER
from warmlog.cli.admin.kafka_cluster import (
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    Fields,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.failure import Failure
from warmlog.cli.options import Command, json_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table

COLUMNS = (Column("principal"), Column("permission"), Column("operation"), Column("resource"), Column("host"))
OPERATIONS = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster-action": 9,
    "describe-configs": 10,
    "alter-configs": 11,
    "idempotent-write": 12,
    "create-tokens": 13,
    "describe-tokens": 14,
    "two-phase-commit": 15,
}
KINDS = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5, "delegation-token": 6, "user": 7}
# Operations for each kind of resource, in addition to `all`. Source: org.apache.kafka.security.authorizer.AclEntry.
_CONFIGS = ("describe-configs", "alter-configs")
APPLICABLE: Mapping[str, tuple[str, ...]] = {
    "topic": ("read", "write", "create", "delete", "alter", "describe", *_CONFIGS),
    "group": ("read", "delete", "describe", *_CONFIGS),
    "cluster": ("create", "alter", "describe", "cluster-action", "idempotent-write", *_CONFIGS),
    "transactional-id": ("describe", "write", "two-phase-commit"),
}
PERMISSIONS = {"deny": 2, "allow": 3}
ANY, LITERAL, PREFIXED = 1, 3, 4
CLUSTER_NAME = "kafka-cluster"


def resource_options(command: Command) -> Command:
    """Add the options that select resources."""
    for kind in ("transactional-id", "group", "topic"):
        command = click.option(
            f"--{kind}", f"{kind.replace('-', '_')}s", metavar="NAME", multiple=True, help=f"A {kind}; `*` for all."
        )(command)
        command = click.option(
            f"--{kind}-prefix",
            f"{kind.replace('-', '_')}_prefixes",
            metavar="PREFIX",
            multiple=True,
            help=f"All {kind}s whose names begin with this.",
        )(command)
    return click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself.")(command)


operation_option = click.option(
    "--operation", "operations", type=click.Choice(list(OPERATIONS)), multiple=True, help="Repeatable."
)
host_option = click.option("--host", metavar="ADDRESS", help="Only clients at this address, or in this range (CIDR).")


@click.command("list", short_help="List ACLs.")
@resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only ACLs of this principal, such as User:alice.")
@kafka_option
@json_option("One JSON object per ACL: principal, permission, operation, kind, name, pattern, host.")
def list_acls(principal: str | None, kafka: str, as_json: bool, **resources: Any) -> None:
    """List all ACLs, or the ACLs of resources and principals."""
    by_resource: dict[tuple[object, ...], dict[str, Any]] = {}
    with kafka_cluster(kafka) as cluster:
        for kind, name, pattern in _resources(resources) or [(ANY, None, ANY)]:
            reply = cluster.ask_controller(DESCRIBE_ACLS, _filter(kind, name, pattern, principal=principal))
            if (problem := problem_of(reply)) is not None:
                raise Failure(problem)
            for resource in reply["resources"]:
                for acl in resource["acls"]:
                    form = _form({**resource, **acl})
                    by_resource[tuple(form.values())] = form
    if as_json:
        print_json(*by_resource.values())
    else:
        _print(list(by_resource.values()))


@click.command(short_help="Allow or deny operations on resources.")
@click.argument("permission", metavar="allow|deny", type=click.Choice(list(PERMISSIONS)))
@click.argument("principal", metavar="TYPE:NAME")
@operation_option
@resource_options
@host_option
@kafka_option
def add(
    permission: str, principal: str, operations: tuple[str, ...], host: str | None, kafka: str, **resources: Any
) -> None:
    """Allow or deny a principal, such as User:alice or User:*, operations on resources.

    \b
    warmlog acl add allow User:alice --operation read --topic orders --group readers
    warmlog acl add deny 'User:*' --operation delete --topic-prefix audit-
    """
    _check_principal(principal)
    named = _resources(resources)
    if not operations or not named:
        raise Failure("name at least one --operation, and at least one resource, such as --topic NAME")
    for kind, operation in product(dict.fromkeys(_name(KINDS, kind) for kind, _, _ in named), operations):
        if operation not in {"all", *APPLICABLE[kind]}:
            raise Failure(f"no {operation} exists on a {kind}; there are all, {', '.join(APPLICABLE[kind])}")
    creations = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": principal,
            "host": host or "*",
            "operation": OPERATIONS[operation],
            "permission_type": PERMISSIONS[permission],
        }
        for kind, name, pattern in named
        for operation in operations
    ]
    with kafka_cluster(kafka) as cluster:
        reply = cluster.ask_controller(CREATE_ACLS, {"creations": creations})
    for result in reply["results"]:
        if (problem := problem_of(result)) is not None:
            raise Failure(problem)
    print_line(f"{counted(len(creations), 'ACL')} added")


@click.command(short_help="Remove ACLs.")
@click.argument("permission", metavar="allow|deny|any", type=click.Choice([*PERMISSIONS, "any"]))
@click.argument("principal", metavar="TYPE:NAME|any")
@operation_option
@resource_options
@host_option
@kafka_option
def remove(
    permission: str, principal: str, operations: tuple[str, ...], host: str | None, kafka: str, **resources: Any
) -> None:
    """Remove the ACLs of a principal on resources; `any` matches every permission or principal.

    \b
    warmlog acl remove any User:alice --topic orders
    """
    _check_principal(principal)
    named = _resources(resources)
    if not named:
        raise Failure("name at least one resource, such as --topic NAME")
    filters = [
        _filter(
            kind,
            name,
            pattern,
            principal=None if principal == "any" else principal,
            host=host,
            operation=ANY if operation is None else OPERATIONS[operation],
            permission=PERMISSIONS.get(permission, ANY),
        )
        for kind, name, pattern in named
        for operation in operations or (None,)
    ]
    with kafka_cluster(kafka) as cluster:
        reply = cluster.ask_controller(DELETE_ACLS, {"filters": filters})
    removed = 0
    for result in reply["filter_results"]:
        if (problem := problem_of(result)) is not None:
            raise Failure(problem)
        removed += len(result["matching_acls"])
    print_line(f"{counted(removed, 'ACL')} removed")


def _check_principal(principal: str) -> None:
    """Raise Failure for a type that differs from `User` only in case: it would match no one."""
    kind, _, name = principal.partition(":")
    if kind != USER and kind.lower() == USER.lower():
        raise Failure(f"{principal}: types of principals are case-sensitive: {USER}:{name}")


def _resources(options: Mapping[str, Any]) -> list[tuple[int, str | None, int]]:
    """Return type, name and pattern of each resource in the options."""
    resources: list[tuple[int, str | None, int]] = []
    for kind in ("topic", "group", "transactional-id"):
        key = kind.replace("-", "_")
        resources += [(KINDS[kind], name, LITERAL) for name in options[f"{key}s"]]
        resources += [(KINDS[kind], name, PREFIXED) for name in options[f"{key}_prefixes"]]
    if options["is_cluster"]:
        resources.append((KINDS["cluster"], CLUSTER_NAME, LITERAL))
    return resources


def _filter(
    kind: int,
    name: str | None,
    pattern: int,
    *,
    principal: str | None = None,
    host: str | None = None,
    operation: int = ANY,
    permission: int = ANY,
) -> Fields:
    return {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": principal,
        "host_filter": host,
        "operation": operation,
        "permission_type": permission,
    }


def _form(acl: Fields) -> dict[str, Any]:
    return {
        "principal": acl["principal"],
        "permission": _name(PERMISSIONS, acl["permission_type"]),
        "operation": _name(OPERATIONS, acl["operation"]),
        "kind": _name(KINDS, acl["resource_type"]),
        "name": acl["resource_name"],
        "pattern": "prefix" if acl["pattern_type"] == PREFIXED else "literal",
        "host": acl["host"],
    }


def _name(numbers: Mapping[str, int], number: int) -> str:
    return next((name for name, each in numbers.items() if each == number), str(number))


def _print(forms: list[dict[str, Any]]) -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        for form in forms:
            name = f"{form['name']}..." if form["pattern"] == "prefix" else form["name"]
            resource = "cluster" if form["kind"] == "cluster" else f"{form['kind']} {name}"
            yield form["principal"], form["permission"], form["operation"], resource, form["host"]

    print_table(COLUMNS, list(rows()))
