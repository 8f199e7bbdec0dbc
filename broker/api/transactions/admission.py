"""Admit batches of transactions before they are appended (KIP-890).

A batch of a producer that has no open transaction in a partition must not be appended before the transaction
coordinator knows the partition: otherwise no marker would ever end the transaction there.

Source: kafka.server.ReplicaManager (maybeSendPartitionsToTransactionCoordinator), UnifiedLog.hasOngoingTransaction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from broker.api.context import Context
from broker.log.producers.state import continues_transaction
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

PLACES_PER_STEP = 1000
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
    return not continues_transaction(partition.log.producers.get(header.producer_id), header)


class Admission(NamedTuple):
    """Verdicts on the batches of a request: the refused partitions, and the guards with which the others may begin."""

    refused: Mapping[TopicIndex, ErrorCode]
    guards: Mapping[TopicIndex, int]


async def admit_batches(
    request: KafkaProduceRequest, context: Context, partitions: Partitions, admit: Admit
) -> Admission:
    """Ask the transaction coordinator about batches that begin a transaction in their partitions.

    Guards are taken before it is asked: a marker that is written in the meantime invalidates them.
    """
    assert request.transactional_id is not None
    by_producer: dict[tuple[int, int], list[TopicIndex]] = {}
    guards: dict[TopicIndex, int] = {}
    for asked in request.partitions:
        partition = partitions.get(asked.topic, asked.partition)
        if partition is not None and needs_admission(asked, partition):
            header, place = read_header(asked.records), (asked.topic, asked.partition)
            guards[place] = partition.log.producers.guards.open(header.producer_id)
            by_producer.setdefault((header.producer_id, header.producer_epoch), []).append(place)
        await context.checkpoint()
    refused: dict[TopicIndex, ErrorCode] = {}
    for (producer_id, epoch), places in by_producer.items():
        for start in range(0, len(places), PLACES_PER_STEP):
            step = places[start : start + PLACES_PER_STEP]
            refused.update(await admit(request.transactional_id, producer_id, epoch, step, context.version))
            await context.checkpoint()
    return Admission(refused, guards)
