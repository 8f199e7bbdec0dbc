"""The HTTP listener.

`/metrics` for Prometheus, `/healthz` and `/readyz` for whoever watches the process, `/` for people.

Served by hypercorn; this module owns the four answers, and the boundary: a request that breaks the server ends the HTTP
connections of that moment, never the broker.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

logger = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Scope = dict[str, Any]

INDEX = """warmlog

/metrics   Prometheus metrics
/healthz   200 while the process runs
/readyz    200 when it serves; 503 and JSON while it does not: the reason, and how far a start has come
"""


class HttpListener:
    """Serves HTTP on a bound socket until its scope is cancelled or `stop` is called."""

    def __init__(
        self, sock: socket.socket, registry: CollectorRegistry, not_ready: Callable[[], Mapping[str, object] | None]
    ) -> None:
        """`not_ready` gives what `/readyz` says while nothing is served, None once it is."""
        self._sock = sock
        self._registry = registry
        self._not_ready = not_ready
        self._stop = trio.Event()

    async def serve(self) -> None:
        """Serve until stopped. Closes the socket."""
        with self._sock:
            while not self._stop.is_set():
                try:
                    await self._serve_once()
                except Exception as error:  # a malformed h2c upgrade is enough to break hypercorn
                    logger.warning("http: the server broke and is started again: %s", _innermost(error))
                    logger.debug("http: how it broke", exc_info=error)

    async def _serve_once(self) -> None:
        config = Config()
        config.bind = [f"fd://{self._sock.dup().detach()}"]  # hypercorn owns and closes this one
        config.graceful_timeout = 1.0
        config.errorlog = logging.getLogger("broker.net.http.server")
        config.errorlog.setLevel(logging.WARNING)  # it announces each start; the broker's own ready line does
        app: Any = self._app  # its own scope types are narrower than what ASGI says
        await hypercorn_serve(app, config, shutdown_trigger=self._stop.wait, mode="asgi")

    def stop(self) -> None:
        """Finish what is being answered and return from `serve`."""
        self._stop.set()

    async def _app(self, scope: Scope, receive: Callable[[], Awaitable[Scope]], send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            status, content_type, body = await self._answer(scope["method"], scope["path"])
            headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """(status, content type, body)."""
        plain = "text/plain; charset=utf-8"
        if method not in {"GET", "HEAD"}:
            return 405, plain, b"only GET and HEAD\n"
        if path == "/metrics":
            # In a worker: a thousand series take milliseconds to write down.
            return 200, CONTENT_TYPE_LATEST, await trio.to_thread.run_sync(generate_latest, self._registry)
        if path == "/healthz":
            return 200, plain, b"ok\n"
        if path == "/readyz":
            reason = self._not_ready()
            return (200, plain, b"ready\n") if reason is None else (503, "application/json", _json(reason))
        if path == "/":
            return 200, plain, INDEX.encode()
        return 404, plain, b"not found; see /\n"


def _json(values: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(values) + b"\n"


def _innermost(error: BaseException) -> str:
    """The kind and words of the first exception inside groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def _lifespan(receive: Callable[[], Awaitable[Scope]], send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
