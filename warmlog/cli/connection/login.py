"""The login of commands that talk to a broker: the options of `warmlog` itself, and what they mean."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from warmlog.cli.failure import CannotStart
from warmlog.protocol.scram import MECHANISMS, PLAIN

USER, PASSWORD, PASSWORD_FILE = "WARMLOG_USER", "WARMLOG_PASSWORD", "WARMLOG_PASSWORD_FILE"  # names
MECHANISM = "WARMLOG_SASL_MECHANISM"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
_VARIABLES = {"user": USER, "password_file": PASSWORD_FILE, "mechanism": MECHANISM}


class Login(NamedTuple):
    """Who a command is, and how it says so."""

    user: str
    password: str
    mechanism: str

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ...)"


def use_login(_context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Make a part of the login what every connection uses."""
    if value is not None:
        os.environ[_VARIABLES[parameter.name or ""]] = value


def login_from(environ: Mapping[str, str]) -> Login | None:
    """Return the login for connections, None without a user. Raises CannotStart."""
    user, file = environ.get(USER, ""), environ.get(PASSWORD_FILE, "")
    if not user:
        if file:
            raise CannotStart("--password-file: needs --user")
        return None
    password = read_password(Path(file)) if file else environ.get(PASSWORD, "")
    if not password:
        raise CannotStart(f"--user: needs --password-file, or {PASSWORD} in the environment")
    mechanism = environ.get(MECHANISM) or DEFAULT_MECHANISM
    if mechanism not in {*MECHANISMS, PLAIN}:
        raise CannotStart(f"--mechanism: expected one of {', '.join((*MECHANISMS, PLAIN))}, not {mechanism}")
    return Login(user, password, mechanism)


def read_password(path: Path) -> str:
    """Return the first line of a file that not everyone may read. Raises CannotStart."""
    from warmlog.client.files import ClientFileError  # imports ssl
    from warmlog.client.files import read_password as read

    try:
        return read(path)
    except ClientFileError as error:
        raise CannotStart(str(error)) from None
