"""The registry of Prometheus metrics, and metrics that several modules count.

Counting happens on the event loop only (the log returns results that its callers count), so no counter needs a lock.

prometheus-client's Histogram takes 0.7 us per observation, mostly for its lock, and a request makes four. Values are
therefore kept in plain objects (`broker.metrics.requests`) and passed to the library when metrics are scraped
(`broker.metrics.exposition`).
"""

import resource
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from warmlog.broker.metrics import requests
from warmlog.broker.metrics.families import (
    LOOKUP_BOUNDS_S,
    CounterFamily,
    Family,
    HistogramFamily,
    ReadFamily,
    Reading,
    SeriesHistogram,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from warmlog.broker.metrics.exposition import Exposition

F = TypeVar("F", bound=Family)


class RequestMetrics(requests.StageHistograms):
    """The histograms of one API on one listener."""

    __slots__ = ()

    def __init__(self, metrics: "Metrics", api: str, listener: str) -> None:
        stages = [
            metrics.request_stage_seconds.labels(api, listener, stage) for stage in ("queue", "handle", "wait", "send")
        ]
        super().__init__(metrics.request_seconds.labels(api, listener), *stages)


class Metrics:
    """The metrics of one broker (several brokers may share a process)."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        self._requests: dict[tuple[str, str], RequestMetrics] = {}
        self.request_seconds = self._add(
            HistogramFamily(
                "warmlog_request_seconds",
                "Time from a request's last byte to its reply's last byte.",
                ("api", "listener"),
            )
        )
        self.request_stage_seconds = self._add(
            HistogramFamily(
                "warmlog_request_stage_seconds",
                "Time of a request in each stage: queue, handle, wait (for a write or for data), send.",
                ("api", "listener", "stage"),
            )
        )
        self._declare_traffic()
        self._declare_log()
        self._declare_cluster()
        self.counter(
            "warmlog_process_major_faults_total",
            "Major page faults of the process, which waited for the disk.",
            lambda: [((), resource.getrusage(resource.RUSAGE_SELF).ru_majflt)],
        )

    def requests(self, api: str, listener: str) -> RequestMetrics:
        """Return the histograms of one API on one listener."""
        histograms = self._requests.get((api, listener))
        if histograms is None:
            histograms = self._requests[api, listener] = RequestMetrics(self, api, listener)
        return histograms

    def scrape(self) -> tuple[str, bytes]:
        """Return the content type and the body for Prometheus. Call it in a worker thread."""
        return self._exposition.text()

    @property
    def registry(self) -> "CollectorRegistry":
        """Return prometheus_client's registry of all metrics."""
        return self._exposition.registry

    @cached_property
    def _exposition(self) -> "Exposition":
        from warmlog.broker.metrics.exposition import Exposition  # imports prometheus_client

        return Exposition(self._families)

    def gauge(self, name: str, documentation: str, read: Reading, labels: tuple[str, ...] = ()) -> None:
        """Declare a gauge whose values `read` returns when metrics are scraped."""
        self._add(ReadFamily(name, documentation, read, labels, monotonic=False))

    def counter(self, name: str, documentation: str, read: Reading, labels: tuple[str, ...] = ()) -> None:
        """Declare a counter whose values `read` returns when metrics are scraped."""
        self._add(ReadFamily(name, documentation, read, labels, monotonic=True))

    def histogram(self, name: str, documentation: str) -> SeriesHistogram:
        """Declare and return a histogram without labels."""
        return self._add(HistogramFamily(name, documentation)).labels()

    def read(self, name: str) -> list[tuple[tuple[str, ...], float]]:
        """Return label values and values of a metric that was declared with a function; nothing for others."""
        families = [each for each in self._families if isinstance(each, ReadFamily) and each.name == name]
        return [row for each in families for row in each.read()]

    def _declare_traffic(self) -> None:
        self.bytes_in = self._add(CounterFamily("warmlog_bytes_in_total", "Bytes received from clients.")).labels()
        sent = self._add(
            CounterFamily(
                "warmlog_bytes_out_total", "Bytes sent to clients, by sendfile or copied through memory.", ("path",)
            )
        )
        self.bytes_out_sendfile, self.bytes_out_copy = sent.labels("sendfile"), sent.labels("copy")
        refused = self._add(
            CounterFamily(
                "warmlog_connections_refused_total", "Connections closed because a limit was reached.", ("reason",)
            )
        )
        self.refused_connections = {
            reason: refused.labels(reason)
            for reason in (
                "max_connections",
                "max_connections_per_ip",
                "connection_creation_rate",
                "descriptors",
                "handshakes",
            )
        }
        evicted = self._add(
            CounterFamily(
                "warmlog_connections_evicted_total",
                "Connections closed because their peers were slow, or held memory that others waited for.",
                ("reason",),
            )
        )
        self.evicted_connections = {reason: evicted.labels(reason) for reason in ("login", "memory", "slow")}
        self.loop_stall = self._add(
            HistogramFamily("warmlog_loop_stall_seconds", "Delay of a periodic timer on the event loop.")
        ).labels()

    def _declare_log(self) -> None:
        lookups = self._add(
            CounterFamily(
                "warmlog_index_lookups_total", "Index lookups by searched section and index.", ("section", "index")
            )
        )
        self.lookups = {section: lookups.labels(section, "offset") for section in ("warm", "cold")}
        self.time_lookups = {section: lookups.labels(section, "time") for section in ("warm", "cold")}
        self.lookup_seconds = self._add(
            HistogramFamily(
                "warmlog_index_lookup_seconds",
                "Time to find the position of an offset: segment, index, scan of batch headers.",
                bounds=LOOKUP_BOUNDS_S,
            )
        ).labels()
        rolls = self._add(CounterFamily("warmlog_rolls_total", "Segments rolled, by reason.", ("reason",)))
        self.rolls = {
            reason: rolls.labels(reason) for reason in ("size", "time", "index_full", "index_corrupt", "offset_range")
        }
        removed = self._add(
            CounterFamily("warmlog_removed_segments_total", "Segments removed by retention, by reason.", ("reason",))
        )
        self.removed_segments = {reason: removed.labels(reason) for reason in ("start", "size", "time")}
        self.fsync_seconds = self._add(
            HistogramFamily("warmlog_fsync_seconds", "Time of a round of fsync over all logs that were due.")
        ).labels()
        self.log_read_errors = self._add(
            CounterFamily("warmlog_log_read_errors_total", "Failed reads of logs.")
        ).labels()
        self.cold_read_bytes = self._add(
            CounterFamily("warmlog_cold_read_bytes_total", "Bytes read from the disk because they were not in memory.")
        ).labels()
        self.cold_read_seconds = self._add(
            HistogramFamily("warmlog_cold_read_seconds", "Time of a read from the disk by a read-ahead thread.")
        ).labels()
        self.truncated_bytes = self._add(
            CounterFamily("warmlog_truncated_bytes_total", "Bytes truncated by recovery because they were torn.")
        ).labels()
        self.log_failures = self._add(
            CounterFamily("warmlog_log_failures_total", "Logs that failed because of an fsync or a write.")
        ).labels()
        self.reopened_logs = self._add(
            CounterFamily("warmlog_reopened_logs_total", "Failed logs that were rebuilt and accept appends again.")
        ).labels()

    def _declare_cluster(self) -> None:
        self.cluster_store_seconds = self._add(
            HistogramFamily(
                "warmlog_cluster_store_seconds", "Time of a call of the cluster's store that succeeded.", ("call",)
            )
        )
        self.cluster_store_errors = self._add(
            CounterFamily(
                "warmlog_cluster_store_errors_total",
                "Calls of the cluster's store that failed: no endpoint answered, or it is the wrong store.",
                ("call",),
            )
        )

    def _add(self, family: F) -> F:
        self._families.append(family)
        return family
