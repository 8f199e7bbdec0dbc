"""A producer with a fixed rate, regardless of replies: an open loop whose latencies include every stall.

Latency is measured from the time at which a request was due to its reply, or until a consumer has the record. A closed
loop would wait together with the broker, and measure a stall only once.
"""

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from time import perf_counter

from benchmarks.load.generator import HEAD_BYTES, LoadError
from benchmarks.load.native import Address, Wire

LENGTH = Struct(">I")
DRAIN_S = 30.0  # limit for requests unanswered after the window
RECEIVE_BYTES = 1 << 18
FOLLOW_WAIT_MS = 500
FOLLOW_BYTES = 4 << 20  # backlog after a stall of seconds
VALUE_BYTES = 100
VALUE = b"x" * VALUE_BYTES


@dataclass(frozen=True, slots=True)
class PaceResult:
    """Latencies in seconds, sorted."""

    latencies_s: list[float]

    def quantile_s(self, share: float) -> float:
        """Return the latency not exceeded by this share of the requests."""
        return self.latencies_s[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A number of requests per second, evenly spaced, each with this batch.

    `wire` provides a connection's first request and the bytes in a good reply.
    """

    per_s: float
    batch: bytes

    def keep(self, address: Address, wire: Wire, request: bytes, *, seconds: float, skip_s: float) -> PaceResult:
        """Send on schedule for a time and count requests due after `skip_s`. Raises LoadError."""
        with _connected(address, wire) as sock:
            return _Paced(sock, request, 1 / self.per_s, wire.good).run(seconds, skip_s)

    def followed(self, address: Address, wire: Wire, topic: str, *, seconds: float, skip_s: float) -> PaceResult:
        """Produce to a topic and consume it; return latencies from when a record was due until the consumer had it.

        The topic is empty. A record is recognized by its value: the batch holds one of VALUE_BYTES equal bytes. Raises
        LoadError.
        """

        def follow(offset: int) -> bytes:
            return wire.fetch(topic, 0, offset, FOLLOW_BYTES, FOLLOW_WAIT_MS)

        request = wire.produce(topic, 0, self.batch)
        with _connected(address, wire) as sock, _connected(address, wire) as consumer:
            paced = _Followed(sock, request, 1 / self.per_s, wire.good)
            paced.follow(consumer, follow)
            return paced.run(seconds, skip_s)


class _Paced:
    def __init__(self, sock: socket.socket, request: bytes, every_s: float, good: bytes) -> None:
        self._sock = sock
        self._good = good
        self._request = request
        self._every_s = every_s
        self._due: deque[float] = deque()  # due times of the requests without a reply
        self._received = bytearray()
        self._unsent = b""
        self._latencies: list[tuple[float, float]] = []

    def run(self, seconds: float, skip_s: float) -> PaceResult:
        began_at = perf_counter()
        next_at, ends_at = began_at, began_at + seconds
        while (now := perf_counter()) < ends_at:
            while next_at <= now:
                self._is_due(next_at)
                self._unsent += self._request
                next_at += self._every_s
            self._send()
            self._receive(next_at - perf_counter())
        while self._missing():
            if perf_counter() > ends_at + DRAIN_S:
                raise LoadError(f"{self._missing()} requests have no reply")
            self._send()
            self._receive(1.0)
        return PaceResult(sorted(latency for due, latency in self._latencies if due >= began_at + skip_s))

    def _is_due(self, at: float) -> None:
        self._due.append(at)

    def _missing(self) -> int:
        return len(self._due)

    def _send(self) -> None:
        if self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return

    def _receive(self, wait_s: float) -> None:
        if select.select([self._sock], [], [], max(0.0, wait_s))[0]:
            for _ in range(len(_frames(self._sock, self._received, self._good))):
                self._replied(perf_counter())

    def _replied(self, now: float) -> None:
        due = self._due.popleft()
        self._latencies.append((due, now - due))


class _Followed(_Paced):
    """Records are numbered by their offsets, since there is no other producer."""

    def follow(self, consumer: socket.socket, follow: Callable[[int], bytes]) -> None:
        """Call before `run`. `follow` returns the request that waits for the record at an offset."""
        self._consumer = consumer
        self._follow = follow
        self._all_due: list[float] = []
        self._consumed_bytes = bytearray()
        self._next_offset = 0
        consumer.sendall(follow(0))

    def _is_due(self, at: float) -> None:
        super()._is_due(at)
        self._all_due.append(at)

    def _missing(self) -> int:
        return len(self._all_due) - self._next_offset

    def _replied(self, now: float) -> None:
        del now
        self._due.popleft()

    def _receive(self, wait_s: float) -> None:
        ready = select.select([self._sock, self._consumer], [], [], max(0.0, wait_s))[0]
        if self._sock in ready:
            super()._receive(0.0)
        if self._consumer in ready:
            for frame in _frames(self._consumer, self._consumed_bytes, self._good):
                self._consumed(frame.count(VALUE), perf_counter())

    def _consumed(self, count: int, now: float) -> None:
        end = self._next_offset + count
        self._latencies += [(due, now - due) for due in self._all_due[self._next_offset : end]]
        self._next_offset = end
        self._consumer.send(self._follow(end))


@contextmanager
def _connected(address: Address, wire: Wire) -> Iterator[socket.socket]:
    """Open a non-blocking connection and exchange the first request."""
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wire.greeting:
            sock.sendall(wire.greeting)
            received = bytearray()
            while not _frames(sock, received, b""):
                pass
        sock.setblocking(False)
        yield sock


def _frames(sock: socket.socket, received: bytearray, good: bytes) -> list[bytes]:
    """Receive once; return the complete frames. Raises LoadError."""
    data = sock.recv(RECEIVE_BYTES)
    if not data:
        raise LoadError("the contestant closed a connection")
    received += data
    frames, start = [], 0
    while len(received) - start >= LENGTH.size:
        end = start + LENGTH.size + LENGTH.unpack_from(received, start)[0]
        if end > len(received):
            break
        frames.append(bytes(received[start:end]))
        if good not in frames[-1]:
            raise LoadError(f"not a good reply: {frames[-1][:HEAD_BYTES]!r}")
        start = end
    del received[:start]
    return frames
