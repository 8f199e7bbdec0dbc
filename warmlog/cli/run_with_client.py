"""Run a coroutine with a client of a broker; errors become one line."""

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

import click

from warmlog.cli.connection.login import login_from
from warmlog.cli.connection.tls import context_from
from warmlog.cli.failure import Failure
from warmlog.cli.progress import ERASE_LINE

if TYPE_CHECKING:
    from warmlog.client import AsyncClient
    from warmlog.client.settings import Mechanism, SettingNames

T = TypeVar("T")
CLIENT_NAME = "warmlog command line"


def run_with_client(
    native: str, action: "Callable[[AsyncClient], Awaitable[T]]", **settings: "Unpack[SettingNames]"
) -> T:
    """Call `action` with a client of the broker at `native` and return its result. Raises Failure, KeyboardInterrupt.

    Runs on trio, where Ctrl-C also interrupts a blocking call, such as a write to a pager that is not being read.
    """
    import anyio  # importing the client takes 0.25 s, and `--help` does not need it

    from warmlog.client import WarmlogError, connect

    settings.setdefault("client", CLIENT_NAME)
    settings.setdefault("tls", context_from(os.environ))
    login = login_from(os.environ)
    if login is not None and login.token is not None:
        settings.setdefault("token", login.token)
    elif login is not None:
        settings.setdefault("username", login.user)
        settings.setdefault("password", login.password)
        settings.setdefault("mechanism", cast("Mechanism", login.mechanism))
        settings.setdefault("delegation_token", login.is_token)
    _show_outages()

    async def connect_and_run() -> T:
        async with connect(native, **settings) as client:
            return await action(client)

    try:
        return anyio.run(connect_and_run, backend="trio")
    except WarmlogError as error:
        raise Failure(error.message) from error
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):  # raised in any of the client's tasks
            raise KeyboardInterrupt from group
        raise


class _Lines(logging.Handler):
    """Writes log records to standard error, as lines in the form of failures."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, which replaces a progress line."""
        start = ERASE_LINE if sys.stderr.isatty() else ""
        click.echo(f"{start}warmlog: {record.getMessage()}", err=True)


def _show_outages() -> None:
    """Print the client's log records while it waits for a broker."""
    logger = logging.getLogger("warmlog.client")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_Lines()]
