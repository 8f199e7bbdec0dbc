"""Send each marker of this broker's coordinator to the leader of its partition, here or on another broker.

A marker whose partition has no leader, or a new one, is reported as failed. The coordinator then retries, and the
marker is routed to the current leader.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.transactions.markers import MARKERS_PER_STEP, Marker, Written
from warmlog.broker.transactions.peers import RemoteMarkers
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition


class MarkerSink(Protocol):
    """Writes markers: `MarkerWriter` to the partitions of this broker, `MarkerRouter` to those of the cluster."""

    def write(self, marker: Marker, partitions: Collection[TopicPartition], written: Written) -> None:
        """Write a marker to distinct partitions; see `MarkerWriter.write`."""


class MarkerRouter:
    """Writes markers to the partitions of the cluster. Call on the event loop."""

    def __init__(
        self, partitions: Partitions, writer: Writer, *, here: MarkerSink, elsewhere: RemoteMarkers, peers: Peers
    ) -> None:
        self._partitions = partitions
        self._writer = writer
        self._here = here
        self._elsewhere = elsewhere
        self._peers = peers

    def write(self, marker: Marker, partitions: Collection[TopicPartition], written: Written) -> None:
        """Write a marker to distinct partitions; see `MarkerWriter.write`."""
        if len(partitions) <= MARKERS_PER_STEP:
            self._route(marker, sorted(partitions), written)
        else:
            self._writer.spawn(partial(self._route_in_steps, marker, iter(partitions), written))

    async def _route_in_steps(self, marker: Marker, partitions: Iterator[TopicPartition], written: Written) -> None:
        while step := sorted(islice(partitions, MARKERS_PER_STEP)):
            self._route(marker, step, written)
            await trio.lowlevel.checkpoint()

    def _route(self, marker: Marker, topic_partitions: Sequence[TopicPartition], written: Written) -> None:
        here: list[TopicPartition] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        leaderless: list[TopicPartition] = []
        for topic_partition in topic_partitions:
            if self._partitions.get(*topic_partition) is not None or not self._partitions.exists(*topic_partition):
                here.append(topic_partition)  # a partition that was deleted is reported as unknown
            elif (leader := self._peers.leader_id(*topic_partition)) is not None:
                elsewhere.setdefault(leader, []).append(topic_partition)
            else:
                leaderless.append(topic_partition)
        for broker, local in elsewhere.items():
            self._elsewhere.write(broker, marker, local, written)
        if leaderless:
            written(dict.fromkeys(leaderless, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if here:
            self._here.write(marker, here, written)
