"""Zero-copy: slices of files to sockets by sendfile(2), on the loop where nothing is waited for.

Owns: the way of a slice, chunk by chunk: on the loop, or by a thread beside it. Must not know: replies.

trio has no sendfile, so the system call is made on the socket's descriptor and the task waits for the socket where it
would block.

| the chunk is                     | it goes                                                     |
|----------------------------------|-------------------------------------------------------------|
| in memory                        | on the loop                                                 |
| not in memory                    | on the loop, once it has been read (`ReadAhead.bring`)      |
| gone from memory again and again | by a thread, which waits for the disk in our place          |

Threads for what is in memory were tried, since sendfile gives up the GIL: with four peers and two or three threads, 1
MiB slices were slower by a third to no faster, for the hand-over. What the loop lacked was a smaller send buffer
(listener).
"""

import os
import socket
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from time import perf_counter

import trio

from broker.log.files import FileSlice
from broker.log.residency import KNOWN_S
from broker.read_ahead import ReadAhead

CHUNK_BYTES = 1 << 20  # between chunks others get their turn: 1 MiB takes about half a millisecond over loopback
SEND_THREADS = 2  # for what does not stay in memory: then there is no speed to be had anyway


class TruncatedSliceError(Exception):
    """The file ended before the slice did: the reply's promised length cannot be kept."""


class SlicePath:
    """What the slices of all connections go through. Belongs to the loop."""

    def __init__(self, reads: ReadAhead) -> None:
        self._reads = reads
        self._residency = reads.residency
        self._limiter = trio.CapacityLimiter(SEND_THREADS)

    async def send(
        self, sock: socket.socket, piece: FileSlice, consumer: Hashable, wait_writable: Callable[[], Awaitable[None]]
    ) -> None:
        """Send the whole slice. Raises TruncatedSliceError, OSError, and what `wait_writable` raises.

        The slice holds its file open until it is dropped, whatever happens to the log meanwhile.
        """
        position, end = piece.position, piece.position + piece.length
        self._reads.begun(consumer, piece)
        known_end, known_until = position + piece.warm_length, perf_counter() + KNOWN_S
        while position < end:
            count = min(end - position, CHUNK_BYTES)
            if position < known_end and perf_counter() < known_until:
                count = min(count, known_end - position)
                is_there = True
            else:
                is_there = await self._have_in_memory(piece, position, count, consumer)
                known_end, known_until = position + count, perf_counter() + KNOWN_S
            if is_there:
                sent = _send_some(sock.fileno(), piece.descriptor.fd, position, count)
            else:
                sent = await self._send_beside(sock, piece, position, count)
            if sent < 0:
                raise TruncatedSliceError(
                    f"{end - position} of {piece.length} bytes are missing at position {position}"
                )
            position += sent
            if sent < count:
                await wait_writable()
            elif position < end:
                await trio.lowlevel.checkpoint()
        self._reads.sent(consumer, piece)

    def forget(self, consumer: Hashable) -> None:
        """A consumer has gone: what is to be read for it need not be."""
        self._reads.forget(consumer)

    async def _have_in_memory(self, piece: FileSlice, position: int, count: int, consumer: Hashable) -> bool:
        """Whether the bytes are in memory, if need be after they were read. Raises OSError."""
        if not self._residency.missing_pages(piece.descriptor, position, count, "log"):
            return True
        return await self._reads.bring(consumer, piece, position, count)

    async def _send_beside(self, sock: socket.socket, piece: FileSlice, position: int, count: int) -> int:
        """As `_send_some`, by a thread: the socket stays open until it is back, even if this is cancelled."""
        send = partial(_send_some, sock.fileno(), piece.descriptor.fd, position, count)
        return await trio.to_thread.run_sync(send, limiter=self._limiter)


def _send_some(out: int, source: int, position: int, count: int) -> int:
    """Send until all is gone or the socket is full; how many bytes went, or -1 where the file ends. Raises OSError."""
    sent = 0
    try:
        while sent < count:
            size = os.sendfile(out, source, position + sent, count - sent)
            if not size:
                return sent or -1
            sent += size
    except BlockingIOError:
        pass
    return sent
