"""Options, arguments and parameter types that several commands share."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from warmlog.cli.failure import Failure
from warmlog.cli.run_with_client import run_with_client
from warmlog.inspect.findings import DEFAULT_INDEX_INTERVAL_BYTES

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, Start

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_NATIVE = "127.0.0.1:9091"
COMPLETION_TIMEOUT_S = 1.0  # limits the delay of completion without a broker


def native_option(command: Command) -> Command:
    """Add `--native H:P`: the broker to connect to."""
    return click.option(
        "--native",
        metavar="H:P",
        type=bootstrap,
        envvar="WARMLOG_NATIVE",
        default=DEFAULT_NATIVE,
        show_default=True,
        show_envvar=True,
        help="Address of the broker's native listener.",
    )(command)


def topic_argument(command: Command) -> Command:
    """Add the argument `TOPIC`."""
    return click.argument("topic", shell_complete=complete_topics)(command)


def topics_argument(command: Command) -> Command:
    """Add the argument `TOPIC...`."""
    return click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)(
        command
    )


def directories_argument(command: Command) -> Command:
    """Add the argument `DIR...`."""
    return click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))(
        command
    )


def index_interval_option(command: Command) -> Command:
    """Add `--index-interval-bytes N`: the expected distance between entries of an offset index."""
    return click.option(
        "--index-interval-bytes",
        metavar="N",
        type=click.IntRange(min=0),
        default=DEFAULT_INDEX_INTERVAL_BYTES,
        show_default=True,
        help="The topics' index.interval.bytes, if larger than the default.",
    )(command)


def group_option(command: Command) -> Command:
    """Add `--group GROUP`."""
    return click.option(
        "--group", metavar="GROUP", shell_complete=complete_groups, help="Consume as a member of this consumer group."
    )(command)


def json_option(help_text: str) -> Callable[[Command], Command]:
    """Add `--json`: output for scripts."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def configs_option(help_text: str) -> Callable[[Command], Command]:
    """Add `--config KEY=VALUE`: settings of a topic."""
    return click.option("--config", "configs", metavar="KEY=VALUE", type=assignment, multiple=True, help=help_text)


def zero_option(command: Command) -> Command:
    """Add `-z`, for records that contain newlines."""
    return click.option("-z", "--zero-terminated", is_flag=True, help="Records end with a zero byte, not a newline.")(
        command
    )


def bootstrap(value: str) -> str:
    """Validate `HOST:PORT`, or several separated by commas."""
    from warmlog.client.settings import parse_bootstrap  # imported only for commands that connect to a broker

    try:
        parse_bootstrap(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    return value


def assignment(value: str) -> tuple[str, str]:
    """Split `KEY=VALUE` at the first equal sign."""
    key, equals, text = value.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{value!r} is not KEY=VALUE.")
    return key, text


def start_position(value: str) -> "Start":
    """Validate `beginning`, `end`, an offset, or a time in ISO 8601."""
    from warmlog.client.consuming.subscription import parse_start  # as above

    try:
        parse_start(value, 0)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is not beginning, end, an offset or a time like 2026-11-20T10:00:00Z."
        ) from None
    return cast("Start", value)


def separator(value: str) -> str:
    """Parse the separator of a key and its value; \\t is a tab."""
    if not value:
        raise click.BadParameter("it must not be empty.")
    return value.replace("\\t", "\t")


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete topic names from the broker; return nothing if it cannot be reached."""
    names = _query_broker(context, lambda client: client.list_topics())
    return [CompletionItem(topic.name) for topic in names if topic.name.startswith(incomplete)]


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete group names from the broker; return nothing if it cannot be reached."""
    groups = _query_broker(context, lambda client: client.list_groups())
    return [CompletionItem(group.group) for group in groups if group.group.startswith(incomplete)]


def _query_broker(context: click.Context, ask: "Callable[[AsyncClient], Awaitable[tuple[T, ...]]]") -> tuple[T, ...]:
    native = context.params.get("native") or DEFAULT_NATIVE
    try:
        return run_with_client(
            native, ask, connect_timeout_s=COMPLETION_TIMEOUT_S, request_timeout_s=COMPLETION_TIMEOUT_S
        )
    except Failure:
        return ()
