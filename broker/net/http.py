"""The HTTP listener.

`/metrics` is for Prometheus, `/healthz` and `/readyz` are for supervisors, and `/` lists them for people. Requests are
parsed by `broker.net.http_connection`, which limits each connection. `MAX_CONNECTIONS` limits their number; connections
above it are closed at once.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

if TYPE_CHECKING:
    from warmlog.broker.net.http_connection import Answer, HttpConnection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 100
STOP_S = 1  # for responses in progress
PLAIN = "text/plain; charset=utf-8"
INDEX = b"""warmlog

/metrics   Prometheus metrics
/healthz   200 while the process runs
/readyz    200 when it serves; 503 and JSON while it does not: the reason, and how far a start has come
"""


class HttpListener:
    """Serves HTTP on a bound socket until its scope is cancelled or `stop` is called."""

    def __init__(
        self,
        sock: socket.socket,
        scrape: Callable[[], tuple[str, bytes]],
        not_ready: Callable[[], Mapping[str, object] | None],
    ) -> None:
        """Serve `scrape`'s content type and body at `/metrics`.

        `not_ready` returns the body of `/readyz` while the broker is not serving, and None once it is.
        """
        self._sock = sock
        self._scrape = scrape
        self._not_ready = not_ready
        self._stop = trio.Event()
        self._connections = 0
        # Imported for the first connection, in a thread. A limiter of its own: `/healthz` waits for no other thread.
        self._connection: type[HttpConnection] | None = None
        self._importing = trio.CapacityLimiter(1)
        self._waiting: set[trio.CancelScope] = set()

    async def serve(self) -> None:
        """Serve until stopped. Closes the socket."""
        with self._sock:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._sock))
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    serve = partial(trio.serve_listeners, handler_nursery=connections)
                    accepting.start_soon(serve, self._converse, [listener])
                    await self._stop.wait()
                    accepting.cancel_scope.cancel()
                connections.cancel_scope.deadline = trio.current_time() + STOP_S
                for scope in self._waiting:
                    scope.cancel()

    def stop(self) -> None:
        """Finish the responses in progress and return from `serve`."""
        self._stop.set()

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Serve one connection. An error closes this connection and never stops the broker."""
        self._connections += 1
        try:
            async with stream:
                if self._connections > MAX_CONNECTIONS:
                    return
                if self._connection is None:
                    self._connection = await trio.to_thread.run_sync(_import_connection, limiter=self._importing)
                await self._connection(stream, self._answer, self._stop, self._waiting).serve()
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the peer has disconnected or does not read
        except Exception as error:
            logger.warning("http: a request failed: %s: %s", type(error).__name__, error)
            logger.debug("http: a request failed", exc_info=error)
        finally:
            self._connections -= 1

    async def _answer(self, method: str, path: str) -> "Answer":
        if method not in {"GET", "HEAD"}:
            return 405, PLAIN, b"only GET and HEAD\n"
        if path == "/metrics":
            # In a worker thread: formatting a thousand series takes milliseconds.
            return 200, *(await trio.to_thread.run_sync(self._scrape))
        if path == "/healthz":
            return 200, PLAIN, b"ok\n"
        if path == "/readyz":
            reason = self._not_ready()
            return (200, PLAIN, b"ready\n") if reason is None else (503, "application/json", _json(reason))
        if path == "/":
            return 200, PLAIN, INDEX
        return 404, PLAIN, b"not found; see /\n"


def _import_connection() -> "type[HttpConnection]":
    from warmlog.broker.net.http_connection import HttpConnection

    return HttpConnection


def _json(values: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(values) + b"\n"
