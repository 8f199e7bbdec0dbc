"""Keep the public keys of token issuers, which a task reads at startup and then periodically.

No request waits for it. A login with an unknown key is refused and triggers a refresh, at most once per
`sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`. Keys stay valid while the issuer cannot be reached.

Imports joserfc, so import this module only where tokens are accepted.
"""

import logging
import ssl
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import h11
import trio

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.security.tokens import KeyRing, Keys, KeysError, TokenChecker, TokenRules, read_keys
from warmlog.broker.settings.oauth import JwksSettings, OAuthSettings

MAX_BYTES: Final = 1 << 20
MAX_HEAD_BYTES: Final = 16 << 10
ATTEMPT_S: Final = 10.0
RECEIVE_BYTES: Final = 64 << 10
_FAILURES: Final = (OSError, ssl.SSLError, h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError)

logger = logging.getLogger(__name__)


class KeyKeeper:
    """Keeps the keys from one address. `run` refreshes them."""

    def __init__(self, settings: JwksSettings) -> None:
        """Read a file of keys. Raises KeysError for one that has none."""
        self._settings = settings
        self._tls = _tls_context(settings) if settings.url.startswith("https:") else None
        self._wake = trio.Event()
        self._is_wanted = False
        self._has_failed = False
        self._last: tuple[Keys, list[str]] | None = None
        self.ring = KeyRing(wanted=self._want)
        self.attempts: Counter[str] = Counter()  # number of attempts by result
        if settings.path is not None:
            self._use(*_read_file(settings.path))

    @property
    def url(self) -> str:
        """The address of the keys."""
        return self._settings.url

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Refresh the keys periodically and on request, until cancelled. Started after the first attempt."""
        settings = self._settings
        retry_s, most_s = settings.retry_ms / 1000, settings.retry_max_ms / 1000
        pause_s = retry_s
        is_read = bool(self.ring.keys) or await self._refresh()
        task_status.started()
        while True:
            if is_read:
                with trio.move_on_after(settings.refresh_ms / 1000):
                    await trio.sleep(most_s)
                    await self._wait_until_wanted()
                pause_s = retry_s
            else:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)
            is_read = await self._refresh()

    def _want(self) -> None:
        self._is_wanted = True
        self._wake.set()

    async def _wait_until_wanted(self) -> None:
        while not self._is_wanted:
            self._wake = trio.Event()
            await self._wake.wait()

    async def _refresh(self) -> bool:
        """Read the keys; return whether that succeeded."""
        self._is_wanted = False
        try:
            with trio.fail_after(ATTEMPT_S):
                self._use(*await self._read())
        except (KeysError, *_FAILURES) as error:
            self.attempts["failed"] += 1
            if not self._has_failed:
                logger.warning(
                    "cannot read the keys of tokens from %s, retrying with the last ones in use: %s",
                    self.url,
                    _reason(error),
                )
            self._has_failed = True
            return False
        if self._has_failed:
            logger.info("read the keys of tokens from %s again", self.url)
        self.attempts["ok"] += 1
        self._has_failed = False
        return True

    async def _read(self) -> tuple[Keys, list[str]]:
        """Read the keys. Raises KeysError, and errors of reading."""
        if (path := self._settings.path) is not None:
            return await trio.to_thread.run_sync(_read_file, path)
        data = await fetch(self.url, self._tls)
        return await trio.to_thread.run_sync(read_keys, data)

    def _use(self, keys: Keys, left_out: list[str]) -> None:
        if self._last is None or self._last[1] != left_out:
            for each in left_out:
                logger.warning("ignored a key of tokens from %s: %s", self.url, each)
        self._last = keys, left_out
        self.ring.keys = keys


class TokenSources:
    """The token checkers of all listeners. Listeners with the same address of keys share a keeper."""

    def __init__(self) -> None:
        self._keepers: dict[JwksSettings, KeyKeeper] = {}
        self._scope = trio.CancelScope()
        self._first = trio.Event()

    def checker(self, settings: OAuthSettings) -> TokenChecker:
        """Return the checker of a listener. Raises KeysError."""
        keeper = self._keepers.get(settings.jwks)
        if keeper is None:
            keeper = self._keepers[settings.jwks] = KeyKeeper(settings.jwks)
        rules = TokenRules(
            issuer=settings.issuer,
            audiences=settings.audiences,
            skew_s=settings.skew_s,
            name_claim=settings.name_claim,
            scope_claim=settings.scope_claim,
        )
        return TokenChecker(rules, keeper.ring)

    def declare(self, metrics: Metrics) -> None:
        """Declare the metric of attempts to read keys."""
        metrics.counter(
            "warmlog_token_key_reads_total",
            "Attempts to read the public keys that verify tokens.",
            lambda: [((each.url, result), count) for each in self._keepers.values()
                     for result, count in each.attempts.items()],
            ("url", "result"),
        )  # fmt: skip

    async def run(self) -> None:
        """Refresh all keys until `stop` is called."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                async with trio.open_nursery() as starting:
                    for keeper in self._keepers.values():
                        starting.start_soon(nursery.start, keeper.run)
                self._first.set()

    def stop(self) -> None:
        """End `run`."""
        self._scope.cancel()

    async def wait_read(self) -> None:
        """Wait for the first attempt to read each key set."""
        await self._first.wait()


async def fetch(url: str, tls: ssl.SSLContext | None) -> bytes:
    """Return the content at an http: or https: address. Raises KeysError, and one of _FAILURES."""
    address = urlsplit(url)
    tcp = await trio.open_tcp_stream(address.hostname or "", address.port or (80 if tls is None else 443))
    async with tcp:
        if tls is None:
            return await _get(tcp, address)
        stream = trio.SSLStream(tcp, tls, server_hostname=address.hostname, https_compatible=True)
        return await _get(stream, address)


async def _get(stream: "trio.SocketStream | trio.SSLStream[trio.SocketStream]", address: SplitResult) -> bytes:
    """Send a request and return the body of the response. No redirects."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    headers = [("host", address.netloc), ("accept", "application/json"), ("connection", "close")]
    data = parser.send(h11.Request(method="GET", target=target, headers=headers)) or b""
    await stream.send_all(data + (parser.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        elif isinstance(event, h11.Response) and event.status_code != 200:
            raise KeysError(f"status {event.status_code}")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BYTES:
                raise KeysError(f"more than {MAX_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise KeysError("the connection was closed before the end of the response")


def _read_file(path: str) -> tuple[Keys, list[str]]:
    """Read the keys in a file. Raises KeysError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KeysError(error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise KeysError(f"more than {MAX_BYTES} bytes")
    return read_keys(data)


def _tls_context(settings: JwksSettings) -> ssl.SSLContext:
    """Return the context that verifies an https: address. Raises KeysError."""
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:  # also ssl.SSLError
        raise KeysError(f"{settings.ca_file}: {error.strerror or error}") from None


def _reason(error: BaseException) -> str:
    """Return why keys could not be read, as one line."""
    while isinstance(cause := error.__cause__, BaseException) and not isinstance(error, KeysError | trio.TooSlowError):
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {ATTEMPT_S:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}; is its CA in warmlog.sasl.oauthbearer.ca.file?"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def token_sources(wanted: Iterable[tuple[str, OAuthSettings]]) -> tuple[TokenSources, dict[str, TokenChecker]]:
    """Return the checkers by listener name. Raises KeysError, which names the address of keys."""
    sources, by_listener = TokenSources(), {}
    for name, settings in wanted:
        try:
            by_listener[name] = sources.checker(settings)
        except KeysError as error:
            raise KeysError(f"sasl.oauthbearer.jwks.endpoint.url: {settings.jwks.url}: {error}") from None
    return sources, by_listener
