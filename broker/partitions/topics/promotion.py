"""Take over the leadership of mirrored partitions."""

import logging
from collections.abc import Iterable, Mapping, Sequence

import trio

from warmlog.broker.log.errors import LogError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.records.record import MAX_INT64

logger = logging.getLogger(__name__)


async def lead(partitions: Sequence[Partition], known_epochs: Mapping[int, int]) -> None:
    """Begin a leader epoch in each partition, and abort its open transactions. Raises OSError.

    `known_epochs`: the latest epochs of the source by partition; new ones follow them. The transactions' coordinators
    are at the source, so the transactions would otherwise stay open here.
    """
    for partition in partitions:
        partition.mirror_of = None
        partition.log.stop_following_replicas()
        assign_epoch(partition.log, records_lost=True, known=known_epochs.get(partition.index, -1))
        partition.wake_all()
        await trio.lowlevel.checkpoint()
    await trio.to_thread.run_sync(_checkpoint_epochs, [partition.log for partition in partitions])
    for partition in partitions:
        await abort_open(partition)


def _checkpoint_epochs(logs: Iterable[PartitionLog]) -> None:
    for log in logs:
        log.durability.checkpoint_epochs()


async def abort_open(partition: Partition, before: int = MAX_INT64) -> None:
    """Abort open transactions of a partition that began before an offset.

    A failure is logged and leaves the rest open.
    """
    producers = partition.log.producers
    try:
        for producer_id, first_offset in list(producers.open_transactions.items()):
            state = producers.get(producer_id)
            if state is None or first_offset >= before or producer_id not in producers.open_transactions:
                continue
            marker = TransactionMarker(producer_id, state.epoch, max(state.coordinator_epoch, 0), Outcome.ABORT)
            append = partition.append_marker(marker)
            partition.appends.write_queued()
            await append.wait()
            if append.error is not None:
                raise append.error
    except (LogError, ProtocolError, StorageError, OSError) as error:
        logger.warning(
            "%s-%d: cannot abort open transactions; list them with `warmlog transaction find-hanging`: %s",
            partition.topic,
            partition.index,
            error,
        )
