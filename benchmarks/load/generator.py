"""The load generator: processes that keep N connections busy and count replies.

It is the same for all contestants. All it knows of a protocol is the length prefix of four big-endian bytes, and bytes
that a successful reply contains. As little Python as possible runs per request: requests are encoded in advance and
sent many in one call; replies are counted by their lengths, and checked by one search over all received bytes.

1. Closed loop: a connection has at most `depth` requests in flight; each reply allows the next request.
2. Only the window after the warm-up counts, also for the CPU time of both sides.
3. Every reply is checked. One that is not successful ends the measurement with LoadError.
"""

import pickle
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from struct import Struct
from time import perf_counter, process_time

from benchmarks.load.processor_time import ProcessorMeter

LENGTH = Struct(">I")
RECEIVE_BYTES = 256 << 10  # stays in the processor's cache while large replies pass through it
HEAD_BYTES = 512  # bytes of a large reply that are checked, since its records may hold any bytes
STALL_S = 60.0  # longer than any pause of a healthy contestant; Kafka can take 20 s for a first request of this size
RING_BYTES = 64 << 10  # small requests are repeated up to this size, so that many are sent in one call
ROOT = Path(__file__).parents[2]


class LoadError(Exception):
    """The contestant closed a connection, went silent, or answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One connection: sends `requests` repeatedly, with up to `depth` unanswered; `total` of them if given.

    `greeting` is sent first and its reply awaited, outside the measurement. Without requests, the server sends the
    replies as a stream by itself. `address`: the broker to connect to, if it is not the load's.
    """

    requests: tuple[bytes, ...]
    depth: int = 1
    total: int | None = None
    greeting: bytes = b""
    address: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one measurement on a server, which consists of the processes `pids` and their descendants.

    `good`: bytes that each good reply contains, empty for no check. `processes`: number of processes that generate the
    load together.
    """

    address: tuple[str, int]
    flows: tuple[Flow, ...]
    seconds: float
    warmup_s: float
    pids: tuple[int, ...]
    good: bytes = b""
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of a measurement. Latencies, in seconds, if each connection had one request in flight."""

    replies: int
    received_bytes: int
    elapsed_s: float
    server_cpu_s: float
    load_cpu_s: float
    latencies_s: list[float] = field(default_factory=list)


def drive(load: Load) -> LoadResult:
    """Run `load` in separate processes, over which the connections are distributed. Raises LoadError."""
    shares = [replace(load, flows=load.flows[number :: load.processes]) for number in range(load.processes)]
    with ThreadPoolExecutor(len(shares)) as waiting:
        return _sum(list(waiting.map(_drive_share, shares)))


def _drive_share(load: Load) -> LoadResult:
    child = subprocess.run(
        [sys.executable, "-c", "from benchmarks.load.generator import main; main()"],
        input=pickle.dumps(load),
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    result = pickle.loads(child.stdout)
    if isinstance(result, LoadError):
        raise result
    assert isinstance(result, LoadResult)
    return result


def _sum(results: Sequence[LoadResult]) -> LoadResult:
    """Combine the results of processes with about the same windows."""
    return LoadResult(
        replies=sum(result.replies for result in results),
        received_bytes=sum(result.received_bytes for result in results),
        elapsed_s=max(result.elapsed_s for result in results),
        server_cpu_s=max(result.server_cpu_s for result in results),
        load_cpu_s=sum(result.load_cpu_s for result in results),
        latencies_s=[latency for result in results for latency in result.latencies_s],
    )


def main() -> None:
    """Read a pickled Load from standard input, and write a LoadResult or LoadError to standard output."""
    load: Load = pickle.load(sys.stdin.buffer)
    try:
        result: object = generate(load)
    except (LoadError, OSError) as error:
        result = LoadError(str(error))
    pickle.dump(result, sys.stdout.buffer)


def generate(load: Load) -> LoadResult:
    """Generate the load from this process. Raises LoadError, OSError."""
    with ExitStack() as stack:
        addresses = [flow.address or load.address for flow in load.flows]
        sockets = [stack.enter_context(socket.create_connection(address)) for address in addresses]
        buffer = bytearray(RECEIVE_BYTES)
        pairs = zip(sockets, load.flows, strict=True)
        connections = [_Connection(sock, flow, load.good, buffer) for sock, flow in pairs]
        poll = stack.enter_context(select.epoll())
        driver = _Driver(connections, poll)
        if all(flow.total is not None for flow in load.flows):
            return driver.measure(load.pids, seconds=None)
        driver.begin()
        driver.turn(perf_counter() + load.warmup_s)
        return driver.measure(load.pids, seconds=load.seconds)


class _Driver:
    """Runs the event loop, and counts events in a window of time."""

    def __init__(self, connections: "Sequence[_Connection]", poll: select.epoll) -> None:
        self._connections = connections
        self._by_fd = {connection.fd: connection for connection in connections}
        self._poll = poll
        self._begun = False

    def begin(self) -> None:
        """Send the first requests of every connection."""
        self._begun = True
        for connection in self._connections:
            connection.begin(self._poll)

    def measure(self, pids: Sequence[int], *, seconds: float | None) -> LoadResult:
        """Count from now on for this long, or until the last reply if None. Begins unless that was done before."""
        for connection in self._connections:
            connection.forget()
        meter, load_cpu_s, began_at = ProcessorMeter(pids), process_time(), perf_counter()
        if not self._begun:
            self.begin()
        self.turn(None if seconds is None else began_at + seconds)
        elapsed_s = perf_counter() - began_at
        return LoadResult(
            replies=sum(connection.replies for connection in self._connections),
            received_bytes=sum(connection.received_bytes for connection in self._connections),
            elapsed_s=elapsed_s,
            server_cpu_s=meter.used_s(),
            load_cpu_s=process_time() - load_cpu_s,
            latencies_s=[latency for connection in self._connections for latency in connection.latencies_s],
        )

    def turn(self, until: float | None) -> None:
        """Move bytes until this time, or until every connection is done if None."""
        by_fd = self._by_fd
        working = len(by_fd)
        while working and (until is None or perf_counter() < until):
            events = self._poll.poll(STALL_S)
            if not events:
                raise LoadError(f"no reply for {STALL_S:g} s")
            for fd, event in events:
                if by_fd[fd].ready(event):
                    self._poll.unregister(fd)
                    working -= 1


class _Connection:
    """A connected socket, the ring of its requests, and its replies.

    Requests are counted from 0 and stored in a ring, so the bytes of any number of them lie between two positions in an
    endless stream: `_sent` (bytes) and `_position(_allowed)`.
    """

    def __init__(self, sock: socket.socket, flow: Flow, good: bytes, buffer: bytearray) -> None:
        """`buffer` is shared by all connections of the process."""
        self._sock = sock
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if flow.greeting:
            self._greet(flow.greeting)
        self._sock.setblocking(False)
        self.fd = self._sock.fileno()
        self._good = good
        self._lay_ring(flow.requests, flow.depth)
        self._allowed = 0
        self._sent = 0
        self._begin_with = flow.depth
        self._total = flow.total
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._rest = b""  # the beginning of an unfinished reply, shorter than the buffer
        self._skip = 0  # bytes still missing of a reply that is larger than the buffer
        self._measures_latency = flow.depth == 1 and bool(flow.requests)
        self._asked_at = 0.0
        self.forget()

    def forget(self) -> None:
        """Restart counting from here."""
        self.replies = 0
        self.received_bytes = 0
        self.latencies_s: list[float] = []

    def begin(self, poll: select.epoll) -> None:
        """Send the first requests, as many as may be in flight."""
        self._poll = poll
        self._waits_writable = False
        poll.register(self.fd, select.EPOLLIN)
        self._allow(self._begin_with)

    def ready(self, event: int) -> bool:
        """Do what epoll reports as possible. Return True once the last reply has arrived."""
        if event == select.EPOLLIN and self._measures_latency and not self._rest and not self._skip:
            return self._receive_one()
        if event & select.EPOLLOUT:
            self._send()
        if event & ~select.EPOLLOUT:
            return self._replied(self._receive())
        return False

    def _receive_one(self) -> bool:
        """Do the same in fewer steps if one small reply arrives in one piece, as it usually does."""
        size = self._sock.recv_into(self._buffer)
        if size < 5 or LENGTH.unpack_from(self._buffer)[0] != size - 4:
            return self._replied(self._received(0, size))
        self.received_bytes += size
        if self._good:
            self._check(0, size, 1)
        return self._replied(1)

    def _replied(self, count: int) -> bool:
        """Count replies and send the requests they allow. Return True once the last reply has arrived."""
        if count:
            self.replies += count
            if self._measures_latency:
                self.latencies_s.append(perf_counter() - self._asked_at)
            if self._total is not None and self.replies >= self._total:
                return True
            self._allow(count)
        return False

    def _greet(self, greeting: bytes) -> None:
        self._sock.sendall(greeting)
        with self._sock.makefile("rb") as stream:
            stream.read(*LENGTH.unpack(stream.read(LENGTH.size)))

    def _lay_ring(self, requests: tuple[bytes, ...], depth: int) -> None:
        size = sum(map(len, requests))
        requests *= max(1, min(depth, RING_BYTES // size)) if size else 1
        self._starts = [0, *accumulate(map(len, requests))]
        self._ring = memoryview(b"".join(requests))
        self._requests = requests

    def _position(self, index: int) -> int:
        """Return the position of request `index` in the endless stream."""
        turns, index = divmod(index, len(self._starts) - 1)
        return turns * len(self._ring) + self._starts[index]

    def _allow(self, count: int) -> None:
        """Allow `count` more requests."""
        if self._measures_latency and self._total is None:
            request = self._requests[self._allowed % len(self._requests)]
            self._allowed += 1
            self._asked_at = perf_counter()
            try:
                sent = self._sock.send(request)
            except BlockingIOError:
                sent = 0
            self._sent += sent
            if sent < len(request):
                self._wait_writable(True)
        elif self._ring:
            allowed = self._allowed + count
            self._allowed = allowed if self._total is None else min(allowed, self._total)
            if self._measures_latency:
                self._asked_at = perf_counter()
            self._send()

    def _send(self) -> None:
        limit = self._position(self._allowed)
        try:
            while self._sent < limit:
                start = self._sent % len(self._ring)
                self._sent += self._sock.send(self._ring[start : start + limit - self._sent])
        except BlockingIOError:
            self._wait_writable(True)
        else:
            self._wait_writable(False)

    def _wait_writable(self, wait: bool) -> None:
        if wait is not self._waits_writable:
            self._waits_writable = wait
            self._poll.modify(self.fd, select.EPOLLIN | select.EPOLLOUT if wait else select.EPOLLIN)

    def _receive(self) -> int:
        """Receive once; return the number of replies now complete."""
        rest = len(self._rest)
        self._view[:rest] = self._rest
        return self._received(rest, self._sock.recv_into(self._view[rest:]))

    def _received(self, rest: int, count: int) -> int:
        """Count the replies in the buffer, to which `count` bytes were added."""
        if not count:
            raise LoadError("the contestant closed a connection")
        self.received_bytes += count
        end = rest + count
        if self._skip:
            return self._skip_through(end)
        return self._count_replies(0, end)

    def _skip_through(self, end: int) -> int:
        """Skip a large reply; then count the replies after it."""
        skipped = min(self._skip, end)
        self._skip -= skipped
        if self._skip:
            return 0
        return 1 + self._count_replies(skipped, end)

    def _count_replies(self, start: int, end: int) -> int:
        """Walk the complete replies in buffer[start:end] by their lengths; keep the rest for the next call."""
        unpack, begin, count = LENGTH.unpack_from, start, 0
        size = 0
        while end - start >= 4:
            size = 4 + unpack(self._buffer, start)[0]
            if start + size > end:
                break
            start += size
            count += 1
        self._check(begin, start, count)
        rest = end - start
        if size > RECEIVE_BYTES and rest >= HEAD_BYTES:
            self._check(start, start + HEAD_BYTES, 1)
            self._skip = size - rest
            rest = 0
        self._rest = bytes(self._view[start : start + rest])
        return count

    def _check(self, start: int, end: int, count: int) -> None:
        if self._good and count and self._buffer.count(self._good, start, end) < count:
            raise LoadError(f"not a good reply: {bytes(self._buffer[start : min(end, start + HEAD_BYTES)])!r}")
