"""Collect items for other brokers while the previous request is in flight.

    put ──► queue of the broker ──► one request with all waiting items, one request at a time

So the number of requests does not grow with the number of transactions or share-partitions, and a broker that does not
answer delays only its own items.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, kafka.server.AddPartitionsToTxnManager,
org.apache.kafka.server.share.persister.PersisterStateManager.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import trio

from warmlog.protocol.kafka.peer import PeerApi

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Peers(Protocol):
    """The other brokers of the cluster."""

    def leader_id(self, topic: str, partition: int) -> int | None:
        """Return the other broker that leads a partition; None if this one leads it, or no broker does."""

    async def answer(self, broker: int, api: PeerApi[Any, Any], request: Any, number: int) -> Any:
        """Send a request over the broker's connection with this number; return the response, None if there is none."""


class PeerQueue(Generic[K, T]):
    """Queues for destinations, which are brokers or parts of them. Belongs to the event loop."""

    def __init__(self, send: Callable[[K, Sequence[T]], Awaitable[None]], *, max_items: int) -> None:
        """`send` sends at most `max_items` to a destination and reports the outcome of each; it must not raise."""
        self._send = send
        self._max_items = max_items
        self._waiting: dict[K, list[T]] = {}
        self._busy: set[K] = set()
        self._has_work = trio.Event()

    def put(self, destination: K, item: T) -> None:
        """Send an item as soon as the previous request is answered."""
        self._waiting.setdefault(destination, []).append(item)
        if destination not in self._busy:
            self._has_work.set()

    async def run(self) -> None:
        """Send until cancelled; remaining items are then dropped without a report."""
        async with trio.open_nursery() as nursery:
            while True:
                self._has_work = trio.Event()
                for destination in self._waiting.keys() - self._busy:
                    self._busy.add(destination)
                    nursery.start_soon(self._send_all, destination)
                await self._has_work.wait()

    async def _send_all(self, destination: K) -> None:
        while waiting := self._waiting.pop(destination, None):
            items, rest = waiting[: self._max_items], waiting[self._max_items :]
            if rest:
                self._waiting[destination] = rest
            try:
                await self._send(destination, items)
            except Exception:  # a defect triggered by one request must not stop requests to other brokers
                logger.exception("unexpected error while sending %d requests to %s", len(items), destination)
        self._busy.discard(destination)
