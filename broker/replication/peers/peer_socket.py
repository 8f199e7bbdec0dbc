"""A connected TCP socket for one task that sends and one that receives.

trio's sockets pass control to the loop in every call. For a follower, which exchanges a fetch for each append of a
producer, these passes took more processor time than the copy. `send` makes none, and receiving makes one.
"""

import socket
from typing import Protocol

import trio


class PeerSocket(Protocol):
    """One end of a connection. After `close`, calls fail, and those under way, too: with trio.ClosedResourceError."""

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
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(size)
            except BlockingIOError:
                continue  # another wake-up than that of bytes

    async def recv_into(self, buffer: memoryview) -> int:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv_into(buffer)
            except BlockingIOError:
                continue

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
