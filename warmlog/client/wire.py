"""One connected TCP socket, without waiting where there is nothing to wait for.

Owns: the socket. Must not know: frames, requests.

The socket is used as it is, non-blocking, not through a stream of the event loop: so a request goes out in the very
call that makes it (a task that writes would cost a switch, and a caller that writes could be cancelled in the middle of
a frame), and a large reply is received straight into its own buffer. anyio only waits for it to become ready.
"""

import errno
import os
import socket

import anyio

RECEIVE_BYTES = 64 << 10


class Wire:
    """A connected socket. Not closed before `close` is called; then nobody may be waiting for it."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @classmethod
    async def connect(cls, host: str, port: int) -> "Wire":
        """Connect to the first address of the host that accepts. Raises OSError (that of the last)."""
        error = OSError(errno.EADDRNOTAVAIL, "no address")
        for family, _, _, _, address in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return cls(await _connected(family, address))
            except OSError as problem:
                error = problem
        raise error

    def send(self, data: bytes | memoryview) -> int:
        """Give the kernel what it takes now, possibly 0 bytes. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self) -> bytes | None:
        """What is there, b"" at the end of the stream, None if there is nothing yet. Raises OSError."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def receive_into(self, buffer: memoryview) -> int | None:
        """The same into a buffer: the number of bytes, 0 at the end of the stream, None if there is nothing yet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    async def wait_readable(self) -> None:
        """Return when `receive` has something to say."""
        await anyio.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        """Return when `send` takes something."""
        await anyio.wait_writable(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


async def _connected(family: int, address: tuple[str | int, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = made.connect_ex(address)
        if problem == errno.EINPROGRESS:
            await anyio.wait_writable(made)
            problem = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        made.close()
        raise
    if problem:
        made.close()
        raise OSError(problem, os.strerror(problem))
    return made
