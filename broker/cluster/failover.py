"""Notice that a broker has died, and let clients wait until that is known.

    a connection to a broker is lost -> nobody listens there -> its registration is ended -> the controller elects

Clients lose their connections at the same moment, and ask who leads. An answer that still names the dead broker costs
them a pause, in librdkafka up to a second. So requests for leaders wait for `settled`, which takes a few milliseconds.
Then partitions of the dead broker have no leader, and clients ask again soon.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from warmlog.broker.cluster.reachability import listens
from warmlog.broker.cluster.topics import end_registration
from warmlog.broker.cluster.values import Endpoint, Registration

if TYPE_CHECKING:
    from warmlog.broker.cluster.node import ClusterNode

SUSPECT_PAUSE_S = 0.2  # between two suspicions of the same broker
LOOK_AGAIN_S = 0.02  # a process that dies may lose its connections before its ports
CONNECT_WAIT_S = 0.1  # how long requests wait for attempts to connect: a refusal is quick
STORE_WAIT_S = 0.5  # how long requests wait for the end of a registration

logger = logging.getLogger(__name__)


class Failover:
    """Ends the registrations of brokers that have died, and lets requests wait for that. Belongs to the event loop."""

    def __init__(self, node: "ClusterNode") -> None:
        self._node = node
        self._suspected: set[int] = set()  # brokers that are being checked
        self._wait_until: dict[int, float] = {}  # by suspected broker, while it is in question: on trio's clock
        self._verdict = trio.Event()  # about one of them

    def suspect(self, broker: int) -> None:
        """Find out whether a broker still listens, and end the registration of one that certainly does not."""
        if broker != self._node.id and broker not in self._suspected:
            self._suspected.add(broker)
            if broker in self._node.image.brokers:
                self._wait_until[broker] = trio.current_time() + CONNECT_WAIT_S
            self._node.spawn(partial(self._check, broker))

    async def settled(self) -> None:
        """Return when it is known whether each suspected broker lives, or when finding out takes too long."""
        limit = trio.current_time() + STORE_WAIT_S
        while (now := trio.current_time()) < limit:
            until = max(self._wait_until.values(), default=now)
            if until <= now:
                return
            with trio.move_on_at(min(until, limit)):
                await self._verdict.wait()

    async def _check(self, broker: int) -> None:
        node = self._node
        registration = node.image.brokers.get(broker)
        try:
            if registration is not None and await _is_dead(registration.endpoints):
                await self._end(registration)
            self._settle(broker)
            await trio.sleep(SUSPECT_PAUSE_S)
        finally:
            self._settle(broker)
            self._suspected.discard(broker)

    async def _end(self, registration: Registration) -> None:
        """End a registration, unless the broker has registered again meanwhile."""
        node, broker = self._node, registration.broker
        found = node.image.brokers.get(broker)
        if found is not None and found.epoch == registration.epoch:
            logger.warning("broker %d does not listen any more; ending its registration", broker)
            self._wait_until[broker] = trio.current_time() + STORE_WAIT_S
            await node.attempt(end_registration(node.image, broker))

    def _settle(self, broker: int) -> None:
        if self._wait_until.pop(broker, None) is not None:
            self._verdict.set()
            self._verdict = trio.Event()


async def _is_dead(endpoints: Sequence[Endpoint]) -> bool:
    """Return whether nobody listens."""
    if not await listens(endpoints):
        return True
    await trio.sleep(LOOK_AGAIN_S)
    return not await listens(endpoints)
