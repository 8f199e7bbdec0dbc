"""Transactions across brokers: send markers for partitions that others lead, and query coordinators of other brokers.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler,
kafka.server.AddPartitionsToTxnManager (KIP-890).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from warmlog.broker.coordinator.peer_queue import PeerQueue, Peers
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.markers import Marker, Written
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    PartitionsOfTransaction,
)
from warmlog.protocol.kafka.peer_apis import ADD_PARTITIONS, WRITE_MARKERS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transactions import (
    AddedPartition,
    MarkersOfTransaction,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Separate connections: brokers answer in order, and a marker waits for the in-sync replicas of its partition.
MARKERS: Final = -1
QUESTIONS: Final = -2
MAX_MARKERS = 100  # per request
MAX_QUESTIONS = 50
ANSWER_LIMIT_S = 30.0  # of a query; clients do not wait longer


class _Item(NamedTuple):
    marker: Marker
    topic_partitions: Sequence[TopicPartition]
    written: Written


class RemoteMarkers:
    """Sends markers to other brokers. `run` is the task."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._queue = PeerQueue(self._send, max_items=MAX_MARKERS)

    async def run(self) -> None:
        """Send until cancelled."""
        await self._queue.run()

    def write(self, broker: int, marker: Marker, topic_partitions: Sequence[TopicPartition], written: Written) -> None:
        """Have a broker write a marker to partitions; `written` is called with the outcome of each.

        The outcome is NOT_LEADER_OR_FOLLOWER if the broker does not answer, or does not know the partition (yet).
        """
        self._queue.put(broker, _Item(marker, topic_partitions, written))

    async def _send(self, broker: int, items: Sequence[_Item]) -> None:
        request = WriteTxnMarkersRequest(markers=tuple([_marker_request(item) for item in items]))
        response = await self._peers.answer(broker, WRITE_MARKERS, request, MARKERS)
        written = {} if response is None else _written(response)
        for item in items:
            results = written.get(item.marker.producer.id, {})
            item.written(
                {
                    topic_partition: results.get(topic_partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    for topic_partition in item.topic_partitions
                }
            )
            await trio.lowlevel.checkpoint()


def _marker_request(item: _Item) -> MarkersOfTransaction:
    marker = item.marker
    return MarkersOfTransaction(
        producer_id=marker.producer.id,
        producer_epoch=marker.producer.epoch,
        commits=marker.outcome is Outcome.COMMIT,
        partitions=_partitions(item.topic_partitions),
        coordinator_epoch=marker.coordinator_epoch,
        version=marker.version,
    )


def _written(response: WriteTxnMarkersResponse) -> Mapping[int, Mapping[TopicPartition, ErrorCode]]:
    """Return the outcomes by producer id. A partition unknown to the peer was not deleted: this broker knows it."""
    by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in response.markers:
        results = by_producer.setdefault(marker.producer_id, {})
        for topic_partition, error in _by_partition(marker.partitions).items():
            is_unknown = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results[topic_partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_unknown else error
    return by_producer


class _Question:
    """A query to the coordinator of an id, with its answer."""

    __slots__ = ("answered", "errors", "requested")

    def __init__(self, requested: PartitionsOfTransaction) -> None:
        self.requested = requested
        self.errors: Mapping[TopicPartition, ErrorCode] = {}
        self.answered = trio.Event()


class RemoteCoordinators:
    """Queries coordinators on other brokers. `run` is the task."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._queue = PeerQueue(self._send, max_items=MAX_QUESTIONS)

    async def run(self) -> None:
        """Send until cancelled."""
        await self._queue.run()

    async def ask(
        self,
        broker: int,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Have the coordinator of an id verify partitions of its transaction, or add them; return the outcome of each.

        The outcome is COORDINATOR_NOT_AVAILABLE if the broker does not answer.
        """
        question = _Question(
            PartitionsOfTransaction(
                transactional_id=transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                partitions=_partitions(partitions),
                verify_only=verify_only,
            )
        )
        self._queue.put(broker, question)
        with trio.move_on_after(ANSWER_LIMIT_S):
            await question.answered.wait()
        return {
            topic_partition: question.errors.get(topic_partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for topic_partition in partitions
        }

    async def _send(self, broker: int, questions: Sequence[_Question]) -> None:
        while questions:
            by_id = {question.requested.transactional_id: question for question in reversed(questions)}
            await self._send_distinct(broker, by_id)  # an answer names the id, which must not occur twice
            questions = [each for each in questions if each is not by_id[each.requested.transactional_id]]

    async def _send_distinct(self, broker: int, questions: Mapping[str, _Question]) -> None:
        request = AddPartitionsToTxnRequest(transactions=tuple([each.requested for each in questions.values()]))
        response: AddPartitionsToTxnResponse | None = await self._peers.answer(
            broker, ADD_PARTITIONS, request, QUESTIONS
        )
        for each in () if response is None else response.transactions:
            if each.transactional_id in questions:
                questions[each.transactional_id].errors = _by_partition(each.partitions)
        for question in questions.values():
            question.answered.set()


def _partitions(topic_partitions: Iterable[TopicPartition]) -> tuple[PartitionEntry, ...]:
    return tuple([PartitionEntry(topic=topic, partition=index) for topic, index in topic_partitions])


def _by_partition(results: Iterable[Any]) -> dict[TopicPartition, ErrorCode]:
    errors: dict[TopicPartition, ErrorCode] = {}
    for result in results:
        assert isinstance(result, AddedPartition)
        errors[result.topic, result.partition] = result.error
    return errors
