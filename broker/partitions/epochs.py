"""Assign leader epochs to logs that this broker leads. The log layer never begins an epoch on its own."""

from warmlog.broker.log.log_state import HighWatermarkSource
from warmlog.broker.log.partition_log import PartitionLog


def assign_epoch(log: PartitionLog, *, records_lost: bool, known: int = -1) -> None:
    """Assign the last known leader epoch to new batches, or the next one if records may have been lost.

    `known`: the latest epoch known elsewhere, perhaps without records.
    Consumers that have read lost records detect this by the new epoch (KIP-320). Write it with `checkpoint_epochs`: an
    epoch without records is stored nowhere else. Never call this for a log that follows: two brokers could write in the
    same epoch.
    """
    if log.offsets.high_watermark_source is not HighWatermarkSource.REPLICAS:
        log.epochs.assign(max(log.epochs.current, known) + records_lost, log.offsets.log_end_offset)
