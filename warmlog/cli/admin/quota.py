"""`warmlog quota`: quotas of clients, in a cluster of warmlog or Kafka."""

from collections.abc import Iterable
from typing import Any

import click

from warmlog.cli.admin.kafka_cluster import (
    ALTER_QUOTAS,
    DESCRIBE_QUOTAS,
    Fields,
    KafkaCluster,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.failure import Failure
from warmlog.cli.options import Command, json_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table

COLUMNS = (Column("user"), Column("client"), Column("address"), Column("quota"), Column("value"))
TYPES = {"user": "user", "client": "client-id", "ip": "ip"}  # entity types by option
KEYS = {"user": "user", "client-id": "client_id", "ip": "ip"}  # fields of the JSON form, by type
EXACT, DEFAULT = 0, 1  # types of matches
SHOWN_DEFAULT = "(default)"


def entity_options(command: Command) -> Command:
    """Add the options that select the entity of a quota."""
    for option, what in reversed([("user", "user"), ("client", "client id"), ("ip", "address")]):
        command = click.option(
            f"--default-{option}", f"default_{option}", is_flag=True, help=f"Each {what} without a quota of its own."
        )(command)
        command = click.option(f"--{option}", option, metavar="NAME", help=f"The {what}.")(command)
    return command


@click.command("list", short_help="List quotas.")
@entity_options
@kafka_option
@json_option("One JSON object per entity: user, client_id, ip (null for a default), quotas.")
def list_quotas(kafka: str, as_json: bool, **options: Any) -> None:
    """List all quotas, or the quotas of users, clients and addresses."""
    components = [
        {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name}
        for kind, name in _entity(options)
    ]
    with kafka_cluster(kafka) as cluster:
        entries = cluster.ask_controller(DESCRIBE_QUOTAS, {"components": components, "strict": False})["entries"]
    forms = sorted((_form(entry) for entry in entries or ()), key=lambda form: tuple(map(str, form.values())))
    if as_json:
        print_json(*forms)
    else:
        print_table(COLUMNS, [row for form in forms for row in _rows(form)])


@click.command("set", short_help="Set quotas.")
@click.argument("quotas", metavar="QUOTA=VALUE...", nargs=-1, required=True)
@entity_options
@kafka_option
def set_quotas(quotas: tuple[str, ...], kafka: str, **options: Any) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    \b
    warmlog quota set producer_byte_rate=1048576 --user alice
    warmlog quota set consumer_byte_rate=524288 request_percentage=50 --default-client
    """
    changes = []
    for quota in quotas:
        key, equals, text = quota.partition("=")
        try:
            changes.append({"key": key, "value": float(text), "remove": False})
        except ValueError:
            reason = f"{text!r} is not a number" if equals else "expected QUOTA=VALUE"
            raise click.BadParameter(f"{quota}: {reason}.", param_hint="QUOTA=VALUE") from None
    entity = _named(options)
    with kafka_cluster(kafka) as cluster:
        _alter(cluster, entity, changes)
    print_line(f"{_text(entity)}: {counted(len(changes), 'quota')} set")


@click.command(short_help="Remove quotas.")
@click.argument("quotas", metavar="[QUOTA]...", nargs=-1)
@entity_options
@kafka_option
def remove(quotas: tuple[str, ...], kafka: str, **options: Any) -> None:
    """Remove all or the named quotas of a user, a client id, both together, or an address."""
    entity = _named(options)
    components = [
        {"entity_type": kind, "match_type": DEFAULT if name is None else EXACT, "match": name} for kind, name in entity
    ]
    with kafka_cluster(kafka) as cluster:
        entries = cluster.ask_controller(DESCRIBE_QUOTAS, {"components": components, "strict": True})["entries"]
        keys = [quota["key"] for entry in entries or () for quota in entry["values"]]
        missing = [quota for quota in quotas if quota not in keys]
        if missing or not keys:
            raise Failure(f"{_text(entity)} has no quota {missing[0]}" if missing else f"{_text(entity)} has no quota")
        changes = [{"key": quota, "value": 0.0, "remove": True} for quota in quotas or keys]
        _alter(cluster, entity, changes)
    print_line(f"{_text(entity)}: {counted(len(changes), 'quota')} removed")


Entity = list[tuple[str, str | None]]  # types and names, None for the default


def _entity(options: Fields) -> Entity:
    entity: Entity = []
    for option, kind in TYPES.items():
        name, is_default = options[option], options[f"default_{option}"]
        if name is not None and is_default:
            raise click.UsageError(f"--{option} and --default-{option} exclude each other.")
        if name is not None or is_default:
            entity.append((kind, name))
    return entity


def _named(options: Fields) -> Entity:
    entity = _entity(options)
    if not entity:
        raise click.UsageError("name who has the quota: --user, --client, --ip, or the default of one of them.")
    return entity


def _text(entity: Entity) -> str:
    return ", ".join([f"{kind} {SHOWN_DEFAULT if name is None else name}" for kind, name in entity])


def _alter(cluster: KafkaCluster, entity: Entity, changes: Iterable[Fields]) -> None:
    """Change quotas of an entity. Raises Failure."""
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    request = {"entries": [{"entity": parts, "ops": tuple(changes)}], "validate_only": False}
    for result in cluster.ask_controller(ALTER_QUOTAS, request)["entries"]:
        if (problem := problem_of(result)) is not None:
            raise Failure(problem)


def _form(entry: Fields) -> dict[str, Any]:
    names = {part["entity_type"]: part["entity_name"] for part in entry["entity"]}
    form: dict[str, Any] = {key: names[kind] for kind, key in KEYS.items() if kind in names}
    return {**form, "quotas": {quota["key"]: quota["value"] for quota in entry["values"]}}


def _rows(form: dict[str, Any]) -> Iterable[tuple[object, ...]]:
    who = [(form[key] or SHOWN_DEFAULT) if key in form else "-" for key in KEYS.values()]
    for quota, value in sorted(form["quotas"].items()):
        number = int(value) if value == int(value) else value
        yield *who, quota, number
