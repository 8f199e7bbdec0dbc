"""The transport below a connection: how its bytes are received and sent.

    Channel   -> recv, recv_into          Sender   -> send, flush, sendfile(2) and a C thread on `fd`
                           Transport:  PlainTransport  the socket itself
                                       TlsTransport    encrypted bytes (`tls`)

Invariants:
1. Nothing blocks: `recv`, `recv_into` and `send` raise BlockingIOError where the socket is not ready.
2. `recv` leaves no received byte inside the transport that it could have returned, since epoll does not report those.
3. A peer's bytes pass the transport in order. So sendfile(2) and the C thread, which bypass it, are used only if
   `is_plain`.
"""

import socket
from typing import Protocol


class Transport(Protocol):
    """The bytes of one connection. Used on the event loop only; closes the socket."""

    fd: int
    is_plain: bool  # whether sendfile(2) and a C thread may write to `fd`, and `recv_into` may be called

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that `send` has accepted and the socket has not."""

    @property
    def received_bytes(self) -> int:
        """The number of bytes received from the socket, too few for `recv` to return data."""

    def recv(self, size: int, /) -> bytes:
        """Return at most about `size` bytes, b"" at the end of the stream. Raises BlockingIOError, OSError."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive into a buffer; return the number of bytes, 0 at the end. Raises BlockingIOError, OSError."""

    def send(self, data: bytes | memoryview, flags: int = 0, /) -> int:
        """Send bytes; return how many were accepted. The caller keeps the others. Raises BlockingIOError, OSError.

        `flags` are those of send(2); a transport that is not plain ignores them.
        """

    def flush(self) -> bool:
        """Send bytes that `send` has accepted; return whether none are left. Raises OSError."""

    def certificate(self) -> bytes | None:
        """Return the client's verified certificate in DER, if it presented one."""

    def shutdown(self, how: int) -> None:
        """End the stream in one direction, or both; does nothing on a disconnected socket."""

    def close(self) -> None:
        """Close the socket."""


class PlainTransport:
    """A non-blocking socket. Its methods are the socket's own, so the layer costs nothing."""

    __slots__ = ("_sock", "close", "fd", "is_plain", "received_bytes", "recv", "recv_into", "send", "unsent_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.is_plain = True
        self.unsent_bytes = self.received_bytes = 0
        self.recv = sock.recv
        self.recv_into = sock.recv_into
        self.send = sock.send
        self.close = sock.close

    def flush(self) -> bool:
        """Return True: nothing is buffered."""
        return True

    def certificate(self) -> None:
        """Return None."""

    def shutdown(self, how: int) -> None:
        """End the stream in one direction, or both; does nothing on a disconnected socket."""
        shutdown(self._sock, how)


def shutdown(sock: socket.socket, how: int) -> None:
    """Shut down a socket; ignore that it may be disconnected."""
    try:
        sock.shutdown(how)
    except OSError:
        return
