"""WriteTxnMarkers: markers from coordinators of other brokers, and from tools that abort hanging transactions.

Source: kafka.server.KafkaApis (handleWriteTxnMarkersRequest).
"""

import math
from collections.abc import Mapping

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.catalog import UNKNOWN_EPOCH
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.markers import Marker, MarkerWriter
from warmlog.broker.transactions.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import (
    AddedPartition,
    MarkersOfTransaction,
    TransactionVersion,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarkers,
)

LIMIT_S = 15.0  # time for the in-sync replicas to get the markers; the coordinator waits for 30


class TransactionMarkersApi:
    """Answers WriteTxnMarkers."""

    def __init__(self, markers: MarkerWriter, partitions: Partitions) -> None:
        """Write with `markers`."""
        self._markers = markers
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {WriteTxnMarkersRequest.api: self.write}

    async def write(self, request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
        """Write markers; respond when every partition has written or rejected its marker, or after a timeout."""
        latest = self._latest_coordinator()
        writes = [await self._begin(requested, latest, context) for requested in request.markers]
        with trio.move_on_after(LIMIT_S):
            for write in writes:
                await context.wait(write.done.wait())
        results = []
        for requested, write in zip(request.markers, writes, strict=True):
            errors = write.errors

            def result(entry: PartitionEntry, errors: Mapping[TopicPartition, ErrorCode] = errors) -> AddedPartition:
                error = errors.get(_topic_partition(entry), ErrorCode.REQUEST_TIMED_OUT)
                return AddedPartition(topic=entry.topic, partition=entry.partition, error=error)

            written = await context.map(result, requested.partitions)
            results.append(WrittenMarkers(producer_id=requested.producer_id, partitions=written))
            await context.empty(errors)
        return WriteTxnMarkersResponse(markers=tuple(results))

    def _latest_coordinator(self) -> float:
        """Return the latest leader epoch of a coordinator in the cluster; infinity for a standalone broker.

        A later one would be stored with the producer, and fence every existing coordinator.
        """
        catalog = self._partitions.catalog
        topic = catalog.find_topic(TOPIC)
        if not self._partitions.is_clustered:
            return math.inf
        if topic is None:
            return UNKNOWN_EPOCH
        return max(catalog.partition(topic, index).leader_epoch for index in range(topic.partitions))

    def _is_invented(self, requested: MarkersOfTransaction, topic_partition: TopicPartition) -> bool:
        """Return whether neither a coordinator nor the producer's last marker in a partition has had this epoch."""
        partition = self._partitions.get(*topic_partition)
        state = None if partition is None else partition.log.producers.get(requested.producer_id)
        return state is None or state.coordinator_epoch < requested.coordinator_epoch

    async def _begin(self, requested: MarkersOfTransaction, latest: float, context: Context) -> "_Write":
        """Begin to write a marker to its partitions. `latest`: the latest epoch of a coordinator."""
        partitions: set[TopicPartition] = set()
        for entry in requested.partitions:
            partitions.add(_topic_partition(entry))
            await context.checkpoint()
        write = _Write(len(partitions))
        marker = Marker(
            Producer(requested.producer_id, requested.producer_epoch),
            Outcome.COMMIT if requested.commits else Outcome.ABORT,
            requested.coordinator_epoch,
            TransactionVersion(min(max(requested.version, 0), max(TransactionVersion))),
        )
        if (
            requested.coordinator_epoch > latest
        ):  # or this broker has not seen the election yet: the coordinator retries
            invented = {
                topic_partition for topic_partition in partitions if self._is_invented(requested, topic_partition)
            }
            write.written(dict.fromkeys(invented, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            partitions -= invented
        if marker.producer.id < 0 or marker.producer.epoch < 0:  # no producer has these: they mean "none" in a log
            write.written(dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
        elif partitions:
            self._markers.write(marker, partitions, write.written)
        return write


class _Write:
    """A marker being written, with the outcomes so far."""

    def __init__(self, count: int) -> None:
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.done = trio.Event()
        self._count = count
        if not count:
            self.done.set()

    def written(self, results: Mapping[TopicPartition, ErrorCode]) -> None:
        """Record the outcomes of partitions."""
        self.errors.update(results)
        if len(self.errors) == self._count:
            self.done.set()


def _topic_partition(entry: PartitionEntry) -> TopicPartition:
    return entry.topic, entry.partition
