"""Accept connections on one listening socket, within its limits; close idle and slow ones."""

import errno
import logging
import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from warmlog.broker.api.context import Session
from warmlog.broker.maintenance.wakeups import sleep_until_wakeup
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net.channel import Channel
from warmlog.broker.net.memory_budget import MemoryBudget
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.certificates import ServerTls
from warmlog.broker.net.transport.handshakes import Handshakes
from warmlog.broker.net.transport.transport import PlainTransport, Transport
from warmlog.broker.security.distinguished_names import CertificateError
from warmlog.broker.security.quotas.connection_rates import ConnectionRates
from warmlog.broker.security.sasl import Login
from warmlog.broker.settings.listeners import UNLIMITED_CONNECTIONS, ListenerPlan

if TYPE_CHECKING:
    from warmlog.broker.security.tokens import TokenChecker  # imports joserfc, which most brokers do not need

logger = logging.getLogger(__name__)

# Out of descriptors or memory: retrying immediately would spin, since the connection stays in the backlog.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
EXHAUSTED_PAUSE_S = 0.5
ACCEPT_S = 0.002  # accepted before other tasks run: each takes 30 us or more
CLOSE_S = 0.002  # closed before other tasks run
OVERDUE_CHECK_S = 1.0
WARNING_PAUSE_S = 10.0
MAX_HELD = 256  # held connections of addresses above their rate; further ones are closed immediately

# On one machine, more bytes in flight than fit into the processor's cache are slower: 1 MiB fetches were 25 % (one
# connection) to 50 % (four) faster than with the megabytes that the kernel chooses.
SAME_MACHINE_BUFFER_BYTES = 192 << 10


@dataclass(frozen=True, slots=True)
class Bound:
    """A listener's plan and socket, its certificate if it encrypts, and its token checker if it accepts tokens.

    `shared`: a further socket, on which other brokers of the machine accept as well.
    """

    plan: ListenerPlan
    sock: socket.socket
    tls: ServerTls | None = None
    tokens: "TokenChecker | None" = None
    shared: socket.socket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of listeners: open connections, idle time, and socket buffer sizes in bytes (-1: the kernel's).

    Each listener has its own, except for the limits of an address, which `addresses` counts over all listeners.
    """

    max_connections: Callable[[], int]  # the current setting
    max_connections_per_address: Callable[[str], int]
    max_idle_s: float
    send_buffer_bytes: int
    receive_buffer_bytes: int
    rates: ConnectionRates
    addresses: Counter[str] = field(default_factory=Counter)


class HeldSocket:
    """A socket that is closed at a deadline. `held`: all open ones of a listener."""

    __slots__ = ("_held", "_sock")

    def __init__(self, sock: socket.socket, held: "set[HeldSocket]") -> None:
        self._sock = sock
        self._held = held
        held.add(self)

    def expire(self) -> None:
        """Close the socket."""
        self._held.discard(self)
        self._sock.close()


class Listener:
    """Accepts on its bound sockets until stopped, and closes them.

    Responses to clients of the shared socket name the port of the other one, which only this broker accepts on.
    """

    def __init__(
        self,
        bound: Bound,
        services: Services,
        limits: Limits,
        rate: Callable[[], int],
        *,
        is_protected: bool,
        max_connections: int = UNLIMITED_CONNECTIONS,
    ) -> None:
        """Accept `rate` connections per second. `is_protected`: the broker's limit for all listeners does not apply.

        `max_connections`: the limit of this listener, in addition to the common one.
        """
        self._socks = [bound.sock] if bound.shared is None else [bound.sock, bound.shared]
        self._port: int = bound.sock.getsockname()[1]
        self.name = bound.plan.name
        self.tls = bound.tls
        self._handshakes = Handshakes()
        self.handshakes = {"ok": 0, "failed": 0}
        self._has_stopped = False
        self._services = services
        self._limits = limits
        self._rate = rate
        self._max_connections = max_connections
        self._is_protected = is_protected
        self._held: set[HeldSocket] = set()  # connections of addresses that connect too often
        self.paused_s = 0.0  # time that connections waited because of the rate
        self._channels: dict[Channel, str] = {}  # with their addresses
        self._warn_at = -math.inf  # time before which no warning is logged, on trio's clock
        self._accepting = trio.CancelScope()  # cancelled by `stop`, possibly before `serve` is called
        self._emptied = trio.Event()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._channels)

    async def serve(self) -> None:
        """Accept connections for the serving turn until `stop` is called and all of them have closed.

        Closes the remaining ones when cancelled.
        """
        try:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._close_overdue)  # to the end, since stopping waits for slow peers
                if self.tls is not None:
                    watching.start_soon(self.tls.run)
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for sock in self._socks:
                            accepting.start_soon(self._accept, sock)
                for sock in self._socks:
                    trio.lowlevel.notify_closing(sock)
                    sock.close()
                self._has_stopped = True
                self._handshakes.close()
                self._close_held()
                for channel in list(self._channels):
                    channel.stop()
                self._emptied = trio.Event()
                if self._channels:
                    await self._emptied.wait()
                watching.cancel_scope.cancel()
        finally:
            self._has_stopped = True
            self._handshakes.close()
            self._close_held()
            for channel in list(self._channels):
                channel.close()

    def _close_held(self) -> None:
        for held in list(self._held):
            held.expire()

    def stop(self) -> None:
        """Stop accepting, and close each connection after its received requests are answered."""
        self._accepting.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await trio.lowlevel.wait_readable(listening)
            await self._accept_waiting(listening)

    async def _accept_waiting(self, listening: socket.socket) -> None:
        ends_at = perf_counter() + ACCEPT_S
        while perf_counter() < ends_at:
            try:
                sock, peer = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                await self._accept_failed(error)
                return
            rates = self._limits.rates
            pause_s = rates.address_pause_s(peer[0])
            if pause_s:
                self._hold(sock, peer[0], pause_s)
                continue
            pause_s = rates.listener_pause_s(self.name, self._rate, counts_at_broker=not self._is_protected)
            if pause_s:
                await self._wait(sock, pause_s)
                self._open(sock, peer)
                return
            self._open(sock, peer)

    def _hold(self, sock: socket.socket, address: str, pause_s: float) -> None:
        """Close a connection after a pause, so that its address does not reconnect immediately."""
        self._services.metrics.refused_connections["connection_creation_rate"].add()
        self._warn("%s opens connections above its quota: closing further ones after %.3f s", address, pause_s)
        held = HeldSocket(sock, self._held)
        if len(self._held) <= MAX_HELD:
            self._services.turn.deadlines.add(held, pause_s)
        else:
            held.expire()

    async def _wait(self, sock: socket.socket, pause_s: float) -> None:
        """Delay a connection, and all behind it; close it if the listener stops in the meantime."""
        self.paused_s += pause_s
        try:
            await trio.sleep(pause_s)
        except trio.Cancelled:
            sock.close()
            raise

    async def _accept_failed(self, error: OSError) -> None:
        """Ignore a peer that has disconnected; if out of descriptors, warn and pause."""
        if error.errno in _EXHAUSTED:
            self._warn(
                "cannot accept connections, retrying in %.1f s: %s (see `ulimit -n`)", EXHAUSTED_PAUSE_S, error.strerror
            )
            self._services.metrics.refused_connections["descriptors"].add()
            await trio.sleep(EXHAUSTED_PAUSE_S)

    def _warn(self, message: str, *arguments: object) -> None:
        """Log a rate-limited warning; the metric counts every refused connection."""
        now = trio.current_time()
        if now >= self._warn_at:
            self._warn_at = now + WARNING_PAUSE_S
            logger.warning(f"%s: {message}", self.name, *arguments)  # noqa: G004  # the messages are those above

    def _open(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        limits, address = self._limits, peer[0]
        open_count, of_address = len(self._channels) + len(self._handshakes), limits.addresses[address]
        if open_count >= min(limits.max_connections(), self._max_connections):
            self._refuse(sock, peer, "max_connections", f"{open_count} connections are open, the maximum")
            return
        if of_address >= limits.max_connections_per_address(address):
            self._refuse(sock, peer, "max_connections_per_ip", f"its address has {of_address}, the maximum of one")
            return
        try:
            host = sock.getsockname()[0]
            self._tune(sock, is_local=peer[0] == host)
        except OSError:  # the peer has disconnected
            sock.close()
            return
        limits.addresses[address] += 1
        session = Session(listener=self.name, peer=peer[:2], local=(host, self._port))
        if self._services.login_rules is not None:
            session.login = Login(self._services.login_rules)
        if self.tls is None:
            self._serve_client(PlainTransport(sock), session, b"")
        elif self._handshakes.begin(sock, self.tls.context, address, partial(self._shaken, session)):
            self._services.metrics.refused_connections["handshakes"].add()

    def _shaken(self, session: Session, transport: Transport | None, received: bytes, failure: str) -> None:
        """Serve a client whose handshake is complete."""
        self.handshakes["ok" if transport is not None else "failed"] += 1
        if transport is None:
            self._services.log_handshake(session, failure)
            self._release(session.peer[0])
        elif self._has_stopped:
            transport.close()
            self._release(session.peer[0])
        else:
            assert self.tls is not None
            try:
                session.principal = self.tls.principals.principal_of(transport.certificate())
            except CertificateError as error:
                self._services.log_handshake(session, str(error))
                transport.close()
                self._release(session.peer[0])
                return
            self._serve_client(transport, session, received)

    def _serve_client(self, transport: Transport, session: Session, received: bytes) -> None:
        address = session.peer[0]
        try:
            self._channels[Channel(transport, session, self._services, self._closed, received)] = address
        except OSError:  # the peer has disconnected
            transport.close()
            self._release(address)

    def _refuse(self, sock: socket.socket, peer: tuple[str, int], reason: str, why: str) -> None:
        self._warn("refused %s:%d: %s", *peer[:2], why)
        self._services.metrics.refused_connections[reason].add()
        sock.close()

    def _closed(self, channel: Channel) -> None:
        self._release(self._channels.pop(channel))
        if not self._channels:
            self._emptied.set()

    def _release(self, address: str) -> None:
        addresses = self._limits.addresses
        addresses[address] -= 1
        if not addresses[address]:
            del addresses[address]

    def _tune(self, sock: socket.socket, *, is_local: bool) -> None:
        """Disable Nagle's algorithm, enable keepalive, and set buffer sizes if configured or for a local peer.

        TCP_NOTSENT_LOWAT stays unlimited: a low value makes bulk fetches a third slower.
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

    async def _close_overdue(self) -> None:
        while True:
            await sleep_until_wakeup(OVERDUE_CHECK_S)
            now = perf_counter()
            ends_at = now + CLOSE_S
            for channel in list(self._channels):
                channel.close_overdue(now, self._limits.max_idle_s)
                if perf_counter() > ends_at:
                    await trio.lowlevel.checkpoint()
                    now = perf_counter()
                    ends_at = now + CLOSE_S


def declare_listener_metrics(
    metrics: Metrics,
    listeners: Sequence[Listener],
    requests: MemoryBudget,
    replies: MemoryBudget,
    certificates: Mapping[str, ServerTls],
) -> None:
    """Declare the metrics of connections, certificates, and memory for large requests and replies."""
    metrics.gauge(
        "warmlog_connections",
        "Open connections.",
        lambda: [((listener.name,), listener.connections) for listener in listeners],
        ("listener",),
    )
    metrics.counter(
        "warmlog_accept_pause_seconds_total",
        "Time that new connections had to wait because of max.connection.creation.rate.",
        lambda: [((listener.name,), listener.paused_s) for listener in listeners],
        ("listener",),
    )
    encrypted = [listener for listener in listeners if listener.tls is not None]
    metrics.counter(
        "warmlog_tls_handshakes_total",
        "TLS handshakes of clients.",
        lambda: [((each.name, result), count) for each in encrypted for result, count in each.handshakes.items()],
        ("listener", "result"),
    )
    metrics.gauge(
        "warmlog_tls_certificate_expiry_seconds",
        "Time at which the certificate of a listener expires, in seconds since 1970.",
        lambda: [((name,), tls.expires_at) for name, tls in certificates.items()],
        ("listener",),
    )
    metrics.gauge(
        "warmlog_inflight_bytes",
        "Bytes of requests received, completely or in part, and not yet answered.",
        lambda: [((), requests.held_bytes)],
    )
    metrics.gauge(
        "warmlog_reply_bytes", "Bytes of replies encoded and not yet sent.", lambda: [((), replies.held_bytes)]
    )
