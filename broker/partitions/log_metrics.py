"""Declare the metrics of all logs together, of their files, and of startup."""

from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.disks.startup import StartProgress
from warmlog.broker.partitions.partitions import Partitions


def declare_log_metrics(metrics: Metrics, partitions: Partitions) -> None:
    """Declare the metrics over all logs."""
    gauge = metrics.gauge
    gauge("warmlog_partitions", "Partitions served.", lambda: [((), len(partitions))])
    gauge(
        "warmlog_offline_partitions",
        "Partitions in offline data directories.",
        lambda: [((), partitions.offline_count)],
    )
    gauge("warmlog_segments", "Segments of all logs.", lambda: [((), partitions.statistics().segments)])
    gauge("warmlog_log_bytes", "Bytes of all log files.", lambda: [((), partitions.statistics().log_bytes)])
    gauge(
        "warmlog_failed_logs",
        "Failed logs, which reject appends until they are rebuilt.",
        lambda: [((), sum(partition.log.failed for partition in partitions))],
    )
    gauge(
        "warmlog_unreadable_logs",
        "Logs with a read error since startup.",
        lambda: [((), sum(partition.is_unreadable for partition in partitions))],
    )
    gauge(
        "warmlog_unflushed_bytes",
        "Upper bound of the bytes that are appended and not yet flushed.",
        lambda: [((), partitions.statistics().unflushed_bytes)],
    )


def declare_file_metrics(metrics: Metrics, files: OpenFiles, directories: DataDirectories) -> None:
    """Declare the metrics of data directories, open files, and their pages."""
    metrics.gauge(
        "warmlog_offline_directories",
        "Data directories that failed and are offline.",
        lambda: [((), len(directories.offline))],
    )
    metrics.gauge("warmlog_open_files", "Log and index files held open.", lambda: [((), files.statistics().open)])
    metrics.gauge("warmlog_index_mappings", "Memory-mapped indexes.", lambda: [((), files.statistics().mappings)])
    metrics.counter(
        "warmlog_page_faults_total",
        "Page faults of the event loop's thread; major ones waited for the disk.",
        files.page_faults.rows,
        ("kind", "where"),
    )
    metrics.counter(
        "warmlog_unreadable_batches_total",
        "Stored batches whose records could not be read, by reader; each is logged once.",
        files.unreadable.rows,
        ("reader",),
    )
    metrics.counter(
        "warmlog_cold_pages_total",
        "Pages that were needed and not in memory.",
        lambda: [((label,), count) for label, count in files.residency.cold_pages.items()],
        ("where",),
    )


def declare_startup_metrics(metrics: Metrics, progress: StartProgress) -> None:
    """Declare the progress of startup, which `/readyz` reports as well."""
    metrics.gauge(
        "warmlog_recovery_seconds",
        "Time that startup took to open the logs if any had to be recovered, otherwise 0.",
        lambda: [((), progress.seconds if progress.recovered_logs else 0)],
    )
    metrics.gauge(
        "warmlog_start_logs",
        "Logs at startup by state: all, opened so far, recovered.",
        lambda: [
            (("all",), progress.logs),
            (("opened",), progress.opened_logs),
            (("recovered",), progress.recovered_logs),
        ],
        ("state",),
    )
    metrics.gauge(
        "warmlog_start_scanned_bytes", "Bytes read by recovery at startup.", lambda: [((), progress.scanned_bytes)]
    )
