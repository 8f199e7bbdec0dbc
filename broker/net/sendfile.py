"""Zero-copy: a slice of a file to a socket by sendfile(2).

trio has no sendfile, so the system call is made on the socket's descriptor and the task waits for the socket where it
would block.
"""

import os
import socket
from collections.abc import Awaitable, Callable

import trio

from broker.log.files import FileSlice

CHUNK_BYTES = 1 << 20  # between chunks others get their turn: 1 MiB takes about half a millisecond over loopback


class TruncatedSliceError(Exception):
    """The file ended before the slice did: the reply's promised length cannot be kept."""


async def send_slice(sock: socket.socket, piece: FileSlice, wait_writable: Callable[[], Awaitable[None]]) -> None:
    """Send the whole slice. Raises TruncatedSliceError, OSError, and what `wait_writable` raises.

    The slice holds its file open until it is dropped, whatever happens to the log meanwhile.
    """
    position, left = piece.position, piece.length
    out, source = sock.fileno(), piece.descriptor.fd
    while left:
        try:
            sent = os.sendfile(out, source, position, min(left, CHUNK_BYTES))
        except BlockingIOError:
            await wait_writable()
            continue
        if not sent:
            raise TruncatedSliceError(f"{left} of {piece.length} bytes are missing at position {position}")
        position += sent
        left -= sent
        if left and sent == CHUNK_BYTES:
            await trio.lowlevel.checkpoint()
