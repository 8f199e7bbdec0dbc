"""Zero-copy: slices of files to sockets by sendfile(2), never waiting for the disk.

trio has no sendfile, so the system call is made on the socket's descriptor.

| the next chunk is                | it goes                                                              |
|----------------------------------|----------------------------------------------------------------------|
| in memory                        | at once, as far as the socket takes it                               |
| not in memory                    | once it has been read by a thread (`SlicePath.bring`)                |
| gone from memory again and again | by a thread (`SlicePath.send_beside`), which then waits for the disk |
"""

import os
from collections.abc import Hashable
from functools import partial
from time import perf_counter

import trio

from broker.log.io.files import FileSlice
from broker.log.io.residency import KNOWN_S
from broker.partitions.read_ahead import ReadAhead

CHUNK_BYTES = 1 << 20  # then other sockets have their turn: 1 MiB takes about half a millisecond over loopback
SEND_THREADS = 2  # for what does not stay in memory: then there is no speed to be had anyway

# What became of a slice: all of it is sent, the socket is full, it is not in memory, or there is more to send.
SENT, FULL, COLD, MORE = range(4)


class TruncatedSliceError(Exception):
    """The file ended before the slice did: the reply's promised length cannot be kept."""


class SliceSend:
    """A slice on its way to one socket. Holds its file open, whatever happens to the log meanwhile."""

    __slots__ = ("end", "known_end", "known_until", "piece", "position")

    def __init__(self, piece: FileSlice) -> None:
        self.piece = piece
        self.position = piece.position
        self.end = piece.position + piece.length
        self.known_end = piece.position + piece.warm_length  # up to there it was seen to be in memory
        self.known_until = perf_counter() + KNOWN_S

    @property
    def chunk_bytes(self) -> int:
        """Size of the next chunk."""
        return min(self.end - self.position, CHUNK_BYTES)


class SlicePath:
    """What the slices of all connections go through. Belongs to the loop."""

    def __init__(self, reads: ReadAhead) -> None:
        self._reads = reads
        self._residency = reads.residency
        self._limiter = trio.CapacityLimiter(SEND_THREADS)

    def begin(self, piece: FileSlice, consumer: Hashable) -> SliceSend:
        """Begin to send a slice."""
        self._reads.begun(consumer, piece)
        return SliceSend(piece)

    def copy(self, piece: FileSlice, consumer: Hashable) -> bytes:
        """Read a slice that is in memory. Raises TruncatedSliceError, OSError."""
        self._reads.begun(consumer, piece)
        data = piece.read_all()
        if len(data) < piece.length:
            raise TruncatedSliceError(f"{piece.length - len(data)} of {piece.length} bytes are missing")
        self._reads.sent(consumer, piece)
        return data

    def send_chunk(self, fd: int, sending: SliceSend, consumer: Hashable) -> int:
        """Send the next chunk as far as the socket takes it; returns SENT, FULL, COLD or MORE.

        Raises TruncatedSliceError, OSError.
        """
        position, count = sending.position, sending.chunk_bytes
        if position < sending.known_end and perf_counter() < sending.known_until:
            count = min(count, sending.known_end - position)
        elif self._residency.missing_pages(sending.piece.descriptor, position, count, "log"):
            return COLD
        else:
            sending.known_end, sending.known_until = position + count, perf_counter() + KNOWN_S
        return self._took(sending, count, _send_some(fd, sending.piece.descriptor.fd, position, count), consumer)

    async def bring(self, sending: SliceSend, consumer: Hashable) -> bool:
        """Have the next chunk read into memory; False if it does not stay there. Raises OSError."""
        position, count = sending.position, sending.chunk_bytes
        is_there = await self._reads.bring(consumer, sending.piece, position, count)
        if is_there:
            sending.known_end, sending.known_until = position + count, perf_counter() + KNOWN_S
        return is_there

    async def send_beside(self, fd: int, sending: SliceSend, consumer: Hashable) -> int:
        """As `send_chunk`, by a thread. The socket must stay open until this returns, even if it is cancelled."""
        position, count = sending.position, sending.chunk_bytes
        send = partial(_send_some, fd, sending.piece.descriptor.fd, position, count)
        return self._took(sending, count, await trio.to_thread.run_sync(send, limiter=self._limiter), consumer)

    def forget(self, consumer: Hashable) -> None:
        """A consumer has gone: what is to be read for it need not be."""
        self._reads.forget(consumer)

    def _took(self, sending: SliceSend, count: int, sent: int, consumer: Hashable) -> int:
        if sent < 0:
            missing, whole = sending.end - sending.position, sending.piece.length
            raise TruncatedSliceError(f"{missing} of {whole} bytes are missing at position {sending.position}")
        sending.position += sent
        if sending.position == sending.end:
            self._reads.sent(consumer, sending.piece)
            return SENT
        return FULL if sent < count else MORE


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
