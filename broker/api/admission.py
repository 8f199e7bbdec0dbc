"""Admit batches of transactions before they are appended (KIP-890).

A batch of a producer that has no open transaction in a partition must not be appended before the transaction
coordinator knows the partition: otherwise no marker would ever end the transaction there.

Source: kafka.server.ReplicaManager (maybeSendPartitionsToTransactionCoordinator), UnifiedLog.hasOngoingTransaction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.kafka.values import KafkaProduceRequest
from protocol.records.batch import read_header
from protocol.records.layout import HEADER_SIZE, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT
from protocol.request import PartitionRecords
from protocol.transactions import TopicIndex

#: Called with the transactional id, producer id and epoch, the partitions, and the version of Produce; returns the
#: errors of the partitions that are refused.
Admit: TypeAlias = Callable[[str, int, int, Sequence[TopicIndex], int], Awaitable[Mapping[TopicIndex, ErrorCode]]]

_ATTRIBUTES_AT = 22  # the low byte


def has_transaction(asked: PartitionRecords) -> bool:
    """Return whether the first batch belongs to a transaction."""
    records = asked.records
    if len(records) < HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
        return False  # refused later, for its format
    return records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT != 0


def needs_admission(asked: PartitionRecords, partition: Partition | None) -> bool:
    """Return whether a batch belongs to a transaction that is not open in its partition."""
    if partition is None or not has_transaction(asked):
        return False
    header = read_header(asked.records)
    state = partition.log.producers.get(header.producer_id)
    return state is None or state.transaction_first_offset < 0 or state.epoch != header.producer_epoch


async def refused_batches(
    request: KafkaProduceRequest, version: int, partitions: Partitions, admit: Admit
) -> dict[TopicIndex, ErrorCode]:
    """Return the partitions whose batches must not be appended, with the reasons."""
    assert request.transactional_id is not None
    by_producer: dict[tuple[int, int], list[TopicIndex]] = {}
    for asked in request.partitions:
        if needs_admission(asked, partitions.get(asked.topic, asked.partition)):
            header = read_header(asked.records)
            places = by_producer.setdefault((header.producer_id, header.producer_epoch), [])
            places.append((asked.topic, asked.partition))
    refused: dict[TopicIndex, ErrorCode] = {}
    for (producer_id, epoch), places in by_producer.items():
        refused.update(await admit(request.transactional_id, producer_id, epoch, places, version))
    return refused
