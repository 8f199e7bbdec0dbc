"""Links between simulated machines: they delay, cut, reset, and can be half-open.

A message is what one call sends. It arrives whole, after a random delay, in order. A link that is cut delivers nothing,
and neither end notices; what was sent meanwhile arrives when it heals, unless the connection was closed before. A
machine that stops resets its connections, or, if it loses its power, leaves their other ends open.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from random import Random

import trio

Serve = Callable[["Socket"], Awaitable[None]]

MACHINE: ContextVar[str] = ContextVar("machine", default="outside")  # on which a task runs; its children inherit it

START_MS = 1_700_000_000_000
MAX_DELAY_S = 0.003
SLOW_DELAY_S = 0.4


def clock_ms() -> int:
    """Return the simulated wall clock."""
    return START_MS + int(trio.current_time() * 1000)


class Socket:
    """One end of a connection, with the calls of trio's sockets that brokers use, and those of `PeerSocket`."""

    def __init__(self, network: "Network", here: str, there: str) -> None:
        self.network = network
        self.here, self.there = here, there
        self.peer: Socket | None = None
        self._received: deque[bytes] = deque()
        self._arrived = trio.Event()
        self._is_closed = False
        self._is_reset = False
        self._has_ended = False
        self._not_before = 0.0  # the arrival of the message sent before

    # -- trio.socket.SocketType, PeerSocket --

    def send(self, data: memoryview) -> int:
        """Send a message, all of it at once. Raises OSError."""
        if self._is_closed:
            raise OSError(9, "Bad file descriptor")
        if self._is_reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        self._send(bytes(data))
        return len(data)

    async def until_writable(self) -> None:
        """Return: there is always room."""

    async def recv(self, size: int) -> bytes:
        """Return what has arrived; nothing after the end. Raises OSError."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._received:
            if self._is_closed:
                raise trio.ClosedResourceError
            if self._is_reset:
                raise ConnectionResetError(104, "Connection reset by peer")
            if self._has_ended:
                return b""
            self._arrived = trio.Event()
            await self._arrived.wait()
        data = self._received.popleft()
        if len(data) > size:
            self._received.appendleft(data[size:])
        return data[:size]

    async def recv_into(self, buffer: memoryview) -> int:
        """Receive into a buffer. Raises OSError."""
        data = await self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this end; the other one notices if the link is not cut."""
        if not self._is_closed:
            self._is_closed = True
            self._arrived.set()
            self.network.forget(self)
            self._send(None)

    def vanish(self) -> None:
        """Close this end without a word: its machine is gone, and the tasks there are being cancelled."""
        self._is_closed = True

    # -- trio.SocketStream --

    @property
    def socket(self) -> "Socket":
        """The socket of this stream: itself."""
        return self

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send a message. Raises BrokenResourceError, ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._is_reset:
            raise trio.BrokenResourceError
        self._send(bytes(data))

    async def receive_some(self, size: int) -> bytes:
        """Return what has arrived. Raises BrokenResourceError, ClosedResourceError."""
        try:
            return await self.recv(size)
        except ConnectionResetError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close this end."""
        self.close()
        await trio.lowlevel.checkpoint()

    # -- the network's side --

    def _send(self, data: bytes | None) -> None:
        network, peer = self.network, self.peer
        assert peer is not None
        arrival = trio.current_time() + network.delay_s(self.here, self.there)
        self._not_before = arrival = max(arrival, self._not_before)
        network.spawn(lambda: self._deliver(peer, data, arrival))

    async def _deliver(self, peer: "Socket", data: bytes | None, arrival: float) -> None:
        await trio.sleep_until(arrival)
        await self.network.until_healed(self.here, self.there)
        if data is None:
            peer._has_ended = True
        elif not peer._is_closed:
            peer._received.append(data)
        peer._arrived.set()

    def reset(self) -> None:
        """Let this end fail at once."""
        if not self._is_closed:
            self._is_reset = True
            self._received.clear()
            self._arrived.set()


class Network:
    """All links. Machines are names; servers listen on (host, port), where the host is the machine's name."""

    def __init__(self, nursery: trio.Nursery, random: Random) -> None:
        self._nursery = nursery
        self._random = random
        self._servers: dict[tuple[str, int], Serve] = {}
        self._serving: dict[str, dict[trio.CancelScope, None]] = {}  # by machine, in order of their beginning
        self._open: dict[Socket, None] = {}
        self._cut: set[tuple[str, str]] = set()
        self._slow: set[tuple[str, str]] = set()
        self._changed = trio.Event()

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the network."""
        self._nursery.start_soon(run)

    def listen(self, host: str, port: int, serve: Serve) -> None:
        """Serve connections to an address with tasks that end when the machine stops."""
        self._servers[host, port] = serve

    def stop_listening(self, host: str, *, is_power_cut: bool = False) -> None:
        """Stop a machine's servers, and reset its connections, unless it could not even do that."""
        for address in [address for address in self._servers if address[0] == host]:
            del self._servers[address]
        for scope in self._serving.pop(host, ()):
            scope.cancel()
        for end in [end for end in self._open if host in {end.here, end.there}]:
            self.forget(end)
            if end.here == host:
                end.vanish()
            elif not is_power_cut:
                end.reset()

    async def open_tcp_stream(self, host: str, port: int, tls: object = None, **_: object) -> Socket:
        """Connect from the machine of this task, in place of trio and of peer sockets. Raises OSError."""
        assert tls is None
        here = MACHINE.get()
        await trio.sleep(self.delay_s(here, host))
        await self.until_healed(here, host)
        await self.until_healed(host, here)
        serve = self._servers.get((host, port))
        if serve is None:
            raise ConnectionRefusedError(111, "Connection refused")
        near, far = Socket(self, here, host), Socket(self, host, here)
        near.peer, far.peer = far, near
        self._open.update({near: None, far: None})
        scope = trio.CancelScope()
        self._serving.setdefault(host, {})[scope] = None
        self._nursery.start_soon(self._serve, serve, far, scope)
        return near

    async def _serve(self, serve: Serve, end: Socket, scope: trio.CancelScope) -> None:
        MACHINE.set(end.here)
        with scope:
            await serve(end)
        self._serving.get(end.here, {}).pop(scope, None)

    def forget(self, end: Socket) -> None:
        """Forget a connection's end."""
        self._open.pop(end, None)

    # -- faults --

    def delay_s(self, here: str, there: str) -> float:
        """Return how long the next message takes."""
        limit = SLOW_DELAY_S if (here, there) in self._slow else MAX_DELAY_S
        return self._random.random() * limit

    def cut(self, here: str, there: str) -> None:
        """Deliver nothing in this direction any more."""
        self._cut.add((here, there))

    def slow(self, here: str, there: str) -> None:
        """Delay what is sent in this direction."""
        self._slow.add((here, there))

    def mend(self, here: str, there: str) -> None:
        """End a cut or a delay in this direction."""
        self._cut.discard((here, there))
        self._slow.discard((here, there))
        self._report_change()

    def heal(self) -> None:
        """End all cuts and delays."""
        self._cut.clear()
        self._slow.clear()
        self._report_change()

    def _report_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def reset_between(self, one: str, other: str) -> None:
        """Reset all connections between two machines."""
        for end in [end for end in self._open if {end.here, end.there} == {one, other}]:
            end.reset()
            self.forget(end)

    async def until_healed(self, here: str, there: str) -> None:
        """Return when messages in this direction are delivered."""
        while (here, there) in self._cut:
            await self._changed.wait()
