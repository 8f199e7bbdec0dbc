"""The HTTP listener.

`/metrics` for Prometheus, `/healthz` and `/readyz` for whoever watches the process, `/` for people.

Served by hypercorn; this module owns the four answers only.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Send = Callable[[dict[str, Any]], Awaitable[None]]
Scope = dict[str, Any]

INDEX = """warmlog

/metrics   Prometheus metrics
/healthz   200 while the process runs
/readyz    200 when it serves; 503 with the reason while it does not
"""


class HttpListener:
    """Serves HTTP on a bound socket until its scope is cancelled or `stop` is called."""

    def __init__(self, sock: socket.socket, registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> None:
        self._sock = sock
        self._registry = registry
        self._not_ready = not_ready
        self._stop = trio.Event()

    async def serve(self) -> None:
        """Serve until stopped."""
        config = Config()
        config.bind = [f"fd://{self._sock.detach()}"]  # hypercorn owns and closes it from here on
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
            return (200, plain, b"ready\n") if reason is None else (503, plain, f"{reason}\n".encode())
        if path == "/":
            return 200, plain, INDEX.encode()
        return 404, plain, b"not found; see /\n"


async def _lifespan(receive: Callable[[], Awaitable[Scope]], send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
