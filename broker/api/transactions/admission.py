"""Admit batches of transactions before they are appended (KIP-890).

A batch of a producer that has no open transaction in a partition must not be appended before the transaction
coordinator knows the partition: otherwise no marker would ever end the transaction there.

Source: kafka.server.ReplicaManager (maybeSendPartitionsToTransactionCoordinator),
UnifiedLog.maybeStartTransactionVerification.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from warmlog.broker.api.context import Context
from warmlog.broker.log.producers.transitions import continues_transaction
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.transactions.admission import Guards
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.verification import TransactionSupport, produce_error
from warmlog.broker.transactions.verification import support_of as kafka_support
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.batch import batch_spans, read_header
from warmlog.protocol.records.layout import ATTRIBUTES_POSITION, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT
from warmlog.protocol.request import PartitionRecords, ProduceRequest

#: Called with the transactional id, its producer, the partitions, the client's support of KIP-890, and the guards of
#: the partitions; returns the coordinator's errors for refused partitions.
Admit: TypeAlias = Callable[
    [str, Producer, Sequence[TopicPartition], TransactionSupport, Guards],
    Awaitable[Mapping[TopicPartition, ErrorCode]],
]

PARTITIONS_PER_STEP = 1000


def has_transaction(requested: PartitionRecords) -> bool:
    """Return whether a batch belongs to a transaction. Batches after an invalid one are not checked."""
    records = requested.records
    for position, _ in batch_spans(records):
        if records[position + MAGIC_POSITION] != MAGIC:
            break
        if records[position + ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:  # in the low byte
            return True
    return False  # or refused later, for its format


def support_of(api: str, context: Context) -> TransactionSupport:
    """Return the client's support of KIP-890, derived from its request. `api`: `produce` or `txn_offset_commit`."""
    return TransactionSupport.ADDING if context.session.is_native else kafka_support(api, context.version)


def needs_admission(requested: PartitionRecords, partition: Partition | None) -> bool:
    """Return whether a batch belongs to a transaction that is not open in its partition."""
    if partition is None or not has_transaction(requested):
        return False
    header = read_header(requested.records)
    return not continues_transaction(partition.log.producers.get(header.producer_id), header.producer_epoch)


class Admission(NamedTuple):
    """The rejected partitions of a request, and the guards with which the others may begin a transaction."""

    refused: Mapping[TopicPartition, ErrorCode]
    guards: Mapping[TopicPartition, int]


async def admit_batches(request: ProduceRequest, context: Context, partitions: Partitions, admit: Admit) -> Admission:
    """Query the transaction coordinator about batches that begin a transaction in their partitions.

    Guards are opened before the query: a marker written in the meantime invalidates them. Batches of an epoch that
    their log has fenced are omitted, so that the partition is not added to the transaction.
    """
    assert isinstance(request.transactional_id, str)
    by_producer: dict[Producer, dict[TopicPartition, int]] = {}  # the first sequence for each partition
    guards: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for requested in request.partitions:
        partition = partitions.get(requested.topic, requested.partition)
        if partition is not None and needs_admission(requested, partition):
            header, topic_partition = read_header(requested.records), (requested.topic, requested.partition)
            state = partition.log.producers.get(header.producer_id)
            if state is not None and header.producer_epoch < state.epoch:
                refused[topic_partition] = ErrorCode.INVALID_PRODUCER_EPOCH
            else:
                sequences = by_producer.setdefault(Producer(header.producer_id, header.producer_epoch), {})
                sequences[topic_partition] = header.base_sequence
        await context.checkpoint()
    support = support_of("produce", context)
    for producer, sequences in by_producer.items():
        remaining = iter(sequences.items())
        while step := dict(islice(remaining, PARTITIONS_PER_STEP)):
            opened = OpenGuards(partitions, producer, step, restarts=support is TransactionSupport.ADDING)
            admitted = admit(request.transactional_id, producer, [*step], support, opened)
            errors = await context.wait(admitted)
            refused.update(
                {topic_partition: produce_error(error, support) for topic_partition, error in errors.items()}
            )
            guards.update(opened.numbers)
            await context.checkpoint()
    return Admission(refused, guards)


class OpenGuards:
    """The guards of a producer's batches, by partition; `sequences`: the first batch's sequence for each partition."""

    def __init__(
        self,
        partitions: Partitions,
        producer: Producer,
        sequences: Mapping[TopicPartition, int],
        *,
        restarts: bool,
    ) -> None:
        """`restarts`: whether each transaction of the producer has a new epoch and begins with sequence 0."""
        self.numbers: dict[TopicPartition, int] = {}
        self._partitions = partitions
        self._producer = producer
        self._sequences = sequences
        self._restarts = restarts

    def open(self) -> None:
        """Open the guards, or reopen invalidated ones."""
        producer = self._producer
        for topic_partition, sequence in self._sequences.items():
            partition = self._partitions.get(*topic_partition)
            if partition is not None:
                self.numbers[topic_partition] = partition.log.producers.guards.open(
                    producer.id, producer.epoch, sequence, restarts=self._restarts
                )

    def lapsed(self) -> list[TopicPartition]:
        """Return the partitions with an invalid guard and no open transaction of the producer."""
        return [
            topic_partition
            for topic_partition, number in self.numbers.items()
            if self._has_lapsed(topic_partition, number)
        ]

    def _has_lapsed(self, topic_partition: TopicPartition, number: int) -> bool:
        partition, producer = self._partitions.get(*topic_partition), self._producer
        if partition is None:  # or led elsewhere now
            return False
        producers = partition.log.producers
        if producers.guards.is_valid(producer.id, number):
            return False
        return not continues_transaction(producers.get(producer.id), producer.epoch)
