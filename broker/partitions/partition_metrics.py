"""Metrics with a series per partition: opt-in (`warmlog.metrics.partitions`), for a thousand partitions make thousands.

Owns: their names. Must not know what a partition does.
"""

from collections.abc import Callable, Iterable, Iterator

from broker.log.partition_log import PartitionLog
from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition

LABELS = ("topic", "partition")


def declare_partition_metrics(metrics: Metrics, partitions: Iterable[Partition]) -> None:
    """Let the registry ask for the offsets and the size of every log."""

    def gauge(name: str, documentation: str, of: Callable[[PartitionLog], float]) -> None:
        def read() -> Iterator[tuple[tuple[str, ...], float]]:
            for partition in partitions:
                yield (partition.topic, str(partition.index)), of(partition.log)

        metrics.gauge(name, documentation, read, LABELS)

    gauge("warmlog_partition_log_start_offset", "The first offset that is there.", lambda log: log.log_start_offset)
    gauge("warmlog_partition_flushed_offset", "What lies below has been synced.", lambda log: log.recovery_point)
    gauge("warmlog_partition_high_watermark", "Consumers read what lies below.", lambda log: log.high_watermark)
    gauge("warmlog_partition_log_end_offset", "The offset of the next record.", lambda log: log.log_end_offset)
    gauge("warmlog_partition_log_bytes", "Bytes of its log files.", lambda log: log.size)
    gauge("warmlog_partition_failed", "1 while it takes no appends, else 0.", lambda log: log.failed)
