"""Options and values that several commands share.

Owns: how they are written on the command line. Must not know: what is done with them.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Start: TypeAlias = Literal["beginning", "end"] | int | datetime

DEFAULT_NATIVE = "127.0.0.1:9091"
MAX_PORT = 65535


def native_option(command: Command) -> Command:
    """`--native H:P`: which broker to talk to."""
    return click.option(
        "--native",
        metavar="H:P",
        type=address,
        envvar="WARMLOG_NATIVE",
        default=DEFAULT_NATIVE,
        show_default=True,
        show_envvar=True,
        help="The broker's native listener.",
    )(command)


def json_option(help_text: str) -> Callable[[Command], Command]:
    """`--json`: output for scripts."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def configs_option(help_text: str) -> Callable[[Command], Command]:
    """`--config KEY=VALUE`: a topic's settings."""
    return click.option("--config", "configs", metavar="KEY=VALUE", type=assignment, multiple=True, help=help_text)


def address(value: str) -> str:
    """`HOST:PORT`, checked; IPv6 in brackets."""
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise click.BadParameter(f"{value!r} is not HOST:PORT.")
    return value


def assignment(value: str) -> tuple[str, str]:
    """`KEY=VALUE`, cut at the first equal sign."""
    key, equals, text = value.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{value!r} is not KEY=VALUE.")
    return key, text


def start_position(value: str) -> Start:
    """`beginning`, `end`, an offset, or a time in ISO 8601 (without a zone: the local one)."""
    match value:
        case "beginning" | "end":
            return value
    if value.isascii() and value.isdigit():
        return int(value)
    try:
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is not beginning, end, an offset or a time like 2026-11-20T10:00:00Z."
        ) from None
