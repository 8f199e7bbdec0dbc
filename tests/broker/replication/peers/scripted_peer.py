"""A peer that does what a test tells it to: answers, cuts, is silent, sends garbage."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from struct import pack

import trio

from tests.protocol.kafka.far_side import ALL
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from warmlog.protocol.kafka.api import Call, Codec
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsResponse

GROUPS = ListGroupsRequest()
CODEC = Codec()


class Socket:
    """The peer's side of one connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._reader = FrameReader()

    async def call(self) -> Call:
        """Receive the next request."""
        call = await self.call_or_end()
        assert call is not None, "closed by the client"
        return call

    async def call_or_end(self) -> Call | None:
        """Receive the next request, None once the client has closed the connection."""
        while (frame := self._reader.next_frame()) is None:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._reader.feed(bytes(data))
        return CODEC.decode(frame)

    async def answer(self, call: Call, response: object) -> None:
        with suppress(trio.BrokenResourceError):  # the client may be gone
            await self.stream.send_all(encoded(call, response))

    async def greet(self) -> None:
        """Answer the client's first request."""
        await self.answer(await self.call(), ApiVersionsResponse(apis=ALL))

    async def until_closed(self) -> None:
        """Wait until the client closes the connection; what it still sends is ignored."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


def encoded(call: Call, response: object) -> bytes:
    return b"".join(map(bytes, CODEC.encode(call, response)))


def groups_named(*names: str) -> ListGroupsResponse:
    return ListGroupsResponse(groups=tuple(ListedGroup(group=one, protocol_type="", state="Empty") for one in names))


def framed(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


@asynccontextmanager
async def scripted_peer(script: Callable[[Socket], Awaitable[None]]) -> AsyncIterator[int]:
    """Run the script on every connection to a port, which is returned. The connection closes at its end."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await script(Socket(stream))

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()
