"""Assign producer ids, and describe the active producers of partitions.

Source: org.apache.kafka.coordinator.transaction.ProducerIdManager, kafka.coordinator.transaction.TransactionCoordinator
(handleInitProducerId without a transactional id, handleListTransactions),
kafka.server.ReplicaManager.activeProducerState.
"""

from collections.abc import Callable, Mapping

import trio

from broker.api.context import Context
from broker.api.errors import EXPECTED, describe
from broker.api.handler import Handler
from broker.log.producers.state import ProducerState
from broker.metadata.store import MetadataStore
from broker.metadata.topic import check_name
from broker.partitions.partitions import Partitions
from protocol.errors import ErrorCode, ProtocolError
from protocol.groups import TopicPartition
from protocol.kafka.admin_values import (
    ActiveProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from protocol.kafka.values import InitProducerIdRequest, InitProducerIdResponse

BLOCK_SIZE = 1000  # ids that one commit of the store is good for: Kafka's, and what a stop may waste
FIRST_EPOCH = 0
#: Of org.apache.kafka.coordinator.transaction.TransactionState.
TRANSACTION_STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
NONE = -1  # as an id or an epoch


class InvalidProducerError(ProtocolError):
    """An id without an epoch or the reverse, or a transactional id of no characters."""


class TransactionsUnservedError(ProtocolError):
    """Transactions are not served.

    The code is the one that every client takes as final at once: for want of a coordinator they would ask for ever, and
    librdkafka does so at any other error, too.
    """

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class ProducerIds:
    """Gives producer ids, each once, whatever happens to the broker."""

    def __init__(self, store: MetadataStore, largest_known: Callable[[], int]) -> None:
        """`largest_known`: the largest id that any log knows, -1 if none does."""
        self._store = store
        self._largest_known = largest_known
        self._lock = trio.Lock()
        self._block = range(0)
        self._at_least: int | None = None  # what came with logs of another broker lies below

    async def take(self) -> int:
        """Return an id that was never assigned before. Raises MetadataError."""
        async with self._lock:
            if not self._block:
                self._block = await self._take_block()
            producer_id, self._block = self._block[0], self._block[1:]
            return producer_id

    async def _take_block(self) -> range:
        if self._at_least is None:
            self._at_least = self._largest_known() + 1
        at_least = self._at_least
        first = await trio.to_thread.run_sync(lambda: self._store.take_producer_ids(BLOCK_SIZE, at_least=at_least))
        return range(first, first + BLOCK_SIZE)


class ProducersApi:
    """Answers InitProducerId, DescribeProducers and ListTransactions."""

    def __init__(self, partitions: Partitions, store: MetadataStore) -> None:
        self._partitions = partitions
        self._ids = ProducerIds(store, self._largest_known)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            InitProducerIdRequest.api: self.init_producer_id,
            DescribeProducersRequest.api: self.describe_producers,
            ListTransactionsRequest.api: self.list_transactions,
        }

    async def init_producer_id(self, request: InitProducerIdRequest, _: Context) -> InitProducerIdResponse:
        """Assign a new id to every caller, even to one that has an id: without transactions there is no fencing.

        (An idempotent client raises its epoch by itself, and asks for another id only when there is no higher one.)
        """
        if (request.producer_id == NONE) != (request.producer_epoch == NONE):
            raise InvalidProducerError("a producer id comes with an epoch")
        if request.transactional_id == "":
            raise InvalidProducerError("a transactional id has at least one character")
        if request.transactional_id is not None:
            raise TransactionsUnservedError("transactions are not served")
        return InitProducerIdResponse(producer_id=await self._ids.take(), producer_epoch=FIRST_EPOCH)

    async def describe_producers(
        self, request: DescribeProducersRequest, context: Context
    ) -> DescribeProducersResponse:
        """List the active producers of each partition."""

        async def described(asked: TopicPartition) -> DescribedProducers:
            return await self._describe(asked, context)

        return DescribeProducersResponse(partitions=await context.answer_at_length(described, request.partitions))

    async def list_transactions(self, request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
        """List none: no transaction can be begun here. States that Kafka does not have are named, each once."""
        unknown: dict[str, None] = {}
        for state in request.states:
            await context.checkpoint()
            if state not in TRANSACTION_STATES:
                unknown[state] = None
        return ListTransactionsResponse(unknown_states=tuple(unknown))

    def _largest_known(self) -> int:
        return max((partition.log.producers.largest_id for partition in self._partitions), default=NONE)

    async def _describe(self, asked: TopicPartition, context: Context) -> DescribedProducers:
        try:
            check_name(asked.topic)
            partition = self._partitions.require(asked.topic, asked.partition)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedProducers(topic=asked.topic, partition=asked.partition, error=code, message=message)
        producers = await context.map(_active, partition.log.producers.capture())
        return DescribedProducers(topic=asked.topic, partition=asked.partition, producers=producers)


def _active(state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=state.transaction_first_offset,
    )
