"""A user of etcd: its password, and the tokens that calls carry instead.

A member of etcd drops a token that was not used for five minutes (`--auth-token-ttl`), and all of them when it
restarts. It checks the token before it does anything, so any refused call may be repeated with a new token, a
transaction as well. A token is used at the endpoint that issued it: another member may not know it yet.
"""

from dataclasses import dataclass, field
from pathlib import Path

import trio

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint

PASSWORD_FILE = "warmlog.cluster.etcd.password.file"  # noqa: S105  # a setting's name


class EtcdPasswordFileError(Exception):
    """The password cannot be read. `str()` is one line that names the setting."""


@dataclass(slots=True)
class EndpointToken:
    """The token for one endpoint: None before the first request for one, empty if etcd has authentication disabled."""

    token: str | None = None
    renewing: trio.Lock = field(default_factory=trio.Lock)


class Account:
    """A user, and its sessions."""

    def __init__(self, user: str, password_file: str) -> None:
        """Check that the password can be read. Raises EtcdPasswordFileError."""
        self.user = user
        self._password_file = password_file
        self._sessions: dict[EtcdEndpoint, EndpointToken] = {}
        self._password()

    def session(self, endpoint: EtcdEndpoint) -> EndpointToken:
        """Return the session at an endpoint."""
        return self._sessions.setdefault(endpoint, EndpointToken())

    async def request(self) -> gateway.AuthenticateRequest:
        """Return the request for a token; the password file is read each time. Raises EtcdPasswordFileError."""
        return gateway.AuthenticateRequest(self.user, await trio.to_thread.run_sync(self._password))

    def _password(self) -> str:
        path = self._password_file
        try:
            password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise EtcdPasswordFileError(f"{PASSWORD_FILE}: {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise EtcdPasswordFileError(f"{PASSWORD_FILE}: {path} is not text in UTF-8") from None
        if not password:
            raise EtcdPasswordFileError(f"{PASSWORD_FILE}: {path} is empty")
        return password
