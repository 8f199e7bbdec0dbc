"""Totals over all partitions of the broker; callers within a second share one count."""

from typing import Final

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.partitions.partitions import LogStatistics, Partitions

FRESH_S: Final = 1.0


class Totals:
    """Totals over all partitions of a broker, counted at most once a second, in pieces."""

    def __init__(self) -> None:
        self.logs = LogStatistics(segments=0, log_bytes=0, unflushed_bytes=0)
        self.under_replicated = 0
        self.failed = 0
        self._counted_at = -FRESH_S
        self._lock = trio.Lock()

    async def count(self, partitions: Partitions, node: StoreNode, context: Context) -> None:
        """Count, unless that was done within the last second."""
        async with self._lock:
            if trio.current_time() < self._counted_at + FRESH_S:
                return
            segments = size = unflushed = failed = 0
            for partition in list(partitions):
                log = partition.log
                segments += log.segment_count
                size += log.size
                unflushed += log.durability.unflushed_bytes
                failed += log.failed
                if context.is_piece_over:
                    await context.pause()
            self.logs = LogStatistics(segments=segments, log_bytes=size, unflushed_bytes=unflushed)
            self.failed = failed
            self.under_replicated = await _count_under_replicated(node, context)
            self._counted_at = trio.current_time()


async def _count_under_replicated(node: StoreNode, context: Context) -> int:
    """Return the partitions of the cluster whose in-sync replicas are fewer than their replicas."""
    count = 0
    for state in list(node.image.partitions.values()):
        count += len(state.isr) < len(state.replicas)
        if context.is_piece_over:
            await context.pause()
    return count
