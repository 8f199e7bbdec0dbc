"""Write transaction markers to the partitions of this broker.

The coordinator and WriteTxnMarkers requests use the same writer, so both get the same checks.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, kafka.server.KafkaApis
(handleWriteTxnMarkersRequest).
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

import trio

from warmlog.broker.coordinator.appends import UNLIMITED_MS
from warmlog.broker.log.errors import InvalidProducerEpochError, LogError, TransactionCoordinatorFencedError
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Append, Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.transactions.effects import Producer
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import TransactionVersion

logger = logging.getLogger(__name__)

MARKERS_PER_STEP = 32  # partitions between two checkpoints: 2 ms

Written: TypeAlias = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class Marker(NamedTuple):
    """A marker: the producer with the epoch to write, the outcome, and the leader epoch of the coordinator's log."""

    producer: Producer
    outcome: Outcome
    coordinator_epoch: int
    version: TransactionVersion


class AppendMarker(Protocol):
    """Append a control batch to a partition's log with the coordinator as its origin."""

    def __call__(self, partition: Partition, marker: Marker) -> Append:
        """Queue the batch. Raises what `Partition.append` raises, and refuses a stale producer or coordinator."""


def append_marker(partition: Partition, marker: Marker) -> Append:
    """Queue the control batch of a marker in a partition."""
    return partition.append_marker(
        TransactionMarker(
            producer_id=marker.producer.id,
            producer_epoch=marker.producer.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            outcome=marker.outcome,
            raises_epoch=marker.version is TransactionVersion.TV_2,
        ),
        UNLIMITED_MS,  # the offsets that it commits are valid from then on, even if this is late
    )


class MarkerWriter:
    """Writes markers with acks=all. Call on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        writer: Writer,
        append: AppendMarker = append_marker,
        on_written: Callable[[TopicPartition, Marker, int], None] = lambda _topic_partition, _marker, _offset: None,
    ) -> None:
        """Append to these partitions with `append`.

        `on_written` is called with each marker and its offset before it is reported.
        """
        self._partitions = partitions
        self._writer = writer
        self._append = append
        self._on_written = on_written

    def write(self, marker: Marker, partitions: Collection[TopicPartition], written: Written) -> None:
        """Write a marker to distinct partitions. `written` is called once or several times, until all are reported.

        It may be called before this returns. An unknown partition is reported as UNKNOWN_TOPIC_OR_PARTITION. Many
        partitions are written in steps by a background task.
        """
        if len(partitions) <= MARKERS_PER_STEP:
            self._write(marker, sorted(partitions), written)
        else:
            self._writer.spawn(partial(self._write_in_steps, marker, iter(partitions), written))

    async def _write_in_steps(self, marker: Marker, partitions: Iterator[TopicPartition], written: Written) -> None:
        while step := sorted(islice(partitions, MARKERS_PER_STEP)):
            self._write(marker, step, written)
            await trio.lowlevel.checkpoint()

    def _write(self, marker: Marker, partitions: Sequence[TopicPartition], written: Written) -> None:
        refused: dict[TopicPartition, ErrorCode] = {}
        appends: list[tuple[TopicPartition, Append]] = []
        for topic, index in partitions:
            try:
                partition = self._partitions.get(topic, index)
                if partition is None or partition.mirror_of is not None:
                    refused[topic, index] = self._missing(topic, index)
                    continue
                appends.append(((topic, index), self._append(partition, marker)))
            except (ProtocolError, LogError) as error:
                refused[topic, index] = _code_of(error)
        self._writer.write_queued()
        if refused:
            written(refused)
        done = {
            topic_partition: self._outcome(topic_partition, append, marker)
            for topic_partition, append in appends
            if append.done
        }
        if done:
            written(done)
        waiting = {topic_partition: append for topic_partition, append in appends if topic_partition not in done}
        if waiting:
            self._writer.spawn(partial(self._report_later, waiting, marker, written))

    async def _report_later(self, waiting: dict[TopicPartition, Append], marker: Marker, written: Written) -> None:
        """Report each append when it is settled, so that slow replicas of one partition do not delay the others."""
        while waiting:
            settled = trio.Event()
            for append in waiting.values():
                append.notify(settled.set)
            await settled.wait()
            done = {
                topic_partition: self._outcome(topic_partition, append, marker)
                for topic_partition, append in waiting.items()
                if append.done
            }
            for topic_partition in done:
                del waiting[topic_partition]
            written(done)

    def _outcome(self, topic_partition: TopicPartition, append: Append, marker: Marker) -> ErrorCode:
        if append.error is not None:
            return _code_of(append.error)
        self._on_written(topic_partition, marker, append.planned.base_offset)
        return ErrorCode.NONE

    def _missing(self, topic: str, index: int) -> ErrorCode:
        is_offline = self._partitions.is_offline(topic, index)
        if self._partitions.is_clustered and self._partitions.exists(topic, index) and not is_offline:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _code_of(error: Exception) -> ErrorCode:
    if isinstance(error, ProtocolError):
        return error.code
    if isinstance(error, InvalidProducerEpochError):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, TransactionCoordinatorFencedError):
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    if not isinstance(error, (LogError, StorageError)):
        logger.error("unexpected error while writing a transaction marker, retrying", exc_info=error)
    return ErrorCode.KAFKA_STORAGE_ERROR
