"""A connected, non-blocking TCP socket whose readiness anyio waits for.

It is not an anyio stream. A request is written in the very call that makes it: a writer task would cost a switch, and
a writing caller could be cancelled in the middle of a frame. A large reply is received straight into its own buffer.
"""

import errno
import os
import socket

import anyio

from warmlog.client.connection.session import Session


class AsyncSocket:
    """A connected socket. Call `close` only when no task waits for it."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @classmethod
    async def connect(cls, host: str, port: int) -> "AsyncSocket":
        """Connect to the first of the host's addresses that accepts. Raises the OSError of the last one."""
        error = OSError(errno.EADDRNOTAVAIL, "no address")
        for family, _, _, _, address in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return cls(await _connect(family, address))
            except OSError as problem:
                error = problem
        raise error

    def send(self, data: bytes | memoryview) -> int:
        """Send what fits into the kernel's buffer; return the number of bytes, possibly 0. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self, session: Session) -> int | None:
        """Receive into a session; return the number of bytes, 0 at the end of the stream, None if nothing is there.

        Raises OSError, FrameError.
        """
        try:
            return session.receive_from(self._socket)
        except BlockingIOError:
            return None

    async def wait_readable(self) -> None:
        """Wait until bytes, the end of the stream or an error can be received."""
        await anyio.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        """Wait until the kernel's buffer has space."""
        await anyio.wait_writable(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


async def _connect(family: int, address: tuple[str | int, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error_number = opened.connect_ex(address)
        if error_number == errno.EINPROGRESS:
            await anyio.wait_writable(opened)
            error_number = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        opened.close()
        raise
    if error_number:
        opened.close()
        raise OSError(error_number, os.strerror(error_number))
    return opened
