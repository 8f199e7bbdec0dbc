"""Allocate producer ids, each at most once, even across crashes.

Source: org.apache.kafka.coordinator.transaction.ProducerIdManager.
"""

from collections.abc import Callable

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.metadata.errors import MetadataTimeoutError
from warmlog.protocol.errors import ErrorCode, ProtocolError

BLOCK_SIZE = 1000  # ids per commit of the metadata store, as in Kafka; at most this many are lost by a restart


class NoProducerIdsError(ProtocolError):
    """The cluster's store does not answer: clients retry, as with Kafka."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class ProducerIds:
    """Source of producer ids. Call methods on the event loop."""

    def __init__(self, node: StoreNode, largest_known: Callable[[], int]) -> None:
        """`largest_known` returns the largest id in any log, -1 if there is none."""
        self._node = node
        self._largest_known = largest_known
        self._lock = trio.Lock()
        self._block = range(0)
        self._at_least: int | None = None  # logs copied from another broker have ids below this

    def take(self) -> int | None:
        """Return an id, or None if `prepare` has to be awaited first."""
        if not self._block:
            return None
        producer_id, self._block = self._block[0], self._block[1:]
        return producer_id

    async def prepare(self) -> None:
        """Fetch a block of ids unless some are left. Raises MetadataError, NoProducerIdsError."""
        if self._block:
            return
        async with self._lock:
            if not self._block:
                self._block = await self._take_block()

    async def next(self) -> int:
        """Return an id, fetching a block if needed. Raises MetadataError, NoProducerIdsError."""
        while (producer_id := self.take()) is None:
            await self.prepare()
        return producer_id

    async def _take_block(self) -> range:
        if self._at_least is None:
            self._at_least = self._largest_known() + 1
        at_least = self._at_least
        try:
            first = await admin.in_time(lambda: admin.take_producer_ids(self._node, BLOCK_SIZE, at_least=at_least))
        except MetadataTimeoutError as error:
            raise NoProducerIdsError(str(error)) from None
        return range(first, first + BLOCK_SIZE)
