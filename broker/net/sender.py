"""Replies onto a socket: bytes by send, slices of files by sendfile, in the order given.

Owns: since when a peer has not taken its reply. Must not know: requests.

Nothing here rings when that takes too long: a scope with a deadline for each wait costs a large fetch more than the
wait. The listener looks at its connections now and then (`Connection.is_overdue`), and drops one that is given up.
"""

import math
import socket
from collections.abc import Sequence, Sized

import trio

from broker.api.context import Session
from broker.log.files import FileSlice
from broker.metrics import Metrics
from broker.net.sendfile import SlicePath


class Sender:
    """Sends on one socket; one caller at a time."""

    def __init__(self, sock: socket.socket, session: Session, slices: SlicePath, metrics: Metrics) -> None:
        self._sock = sock
        self._session = session
        self._slices = slices
        self._metrics = metrics
        self.waits_since = math.inf  # for the peer to take something, by trio's clock

    async def send(self, items: Sequence[Sized]) -> None:
        """Send all items, in order. Raises OSError, TruncatedSliceError."""
        pending: list[bytes] = []
        for item in items:
            if isinstance(item, FileSlice):
                await self._send_bytes(b"".join(pending), socket.MSG_MORE)
                pending.clear()
                await self._slices.send(self._sock, item, self._session, self._wait_writable)
                self._metrics.bytes_out_sendfile.add(len(item))
            elif item:
                pending.append(item)  # type: ignore[arg-type]  # whatever is no slice is bytes
        if pending:
            await self._send_bytes(pending[0] if len(pending) == 1 else b"".join(pending), 0)

    async def _send_bytes(self, data: bytes, flags: int) -> None:
        """MSG_MORE holds a reply's head back for the slice that follows, so that they share a packet."""
        self._metrics.bytes_out_copy.add(len(data))
        left: bytes | memoryview = data
        while left:
            try:
                sent = self._sock.send(left, flags)
            except BlockingIOError:
                await self._wait_writable()
                continue
            if sent == len(left):
                return
            left = memoryview(left)[sent:]

    async def _wait_writable(self) -> None:
        self.waits_since = trio.current_time()
        await trio.lowlevel.wait_writable(self._sock)
        self.waits_since = math.inf
