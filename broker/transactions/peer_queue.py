"""What other brokers are to be sent, collected while the request before is under way.

    put ──► queue of the broker ──► one request with all that waits, one request at a time

So the number of requests does not grow with the number of transactions, and a broker that does not answer holds up only
what is for itself.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, kafka.server.AddPartitionsToTxnManager.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

logger = logging.getLogger(__name__)


class PeerQueue(Generic[T]):
    """Queues for brokers. Belongs to the event loop."""

    def __init__(self, send: Callable[[int, Sequence[T]], Awaitable[None]], *, max_items: int) -> None:
        """`send` sends at most `max_items` to a broker and reports what became of each; it raises nothing."""
        self._send = send
        self._max_items = max_items
        self._waiting: dict[int, list[T]] = {}
        self._busy: set[int] = set()
        self._has_work = trio.Event()

    def put(self, broker: int, item: T) -> None:
        """Send an item as soon as the request before is answered."""
        self._waiting.setdefault(broker, []).append(item)
        if broker not in self._busy:
            self._has_work.set()

    async def run(self) -> None:
        """Send until cancelled; nothing is reported of what is left then."""
        async with trio.open_nursery() as nursery:
            while True:
                self._has_work = trio.Event()
                for broker in self._waiting.keys() - self._busy:
                    self._busy.add(broker)
                    nursery.start_soon(self._send_all, broker)
                await self._has_work.wait()

    async def _send_all(self, broker: int) -> None:
        while waiting := self._waiting.pop(broker, None):
            items, rest = waiting[: self._max_items], waiting[self._max_items :]
            if rest:
                self._waiting[broker] = rest
            try:
                await self._send(broker, items)
            except Exception:  # a defect that one request triggers must not stop those to other brokers
                logger.exception(
                    "broker %d: unexpected error while sending it %d transaction requests", broker, len(items)
                )
        self._busy.discard(broker)
