"""`warmlog config`: the settings of brokers, topics and groups in running clusters."""

from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from warmlog.cli.admin.kafka_cluster import (
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    Fields,
    KafkaCluster,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.failure import Failure
from warmlog.cli.options import assignment, json_option
from warmlog.cli.output import Column, print_json, print_line, print_table

COLUMNS = (Column("name"), Column("value"), Column("source"))
RESOURCES = {"topic": 2, "broker": 4, "group": 32}
CLUSTER_DEFAULT = "default"
SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster default",
    4: "file or command line",
    5: "default",
    7: "client metrics",
    8: "group",
}
SET, DELETE = 0, 1


def complete_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete the names of settings."""
    from warmlog.broker.settings.settings import FIELDS
    from warmlog.broker.settings.topics import SETTING_NAMES

    names = FIELDS if context.params.get("kind") == "broker" else SETTING_NAMES
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_assignments(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete the names of settings in the form NAME=."""
    return [CompletionItem(f"{item.value}=", type="nospace") for item in complete_names(context, _, incomplete)]


kind_argument = click.argument("kind", metavar="topic|broker|group", type=click.Choice(list(RESOURCES)))
name_argument = click.argument("name", metavar="NAME")


@click.command(short_help="Show the settings of a topic, a broker or a group.")
@kind_argument
@name_argument
@click.option("--all", "show_all", is_flag=True, help="Include settings that have their default.")
@kafka_option
@json_option("One JSON object per setting: name, value, source, read_only.")
def show(kind: str, name: str, show_all: bool, kafka: str, as_json: bool) -> None:
    """Show the settings of a topic, a broker or a group that differ from the defaults.

    `broker default` selects the settings of all brokers of a cluster.
    """
    with kafka_cluster(kafka) as cluster:
        entries = _describe(cluster, kind, name)
    chosen = [entry for entry in entries if show_all or SOURCES.get(entry["config_source"]) != "default"]
    if as_json:
        print_json(*map(_form, chosen))
        return
    if not chosen:
        print_line(f"{kind} {name}: every setting has its default; --all shows them")
        return
    forms = map(_form, chosen)
    print_table(COLUMNS, [(form["name"], form["value"], form["source"]) for form in forms])


@click.command("set", short_help="Change settings of a topic, a broker or a group, without a restart.")
@kind_argument
@name_argument
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True, shell_complete=complete_assignments)
@kafka_option
def set_configs(kind: str, name: str, assignments: tuple[str, ...], kafka: str) -> None:
    """Change settings of a topic, a broker or a group, without a restart.

    `broker default` selects all brokers of a cluster.
    """
    changes = [(key, SET, value) for key, value in map(assignment, assignments)]
    with kafka_cluster(kafka) as cluster:
        _alter(cluster, kind, name, changes)
    print_line(f"{kind} {name}: {', '.join(f'{key}={value}' for key, _, value in changes)}")


@click.command("unset", short_help="Reset settings of a topic, a broker or a group to their defaults.")
@kind_argument
@name_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_names)
@kafka_option
def unset(kind: str, name: str, keys: tuple[str, ...], kafka: str) -> None:
    """Reset settings of a topic, a broker or a group to their defaults."""
    with kafka_cluster(kafka) as cluster:
        _alter(cluster, kind, name, [(key, DELETE, None) for key in keys])
    print_line(f"{kind} {name}: {', '.join(keys)} reset")


def _resource(kind: str, name: str) -> dict[str, Any]:
    is_default = kind == "broker" and name == CLUSTER_DEFAULT
    return {"resource_type": RESOURCES[kind], "resource_name": "" if is_default else name}


def _ask(cluster: KafkaCluster, kind: str, name: str, api: Any, request: Fields) -> Fields:
    """Send requests about a broker's settings to that broker, all others to the controller. Raises Failure."""
    if kind == "broker" and name != CLUSTER_DEFAULT:
        if not name.isdecimal():
            raise Failure(f"{name!r} is neither the id of a broker nor {CLUSTER_DEFAULT!r}")
        return cluster.ask_broker(int(name), api, request)
    return cluster.ask_controller(api, request)


def _describe(cluster: KafkaCluster, kind: str, name: str) -> Sequence[Fields]:
    request = {
        "resources": ({**_resource(kind, name), "configuration_keys": None},),
        "include_synonyms": False,
        "include_documentation": False,
    }
    (result,) = _ask(cluster, kind, name, DESCRIBE_CONFIGS, request)["results"]
    _raise_problem(kind, name, result)
    entries: Sequence[Fields] = sorted(result["configs"], key=lambda entry: str(entry["name"]))
    return entries


def _alter(cluster: KafkaCluster, kind: str, name: str, changes: Sequence[tuple[str, int, str | None]]) -> None:
    configs = tuple({"name": key, "config_operation": operation, "value": value} for key, operation, value in changes)
    request = {"resources": ({**_resource(kind, name), "configs": configs},), "validate_only": False}
    (result,) = _ask(cluster, kind, name, INCREMENTAL_ALTER_CONFIGS, request)["responses"]
    _raise_problem(kind, name, result)


def _raise_problem(kind: str, name: str, result: Fields) -> None:
    problem = problem_of(result)
    if problem is not None:
        raise Failure(f"{kind} {name}: {problem}")


def _form(entry: Fields) -> dict[str, Any]:
    source = SOURCES.get(entry["config_source"], str(entry["config_source"]))
    value = "(hidden)" if entry["is_sensitive"] else entry["value"]
    return {"name": entry["name"], "value": value, "source": source, "read_only": entry["read_only"]}
