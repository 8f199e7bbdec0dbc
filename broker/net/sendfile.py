"""Send file slices to sockets with sendfile(2), or as bytes, without blocking the event loop on disk reads.

trio has no sendfile, so the system call is made on the socket's descriptor.

| the next chunk is                 | it is sent                                                            |
|-----------------------------------|-----------------------------------------------------------------------|
| resident                          | immediately, as far as the socket's buffer allows                     |
| not resident                      | after a worker thread has read it (`SlicePath.bring`)                 |
| evicted again before it was sent  | by a worker thread (`SlicePath.send_beside`), which waits for the disk |

For a transport that is not plain, `read_chunk` and `read_beside` read the bytes instead, in chunks of `COPY_BYTES`.
"""

import os
from collections.abc import Hashable
from functools import partial
from time import perf_counter
from typing import Final

import trio

from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import KNOWN_S
from warmlog.broker.partitions.reads.read_ahead import ReadAhead

CHUNK_BYTES: Final = 1 << 20  # bytes per turn of a socket: 1 MiB takes about half a millisecond over loopback
COPY_BYTES: Final = 256 << 10  # the same for bytes to be encrypted: 1 MiB takes 0.8 ms
SEND_THREADS: Final = 2  # for chunks that do not stay resident, where the disk limits the speed

# Results of sending: all is sent, the socket's buffer is full, a slice is not resident, more is left, or a thread is
# sending the last bytes.
SENT: Final = 0
FULL: Final = 1
COLD: Final = 2
MORE: Final = 3
HANDED_OVER: Final = 4


class TruncatedSliceError(Exception):
    """The file ends before the slice does, so the reply cannot have its announced length."""


class SliceSend:
    """A slice being sent to one socket. Keeps the file open even if the log deletes the segment."""

    __slots__ = ("end", "known_end", "known_until", "piece", "position")

    def __init__(self, piece: FileSlice) -> None:
        self.piece = piece
        self.position = piece.position
        self.end = piece.position + piece.length
        self.known_end = piece.position + piece.warm_length  # known to be resident up to here
        self.known_until = perf_counter() + KNOWN_S

    @property
    def chunk_bytes(self) -> int:
        """Size of the next chunk in bytes."""
        return min(self.end - self.position, CHUNK_BYTES)


class SlicePath:
    """Sends the slices of all connections. Used on the event loop only."""

    def __init__(self, reads: ReadAhead) -> None:
        self._reads = reads
        self._residency = reads.residency
        self._limiter = trio.CapacityLimiter(SEND_THREADS)

    def begin(self, piece: FileSlice, consumer: Hashable) -> SliceSend:
        """Start to send a slice to a consumer."""
        self._reads.begun(consumer, piece)
        return SliceSend(piece)

    def copy(self, piece: FileSlice, consumer: Hashable) -> bytes:
        """Return the bytes of a resident slice. Raises TruncatedSliceError, OSError."""
        self._reads.begun(consumer, piece)
        data = piece.read_all()
        if len(data) < piece.length:
            raise TruncatedSliceError(f"{piece.length - len(data)} of {piece.length} bytes are missing")
        self._reads.sent(consumer, piece)
        return data

    def send_chunk(self, fd: int, sending: SliceSend, consumer: Hashable) -> int:
        """Send as much of the next chunk as the socket accepts; return SENT, FULL, COLD or MORE.

        Raises TruncatedSliceError, OSError.
        """
        position, count = sending.position, self._resident_bytes(sending, sending.chunk_bytes)
        if not count:
            return COLD
        return self._took(sending, count, _send_some(fd, sending.piece.descriptor.fd, position, count), consumer)

    def read_chunk(self, sending: SliceSend) -> bytes | None:
        """Return the next bytes, at most `COPY_BYTES`, or None if they are not resident; `advance` moves past them.

        Raises TruncatedSliceError, OSError.
        """
        count = self._resident_bytes(sending, min(sending.chunk_bytes, COPY_BYTES))
        return _read(sending, count) if count else None

    def advance(self, sending: SliceSend, sent: int, consumer: Hashable) -> bool:
        """Move past bytes that were sent; return whether the slice is complete."""
        sending.position += sent
        if sending.position < sending.end:
            return False
        self._reads.sent(consumer, sending.piece)
        return True

    def _resident_bytes(self, sending: SliceSend, count: int) -> int:
        """Return how many of the next `count` bytes can be read without waiting for a disk."""
        position = sending.position
        if position < sending.known_end and perf_counter() < sending.known_until:
            return min(count, sending.known_end - position)
        if self._residency.missing_pages(sending.piece.descriptor, position, count, "log"):
            return 0
        sending.known_end, sending.known_until = position + count, perf_counter() + KNOWN_S
        return count

    async def bring(self, sending: SliceSend, consumer: Hashable) -> bool:
        """Read the next chunk into the page cache; return False if it is evicted again. Raises OSError."""
        position, count = sending.position, sending.chunk_bytes
        is_there = await self._reads.bring(consumer, sending.piece, position, count)
        if is_there:
            sending.known_end, sending.known_until = position + count, perf_counter() + KNOWN_S
        return is_there

    async def send_beside(self, fd: int, sending: SliceSend, consumer: Hashable) -> int:
        """Send the next chunk from a worker thread; returns and raises as `send_chunk`.

        The socket must stay open until this returns, even if it is cancelled.
        """
        position, count = sending.position, sending.chunk_bytes
        send = partial(_send_some, fd, sending.piece.descriptor.fd, position, count)
        return self._took(sending, count, await trio.to_thread.run_sync(send, limiter=self._limiter), consumer)

    async def read_beside(self, sending: SliceSend, consumer: Hashable) -> bytes:
        """Read the next bytes, at most `COPY_BYTES`, in a worker thread, and move past them; raises as `read_chunk`."""
        read = partial(_read, sending, min(sending.chunk_bytes, COPY_BYTES))
        data = await trio.to_thread.run_sync(read, limiter=self._limiter)
        self.advance(sending, len(data), consumer)
        return data

    def forget(self, consumer: Hashable) -> None:
        """Stop read-ahead for a consumer that has disconnected."""
        self._reads.forget(consumer)

    def _took(self, sending: SliceSend, count: int, sent: int, consumer: Hashable) -> int:
        if sent < 0:
            raise _truncated(sending)
        if self.advance(sending, sent, consumer):
            return SENT
        return FULL if sent < count else MORE


def _send_some(out: int, source: int, position: int, count: int) -> int:
    """Send up to `count` bytes; return how many the socket accepted, or -1 at the end of the file. Raises OSError."""
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


def _read(sending: SliceSend, count: int) -> bytes:
    """Return the next bytes of a slice. Raises TruncatedSliceError, OSError."""
    data = os.pread(sending.piece.descriptor.fd, count, sending.position)
    if not data:
        raise _truncated(sending)
    return data


def _truncated(sending: SliceSend) -> TruncatedSliceError:
    missing, whole = sending.end - sending.position, sending.piece.length
    return TruncatedSliceError(f"{missing} of {whole} bytes are missing at position {sending.position}")
