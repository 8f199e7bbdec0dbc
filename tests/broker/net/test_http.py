"""HTTP on a real socket: the four answers, and requests that break the server but not the broker."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from prometheus_client import CollectorRegistry

from broker.net.http import HttpListener
from broker.net.listener import bind

# Its settings are no base64: hypercorn raises out of its own server.
BROKEN_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAA\r\n\r\n"
)


class Web:
    """A listener that serves, and what it says of its readiness."""

    def __init__(self, sock: socket.socket) -> None:
        self.not_ready: dict[str, object] | None = None
        self.port = sock.getsockname()[1]
        self.listener = HttpListener(sock, CollectorRegistry(), lambda: self.not_ready)

    async def send(self, request: bytes) -> bytes:
        """Everything that comes back until the server closes."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(request)
            return b"".join([data async for data in stream])

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        answer = await self.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@asynccontextmanager
async def web() -> AsyncIterator[Web]:
    made = Web(bind(("127.0.0.1", 0), 16))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.listener.serve)
        yield made
        made.listener.stop()


async def test_readiness_says_the_reason_and_health_does_not_depend_on_it() -> None:
    async with web() as site:
        assert await site.get("/readyz") == (200, b"ready\n")
        site.not_ready = {"status": "starting", "logs": 7}
        assert await site.get("/readyz") == (503, b'{"status":"starting","logs":7}\n')
        assert await site.get("/healthz") == (200, b"ok\n")


async def test_the_root_lists_the_endpoints_and_head_has_no_body() -> None:
    async with web() as site:
        status, body = await site.get("/")
        assert status == 200
        assert all(path in body for path in (b"/metrics", b"/healthz", b"/readyz"))
        assert await site.get("/", "HEAD") == (200, b"")
        assert (await site.get("/nowhere"))[0] == 404
        assert (await site.get("/metrics", "POST"))[0] == 405


async def test_a_request_that_breaks_the_server_leaves_it_serving(caplog: pytest.LogCaptureFixture) -> None:
    async with web() as site:
        for _ in range(3):
            await site.send(BROKEN_UPGRADE)
            assert await site.get("/healthz") == (200, b"ok\n")
    assert "started again" in caplog.text
    assert "Traceback" not in caplog.text


async def test_the_port_is_free_after_stopping() -> None:
    async with web() as site:
        await site.get("/healthz")
    bind(("127.0.0.1", site.port), 16).close()
