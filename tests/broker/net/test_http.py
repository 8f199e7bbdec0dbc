"""HTTP on a real socket: the four answers, and peers that misbehave."""

import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from warmlog.broker.net.http import http_connection, http_listener
from warmlog.broker.net.http.http_listener import HttpListener
from warmlog.broker.net.transport.listening_sockets import bind

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n"
)


class Web:
    """A listener that serves, and what it says of its readiness."""

    def __init__(self, sock: socket.socket, scrape: Callable[[], tuple[str, bytes]]) -> None:
        self.not_ready: dict[str, object] | None = None
        self.port = sock.getsockname()[1]
        self.listener = HttpListener(sock, scrape, lambda: self.not_ready)

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
async def web(scrape: Callable[[], tuple[str, bytes]] = lambda: ("text/plain", b"up 1\n")) -> AsyncIterator[Web]:
    made = Web(bind(("127.0.0.1", 0), 16), scrape)
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


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000, 405),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", 405),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (UPGRADE, 200),
    ],
    ids=["tls", "no host", "long head", "body", "broken body", "waits for leave", "connect", "upgrade"],
)
async def test_an_odd_request_is_answered_and_its_connection_closed(
    request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with web() as site:
        answer = await site.send(request_)
        assert int(answer.split()[1]) == status
        assert await site.get("/healthz") == (200, b"ok\n")
    assert caplog.text == ""


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with web() as site:
        answers = await site.send(REQUEST + REQUEST + LAST)
        assert answers.count(b"HTTP/1.1 200") == 3
        assert answers.endswith(b"ok\n")


async def test_a_request_that_comes_byte_by_byte_is_answered() -> None:
    async with web() as site, await trio.open_tcp_stream("127.0.0.1", site.port) as stream:
        for number in range(len(LAST)):
            await stream.send_all(LAST[number : number + 1])
        assert b"".join([data async for data in stream]).endswith(b"ok\n")


async def test_peers_that_reset_or_close_in_the_middle_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async with web() as site:
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", site.port)
            await stream.send_all(REQUEST[:20])
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()
        assert await site.get("/healthz") == (200, b"ok\n")
    assert caplog.text == ""


@pytest.mark.parametrize(("limit", "sent"), [("HEAD_S", b""), ("HEAD_S", REQUEST[:20]), ("IDLE_S", REQUEST)])
async def test_a_silent_peer_is_closed(monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes) -> None:
    monkeypatch.setattr(http_connection, limit, 0.01)
    async with web() as site:
        assert (await site.send(sent)).endswith(b"ok\n" if sent == REQUEST else b"")


async def test_a_head_that_drips_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.05)
    async with web() as site, await trio.open_tcp_stream("127.0.0.1", site.port) as stream:
        with trio.fail_after(10), pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"a")


async def test_a_connection_past_the_bound_takes_the_place_of_the_one_that_waits_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_listener, "MAX_CONNECTIONS", 3)
    async with web() as site, AsyncExitStack() as stack:
        streams = []
        for _ in range(3):
            streams.append(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", site.port)))
            await streams[-1].send_all(REQUEST)
            assert b"ok" in await streams[-1].receive_some()
        await streams[0].send_all(REQUEST)
        assert b"ok" in await streams[0].receive_some()
        assert await site.get("/healthz") == (200, b"ok\n")
        assert await streams[1].receive_some() == b""
        for stream in (streams[0], streams[2]):
            await stream.send_all(LAST)
            assert b"ok" in await stream.receive_some()


async def test_of_two_addresses_the_one_with_more_connections_loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_CONNECTIONS", 3)
    async with web() as site, AsyncExitStack() as stack:
        streams = []
        for source in ("127.0.0.9", "127.0.0.1", "127.0.0.1"):
            stream = await trio.open_tcp_stream("127.0.0.1", site.port, local_address=source)
            streams.append(await stack.enter_async_context(stream))
            await stream.send_all(REQUEST)
            assert b"ok" in await stream.receive_some()
        assert await site.get("/healthz") == (200, b"ok\n")
        assert await streams[1].receive_some() == b""
        await streams[0].send_all(LAST)
        assert b"ok" in await streams[0].receive_some()


async def test_an_answer_that_is_not_read_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 20_000_000
    monkeypatch.setattr(http_listener, "MAX_UNSENT_BYTES", 30_000_000)
    async with web(lambda: ("text/plain", bytes(size))) as site:
        slow = await trio.open_tcp_stream("127.0.0.1", site.port)
        async with slow:
            await slow.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            while not any(each.unsent_bytes for each in site.listener._connections):
                await trio.lowlevel.checkpoint()
            assert await site.get("/metrics") == (200, bytes(size))
            assert sum([len(data) async for data in slow]) < size
        assert await site.get("/healthz") == (200, b"ok\n")


async def test_scrapes_that_come_together_are_one() -> None:
    scrapes = 0
    begun, may_end = threading.Event(), threading.Event()

    def scrape() -> tuple[str, bytes]:
        nonlocal scrapes
        scrapes += 1
        begun.set()
        may_end.wait()
        return "text/plain", b"%d\n" % scrapes

    async with web(scrape) as site:
        answers: list[tuple[int, bytes]] = []

        async def get() -> None:
            answers.append(await site.get("/metrics"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            await trio.to_thread.run_sync(begun.wait)
            for _ in range(20):
                nursery.start_soon(get)
            await site.get("/healthz")
            may_end.set()
        assert len(answers) == 21
        assert answers.count((200, b"1\n")) == 1, "whoever asks later sees what came later"
        assert scrapes < 10


async def test_stopping_does_not_wait_for_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "STOP_S", 1000)
    async with AsyncExitStack() as idle, web() as site:
        for _ in range(3):
            stream = await idle.enter_async_context(await trio.open_tcp_stream("127.0.0.1", site.port))
            await stream.send_all(REQUEST)
            assert b"ok" in await stream.receive_some()


async def test_the_port_is_free_after_stopping() -> None:
    async with web() as site:
        await site.get("/healthz")
    bind(("127.0.0.1", site.port), 16).close()
