"""The metrics of replication."""

from collections.abc import Callable, Iterable, Mapping

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.replication.local_replica import LocalReplica, Surroundings


def declare_replication_metrics(
    metrics: Metrics, replicas: Callable[[], Iterable[LocalReplica]], shared: Surroundings
) -> None:
    """Declare the metrics of the replicas on this broker. All of them are read in a worker thread."""
    follower, counts = shared.follower, shared.counts
    gauges: Mapping[str, tuple[str, Callable[[LocalReplica], bool]]] = {
        "warmlog_replication_leaders": ("Partitions that this broker leads.", lambda local: local.leads),
        "warmlog_replication_followers": ("Partitions that this broker follows.", lambda local: local.copy is not None),
        "warmlog_replication_under_replicated": (
            "Partitions led by this broker whose in-sync replicas are fewer than its replicas.",
            _is_under_replicated,
        ),
        "warmlog_replication_below_min_isr": (
            "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
            lambda local: (leader := local.leader) is not None and leader.progress.is_under_min_isr,
        ),
        "warmlog_replication_failed_replicas": (
            "Replicas on this broker that neither lead nor follow, because their log has failed.",
            lambda local: not local.is_sound,
        ),
        "warmlog_replication_full_disk_replicas": (
            "Replicas on this broker that accept no records, because the disk is full.",
            lambda local: local.partition.log.appends.is_full,
        ),
    }
    for name, (text, counted) in gauges.items():
        metrics.gauge(name, text, lambda counted=counted: [((), sum(map(counted, replicas())))])  # type: ignore[misc]
    metrics.gauge(
        "warmlog_replication_max_lag_records",
        "Records that the slowest follower of any partition led by this broker lacks.",
        lambda: [((), max(map(_largest_lag, replicas()), default=0))],
    )
    metrics.gauge(
        "warmlog_replication_copy_lag_records",
        "Committed records that the slowest copy on this broker lacks, as of its last fetch.",
        lambda: [((), max(map(_copy_lag, replicas()), default=0))],
    )
    metrics.counter(
        "warmlog_replication_received_bytes_total",
        "Bytes of records that this broker has fetched from the leaders of its copies, by the id of the leader.",
        lambda: [((str(leader),), size) for leader, size in follower.received_bytes().items()],
        ("leader",),
    )
    metrics.counter(
        "warmlog_replication_throttled_bytes_total",
        "Bytes of records transferred for replicas to which a replication rate applies.",
        lambda: [(("sent",), shared.sending.bytes), (("received",), shared.receiving.bytes)],
        ("direction",),
    )
    metrics.counter(
        "warmlog_replication_isr_changes_total",
        "Changes of the in-sync replicas of partitions led by this broker.",
        lambda: [(("shrink",), counts.shrinks), (("expand",), counts.expansions)],
        ("kind",),
    )
    metrics.counter(
        "warmlog_replication_disowned_total",
        "Replicas on this broker that left the in-sync replicas because they lost records or their disk.",
        lambda: [((), counts.disowned)],
    )


def _is_under_replicated(replica: LocalReplica) -> bool:
    leader = replica.leader
    return leader is not None and len(leader.state.isr) < len(leader.state.replicas)


def _largest_lag(replica: LocalReplica) -> int:
    leader = replica.leader
    if leader is None:
        return 0
    ends = [each.log_end for each in list(leader.progress.followers.values()) if each.log_end >= 0]
    return leader.progress.log_end - min(ends, default=leader.progress.log_end)


def _copy_lag(replica: LocalReplica) -> int:
    copy = replica.copy
    return 0 if copy is None else max(0, copy.leader_end - replica.partition.log.offsets.log_end_offset)
