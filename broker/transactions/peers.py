"""Transactions across brokers: markers for partitions, and questions about ids, that other brokers are responsible for.

Source: kafka.coordinator.transaction.TransactionMarkerChannelManager, kafka.server.AddPartitionsToTxnManager (KIP-890).
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from broker.transactions.effects import Producer
from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.kafka.peer import PeerApi
from protocol.kafka.peer_transaction_apis import ADD_PARTITIONS, WRITE_MARKERS
from protocol.kafka.transaction_values import AddPartitionsToTxnRequest, PartitionsOfTransaction
from protocol.transaction_requests import AddedPartition, MarkersOfTransaction, WriteTxnMarkersRequest
from protocol.transactions import TopicIndex

logger = logging.getLogger(__name__)


class Peers(Protocol):
    """The other brokers of the cluster."""

    def leader_id(self, topic: str, partition: int) -> int | None:
        """Return the other broker that leads a partition; None if this one does, or nobody."""

    async def answer(self, broker: int, api: PeerApi[Any, Any], request: Any) -> Any:
        """Ask a broker; None if it does not answer."""


async def write_markers(
    peers: Peers, broker: int, marker: MarkersOfTransaction, places: Collection[TopicIndex]
) -> Mapping[TopicIndex, ErrorCode]:
    """Let another broker write a marker; return the outcome of each partition."""
    response = await peers.answer(broker, WRITE_MARKERS, WriteTxnMarkersRequest(markers=(marker,)))
    found = {} if response is None else _by_place(one for each in response.markers for one in each.partitions)
    return {place: found.get(place, ErrorCode.NOT_LEADER_OR_FOLLOWER) for place in places}


async def ask_coordinator(
    peers: Peers,
    broker: int,
    transactional_id: str,
    producer: Producer,
    places: Collection[TopicIndex],
    *,
    verify_only: bool,
) -> Mapping[TopicIndex, ErrorCode]:
    """Let the coordinator of an id look up partitions in its transaction, or add them; return the outcome of each."""
    asked = PartitionsOfTransaction(
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        partitions=tuple([TopicPartition(topic=topic, partition=index) for topic, index in places]),
        verify_only=verify_only,
    )
    response = await peers.answer(broker, ADD_PARTITIONS, AddPartitionsToTxnRequest(transactions=(asked,)))
    found = {} if response is None else _by_place(one for each in response.transactions for one in each.partitions)
    return {place: found.get(place, ErrorCode.COORDINATOR_NOT_AVAILABLE) for place in places}


def _by_place(results: Any) -> dict[TopicIndex, ErrorCode]:
    found: dict[TopicIndex, ErrorCode] = {}
    for one in results:
        assert isinstance(one, AddedPartition)
        found[one.topic, one.partition] = one.error
    return found
