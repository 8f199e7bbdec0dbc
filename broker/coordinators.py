"""The coordinators of a broker: groups, transactions, share group state; and the share partitions that use it."""

from uuid import uuid4

import trio

from warmlog.broker.api.records.producers import largest_producer_id
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.groups.service import GroupService
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import wall_clock_ms
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.service import ShareService
from warmlog.broker.share.state.service import ShareStateService
from warmlog.broker.transactions.markers import Marker, MarkerWriter, append_marker
from warmlog.broker.transactions.producer_ids import ProducerIds
from warmlog.broker.transactions.service import TransactionService
from warmlog.protocol.partitions import TopicPartition


class Coordinators:
    """Constructs the coordinators, and runs them together. Call all methods on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        writer: Writer,
        settings: Settings,
        metrics: Metrics,
        *,
        node: StoreNode,
        peers: Peers | None,
    ) -> None:
        """Use open logs. `peers` are the other brokers of a cluster."""
        self.share_states = ShareStateService(partitions, writer, settings, clock=wall_clock_ms, peers=peers)
        self.share_states.declare(metrics)
        self.groups = GroupService(
            partitions,
            writer,
            settings,
            clock=wall_clock_ms,
            new_id=lambda: str(uuid4()),
            persister=self.share_states.persister,
            peers=peers,
        )
        self.groups.declare(metrics)
        self.transactions = TransactionService(
            partitions,
            writer,
            settings,
            ids=ProducerIds(node, lambda: largest_producer_id(partitions)),
            markers=MarkerWriter(partitions, writer, append_marker, self._marker_written),
            clock=wall_clock_ms,
            peers=peers,
        )
        self.share = ShareService(partitions, self.share_states.persister, writer.write_queued, peers)
        self.share.declare(metrics)

    def _marker_written(self, topic_partition: TopicPartition, marker: Marker, offset: int) -> None:
        self.groups.end_transaction(topic_partition, marker.producer.id, offset, marker.outcome)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in (self.groups.run, self.transactions.run, self.share_states.run, self.share.run):
                nursery.start_soon(task)

    def stop(self) -> None:
        """Answer requests that wait for other members or records, which would delay the broker's stop."""
        self.groups.stop()
        self.transactions.stop()
        self.share_states.stop()
