"""Sources of access tokens: a file, or an identity provider that issues them for a client's credentials.

Each is a function without arguments that returns a token, called in a worker thread for each login.
"""

import base64
import json
import ssl
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from warmlog.client.errors import ConnectError

MAX_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 10.0
KEEP: Final = 0.5  # fraction of a token's lifetime for which it is reused; a login with it is still valid for the rest


class TokenFile:
    """Reads the token from a file for each login."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def __call__(self) -> str:
        """Return the token. Raises ConnectError."""
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            raise ConnectError(f"{self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConnectError(f"{self._path}: not UTF-8") from None
        if not token:
            raise ConnectError(f"{self._path}: is empty; it must contain a token")
        return token


class ClientCredentials:
    """Gets tokens from an identity provider for a client's id and secret (OAuth 2.0, RFC 6749, section 4.4).

    `token_endpoint_url`: the provider's token endpoint. `ca_file`: PEM file with its CAs, by default the system's.
    """

    def __init__(
        self, token_endpoint_url: str, client_id: str, client_secret: str, *, scope: str = "",
        ca_file: Path | str | None = None,
    ) -> None:  # fmt: skip
        """Store the parameters; fetch no token yet. Raises ValueError for an invalid URL, OSError for the CA file."""
        if urlsplit(token_endpoint_url).scheme not in {"http", "https"} or "@" in token_endpoint_url:
            raise ValueError("token_endpoint_url must be https://HOST/PATH or http://HOST/PATH, without a user")
        self._url = token_endpoint_url
        self._authorization = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self._form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        is_tls = urlsplit(token_endpoint_url).scheme == "https"
        self._tls = ssl.create_default_context(cafile=ca_file) if is_tls else None
        self._lock = Lock()
        self._token = ""
        self._until = 0.0  # time on the monotonic clock

    def __call__(self) -> str:
        """Return a token, which several logins may share. Raises ConnectError."""
        with self._lock:
            if monotonic() >= self._until:
                began_at = monotonic()
                self._token, lifetime_s = self._fetch()
                self._until = began_at + lifetime_s * KEEP
            return self._token

    def _fetch(self) -> tuple[str, float]:
        """Return a token and its lifetime in seconds, 0 if unknown. Raises ConnectError."""
        from http.client import HTTPException  # takes 20 ms together with urllib.request; rarely needed
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        headers = {"Authorization": f"Basic {self._authorization}", "Accept": "application/json"}
        request = Request(self._url, urlencode(self._form).encode(), headers)  # noqa: S310  # checked above
        try:
            with urlopen(request, timeout=TIMEOUT_S, context=self._tls) as response:  # noqa: S310
                form: Any = json.loads(response.read(MAX_BYTES))
            token, lifetime_s = form["access_token"], float(form.get("expires_in", 0))
        except HTTPError as error:
            error.close()
            raise ConnectError(f"no token from {self._url}: status {error.code}") from None
        except (OSError, HTTPException) as error:
            raise ConnectError(f"no token from {self._url}: {error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConnectError(f"no token from {self._url}: the response is not JSON with an access_token") from None
        if not isinstance(token, str):
            raise ConnectError(f"no token from {self._url}: the access_token is not a text")
        return token, lifetime_s

    def __repr__(self) -> str:
        return f"ClientCredentials({self._url!r}, ...)"
