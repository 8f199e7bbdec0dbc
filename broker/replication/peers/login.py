"""Log in to another broker: of the same cluster, or of the source of a mirror."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from stat import S_IMODE, S_IROTH
from typing import Any

import trio

from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.messages.security.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.oauthbearer import OAUTHBEARER, log_in_with
from warmlog.protocol.scram import SaslError, log_in

_HANDSHAKE: PeerApi[SaslHandshakeRequest, SaslHandshakeResponse] = PeerApi(API_BY_KEY[17], 1, 1)
_AUTHENTICATE: PeerApi[SaslAuthenticateRequest, SaslAuthenticateResponse] = PeerApi(API_BY_KEY[36], 0, 2)

Ask = Callable[[PeerApi[Any, Any], Any], Awaitable[Any]]


class PeerPasswordFileError(Exception):
    """The password cannot be read. `str()` is one line that names the setting."""


@dataclass(frozen=True, slots=True)
class PeerLogin:
    """A user with a password, or an access token for OAUTHBEARER, in the first line of a file.

    The file is read for each connection, so that another password or token needs no restart. `user` is empty with a
    token. `setting`: the name of the file's setting, for messages.
    """

    user: str
    password_file: str
    mechanism: str
    setting: str

    def password(self) -> str:
        """Read the password or token. Raises PeerPasswordFileError."""
        path = Path(self.password_file)
        try:
            if self.mechanism != OAUTHBEARER and S_IMODE(path.stat().st_mode) & S_IROTH:  # a token expires soon
                raise PeerPasswordFileError(
                    f"{self.setting}: every user of this machine may read {path}: chmod 600 {path}"
                )
            password = path.read_text(encoding="utf-8").partition("\n")[0]
        except OSError as error:
            raise PeerPasswordFileError(f"{self.setting}: {self.password_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise PeerPasswordFileError(f"{self.setting}: {self.password_file} is not text in UTF-8") from None
        if not password:
            raise PeerPasswordFileError(f"{self.setting}: {self.password_file} is empty")
        return password

    async def run(self, ask: Ask, address: str) -> None:
        """Log in on a connection. Raises PeerUnavailableError, since a user or a password may be corrected later."""
        begun: SaslHandshakeResponse = await ask(_HANDSHAKE, SaslHandshakeRequest(mechanism=self.mechanism))
        if begun.error is not ErrorCode.NONE:
            raise PeerUnavailableError(f"{address}: login with {self.mechanism}: {begun.error.name}")
        try:
            password = await trio.to_thread.run_sync(self.password)
            if self.mechanism == OAUTHBEARER:
                tokens = log_in_with(password)
            else:
                tokens = log_in(self.mechanism, self.user, password, token_urlsafe())
            token: bytes | None = next(tokens)
            while token is not None:
                answer: SaslAuthenticateResponse = await ask(_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=token))
                if answer.error is not ErrorCode.NONE:
                    raise PeerUnavailableError(f"{address}: {answer.message}")
                token = await trio.to_thread.run_sync(_next, tokens.send, bytes(answer.auth_bytes))
        except (SaslError, PeerPasswordFileError) as error:
            raise PeerUnavailableError(f"{address}: {error}") from None


def _next(send: Callable[[bytes], bytes], answer: bytes) -> bytes | None:
    """Return the next token, None after the last one; StopIteration cannot be raised out of a thread."""
    try:
        return send(answer)
    except StopIteration:
        return None
