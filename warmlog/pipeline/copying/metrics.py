"""Prometheus metrics of a job that copies topics. They are counted in plain objects, and read at each scrape."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

PREFIX = "warmlog_table"
COUNTERS = {
    "rows": "Rows committed.",
    "commits": "Commits.",
    "commit_seconds": "Time from the plan of a batch to its commit, in seconds, of all commits.",
    "files": "Files committed.",
    "file_bytes": "Size of the files committed, in bytes.",
    "lost_offsets": "Offsets that were deleted before they were copied.",
    "damaged_batches": "Damaged batches that were left out.",
    "dropped_batches": "Batches that were written, and dropped because another job had committed their offsets.",
    "failed_checks": "Checks for new records that failed because a broker, a directory or the table was unavailable.",
}
TIMES = {
    "last_commit_timestamp_seconds": "Time of the last commit, since 1970; 0 before the first.",
    "last_check_timestamp_seconds": "Time of the last check for new records that succeeded, since 1970.",
}
OFFSETS = {
    "lag_offsets": "Offsets of a partition that were in the log at the last check, and are not committed.",
    "position_offset": "Offset of a partition at which the next batch begins.",
}


@dataclass(slots=True, eq=False)  # hashable, as the registry requires
class CopyMetrics:
    """Counts and positions of a job. The job's thread updates them, the thread of a scrape reads them."""

    now: Callable[[], float] = time.time
    rows: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    files: int = 0
    file_bytes: int = 0
    lost_offsets: int = 0
    damaged_batches: int = 0
    dropped_batches: int = 0
    failed_checks: int = 0
    last_commit_timestamp_seconds: float = 0.0
    last_check_timestamp_seconds: float = 0.0
    lag_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    position_offset: Mapping[TopicPartition, int] = field(default_factory=dict)

    def checked(self, ends: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, Position]) -> None:
        """Record the ends of the logs, and the committed positions."""
        self.position_offset = {key: at.offset for key, at in positions.items()}
        self.lag_offsets = {key: max(end - positions[key].offset, 0) for key, end in ends.items() if key in positions}
        self.last_check_timestamp_seconds = self.now()

    def committed(self) -> None:
        """Record a commit."""
        self.commits += 1
        self.last_commit_timestamp_seconds = self.now()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics in the form that prometheus_client expects."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, help_text in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", help_text, value=getattr(self, name))
        for name, help_text in TIMES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", help_text, value=getattr(self, name))
        for name, help_text in OFFSETS.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", help_text, labels=("topic", "partition"))
            for (topic, partition), value in sorted(getattr(self, name).items()):
                gauge.add_metric((topic, str(partition)), value)
            yield gauge


@contextmanager
def served(metrics: CopyMetrics, host: str, port: int) -> Iterator[int]:
    """Serve the metrics over HTTP, and yield the port; 0 chooses one. Raises PipelineError."""
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise PipelineError(f"metrics cannot be served at {host}:{port}: {error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
