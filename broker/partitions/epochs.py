"""Assign the leader epochs of logs that this broker leads. Nothing else begins an epoch: the log layer never does."""

from warmlog.broker.log.log_state import HighWatermarkSource
from warmlog.broker.log.partition_log import PartitionLog


def assign_epoch(log: PartitionLog, *, records_lost: bool, known: int = -1) -> None:
    """Let new batches have the last known leader epoch, or the next one if records may have been lost.

    `known`: the latest epoch elsewhere, which may have no records yet.
    Consumers that have read lost records notice by the next epoch (KIP-320). Write it with `checkpoint_epochs`: an
    epoch without records is stored nowhere else. A log that follows replicas is left alone: two brokers could write in
    the same epoch.
    """
    if log.offsets.high_watermark_source is not HighWatermarkSource.REPLICAS:
        log.epochs.assign(max(log.epochs.current, known) + records_lost, log.offsets.log_end_offset)
