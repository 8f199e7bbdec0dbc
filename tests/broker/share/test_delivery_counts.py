"""What is counted of deliveries."""

from tests.broker.share.partition_driver import Group, ranges
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.share.partitions.counts import DeliveryCounts
from warmlog.protocol.kafka.messages.share.fetch import AcquiredRange


def test_records_are_counted_by_what_becomes_of_them() -> None:
    counts, group = DeliveryCounts(), Group((0, 9))
    for first, last, deliveries in group.fetch("a"):
        counts.count_acquired([AcquiredRange(first_offset=first, last_offset=last, deliveries=deliveries)])
    group.now = 2.0
    text = "0-3 accept release reject gap, 4-5 accept"
    counts.count_acknowledged(ranges(text), group.begin("a", text))
    counts.count_acquired([AcquiredRange(first_offset=1, last_offset=1, deliveries=2)])
    counts.count_expired(group.partition.expire(40.0))
    assert (counts.acquired, counts.redelivered, counts.expired, counts.archived) == (11, 1, 4, 2)
    assert counts.locked_s == 6 * 2.0
    metrics = Metrics()
    counts.declare(metrics)
    assert 'warmlog_share_records_acknowledged_total{type="accept"} 3' in str(metrics.scrape())
