"""Counters of deliveries, summed over all share-partitions of a broker since its start."""

from collections import Counter
from collections.abc import Iterable, Sequence

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.share.partitions.spans import RecordState
from warmlog.broker.share.partitions.transitions import Transition
from warmlog.protocol.kafka.messages.share.fetch import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgedRange,
    AcquiredRange,
)

_KINDS = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew", GAP: "gap"}
_GIVEN_UP = frozenset({RecordState.ARCHIVING, RecordState.ARCHIVED})


class DeliveryCounts:
    """Counters of records. Belongs to the event loop; scrapes read them in a thread."""

    __slots__ = ("acknowledged", "acquired", "archived", "expired", "locked_s", "redelivered")

    def __init__(self) -> None:
        self.acquired = 0
        self.redelivered = 0
        self.acknowledged: Counter[int] = Counter()  # by type
        self.archived = 0
        self.expired = 0
        self.locked_s = 0.0

    def count_acquired(self, acquired: Iterable[AcquiredRange]) -> None:
        """Count records that a member got."""
        for each in acquired:
            size = each.last_offset - each.first_offset + 1
            self.acquired += size
            if each.deliveries > 1:
                self.redelivered += size

    def count_acknowledged(self, ranges: Sequence[AcknowledgedRange], transition: Transition) -> None:
        """Count stored acknowledgements."""
        for each in ranges:
            if len(each.types) == 1:
                self.acknowledged[each.types[0]] += each.last_offset - each.first_offset + 1
            else:
                self.acknowledged.update(each.types)
        self.locked_s += transition.locked_s
        self.count_archived(transition)

    def count_expired(self, transition: Transition) -> None:
        """Count records whose locks have expired."""
        self.expired += sum([each.last_offset - each.first_offset + 1 for each in transition.changes])
        self.count_archived(transition)

    def count_archived(self, transition: Transition) -> None:
        """Count records that are archived without having been accepted."""
        for each in transition.changes:
            if each.state in _GIVEN_UP:
                self.archived += each.last_offset - each.first_offset + 1

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics."""
        metrics.counter(
            "warmlog_share_records_acquired_total",
            "Records delivered to members of share groups.",
            lambda: [((), self.acquired)],
        )
        metrics.counter(
            "warmlog_share_records_redelivered_total",
            "Records delivered to members of share groups that had been delivered before.",
            lambda: [((), self.redelivered)],
        )
        metrics.counter(
            "warmlog_share_records_acknowledged_total",
            "Records that members of share groups have acknowledged, by type.",
            lambda: [((name,), self.acknowledged[kind]) for kind, name in _KINDS.items()],
            ("type",),
        )
        metrics.counter(
            "warmlog_share_records_archived_total",
            "Records that share groups have given up: rejected, delivered too often, or missing in the log.",
            lambda: [((), self.archived)],
        )
        metrics.counter(
            "warmlog_share_locks_expired_total",
            "Records whose locks ran out before a member of the share group acknowledged them.",
            lambda: [((), self.expired)],
        )
        metrics.counter(
            "warmlog_share_lock_seconds_total",
            "Time from delivery to acknowledgement, summed over acknowledged records; renewals begin it again.",
            lambda: [((), self.locked_s)],
        )
