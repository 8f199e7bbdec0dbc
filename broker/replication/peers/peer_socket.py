"""A connected TCP socket for one task that sends and one that receives.

Every call of trio's sockets is a checkpoint, even if it need not wait. A follower sends a fetch after each append of
its leader, so these passes of the event loop add up. Here `send` never waits, and receiving waits once.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")

RECORD_BYTES = 16 << 10  # of a TLS record


class PeerSocket(Protocol):
    """One end of a connection. After `close`, waiting and later calls raise trio.ClosedResourceError."""

    def send(self, data: memoryview) -> int:
        """Send as much as fits into the send buffer, and return the number of bytes. Raises OSError."""

    async def until_writable(self) -> None:
        """Wait until there is space in the send buffer."""

    async def recv(self, size: int) -> bytes:
        """Wait for bytes, and return up to `size`; nothing after the end. Raises OSError."""

    async def recv_into(self, buffer: memoryview) -> int:
        """Wait for bytes, and receive them; return their number, 0 after the end. Raises OSError."""

    def close(self) -> None:
        """Close this end."""


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> PeerSocket:
    """Connect to an address; with a context, encrypt and verify the host's certificate. Raises OSError."""
    stream = await trio.open_tcp_stream(host, port)
    connected = _TcpSocket(socket.socket(fileno=stream.socket.detach()))
    return connected if tls is None else await _TlsSocket.encrypt(connected, tls, host)


class _TcpSocket:
    """A socket of the operating system."""

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
            with suppress(BlockingIOError):  # a spurious wake-up
                return receive()

    def encrypted(self, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
        """Return this socket wrapped for TLS, before the handshake."""
        return tls.wrap_socket(self._sock, server_hostname=host, do_handshake_on_connect=False)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


class _TlsSocket:
    """A socket with TLS. Brokers trust each other not to send endless TLS records without data."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    @classmethod
    async def encrypt(cls, connected: _TcpSocket, tls: ssl.SSLContext, host: str) -> "_TlsSocket":
        """Perform the TLS handshake with a host; close the socket if it fails. Raises OSError."""
        sock = connected.encrypted(tls, host)
        try:
            while True:
                try:
                    sock.do_handshake()
                    return cls(sock)
                except ssl.SSLWantReadError:
                    await trio.lowlevel.wait_readable(sock)
                except ssl.SSLWantWriteError:
                    await trio.lowlevel.wait_writable(sock)
        except BaseException:
            sock.close()
            raise

    def send(self, data: memoryview) -> int:
        """Send record by record; a record that does not fit has to be sent again."""
        sent = 0
        try:
            while sent < len(data):
                sent += self._sock.send(data[sent : sent + RECORD_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return sent

    async def until_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    async def recv(self, size: int) -> bytes:
        return await self._received(partial(self._sock.recv, size))

    async def recv_into(self, buffer: memoryview) -> int:
        return await self._received(partial(self._sock.recv_into, buffer))

    async def _received(self, receive: Callable[[], T]) -> T:
        if self._sock.pending():
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._sock)
        while True:
            try:
                return receive()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):  # less than a record
                await trio.lowlevel.wait_readable(self._sock)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
