"""A connected, non-blocking TCP socket whose readiness anyio waits for.

It is not an anyio stream. A request is written within the call that makes it: a writer task would cost a task switch,
and a caller waiting to write could be cancelled in the middle of a frame. A large reply is received directly into its
own buffer.
"""

import errno
import os
import socket
import ssl

import anyio

from warmlog.client.connection.session import Session

RECORD_BYTES = 16 << 10  # maximum size of a TLS record


class AsyncSocket:
    """A connected socket. Call `close` only when no task waits for it."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @staticmethod
    async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> "AsyncSocket":
        """Connect to the first of the host's addresses that accepts. If none does, raises the OSError of the last one.

        `tls`: encrypt the connection, and verify the host's certificate accordingly.
        """
        error = OSError(errno.EADDRNOTAVAIL, "no address")
        for family, _, _, _, address in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                connected = await _connect(family, address)
                return AsyncSocket(connected) if tls is None else await TlsSocket.encrypt(connected, tls, host)
            except OSError as problem:
                error = problem
        raise error

    @property
    def has_pending(self) -> bool:
        """Whether buffered bytes can be received without `wait_readable`."""
        return False

    def send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as fit into the kernel's buffer; return their number, possibly 0. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self, session: Session) -> int | None:
        """Receive into a session; return the number of bytes, 0 at the end of the stream, None if none are available.

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


class TlsSocket(AsyncSocket):
    """An `AsyncSocket` with TLS."""

    __slots__ = ("_encrypted",)

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._encrypted = connected

    @classmethod
    async def encrypt(cls, connected: socket.socket, tls: ssl.SSLContext, host: str) -> "TlsSocket":
        """Perform the TLS handshake with a host. Closes the socket if that fails. Raises OSError."""
        encrypted = tls.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        try:
            while True:
                try:
                    encrypted.do_handshake()
                    return cls(encrypted)
                except ssl.SSLWantReadError:
                    await anyio.wait_readable(encrypted)
                except ssl.SSLWantWriteError:
                    await anyio.wait_writable(encrypted)
        except BaseException:
            encrypted.close()
            raise

    @property
    def has_pending(self) -> bool:
        """Whether decrypted bytes can be received."""
        return self._encrypted.pending() > 0

    def send(self, data: bytes | memoryview) -> int:
        """Send one TLS record after another; a record that does not fit must be sent again. Raises OSError."""
        view, sent = memoryview(data), 0
        try:
            while sent < len(view):
                sent += self._encrypted.send(view[sent : sent + RECORD_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return sent

    def receive(self, session: Session) -> int | None:
        """Receive one record, or a part of one. Raises OSError, FrameError."""
        try:
            return session.receive_from(self._encrypted)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


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
