"""The cost of the residency gate for a fetch from memory, and of metrics for a small request: A/B in one process.

    on 200 | off 200 | off 200 | on 200 | on 200 | ...      requests; a pair is one block of each

Blocks are so short that other load on the machine affects both of a pair, and the order alternates. A cost is the
median over the pairs of (on / off - 1), with its 95 % confidence interval.
"""

import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import LENGTH, ROOT, LoadError
from benchmarks.load.native import Address, NativeWire
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import ENVIRONMENT, StartError

BLOCK = 200  # requests
PAIRS = 100  # 20,000 requests on each side
SETTLE = 8  # requests after a switch that are not counted
RECEIVE_BYTES = 1 << 18
TOPIC = "costs"


class SwitchedBroker:
    """A broker in its own process whose features can be switched."""

    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        self._process = process
        self.address = address

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def turn(self, what: str, *, on: bool) -> None:
        """Switch a feature, and wait until that is done. Raises StartError if the broker has exited."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {'on' if on else 'off'}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise StartError(f"the broker ended with status {self._process.wait()}")


@contextmanager
def switched_broker(directory: Path) -> Iterator[SwitchedBroker]:
    """Start the broker, and end it with the block. Raises StartError."""
    command = [sys.executable, "-m", "benchmarks.servers.switched", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        fields = dict(field.split("=", 1) for field in process.stdout.readline().split()[1:])
        if "native" not in fields:
            raise StartError(f"the broker ended with status {process.wait()}")
        host, _, port = fields["native"].rpartition(":")
        yield SwitchedBroker(process, (host, int(port)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One switch under one load: `connections`, each with one request in flight, which is repeated.

    Fetches `fetch_bytes` from a log of copies of the batch; without `fetch_bytes`, the batch is produced.
    """

    name: str
    what: str
    connections: int
    batch: bytes
    fetch_bytes: int = 0

    def measure(self, conditions: Conditions) -> Figures:
        """Return microseconds per request with and without the feature, and the cost. Raises LoadError, StartError.

        `cpu_us` is the broker's processor time per request with the feature.
        """
        with switched_broker(conditions.directory) as broker, ExitStack() as stack:
            request = self._prepare(broker.address)
            sockets = [stack.enter_context(_connected(broker.address)) for _ in range(self.connections)]
            run_block(sockets, request, BLOCK)
            on_s, off_s = [], []
            on_cpu_us = []
            for number in range(conditions.scaled(PAIRS)):
                for on in (True, False) if number % 2 else (False, True):
                    broker.turn(self.what, on=on)
                    run_block(sockets, request, SETTLE)
                    meter = ProcessorMeter((broker.pid,))
                    (on_s if on else off_s).append(run_block(sockets, request, BLOCK) / BLOCK)
                    if on:
                        on_cpu_us.append(meter.us_per(BLOCK))
            broker.turn(self.what, on=True)
        cost = median_of([on / off - 1 for on, off in zip(on_s, off_s, strict=True)])
        return {
            "on_us": median(on_s) * 1e6,
            "off_us": median(off_s) * 1e6,
            "cpu_us": median(on_cpu_us),
            "cost": cost.value,
            "cost_low": cost.low,
            "cost_high": cost.high,
            "requests_a_side": float(len(on_s) * BLOCK),
        }

    def _prepare(self, address: Address) -> bytes:
        """Create and fill the topic, and return the request."""
        wire = NativeWire()
        wire.create_topic(address, TOPIC, 1, {})
        produce = wire.produce(TOPIC, 0, self.batch)
        if not self.fetch_bytes:
            return produce
        with _connected(address) as sock:
            run_block([sock], produce, -(-self.fetch_bytes // len(self.batch)) + 1)
        return wire.fetch(TOPIC, 0, 0, self.fetch_bytes)


@dataclass(frozen=True, slots=True)
class Median:
    """The median of some values, and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Median:
    """Return the median and its interval by ranks, assuming no distribution. Raises ValueError for no values."""
    ranked = sorted(values)
    reach = 1.96 * sqrt(len(ranked)) / 2
    low = max(0, int(len(ranked) / 2 - reach))
    high = min(len(ranked) - 1, int(len(ranked) / 2 + reach))
    return Median(median(ranked), ranked[low], ranked[high])


def run_block(sockets: Sequence[socket.socket], request: bytes, count: int) -> float:
    """Return the seconds for `count` requests, with one in flight on each connection. Raises LoadError."""
    connections = {sock.fileno(): _Reply(sock) for sock in sockets[:count]}
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    poll = select.poll()
    for fd in connections:
        poll.register(fd, select.POLLIN)
    began_at = perf_counter()
    asked = done = 0
    for sock in sockets[:count]:
        sock.sendall(request)
        asked += 1
    while done < count:
        for fd, _ in poll.poll():
            reply = connections[fd]
            if reply.receive(buffer):
                done += 1
                if asked < count:
                    reply.sock.sendall(request)
                    asked += 1
    return perf_counter() - began_at


class _Reply:
    """The part of a connection's reply that is still missing."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._left = 0

    def receive(self, buffer: memoryview) -> bool:
        """Receive once; return whether the reply is complete."""
        count = self.sock.recv_into(buffer)
        if not count:
            raise LoadError("the broker closed a connection")
        if not self._left:
            if NativeWire.good not in bytes(buffer[: min(count, 512)]):
                raise LoadError(f"not a good reply: {bytes(buffer[: min(count, 512)])!r}")
            self._left = LENGTH.size + LENGTH.unpack_from(buffer)[0]
        self._left -= count
        return not self._left


@contextmanager
def _connected(address: Address) -> Iterator[socket.socket]:
    """Open a connection and exchange the first request."""
    with socket.create_connection(address) as sock, sock.makefile("rb") as stream:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(NativeWire().greeting)
        stream.read(*LENGTH.unpack(stream.read(LENGTH.size)))
        yield sock
