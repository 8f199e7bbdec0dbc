"""Admit records of a transaction to a partition before they are appended (KIP-890), wherever the coordinator is.

Source: kafka.server.AddPartitionsToTxnManager, ReplicaManager (maybeSendPartitionsToTransactionCoordinator).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.settings.settings import Settings
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.peers import RemoteCoordinators
from warmlog.broker.transactions.topic import TOPIC
from warmlog.broker.transactions.verification import TransactionSupport
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.transactions import TransactionVersion


class Coordinator(Protocol):
    """The coordinator of this broker."""

    def leads(self, transactional_id: str) -> bool:
        """Return whether this broker coordinates an id."""

    def partition_of(self, transactional_id: str) -> int:
        """Return the log partition of an id."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        version: TransactionVersion,
    ) -> ErrorCode:
        """Add partitions to the producer's transaction."""

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Report which partitions are part of the producer's transaction."""

    async def changed(self, transactional_id: str) -> None:
        """Wait until something is stored about an id."""


class Guards(Protocol):
    """Guards with which batches may begin a transaction in their partitions (`broker.log.producers.transactions`)."""

    def open(self) -> None:
        """Open guards before the coordinator is queried."""

    def lapsed(self) -> Iterable[TopicPartition]:
        """Return the partitions with a marker written since `open` and no open transaction of the producer."""


class Admission:
    """Queries a transaction's coordinator, here or on another broker, about partitions."""

    def __init__(
        self, coordinator: Coordinator, settings: Settings, peers: Peers | None, elsewhere: RemoteCoordinators | None
    ) -> None:
        """Query `coordinator` or, in a cluster, the coordinators on other brokers (`peers`, `elsewhere`)."""
        self._coordinator = coordinator
        self._settings = settings
        self._peers = peers
        self._elsewhere = elsewhere

    async def admit(
        self,
        transactional_id: str,
        producer: Producer,
        topic_partitions: Sequence[TopicPartition],
        support: TransactionSupport,
        guards: Guards,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Admit records of the producer's transaction to partitions; return the coordinator's errors.

        A partition is added for clients that rely on the broker to add it; others must have added it before.

        Waits briefly until the previous transaction is complete: a client would back off for longer. Its markers
        invalidate guards. If another broker coordinates the transaction, a marker may be written here before its answer
        arrives; such an answer counts as CONCURRENT_TRANSACTIONS.
        """
        if not self._must_ask(support):
            guards.open()
            return {}
        limit_s = self._settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        deadline = trio.current_time() + limit_s
        while True:
            guards.open()
            errors = dict(await self._ask(transactional_id, producer, topic_partitions, support))
            lapsed = [
                topic_partition for topic_partition in guards.lapsed() if errors[topic_partition] is ErrorCode.NONE
            ]
            errors.update(dict.fromkeys(lapsed, ErrorCode.CONCURRENT_TRANSACTIONS))
            is_busy = support is TransactionSupport.ADDING and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if not (is_busy or lapsed) or trio.current_time() >= deadline:
                break
            if not lapsed:
                await self._pause(transactional_id)
        return {topic_partition: error for topic_partition, error in errors.items() if error is not ErrorCode.NONE}

    def _must_ask(self, support: TransactionSupport) -> bool:
        return support is TransactionSupport.ADDING or self._settings.transaction_partition_verification_enable

    async def _pause(self, transactional_id: str) -> None:
        with trio.move_on_after(self._settings.add_partitions_to_txn_retry_backoff_ms / 1000):
            if self._coordinator.leads(transactional_id):
                await self._coordinator.changed(transactional_id)
            else:
                await trio.sleep_forever()

    async def _ask(
        self,
        transactional_id: str,
        producer: Producer,
        topic_partitions: Sequence[TopicPartition],
        support: TransactionSupport,
    ) -> Mapping[TopicPartition, ErrorCode]:
        is_adding = support is TransactionSupport.ADDING
        if self._peers is not None and self._elsewhere is not None and not self._coordinator.leads(transactional_id):
            broker = self._peers.leader_id(TOPIC, self._coordinator.partition_of(transactional_id))
            if broker is None:
                return dict.fromkeys(topic_partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return await self._elsewhere.ask(
                broker, transactional_id, producer, topic_partitions, verify_only=not is_adding
            )
        if not is_adding:
            return self._coordinator.verify_partitions(transactional_id, producer, topic_partitions)
        error = await self._coordinator.add_partitions(
            transactional_id, producer, topic_partitions, TransactionVersion.TV_2
        )
        return dict.fromkeys(topic_partitions, error)
