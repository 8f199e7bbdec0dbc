"""Zero-copy: slices of files to sockets by sendfile(2), on the loop where nothing is waited for.

Owns: the way of a slice, chunk by chunk: on the loop, or by a thread beside it. Must not know: replies.

trio has no sendfile, so the system call is made on the socket's descriptor and the task waits for the socket where it
would block.

| the chunk is                          | it goes                                                                     |
|---------------------------------------|-----------------------------------------------------------------------------|
| in memory                             | on the loop                                                                 |
| in memory, and several peers take MBs | by a thread: sendfile gives up the GIL, so they are sent at the same time    |
| not in memory                         | as these, once it has been read (`ReadAhead.bring`)                         |
| gone from memory again and again      | by a thread, which waits for the disk in our place                          |
"""

import os
import socket
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from time import perf_counter

import trio

from broker.log.files import FileSlice
from broker.read_ahead import ReadAhead

CHUNK_BYTES = 1 << 20  # between chunks others get their turn: 1 MiB takes about half a millisecond over loopback
LARGE_BYTES = 256 << 10  # below it, handing over to a thread takes longer than sending
CROWD_WINDOW_S = 0.005  # two peers that were sent large slices within it are sent to at the same time
CROWD_LASTS_S = 0.1  # and are taken to go on


class TruncatedSliceError(Exception):
    """The file ended before the slice did: the reply's promised length cannot be kept."""


class SlicePath:
    """What the slices of all connections go through. Belongs to the loop."""

    def __init__(self, reads: ReadAhead, *, threads: int) -> None:
        """With 0 `threads`, only what does not stay in memory is sent by one."""
        self._reads = reads
        self._residency = reads.residency
        self._has_threads = threads > 0
        self._limiter = trio.CapacityLimiter(max(1, threads))
        self._last_peer: Hashable = None
        self._last_at = self._crowded_until = 0.0  # by perf_counter

    async def send(
        self, sock: socket.socket, piece: FileSlice, consumer: Hashable, wait_writable: Callable[[], Awaitable[None]]
    ) -> None:
        """Send the whole slice. Raises TruncatedSliceError, OSError, and what `wait_writable` raises.

        The slice holds its file open until it is dropped, whatever happens to the log meanwhile.
        """
        position, end = piece.position, piece.position + piece.length
        known_end = position + piece.warm_length  # until something is awaited
        beside = piece.length >= LARGE_BYTES and self._has_threads and self._is_crowded(consumer)
        while position < end:
            count = min(end - position, CHUNK_BYTES)
            stays = position + count <= known_end or await self._have_in_memory(piece, position, count, consumer)
            if beside or not stays:
                sent = await self._send_beside(sock, piece, position, count)
            else:
                sent = _send_some(sock.fileno(), piece.descriptor.fd, position, count)
            if sent < 0:
                raise TruncatedSliceError(
                    f"{end - position} of {piece.length} bytes are missing at position {position}"
                )
            position += sent
            known_end = 0
            self._reads.sent(consumer, piece.descriptor, position)
            if sent < count:
                await wait_writable()
            elif position < end and not beside:
                await trio.lowlevel.checkpoint()

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

    def _is_crowded(self, consumer: Hashable) -> bool:
        """Whether another peer has just been sent a large slice, too."""
        now = perf_counter()
        if self._last_peer is not consumer:
            if now - self._last_at < CROWD_WINDOW_S:
                self._crowded_until = now + CROWD_LASTS_S
            self._last_peer = consumer
        self._last_at = now
        return now < self._crowded_until


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
