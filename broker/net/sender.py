"""Send replies over a transport in order: bytes with its `send`, file slices with sendfile(2) or as bytes.

`send` sends as much as possible and returns why it stopped. A task reads slices that are not in the page cache.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence, Sized
from typing import Final

import trio

from warmlog.broker.api.context import Session
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.net.sendfile import COLD, FULL, HANDED_OVER, MORE, SENT, SliceSend, TruncatedSliceError
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.transport import Transport
from warmlog.broker.net.turns.served import Served

FULL_ERRNOS: Final = frozenset({errno.EAGAIN, errno.EINTR})
LARGE_BYTES: Final = 1 << 20  # pieces of this size are sent separately: joining them would copy them
# Up to this size, copying a slice into the reply is cheaper than another system call, and frees the file. At most
# COPIED_BYTES of a reply are copied: 30 us, and a bound on the memory that a slow peer holds.
SMALL_SLICE_BYTES: Final = 32 << 10
COPIED_BYTES: Final = 256 << 10


class Sender:
    """The unsent replies of one connection."""

    __slots__ = (
        "_fd",
        "_handed_over",
        "_has_thread",
        "_is_plain",
        "_out",
        "_owner",
        "_reading",
        "_services",
        "_session",
        "_slices",
        "_transport",
        "error",
        "is_closed",
        "sent_bytes",
    )

    def __init__(self, transport: Transport, session: Session, services: Services, owner: Served) -> None:
        """After `send` has returned COLD, `owner` gets another turn when it should be called again."""
        self._transport = transport
        self._fd = transport.fd
        self._is_plain = transport.is_plain
        self._session = session
        self._services = services
        self._slices = services.slices
        self._owner: Served | None = owner
        self._out: deque[bytes | memoryview | SliceSend] = deque()
        self._reading: trio.CancelScope | None = None  # cancels the task that reads the first slice
        self._has_thread = False  # a worker thread is sending on the socket
        self._handed_over: bytes | None = None  # being sent by the thread of `SharedSends`
        self.error: Exception | None = None  # raised in that task
        self.is_closed = False
        self.sent_bytes = 0  # bytes sent in total

    def __bool__(self) -> bool:
        """Return whether there is anything left to send."""
        return bool(self._out) or self._handed_over is not None or (not self._is_plain and self._is_unsent)

    @property
    def _is_unsent(self) -> bool:
        """Whether the transport has bytes that the socket has not accepted."""
        return self._transport.unsent_bytes > 0

    @property
    def held_bytes(self) -> int:
        """Bytes of memory held for unsent replies."""
        held = self._transport.unsent_bytes
        for item in self._out:
            if not isinstance(item, SliceSend):
                held += len(item)
        return held

    @property
    def slice(self) -> SliceSend | None:
        """The file slice being sent, if any."""
        first = self._out[0] if self._out else None
        return first if isinstance(first, SliceSend) else None

    def put(self, items: Sequence[Sized]) -> None:
        """Append replies. Raises TruncatedSliceError, OSError."""
        copied = 0
        for item in items:
            if not isinstance(item, FileSlice):
                if item:
                    self._out.append(item)  # type: ignore[arg-type]  # anything but a slice is bytes
            elif item.length <= min(SMALL_SLICE_BYTES, COPIED_BYTES - copied) and item.warm_length == item.length:
                copied += item.length
                self._out.append(self._slices.copy(item, self._session))
            else:
                self._out.append(self._slices.begin(item, self._session))

    def send(self) -> int:
        """Send as much as possible and return why sending stopped.

        SENT: everything is sent. FULL: the socket's buffer is full. COLD: a slice is being read from disk. MORE: other
        connections should be served first. HANDED_OVER: a thread sends the rest. Raises OSError, TruncatedSliceError.
        """
        if self._reading is not None:
            return COLD
        if self._handed_over is not None:
            return HANDED_OVER
        if self.error is not None:
            raise self.error
        out = self._out
        while out:
            first = out[0]
            if isinstance(first, SliceSend):
                state = self._send_slice(first)
                if state != SENT:
                    return state
                out.popleft()
            else:
                state = self._send_bytes()
                if state != SENT:
                    return state
        return SENT if self._is_plain or self._transport.flush() else FULL

    def handed_back(self, sent: int) -> None:
        """Record a thread's result: the number of bytes sent, or a negative errno."""
        data, self._handed_over = self._handed_over, None
        assert data is not None
        if self.is_closed:
            self._transport.close()
        elif sent < 0 and -sent not in FULL_ERRNOS:
            self.error = OSError(-sent, os.strerror(-sent))
        else:
            self._sent_bytes(data, max(0, sent))

    def close(self) -> None:
        """Drop unsent replies and close the socket once no thread uses it."""
        self.is_closed = True
        self._owner = None  # breaks a reference cycle
        self._out.clear()
        if self._reading is not None:
            self._reading.cancel()
        if self._has_thread or self._handed_over is not None:
            self._transport.shutdown(socket.SHUT_RDWR)
        else:
            self._transport.close()

    def _send_bytes(self) -> int:
        """Send the bytes before the next slice in one call; return SENT, FULL, MORE or HANDED_OVER.

        MSG_MORE lets a reply's header share a packet with the slice that follows.
        """
        out = self._out
        pieces: list[bytes | memoryview] = []
        while out and not isinstance(first := out[0], SliceSend):
            if pieces and max(len(first), len(pieces[-1])) >= LARGE_BYTES:
                break
            pieces.append(first)
            out.popleft()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        owner, turn = self._owner, self._services.turn
        may_hand_over = self._is_plain and not out
        if may_hand_over and isinstance(data, bytes) and owner is not None and turn.hand_over(owner, self._fd, data):
            self._handed_over = data
            return HANDED_OVER
        flags = socket.MSG_MORE if out else 0
        try:
            sent = self._transport.send(data, flags)
        except BlockingIOError:
            sent = 0
        return SENT if self._sent_bytes(data, sent) else self._after_part()

    def _after_part(self) -> int:
        """Return why only a part was sent: the socket is full, or the transport accepts no more per call."""
        return FULL if self._is_plain or self._is_unsent else MORE

    def _sent_bytes(self, data: bytes | memoryview, sent: int) -> bool:
        """Keep the unsent bytes; return whether there are none."""
        self._count_copy(sent)
        if sent == len(data):
            return True
        self._out.appendleft(memoryview(data)[sent:])
        return False

    def _send_slice(self, sending: SliceSend) -> int:
        """Send the next chunk of the first slice; return SENT, FULL, COLD or MORE."""
        if self._is_plain:
            before = sending.position
            state = self._slices.send_chunk(self._fd, sending, self._session)
            self._count_slice(sending.position - before)
        else:
            state = self._send_copy(sending)
        if state == COLD:
            self._reading = trio.CancelScope()
            assert self._owner is not None
            self._services.turn.spawn(self._owner, self._read_and_send)
        return state

    def _send_copy(self, sending: SliceSend) -> int:
        """Send the next chunk as bytes. Bytes that the transport does not accept are read again."""
        if not self._transport.flush():
            return FULL
        data = self._slices.read_chunk(sending)
        if data is None:
            return COLD
        try:
            sent = self._transport.send(data)
        except BlockingIOError:
            sent = 0
        self._count_copy(sent)
        if self._slices.advance(sending, sent, self._session):
            return SENT
        return self._after_part()

    async def _read_copy(self, sending: SliceSend) -> None:
        data = await self._slices.read_beside(sending, self._session)
        if not self.is_closed:
            if sending.position == sending.end:
                self._out.popleft()
            self._out.appendleft(data)

    def _count_copy(self, sent: int) -> None:
        self._services.metrics.bytes_out_copy.add(sent)
        self.sent_bytes += sent

    def _count_slice(self, sent: int) -> None:
        self._services.metrics.bytes_out_sendfile.add(sent)
        self.sent_bytes += sent

    async def _read_and_send(self) -> None:
        """Read the next chunk of the first slice; if it is evicted again, send it from a worker thread."""
        sending = self._out[0]
        assert isinstance(sending, SliceSend)
        assert self._reading is not None
        try:
            with self._reading:
                if not await self._slices.bring(sending, self._session):
                    await self._send_beside(sending)
        except (OSError, TruncatedSliceError) as error:
            self.error = error
        self._reading = None
        if not self.is_closed:
            assert self._owner is not None
            self._services.turn.again(self._owner)

    async def _send_beside(self, sending: SliceSend) -> None:
        if not self._is_plain:
            await self._read_copy(sending)
            return
        self._has_thread = True
        before = sending.position
        try:
            state = await self._slices.send_beside(self._fd, sending, self._session)
        finally:
            self._has_thread = False
            if self.is_closed:
                self._transport.close()
        self._count_slice(sending.position - before)
        if state == SENT and not self.is_closed:
            self._out.popleft()
