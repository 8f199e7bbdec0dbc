"""List, describe and abort transactions; find hanging ones.

A transaction hangs in a partition if no coordinator will end it there. Readers of committed records then wait forever
at its first record.

Source: org.apache.kafka.tools.TransactionsCommand; KIP-664.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import broker_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType, PartitionEntry
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.request import Value
from warmlog.protocol.transactions import (
    ActiveProducer,
    DescribedProducers,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MarkersOfTransaction,
    TransactionState,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

DEFAULT_MAX_TIMEOUT_S = 900.0  # Kafka's transaction.max.timeout.ms
OPEN_STATES = frozenset(
    state.label for state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
)

_OF_COORDINATORS = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
R = TypeVar("R", bound=Value)


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition.

    `last_timestamp`: timestamp of the producer's last record there, in ms since the epoch. `transactional_id`: None if
    no coordinator knows the producer.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    transactional_id: str | None = None


class TransactionAdmin:
    """Administrative requests about transactions. All methods raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def select(
        self, states: Iterable[str], producer_ids: Iterable[int], min_duration_s: float | None, pattern: str | None
    ) -> tuple[ListedTransaction, ...]:
        """Return the transactional ids that every filter selects. Raises ValueError for a state that does not exist."""
        request = ListTransactionsRequest(
            states=tuple(states),
            producer_ids=tuple(producer_ids),
            min_duration_ms=-1 if min_duration_s is None else round(min_duration_s * 1000),
            pattern=pattern,
        )
        replies = await self._cluster.ask_each(request, ListTransactionsResponse)
        if unknown := replies[0].unknown_states:
            known = ", ".join(state.label for state in TransactionState if state < TransactionState.DEAD)
            raise ValueError(f"unknown states {', '.join(unknown)}; there are {known}")
        selected = [transaction for reply in replies for transaction in reply.transactions]
        return tuple(sorted(selected, key=attrgetter("transactional_id")))

    async def describe(self, ids: Iterable[str]) -> tuple[DescribedTransaction, ...]:
        """Return states, producers and partitions of transactional ids."""
        described = await self._described(ids)
        for each in described:
            if each.error:
                raise broker_error(each.error, None, about=f"transactional id {each.transactional_id!r}")
        return tuple(described)

    async def _described(self, ids: Iterable[str]) -> list[DescribedTransaction]:
        """Query any broker about all ids, then other brokers about the ids that it does not coordinate."""
        described: list[DescribedTransaction] = []
        for part in parts(ids, str):
            request = DescribeTransactionsRequest(transactional_ids=part)
            described += (await self._cluster.ask(request, DescribeTransactionsResponse)).transactions
        return [
            await self._describe(each.transactional_id) if each.error is ErrorCode.NOT_COORDINATOR else each
            for each in described
        ]

    async def _describe(self, transactional_id: str) -> DescribedTransaction:
        def check(reply: DescribeTransactionsResponse) -> None:
            error = reply.transactions[0].error
            if error in _OF_COORDINATORS:
                raise broker_error(error, None, about=f"transactional id {transactional_id!r}")

        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        reply = await self._ask(transactional_id, request, DescribeTransactionsResponse, check)
        return reply.transactions[0]

    async def _ask(
        self,
        transactional_id: str,
        request: NativeRequest,
        response_type: type[R],
        check: Callable[[R], None] | None = None,
    ) -> R:
        kind = CoordinatorType.TRANSACTION
        return await self._cluster.ask_coordinator(kind, transactional_id, request, response_type, check=check)

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, and fence its producer."""
        (described,) = await self.describe([transactional_id])
        if described.state != TransactionState.ONGOING.label:
            message = f"transactional id {transactional_id!r} has no open transaction: its state is {described.state}"
            raise broker_error(ErrorCode.INVALID_TXN_STATE, message)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=described.timeout_ms)
        await self._ask(transactional_id, request, InitProducerIdResponse)

    async def find_hanging(
        self, topics: Iterable[str] | None, partition: int | None, max_timeout_s: float
    ) -> tuple[OpenTransaction, ...]:
        """Return hanging transactions, except those whose producer has written within `max_timeout_s`."""
        latest_ms = (time.time() - max_timeout_s) * 1000
        is_open = await self._open(await self._entries(topics, partition))
        candidates = [candidate for candidate in is_open if candidate.last_timestamp < latest_ms]
        by_producer: dict[int, list[ListedTransaction]] = defaultdict(list)
        for part in parts({candidate.producer_id for candidate in candidates}, str):
            for listed in await self.select((), part, None, None):
                by_producer[listed.producer_id].append(listed)
        ids = [listed.transactional_id for group in by_producer.values() for listed in group]
        expected = {
            (described.producer_id, producers_of.topic, producers_of.partition)
            for described in await self._described(ids)
            if described.state in OPEN_STATES
            for producers_of in described.partitions
        }
        hanging = []
        for candidate in candidates:
            if (candidate.producer_id, candidate.topic, candidate.partition) not in expected:
                owners = by_producer[candidate.producer_id]
                hanging.append(candidate._replace(transactional_id=owners[0].transactional_id if owners else None))
        return tuple(hanging)

    async def abort_hanging(self, topic: str, partition: int, start_offset: int) -> OpenTransaction:
        """Abort, by a marker, the transaction that starts at this offset of a partition; return the transaction."""
        entry = PartitionEntry(topic=topic, partition=partition)
        is_open = await self._open([entry])
        hanging = next((each for each in is_open if each.start_offset == start_offset), None)
        if hanging is None:
            others = ", ".join(str(each.start_offset) for each in is_open) or "none"
            message = f"{topic}-{partition} has no transaction open from offset {start_offset} on (open: {others})"
            raise broker_error(ErrorCode.INVALID_TXN_STATE, message)
        marker = MarkersOfTransaction(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            commits=False,
            partitions=(entry,),
            coordinator_epoch=max(hanging.coordinator_epoch, 0),
        )
        request = WriteTxnMarkersRequest(markers=(marker,))

        def check(reply: WriteTxnMarkersResponse) -> None:
            (written,) = reply.markers[0].partitions
            if written.error:
                raise broker_error(written.error, None, about=f"{topic}-{partition}")

        await self._cluster.ask_leader(topic, partition, request, WriteTxnMarkersResponse, check=check)
        return hanging

    async def _entries(self, topics: Iterable[str] | None, partition: int | None) -> list[PartitionEntry]:
        described = (await self._cluster.metadata(topics)).topics
        for topic in described:
            if topic.error:
                raise broker_error(topic.error, topic.message)
        return [
            PartitionEntry(topic=topic.name, partition=info.partition)
            for topic in described
            for info in topic.partitions
            if partition is None or info.partition == partition
        ]

    async def _open(self, entries: Sequence[PartitionEntry]) -> list[OpenTransaction]:
        """Return the transactions that are open in partitions."""
        described: list[DescribedProducers] = []
        for part in parts(entries, attrgetter("topic")):
            request = DescribeProducersRequest(partitions=part)
            for each in (await self._cluster.ask(request, DescribeProducersResponse)).partitions:
                is_elsewhere = each.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
                described.append(await self._describe_producers(each) if is_elsewhere else each)
        for each in described:
            _check_described(each)
        return [
            _opened(each, producer)
            for each in described
            for producer in each.producers
            if producer.transaction_start_offset >= 0
        ]

    async def _describe_producers(self, described: DescribedProducers) -> DescribedProducers:
        request = DescribeProducersRequest(
            partitions=(PartitionEntry(topic=described.topic, partition=described.partition),)
        )
        reply = await self._cluster.ask_leader(
            described.topic,
            described.partition,
            request,
            DescribeProducersResponse,
            check=lambda reply: _check_described(reply.partitions[0]),
        )
        return reply.partitions[0]


def _check_described(described: DescribedProducers) -> None:
    if described.error:
        raise broker_error(described.error, described.message, about=f"{described.topic}-{described.partition}")


def _opened(described: DescribedProducers, producer: ActiveProducer) -> OpenTransaction:
    return OpenTransaction(
        topic=described.topic,
        partition=described.partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.coordinator_epoch,
        start_offset=producer.transaction_start_offset,
        last_timestamp=producer.last_timestamp,
    )
