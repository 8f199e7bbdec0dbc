"""Detect brokers that have died or hang, and let clients wait for the result.

    a connection to a broker is lost -> nothing listens there -> its registration is ended -> the controller elects
    a request is not answered -> a probe is not answered, nor is its lease renewed -> the same

Clients lose their connections at the same moment, and request the new leaders. A response that still names the dead
broker costs them a pause, in librdkafka up to a second. So requests for leaders wait for `settled`, which takes a few
milliseconds. Then partitions of the dead broker have no leader, and clients soon repeat the request.

A broker that hangs, frozen or with a stuck event loop, keeps its connections. It is replaced if two independent
signs agree for SILENCE_S: it does not answer this broker, and does not renew its lease. One that only this broker
cannot reach renews its lease. A wrong guess costs an election but no records: a registration is only a hint.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from warmlog.broker.cluster.decisions import Decision
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.store import ROUNDING_S, StoreError
from warmlog.broker.cluster.topics import end_registration
from warmlog.broker.cluster.values import Endpoint, Registration
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest
from warmlog.protocol.kafka.peer import PeerProtocol
from warmlog.protocol.kafka.peer_apis import API_VERSIONS
from warmlog.protocol.version import VERSION

SUSPECT_PAUSE_S = 0.2  # minimum interval between two checks of the same broker
RECHECK_S = 0.02  # a process that dies may lose its connections before its ports
CONNECT_WAIT_S = 0.1  # how long requests wait for attempts to connect: a refusal is quick
STORE_WAIT_S = 0.5  # how long requests wait for the end of a registration
SILENT_WAIT_S = 1.5  # how long requests wait until it is known whether a silent broker lives
# A working broker may be silent for a second: a full garbage collection, a busy machine. Its lease is hardly ever older
# than `node.RENEW_S`.
SILENCE_S = 2.0
PROBE_S = 1.0  # minimum time without an answer to a probe
LEASE_POLL_S = 0.1
VERDICT_S = 4.0  # then the broker counts as alive
CONNECT_TIMEOUT_S = 1.0
_GREETING = ApiVersionsRequest(software_name="warmlog", software_version=VERSION)

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """The broker that detects the death of others: `ClusterNode`."""

    id: int
    image: ClusterImage
    peer_listener: str

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the others."""

    async def unrenewed_s(self, registration: Registration) -> float:
        """Return how old a broker's lease is. Raises StoreError."""

    async def attempt(self, decision: Decision) -> bool | None:
        """Try to commit a decision once; return whether it was committed, None if that is unknown."""


class Failover:
    """Ends the registrations of brokers that have died, and lets requests wait for that. Belongs to the event loop."""

    def __init__(self, node: Observer) -> None:
        self._node = node
        self._suspected: set[int] = set()  # brokers that are being checked
        self._unreachable: set[int] = set()  # brokers that renew their leases but do not answer this one
        self._wait_until: dict[int, float] = {}  # by suspected broker, until the check ends: on trio's clock
        self._verdict = trio.Event()  # set when the check of a suspected broker ends

    def suspect(self, broker: int, *, is_silent: bool = False) -> None:
        """Check whether a broker still runs, and end its registration if it certainly does not.

        `is_silent`: a connection to it is open, and a request is not answered. Otherwise a connection was lost.
        """
        if broker == self._node.id or broker in self._suspected:
            return
        self._suspected.add(broker)
        if broker in self._node.image.brokers:
            wait_s = SILENT_WAIT_S if is_silent and broker not in self._unreachable else CONNECT_WAIT_S
            self._wait_until[broker] = trio.current_time() + wait_s
        self._node.spawn(partial(self._check, broker, is_silent=is_silent))

    async def settled(self) -> None:
        """Return when each suspected broker is known to live or to be dead, or when the checks take too long."""
        limit = trio.current_time() + SILENT_WAIT_S
        while (now := trio.current_time()) < limit:
            until = max(self._wait_until.values(), default=now)
            if until <= now:
                return
            with trio.move_on_at(min(until, limit)):
                await self._verdict.wait()

    async def _check(self, broker: int, *, is_silent: bool) -> None:
        registration = self._node.image.brokers.get(broker)
        try:
            if registration is not None:
                why = await self._why_dead(registration, is_silent=is_silent)
                if why:
                    await self._end(registration, why)
            self._settle(broker)
            await trio.sleep(SUSPECT_PAUSE_S)
        finally:
            self._settle(broker)
            self._suspected.discard(broker)

    async def _why_dead(self, registration: Registration, *, is_silent: bool) -> str:
        """Return why a broker counts as dead, or an empty text if it does not."""
        if is_silent:
            has_answered, renews = await self._probe(registration)
            if not has_answered and renews is False:
                return "neither answers nor renews its lease"
            if not has_answered:
                self._unreachable.add(registration.broker)
                return ""
        self._unreachable.discard(registration.broker)
        return "no longer listens" if await _is_dead(registration.endpoints) else ""

    async def _probe(self, registration: Registration) -> tuple[bool, bool | None]:
        """Return whether a broker answers, and whether it renews its lease; the latter only if it does not answer."""
        has_answered = False
        renews: bool | None = None

        async def ask(scope: trio.CancelScope) -> None:
            nonlocal has_answered
            await _until_answer(registration.endpoints, self._node.peer_listener)
            has_answered = True
            scope.cancel()

        with trio.move_on_after(VERDICT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, nursery.cancel_scope)
                began_at = trio.current_time()
                await trio.sleep(PROBE_S)
                renews = await self.renews_lease(registration, began_at)
                nursery.cancel_scope.cancel()
        return has_answered, renews

    async def renews_lease(self, registration: Registration, began_at: float) -> bool | None:
        """Wait for a broker to renew its lease; return False after SILENCE_S without a renewal, None if unknown."""
        try:
            while (unrenewed_s := await self._node.unrenewed_s(registration)) < SILENCE_S:
                if unrenewed_s + ROUNDING_S < trio.current_time() - began_at:
                    return True
                await trio.sleep(LEASE_POLL_S)
        except StoreError as error:
            logger.debug("broker %d: cannot read the state of its lease: %s", registration.broker, error)
            return None
        return False

    async def _end(self, registration: Registration, why: str) -> None:
        """End a registration, unless the broker has registered again since."""
        node, broker = self._node, registration.broker
        known = node.image.brokers.get(broker)
        if known is not None and known.epoch == registration.epoch:
            logger.warning("broker %d %s; ending its registration", broker, why)
            self._wait_until[broker] = trio.current_time() + STORE_WAIT_S
            await node.attempt(end_registration(node.image, broker))

    def _settle(self, broker: int) -> None:
        if self._wait_until.pop(broker, None) is not None:
            self._verdict.set()
            self._verdict = trio.Event()


async def _is_dead(endpoints: Sequence[Endpoint]) -> bool:
    """Return whether the ports of a broker refuse connections, twice in a row."""
    if not await listens(endpoints):
        return True
    await trio.sleep(RECHECK_S)
    return not await listens(endpoints)


async def _until_answer(endpoints: Sequence[Endpoint], listener: str) -> None:
    """Return when a broker answers at its listener for brokers, or refuses the connection."""
    for endpoint in endpoints:
        if endpoint.listener == listener:
            try:
                await until_answer(endpoint)
            except OSError:
                if await listens((endpoint,)):
                    break
            return
    await trio.sleep_forever()


async def listens(endpoints: Sequence[Endpoint]) -> bool:
    """Return False only if every address refuses connections: the machine answers, but nothing listens there."""
    for endpoint in endpoints:
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except OSError as error:
            if not _is_refusal(error):
                return True
        except trio.TooSlowError:
            return True
        else:
            await trio.aclose_forcefully(stream)
            return True
    return not endpoints


async def until_answer(endpoint: Endpoint) -> None:
    """Send ApiVersions to a Kafka listener; return when it sends anything or ends the connection.

    A process that was stopped, or whose event loop is held up, accepts connections and is silent. Raises OSError if
    there is no connection.
    """
    _, request = PeerProtocol("probe").send(API_VERSIONS, _GREETING)
    stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    try:
        await stream.send_all(request)
        await stream.receive_some(1)
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)


def _is_refusal(error: OSError) -> bool:
    """Return whether every attempt behind an error was refused."""
    cause = error.__cause__
    causes = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause or error,)
    return all(isinstance(each, ConnectionRefusedError) for each in causes)
