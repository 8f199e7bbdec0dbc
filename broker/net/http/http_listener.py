"""The HTTP listener.

`/metrics` is for Prometheus, `/healthz` and `/readyz` are for supervisors, and `/` lists them for people; the console
(`broker.console`) answers `/ui` and `/api/v1`. `http_connection` parses requests and limits each connection.

Bounds that keep a client from blocking others:

- Beyond `MAX_CONNECTIONS`, the longest idle connection of the address with the most connections is closed.
- All connections together get at most one answer per `ANSWER_PAUSE_S`, in turn: a fifth of the event loop's time.
- Answers being sent may hold `MAX_UNSENT_BYTES` together. To make space for another answer, the connection with the
  oldest answer of the address with the most bytes is closed.
- One scrape runs at a time and serves all waiting clients; then none runs for `REST` times as long as it took.
- TLS handshakes, a millisecond of the event loop each, begin at most once per `HANDSHAKE_PAUSE_S`, addresses in turn,
  and may take `HANDSHAKE_S`. Beyond `MAX_CONNECTIONS`, the oldest one of the address with the most is ended.
- `access` checks passwords and tokens, in a worker thread, addresses in turn.
"""

import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import trio

from warmlog.broker.api.fair_queue import FairQueue
from warmlog.broker.net.http.access import Caller, HttpAccess, Refused
from warmlog.broker.net.transport.certificates import ServerTls
from warmlog.broker.security.distinguished_names import CertificateError
from warmlog.broker.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from warmlog.broker.net.http.http_connection import Answer, HttpConnection, Request

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 100
MAX_UNSENT_BYTES = 64 << 20
ANSWER_PAUSE_S = 0.001
HANDSHAKE_PAUSE_S = 0.005
HANDSHAKE_S = 10
REST = 9
STOP_S = 1  # to finish responses when the listener stops
PLAIN = "text/plain; charset=utf-8"
INDEX = b"""warmlog

/metrics   Prometheus metrics
/healthz   200 while the process runs
/readyz    200 when it serves; 503 and JSON while it does not: the reason, and how far a start has come
/ui        the console, a page for browsers; its data is at /api/v1
"""
UI, API = "/ui", "/api/v1"


class Console(Protocol):
    """Answers requests for paths below `/ui` and `/api/v1`."""

    async def answer(self, connection: "HttpConnection", request: "Request", caller: "Identified") -> "Answer":
        """Answer a request."""


class Identified(NamedTuple):
    """A caller's principal and address, and the address called. `principal` is None without authentication."""

    principal: Principal | None
    peer: tuple[str, int]
    local: tuple[str, int]


class HttpListener:
    """Serves HTTP on a bound socket until its scope is cancelled or `stop` is called."""

    def __init__(
        self,
        sock: socket.socket,
        scrape: Callable[[], tuple[str, bytes]],
        not_ready: Callable[[], Mapping[str, object] | None],
        tls: ServerTls | None = None,
        access: HttpAccess | None = None,
    ) -> None:
        """Serve `scrape`'s content type and body at `/metrics` to callers that `access` admits, over `tls` if given.

        `not_ready` returns the body of `/readyz` while the broker is not serving, and None once it is.
        """
        # Set once the broker serves, unless warmlog.ui is false. Called for the first request, in a thread: it imports.
        self.open_console: Callable[[], Callable[[], Console]] | None = None
        self._console: Console | None = None
        self._tls = tls
        self._access = access
        self._handshakes = FairQueue(1)
        self._shaking: dict[trio.CancelScope, str] = {}  # handshakes in progress, with addresses of peers
        self._sock = sock
        self._scrapes = _Scrapes(scrape)
        self._not_ready = not_ready
        self._stop = trio.Event()
        self._connections: dict[HttpConnection, Caller] = {}
        self._answers = FairQueue(1)
        # Imported for the first connection, in a thread with its own limiter: `/healthz` waits for no other thread.
        self._connection: type[HttpConnection] | None = None
        self._importing = trio.CapacityLimiter(1)

    async def serve(self) -> None:
        """Serve until stopped. Closes the socket."""
        with self._sock:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._sock))
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    if self._tls is not None:
                        accepting.start_soon(self._tls.run)
                    serve = partial(trio.serve_listeners, handler_nursery=connections)
                    accepting.start_soon(serve, self._converse, [listener])
                    await self._stop.wait()
                    accepting.cancel_scope.cancel()
                connections.cancel_scope.deadline = trio.current_time() + STOP_S
                for connection in list(self._connections):
                    connection.stop()

    def stop(self) -> None:
        """Finish the responses in progress and return from `serve`."""
        self._stop.set()

    async def _converse(self, socket_stream: trio.SocketStream) -> None:
        """Serve one connection. An error closes the connection and never stops the broker."""
        peer = "unknown peer", 0
        try:
            async with socket_stream:
                if self._connection is None:
                    self._connection = await trio.to_thread.run_sync(_import_connection, limiter=self._importing)
                peer = socket_stream.socket.getpeername()[:2]
                stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = socket_stream
                certified = ANONYMOUS
                if self._tls is not None:
                    encrypted = await self._shake_hands(socket_stream, self._tls, peer[0])
                    certified = self._tls.principals.principal_of(encrypted.getpeercert(binary_form=True))
                    stream = encrypted
                if len(self._connections) >= MAX_CONNECTIONS:
                    self._close_idle()
                connection = self._connection(stream, self._answer)
                self._connections[connection] = Caller(peer, certified, "")
                try:
                    if not self._stop.is_set():
                        await connection.serve()
                finally:
                    del self._connections[connection]
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, CertificateError):
            pass  # the peer has disconnected, does not read, or has a certificate that no rule maps
        except Exception as error:
            logger.warning(
                "http: %s: unexpected error, connection closed: %s: %s", peer[0], type(error).__name__, error
            )
            logger.debug("http: %s: unexpected error", peer[0], exc_info=error)

    async def _shake_hands(
        self, stream: trio.SocketStream, tls: ServerTls, address: str
    ) -> "trio.SSLStream[trio.SocketStream]":
        """Perform the TLS handshake. Raises BrokenResourceError, TooSlowError."""
        if len(self._shaking) >= MAX_CONNECTIONS:
            self._abandon_oldest()
        scope = trio.CancelScope()
        self._shaking[scope] = address
        try:
            with scope:
                async with self._handshakes.slot(address):
                    await trio.sleep(HANDSHAKE_PAUSE_S)
                encrypted = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
                with trio.fail_after(HANDSHAKE_S):
                    await encrypted.do_handshake()
                return encrypted
        finally:
            self._shaking.pop(scope, None)
        raise trio.BrokenResourceError("abandoned in favour of others")

    def _abandon_oldest(self) -> None:
        """End the oldest handshake of the address with the most."""
        (address, _), *_ = Counter(self._shaking.values()).most_common(1)
        scope = next(each for each, peer in self._shaking.items() if peer == address)
        del self._shaking[scope]
        scope.cancel()

    def _close_idle(self) -> None:
        """Close the longest idle connection of the address with the most connections."""
        counts = Counter([caller.peer[0] for caller in self._connections.values()])
        (address, _), *_ = counts.most_common(1)
        candidates = [connection for connection, caller in self._connections.items() if caller.peer[0] == address]
        min(candidates, key=_waits_since).close()

    async def _answer(self, connection: "HttpConnection", request: "Request") -> "Answer":
        caller = self._connections[connection]._replace(authorization=request.authorization)
        answer = await self._find(connection, request, caller)
        self._close_slow(connection, len(answer.body))
        async with self._answers.slot(connection):
            await trio.sleep(ANSWER_PAUSE_S)
        return answer

    def _close_slow(self, connection: "HttpConnection", size: int) -> None:
        """Close connections with slow readers until there is memory for an answer of `size` bytes."""
        while sum([each.unsent_bytes for each in self._connections]) + size > MAX_UNSENT_BYTES:
            unsent = Counter[str]()
            for each, caller in self._connections.items():
                unsent[caller.peer[0]] += each.unsent_bytes
            (address, most), *_ = unsent.most_common(1)
            if not most:
                break  # this answer alone exceeds the limit
            candidates = [
                each for each, caller in self._connections.items() if caller.peer[0] == address and each.unsent_bytes
            ]
            slowest = min(candidates, key=_sends_since)
            slowest.unsent_bytes = 0
            slowest.close()
        connection.unsent_bytes, connection.sends_since = size, trio.current_time()

    async def _find(self, connection: "HttpConnection", request: "Request", caller: Caller) -> "Answer":
        from warmlog.broker.net.http.http_connection import Answer  # already imported for the first connection

        if _is_below(UI, request.path) or _is_below(API, request.path):
            return await self._ask_console(connection, request, caller)
        if request.method not in {"GET", "HEAD"}:
            return Answer(405, PLAIN, b"only GET and HEAD\n")
        if self._access is not None:
            refused = await self._access.refusal(request.path, caller)
            if refused is not None:
                return Answer(refused.status, PLAIN, refused.text, refused.headers)
        if request.path == "/metrics":
            return Answer(200, *(await self._scrapes.latest()))
        return Answer(*self._page(request.path))

    async def _ask_console(self, connection: "HttpConnection", request: "Request", caller: Caller) -> "Answer":
        from warmlog.broker.net.http.http_connection import Answer

        principal = None
        if self._access is not None:
            caller_principal = await self._access.identify(caller)
            if isinstance(caller_principal, Refused):
                problem = {"error": "UNAUTHORIZED", "message": caller_principal.text.decode().strip()}
                return Answer(caller_principal.status, "application/json", _json(problem), caller_principal.headers)
            principal = caller_principal
        if self.open_console is None:
            reason = self._not_ready()
            if reason is None:
                problem = {"error": "NOT_FOUND", "message": "the console is off: warmlog.ui is false"}
                return Answer(404, "application/json", _json(problem))
            return Answer(503, "application/json", _json(reason), [("retry-after", "1")])
        local = self._sock.getsockname()[:2]
        if self._console is None:
            make = await trio.to_thread.run_sync(self.open_console, limiter=self._importing)
            self._console = self._console or make()
        return await self._console.answer(connection, request, Identified(principal, caller.peer, local))

    def _page(self, path: str) -> tuple[int, str, bytes]:
        if path == "/healthz":
            return 200, PLAIN, b"ok\n"
        if path == "/readyz":
            reason = self._not_ready()
            return (200, PLAIN, b"ready\n") if reason is None else (503, "application/json", _json(reason))
        if path == "/":
            return 200, PLAIN, INDEX
        return 404, PLAIN, b"not found; see /\n"


class _Scrapes:
    """Runs scrapes in a worker thread, since formatting a thousand series takes milliseconds."""

    def __init__(self, scrape: Callable[[], tuple[str, bytes]]) -> None:
        self._scrape = scrape
        self._lock = trio.Lock()
        self._begun_at = self._may_begin_at = -math.inf
        self._latest = ("", b"")

    async def latest(self) -> tuple[str, bytes]:
        """Return the content type and body of a scrape that begins after this call."""
        called_at = trio.current_time()
        async with self._lock:
            if self._begun_at <= called_at:
                await trio.sleep_until(self._may_begin_at)
                self._begun_at = trio.current_time()
                self._latest = await trio.to_thread.run_sync(self._scrape)
                ended_at = trio.current_time()
                self._may_begin_at = ended_at + REST * (ended_at - self._begun_at)
            return self._latest


def _is_below(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _waits_since(connection: "HttpConnection") -> float:
    return connection.waits_since


def _sends_since(connection: "HttpConnection") -> float:
    return connection.sends_since


def _import_connection() -> "type[HttpConnection]":
    from warmlog.broker.net.http.http_connection import HttpConnection

    return HttpConnection


def _json(values: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(values) + b"\n"
