"""Accepting connections: one listening socket, its limits, and the connections that came in by it.

Owns: the accept loop, the tuning of accepted sockets, the limit on connections, the search for silent peers, and the
stop with a deadline.
"""

import errno
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import trio

from broker.api.context import Session
from broker.maintenance.wakeups import sleep_until_wakeup
from broker.net.channel import Channel
from broker.net.services import Services

logger = logging.getLogger(__name__)

# No descriptors or memory left: accepting again at once would spin, since the peer stays in the queue.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
EXHAUSTED_PAUSE_S = 0.5
ACCEPTS_PER_TURN = 64  # then others get the loop: each accept costs about 30 us with its task
SILENCE_CHECK_S = 1.0
COMPLAINT_PAUSE_S = 10.0

# Between two ends on one machine nothing is gained by more in flight than fits into the processor's cache: 1 MiB
# fetches were a quarter (one connection) to a half (four) faster than with the megabytes of the kernel's own sizing.
SAME_MACHINE_BUFFER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a listener allows.

    Connections at once, the silence after which one is closed, and socket buffers in bytes (-1: the system's).
    """

    max_connections: Callable[[], int]  # as it is in force
    max_idle_s: float
    send_buffer_bytes: int
    receive_buffer_bytes: int


def bind(address: tuple[str, int], backlog: int) -> socket.socket:
    """A non-blocking listening socket; port 0 takes a free one. Raises OSError."""
    family, _, _, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(resolved)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Listener:
    """Accepts on a bound socket until stopped, and closes it."""

    def __init__(self, sock: socket.socket, name: str, services: Services, limits: Limits) -> None:
        self._sock = sock
        self.name = name
        self._services = services
        self._limits = limits
        self._channels: set[Channel] = set()
        self._complain_at = -math.inf  # by trio's clock
        self._accepting = trio.CancelScope()  # cancelled by `stop`, be it before `serve` has begun
        self._emptied = trio.Event()

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._channels)

    async def serve(self) -> None:
        """Accept connections, which are served by the turn. Returns when `stop` was called and all of them have ended.

        Cancelled, it closes those that have not.
        """
        try:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._close_silent)  # to the end: a stop waits for slow peers, too
                with self._accepting:
                    await self._accept()
                trio.lowlevel.notify_closing(self._sock)
                self._sock.close()
                for channel in list(self._channels):
                    channel.stop()
                self._emptied = trio.Event()
                if self._channels:
                    await self._emptied.wait()
                watching.cancel_scope.cancel()
        finally:
            for channel in list(self._channels):
                channel.close()

    def stop(self) -> None:
        """Accept no more, and have every connection end after what it has received."""
        self._accepting.cancel()

    async def _accept(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            await self._accept_waiting()

    async def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                await self._accept_failed(error)
                return
            self._welcome(sock, peer)

    async def _accept_failed(self, error: OSError) -> None:
        """A peer that has gone already is no matter; for want of descriptors we wait until some are given back."""
        if error.errno in _EXHAUSTED:
            self._complain("cannot accept: %s", error.strerror)
            self._services.metrics.refused_connections["descriptors"].add()
            await trio.sleep(EXHAUSTED_PAUSE_S)

    def _complain(self, message: str, *arguments: object) -> None:
        """Warn, but only now and then: the counter has them all, and who connects without end must not fill the log."""
        now = trio.current_time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_PAUSE_S
            logger.warning(f"%s: {message}", self.name, *arguments)  # noqa: G004  # the messages are those above

    def _welcome(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        if len(self._channels) >= self._limits.max_connections():
            self._complain("%d connections are all there may be, %s:%d refused", len(self._channels), *peer[:2])
            self._services.metrics.refused_connections["max_connections"].add()
            sock.close()
            return
        try:
            local = sock.getsockname()
            self._tune(sock, is_local=peer[0] == local[0])
            session = Session(listener=self.name, peer=peer[:2], local=local[:2])
            self._channels.add(Channel(sock, session, self._services, self._closed))
        except OSError:  # gone already
            sock.close()

    def _closed(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if not self._channels:
            self._emptied.set()

    def _tune(self, sock: socket.socket, *, is_local: bool) -> None:
        """Replies leave at once; the kernel sizes the buffers unless it is told otherwise or the peer is near.

        TCP_NOTSENT_LOWAT stays unlimited: a low one costs bulk fetches a third.
        """
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._limits.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes)
        elif is_local:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SAME_MACHINE_BUFFER_BYTES)
        if self._limits.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._limits.receive_buffer_bytes)

    async def _close_silent(self) -> None:
        while True:
            await sleep_until_wakeup(SILENCE_CHECK_S)
            now = perf_counter()
            for channel in list(self._channels):
                if channel.is_overdue(now, self._limits.max_idle_s):
                    channel.close()
