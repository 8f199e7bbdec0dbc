"""The HTTP listener.

`/metrics` is for Prometheus, `/healthz` and `/readyz` are for supervisors, and `/` lists them for people. Requests are
parsed with h11. Limits: `MAX_HEAD_BYTES` for a request's head, `IDLE_S` between requests, `SEND_S` for the peer to read
a response, `MAX_CONNECTIONS` for all peers; further connections are closed at once. Request bodies are not read.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial

import h11
import msgspec
import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 100
MAX_HEAD_BYTES = 16_384
IDLE_S = 60  # longer than usual scrape intervals, so that scrapers keep their connection
SEND_S = 30
LINGER_S = 1
PLAIN = "text/plain; charset=utf-8"
INDEX = b"""warmlog

/metrics   Prometheus metrics
/healthz   200 while the process runs
/readyz    200 when it serves; 503 and JSON while it does not: the reason, and how far a start has come
"""

Answer = tuple[int, str, bytes]  # status, content type, body


class HttpListener:
    """Serves HTTP on a bound socket until its scope is cancelled or `stop` is called."""

    def __init__(
        self, sock: socket.socket, registry: CollectorRegistry, not_ready: Callable[[], Mapping[str, object] | None]
    ) -> None:
        """`not_ready` returns the body of `/readyz` while the broker is not serving, and None once it is."""
        self._sock = sock
        self._registry = registry
        self._not_ready = not_ready
        self._stop = trio.Event()
        self._connections = 0
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
                connections.cancel_scope.deadline = trio.current_time() + LINGER_S
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
                connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
                try:
                    while await self._answer_next(connection, stream):
                        connection.start_next_cycle()
                except h11.RemoteProtocolError as error:
                    if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                        await _send(connection, stream, (error.error_status_hint, PLAIN, b"bad request\n"), close=True)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the peer has disconnected or does not read
        except Exception as error:
            logger.warning("http: a request failed: %s: %s", type(error).__name__, error)
            logger.debug("http: a request failed", exc_info=error)
        finally:
            self._connections -= 1

    async def _answer_next(self, connection: h11.Connection, stream: trio.SocketStream) -> bool:
        """Read a request and answer it; return False to close the connection."""
        request = await self._next_request(connection, stream)
        if request is None:
            return False
        # A request without a body is complete here. A body is not read, so its connection has to be closed.
        close = connection.next_event() is h11.NEED_DATA or connection.their_state is not h11.DONE
        answer = await self._answer(request.method.decode(), request.target.decode().partition("?")[0])
        return await _send(connection, stream, answer, head=request.method == b"HEAD", close=close)

    async def _next_request(self, connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
        """Return None if the peer closes, is silent for too long, or the listener stops."""
        with trio.move_on_after(0 if self._stop.is_set() else IDLE_S) as scope:
            self._waiting.add(scope)
            try:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some())
            finally:
                self._waiting.discard(scope)
            return event if isinstance(event, h11.Request) else None
        return None

    async def _answer(self, method: str, path: str) -> Answer:
        if method not in {"GET", "HEAD"}:
            return 405, PLAIN, b"only GET and HEAD\n"
        if path == "/metrics":
            # In a worker thread: formatting a thousand series takes milliseconds.
            return 200, CONTENT_TYPE_LATEST, await trio.to_thread.run_sync(generate_latest, self._registry)
        if path == "/healthz":
            return 200, PLAIN, b"ok\n"
        if path == "/readyz":
            reason = self._not_ready()
            return (200, PLAIN, b"ready\n") if reason is None else (503, "application/json", _json(reason))
        if path == "/":
            return 200, PLAIN, INDEX
        return 404, PLAIN, b"not found; see /\n"


async def _send(
    connection: h11.Connection, stream: trio.SocketStream, answer: Answer, *, head: bool = False, close: bool
) -> bool:
    """Send an answer and return whether another request may follow. Raises BrokenResourceError, TooSlowError."""
    status, content_type, body = answer
    headers = [("content-type", content_type), ("content-length", str(len(body)))]
    if close:
        headers.append(("connection", "close"))
    data = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    if not head:
        data += connection.send(h11.Data(data=body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    with trio.fail_after(SEND_S):
        await stream.send_all(data)
    if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
        return True
    # Closing with unread bytes in the socket resets the connection, and the peer may lose the response.
    await stream.send_eof()
    with trio.move_on_after(LINGER_S):
        async for _ in stream:
            pass
    return False


def _json(values: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(values) + b"\n"
