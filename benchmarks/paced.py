"""A producer that keeps its pace, whatever the replies do: the open loop, for latencies that hide nothing.

Owns: one connection, its schedule, and the latencies from when a request was due to when its reply came. A closed loop
would wait with the broker and so not see how long it was away.
"""

import select
import socket
from collections import deque
from dataclasses import dataclass
from struct import Struct
from time import perf_counter

from benchmarks.load import LoadError
from benchmarks.native import Address

LENGTH = Struct(">I")
DRAIN_S = 30.0  # what is still unanswered after the window may take so long


@dataclass(frozen=True, slots=True)
class PaceResult:
    """Latencies in seconds, in rising order."""

    latencies_s: list[float]

    def quantile_s(self, share: float) -> float:
        """The latency that so large a share of the requests did not exceed."""
        return self.latencies_s[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """So many requests a second, evenly spaced, each with this batch."""

    per_s: float
    batch: bytes

    def keep(self, address: Address, request: bytes, *, seconds: float, skip_s: float) -> PaceResult:
        """Send on schedule for so long and count what was due after `skip_s`. Raises LoadError."""
        with socket.create_connection(address) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            return _Paced(sock, request, 1 / self.per_s).run(seconds, skip_s)


class _Paced:
    def __init__(self, sock: socket.socket, request: bytes, every_s: float) -> None:
        self._sock = sock
        self._request = request
        self._every_s = every_s
        self._due: deque[float] = deque()  # of the requests without a reply
        self._received = bytearray()
        self._unsent = b""
        self._latencies: list[tuple[float, float]] = []

    def run(self, seconds: float, skip_s: float) -> PaceResult:
        began_at = perf_counter()
        next_at, ends_at = began_at, began_at + seconds
        while (now := perf_counter()) < ends_at:
            while next_at <= now:
                self._due.append(next_at)
                self._unsent += self._request
                next_at += self._every_s
            self._send()
            self._receive(next_at - perf_counter())
        while self._due:
            if perf_counter() > ends_at + DRAIN_S:
                raise LoadError(f"{len(self._due)} requests have no reply")
            self._send()
            self._receive(1.0)
        return PaceResult(sorted(latency for due, latency in self._latencies if due >= began_at + skip_s))

    def _send(self) -> None:
        if self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return

    def _receive(self, wait_s: float) -> None:
        if not select.select([self._sock], [], [], max(0.0, wait_s))[0]:
            return
        data = self._sock.recv(1 << 16)
        if not data:
            raise LoadError("the contestant closed a connection")
        now = perf_counter()
        self._received += data
        while len(self._received) >= LENGTH.size:
            size = LENGTH.size + LENGTH.unpack_from(self._received)[0]
            if len(self._received) < size:
                return
            del self._received[:size]
            due = self._due.popleft()
            self._latencies.append((due, now - due))
