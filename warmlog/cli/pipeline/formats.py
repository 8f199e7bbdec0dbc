"""The options of commands that decode keys and values of records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("binary", "string", "json", "avro", "protobuf", "confluent")
SCHEMA_NAMES = (
    "key_schema",
    "value_schema",
    "schema_registry",
    "schema_registry_user",
    "schema_registry_password_file",
    "schema_registry_ca",
    "schema_registry_certificate",
)
FILE = click.Path(path_type=Path)


def format_options(command: Command) -> Command:
    """Add the options for keys, values and rows that do not fit, named like the arguments of `formats_of`."""
    for option in reversed(
        (
            *(
                click.option(
                    f"--{side}-format",
                    type=click.Choice(FORMATS),
                    default="binary",
                    show_default=True,
                    help=f"How {side}s are decoded; confluent: by the schema id that each begins with.",
                )
                for side in ("value", "key")
            ),
            *(
                click.option(f"--{side}-message", metavar="NAME", help=f"Protobuf's message of {side}s.")
                for side in ("value", "key")
            ),
            click.option("--nest-value", is_flag=True, help="Keep the fields of values in one column, value."),
            click.option(
                "--on-bad-row",
                type=click.Choice(["fail", "null", "dead-letter"]),
                default="fail",
                show_default=True,
                help="Of a key or value that cannot be decoded; null: keep the row with its bytes and the reason.",
            ),
            click.option(
                "--dead-letter-topic", metavar="TOPIC", help="Where such records go with --on-bad-row dead-letter."
            ),
        )
    ):
        command = option(command)
    return schema_options(command)


def schema_options(command: Command, *, several: bool = False) -> Command:
    """Add the options that name the sources of schemas. `several`: whether a side may have more than one file."""
    for option in reversed(
        (
            *(
                click.option(
                    f"--{side}-schema", metavar="FILE", type=FILE, multiple=several, help=f"Schema of {side}s."
                )
                for side in ("value", "key")
            ),
            click.option("--schema-registry", metavar="URL", help="Schema registry with Confluent's interface."),
            click.option(
                "--schema-registry-user",
                metavar="NAME",
                help="User of the registry; the password is in the file, or in WARMLOG_SCHEMA_REGISTRY_PASSWORD.",
            ),
            click.option("--schema-registry-password-file", metavar="FILE", type=FILE, help="Password of this user."),
            click.option("--schema-registry-ca", metavar="FILE", type=FILE, help="Certificates to check it by, PEM."),
            click.option(
                "--schema-registry-certificate", metavar="FILE", type=FILE, help="Own key and certificate, PEM."
            ),
        )
    ):
        command = option(command)
    return command
