"""Declare the metrics with a series per partition: opt-in, because a thousand partitions make thousands of series."""

from collections.abc import Callable, Iterable, Iterator

from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition

LABELS = ("topic", "partition")


def declare_partition_metrics(metrics: Metrics, partitions: Iterable[Partition]) -> None:
    """Declare gauges that read the offsets and size of every log at each scrape."""

    def gauge(name: str, documentation: str, of: Callable[[PartitionLog], float]) -> None:
        def read() -> Iterator[tuple[tuple[str, ...], float]]:
            for partition in partitions:
                yield (partition.topic, str(partition.index)), of(partition.log)

        metrics.gauge(name, documentation, read, LABELS)

    gauge("warmlog_partition_log_start_offset", "Log start offset.", lambda log: log.offsets.log_start_offset)
    gauge(
        "warmlog_partition_flushed_offset",
        "Recovery point: records below it are flushed.",
        lambda log: log.durability.recovery_point,
    )
    gauge(
        "warmlog_partition_high_watermark",
        "High watermark: consumers see records below it.",
        lambda log: log.offsets.high_watermark,
    )
    gauge(
        "warmlog_partition_log_end_offset",
        "Log end offset: the offset of the next record.",
        lambda log: log.offsets.log_end_offset,
    )
    gauge("warmlog_partition_log_bytes", "Bytes of the partition's log files.", lambda log: log.size)
    gauge(
        "warmlog_partition_failed",
        "1 while the log is failed and rejects appends, otherwise 0.",
        lambda log: log.failed,
    )
