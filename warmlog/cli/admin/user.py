"""`warmlog user`: the SCRAM credentials of users."""

import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from warmlog.cli.admin.kafka_cluster import (
    ALTER_CREDENTIALS,
    DESCRIBE_CREDENTIALS,
    Fields,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.connection.login import read_password
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.options import json_option
from warmlog.cli.output import Column, print_json, print_line, print_table
from warmlog.protocol.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    SALT_BYTES,
    Mechanism,
)

COLUMNS = (Column("user"), Column("mechanisms"))
_NUMBERS: Mapping[int, str] = {each.number: each.name for each in MECHANISMS.values()}


def mechanism_option(help_text: str) -> Callable[[Any], Any]:
    """Add `--mechanism`, repeatable."""
    return click.option("--mechanism", "mechanisms", type=click.Choice(list(MECHANISMS)), multiple=True, help=help_text)


@click.command(short_help="Create a user, or change its password.")
@click.argument("user")
@click.option(
    "--new-password-file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="File with the password in its first line; `-` is standard input. Default: prompt for it.",
)
@mechanism_option("SCRAM mechanism; repeatable. Default: both.")
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Iterations of the hash: the cost of guessing a password from a stolen credential.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Create the user in the data directory of a stopped broker, for example before its first start.",
)
@click.option(
    "--node-id",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="With --data-dir: node.id of the broker.",
)
@click.option(
    "--cluster-id", metavar="ID", help="With --data-dir: warmlog.cluster.id, if the broker will join a cluster."
)
@kafka_option
def create(
    user: str,
    new_password_file: Path | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    data_dir: Path | None,
    node_id: int,
    cluster_id: str | None,
    kafka: str,
) -> None:
    """Create a user, or change its password. It can log in to listeners with SASL_SSL or SASL_PLAINTEXT."""
    if not user or "\0" in user:
        raise click.BadParameter("a user needs a name without zero bytes.", param_hint="USER")
    password = _new_password(new_password_file)
    chosen = [MECHANISMS[name] for name in mechanisms or MECHANISMS]
    salts = {each: secrets.token_bytes(SALT_BYTES) for each in chosen}
    salted = {each: each.salted_password(password, salt, iterations) for each, salt in salts.items()}
    if data_dir is not None:
        _create_offline(data_dir, user, _Hashed(salted, salts, iterations), node_id=node_id, cluster_id=cluster_id)
    else:
        with kafka_cluster(kafka) as cluster:
            for mechanism, hashed in salted.items():  # a user may occur only once in a request
                upsertion = {
                    "name": user,
                    "mechanism": mechanism.number,
                    "iterations": iterations,
                    "salt": salts[mechanism],
                    "salted_password": hashed,
                }
                _check(cluster.ask_controller(ALTER_CREDENTIALS, {"deletions": (), "upsertions": (upsertion,)}))
    print_line(f"user {user} can log in with {' and '.join(each.name for each in chosen)}")


@click.command("list", short_help="List users and their mechanisms.")
@kafka_option
@json_option("One JSON object per user: user, mechanisms (with their iterations).")
def list_users(kafka: str, as_json: bool) -> None:
    """List users and the mechanisms with which they can log in."""
    with kafka_cluster(kafka) as cluster:
        results = _described(cluster.ask_controller(DESCRIBE_CREDENTIALS, {"users": None}))
    if as_json:
        for user, mechanisms in results.items():
            print_json({"user": user, "mechanisms": mechanisms})
        return
    print_table(COLUMNS, [(user, " ".join(mechanisms)) for user, mechanisms in results.items()])


@click.command(short_help="Delete a user.")
@click.argument("user")
@mechanism_option("Only the credential for this mechanism; repeatable.")
@kafka_option
def delete(user: str, mechanisms: tuple[str, ...], kafka: str) -> None:
    """Delete a user. Connections on which it has logged in remain open."""
    with kafka_cluster(kafka) as cluster:
        credentials = _described(cluster.ask_controller(DESCRIBE_CREDENTIALS, {"users": ({"name": user},)}))[user]
        missing = [name for name in mechanisms if name not in credentials]
        if missing:
            raise Failure(f"user {user} has no credential for {missing[0]}")
        for name in mechanisms or credentials:
            deletion = {"name": user, "mechanism": MECHANISMS[name].number}
            _check(cluster.ask_controller(ALTER_CREDENTIALS, {"deletions": (deletion,), "upsertions": ()}))
    print_line(f"user {user} deleted" if not mechanisms else f"user {user}: deleted {' and '.join(mechanisms)}")


def _new_password(file: Path | None) -> str:
    """Return the password of a new user. Raises CannotStart."""
    if file is None:
        if not sys.stdin.isatty():
            raise CannotStart("--new-password-file: needed without a terminal to prompt on; `-` is standard input")
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    if str(file) != "-":
        return read_password(file)
    line = sys.stdin.readline().removesuffix("\n")
    if not line:
        raise CannotStart("--new-password-file: standard input has no password")
    return line


class _Hashed(NamedTuple):
    """A password, hashed for several mechanisms."""

    salted: Mapping[Mechanism, bytes]
    salts: Mapping[Mechanism, bytes]
    iterations: int


def _create_offline(data_dir: Path, user: str, hashed: _Hashed, *, node_id: int, cluster_id: str | None) -> None:
    """Write credentials into a data directory. Raises Failure."""
    from warmlog.broker.cluster.local import STORE  # clients must not import the broker
    from warmlog.broker.cluster.local.users import create_user, create_user_of_nodes
    from warmlog.broker.log.errors import LogError
    from warmlog.broker.metadata.errors import MetadataError
    from warmlog.broker.security.scram import ScramCredential

    credentials = {
        mechanism.name: ScramCredential.of_salted(mechanism, salted, hashed.salts[mechanism], hashed.iterations)
        for mechanism, salted in hashed.salted.items()
    }
    try:
        if (data_dir / STORE).exists():  # written by serve --nodes
            create_user_of_nodes(data_dir, user, credentials)
        else:
            create_user(data_dir, user, credentials, node_id=node_id, cluster_id=cluster_id)
    except (LogError, MetadataError) as error:
        raise Failure(str(error)) from error


def _results(response: Fields) -> Iterable[Fields]:
    results: Iterable[Fields] = response["results"]
    return results


def _check(response: Fields) -> None:
    """Raise the error of a response's only result."""
    for result in _results(response):
        if (problem := problem_of(result)) is not None:
            raise Failure(problem)


def _described(response: Fields) -> dict[str, dict[str, int]]:
    """Return the mechanisms and iterations of each user. Raises Failure."""
    _check(response)
    return {
        result["user"]: {
            _NUMBERS.get(each["mechanism"], f"mechanism {each['mechanism']}"): each["iterations"]
            for each in result["credential_infos"]
        }
        for result in sorted(_results(response), key=lambda result: str(result["user"]))
    }
