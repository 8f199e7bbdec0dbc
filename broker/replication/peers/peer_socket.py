"""A connected TCP socket for one task that sends and one that receives.

Every call of trio's sockets lets other tasks run, even if it need not wait. A follower sends a fetch after each append
of its leader, so these passes of the event loop add up. Here `send` never waits, and receiving waits once.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class PeerSocket(Protocol):
    """One end of a connection. `close` makes calls that wait raise trio.ClosedResourceError, and later ones fail."""

    def send(self, data: memoryview) -> int:
        """Send as much as there is room for at once, and return the number of bytes. Raises OSError."""

    async def until_writable(self) -> None:
        """Wait for room."""

    async def recv(self, size: int) -> bytes:
        """Wait for bytes, and return up to `size`; nothing after the end. Raises OSError."""

    async def recv_into(self, buffer: memoryview) -> int:
        """Wait for bytes, and receive them; return their number, 0 after the end. Raises OSError."""

    def close(self) -> None:
        """Close this end."""


async def connect(host: str, port: int) -> PeerSocket:
    """Connect to an address. Raises OSError."""
    stream = await trio.open_tcp_stream(host, port)
    return _TcpSocket(socket.socket(fileno=stream.socket.detach()))


class _TcpSocket:
    """The real one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    def send(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    async def until_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    async def recv(self, size: int) -> bytes:
        return await self._when_readable(partial(self._sock.recv, size))

    async def recv_into(self, buffer: memoryview) -> int:
        return await self._when_readable(partial(self._sock.recv_into, buffer))

    async def _when_readable(self, receive: Callable[[], T]) -> T:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            with suppress(BlockingIOError):  # woken up for nothing
                return receive()

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
