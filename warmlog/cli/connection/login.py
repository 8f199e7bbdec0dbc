"""The login options of `warmlog`, for all commands that connect to a broker."""

import os
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple

import click

from warmlog.cli.failure import CannotStart
from warmlog.protocol.oauthbearer import OAUTHBEARER, log_in_with
from warmlog.protocol.scram import MECHANISMS, PLAIN, SaslError, log_in

USER, PASSWORD, PASSWORD_FILE = "WARMLOG_USER", "WARMLOG_PASSWORD", "WARMLOG_PASSWORD_FILE"  # environment variables
MECHANISM = "WARMLOG_SASL_MECHANISM"
DELEGATION_TOKEN = "WARMLOG_DELEGATION_TOKEN"  # noqa: S105  # a name
TOKEN, TOKEN_FILE = "WARMLOG_TOKEN", "WARMLOG_TOKEN_FILE"
TOKEN_URL, TOKEN_SCOPE, TOKEN_CA = "WARMLOG_TOKEN_ENDPOINT_URL", "WARMLOG_TOKEN_SCOPE", "WARMLOG_TOKEN_CA"
CLIENT_ID, SECRET, SECRET_FILE = "WARMLOG_CLIENT_ID", "WARMLOG_CLIENT_SECRET", "WARMLOG_CLIENT_SECRET_FILE"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
_VARIABLES = {"user": USER, "password_file": PASSWORD_FILE, "mechanism": MECHANISM, "token_file": TOKEN_FILE}


class Login(NamedTuple):
    """The credentials of a command. `is_token`: `user` and `password` are id and HMAC of a delegation token."""

    user: str
    password: str
    mechanism: str
    is_token: bool = False
    token: Callable[[], str] | None = None  # with OAUTHBEARER

    def messages(self) -> Generator[bytes, bytes, None]:
        """Yield the messages of a login; send the broker's answer to each. Raises SaslError."""
        if self.token is not None:
            from warmlog.client.errors import WarmlogError  # importing the client takes 0.25 s

            try:
                return log_in_with(self.token())
            except WarmlogError as error:
                raise SaslError(error.message) from None
        return log_in(self.mechanism, self.user, self.password, token_urlsafe(), is_token=self.is_token)

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ...)"


def use_login(_context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Set a part of the login for every connection."""
    if value is not None:
        os.environ[_VARIABLES[parameter.name or ""]] = value


def use_delegation_token(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Treat the user and the password as those of a delegation token."""
    if value:
        os.environ[DELEGATION_TOKEN] = "true"


def login_from(environ: Mapping[str, str]) -> Login | None:
    """Return the login for connections, or None without a user or a token. Raises CannotStart."""
    user, file = environ.get(USER, ""), environ.get(PASSWORD_FILE, "")
    mechanism = environ.get(MECHANISM) or DEFAULT_MECHANISM
    token = _token_from(environ)
    if token is not None:
        if (environ.get(MECHANISM) or OAUTHBEARER) != OAUTHBEARER:
            raise CannotStart(f"--mechanism: {mechanism} conflicts with a token, which needs {OAUTHBEARER}")
        if user:
            raise CannotStart(f"--user: conflicts with a token ({TOKEN}, {TOKEN_FILE} or {TOKEN_URL})")
        return Login("", "", OAUTHBEARER, token=token)
    if mechanism == OAUTHBEARER:
        raise CannotStart(f"--mechanism: {OAUTHBEARER} needs --token-file, {TOKEN} or {TOKEN_URL}")
    is_token = _is_delegation_token(environ)
    if not user:
        if file or is_token:
            raise CannotStart(f"{'--password-file' if file else '--delegation-token'}: needs --user")
        return None
    password = read_password(Path(file)) if file else environ.get(PASSWORD, "")
    if not password:
        raise CannotStart(f"--user: needs --password-file, or {PASSWORD} in the environment")
    if is_token and mechanism not in MECHANISMS:
        raise CannotStart(f"--delegation-token: needs one of {', '.join(MECHANISMS)}, not {mechanism}")
    if mechanism not in {*MECHANISMS, PLAIN}:
        known = ", ".join((*MECHANISMS, PLAIN, OAUTHBEARER))
        raise CannotStart(f"--mechanism: expected one of {known}, not {mechanism}")
    return Login(user, password, mechanism, is_token=is_token)


def _is_delegation_token(environ: Mapping[str, str]) -> bool:
    """Return whether the user and the password are those of a delegation token. Raises CannotStart."""
    text = environ.get(DELEGATION_TOKEN) or "false"
    value = {"true": True, "false": False}.get(text.lower())
    if value is None:
        raise CannotStart(f"{DELEGATION_TOKEN}: expected true or false, not {text!r}")
    return value


def _token_from(environ: Mapping[str, str]) -> Callable[[], str] | None:
    """Return the source of tokens, or None if no token is used. Raises CannotStart."""
    token, file, url = environ.get(TOKEN, ""), environ.get(TOKEN_FILE, ""), environ.get(TOKEN_URL, "")
    client_id, secret_file = environ.get(CLIENT_ID, ""), environ.get(SECRET_FILE, "")
    if sum(map(bool, (token, file, url))) > 1:
        raise CannotStart(f"give one of {TOKEN}, {TOKEN_FILE} and {TOKEN_URL}")
    if not url:
        if client_id or secret_file:
            raise CannotStart(f"{CLIENT_ID if client_id else SECRET_FILE}: needs {TOKEN_URL}")
        if token:
            return lambda: token
        if not file:
            return None
    if file:
        from warmlog.client.tokens import TokenFile  # importing the client takes 0.25 s

        return TokenFile(file)
    secret = read_password(Path(secret_file)) if secret_file else environ.get(SECRET, "")
    if not client_id or not secret:
        raise CannotStart(f"{TOKEN_URL}: needs {CLIENT_ID}, and {SECRET_FILE} or {SECRET}")
    try:
        return _credentials(url, client_id, secret, environ.get(TOKEN_SCOPE, ""), environ.get(TOKEN_CA, ""))
    except (ValueError, OSError) as error:
        raise CannotStart(f"{TOKEN_URL}: {error}") from None


@cache
def _credentials(url: str, client_id: str, secret: str, scope: str, ca_file: str) -> Callable[[], str]:
    """Return a token source for client credentials; the connections of a command share one."""
    from warmlog.client.tokens import ClientCredentials

    return ClientCredentials(url, client_id, secret, scope=scope, ca_file=ca_file or None)


def read_password(path: Path) -> str:
    """Return the first line of a file; reject a file that everyone may read. Raises CannotStart."""
    from warmlog.client.files import ClientFileError  # imports ssl
    from warmlog.client.files import read_password as read

    try:
        return read(path)
    except ClientFileError as error:
        raise CannotStart(str(error)) from None
