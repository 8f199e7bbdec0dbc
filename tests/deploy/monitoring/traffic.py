"""Traffic of every kind that a dashboard shows: against a broker, through both listeners, again and again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from tests.broker.log.io.eviction import evict_files
from warmlog import Client
from warmlog.cli.root import root
from warmlog.testing import Broker

# Retention and compaction come at once, not after minutes; what holds the loop is looked at.
SETTINGS = {
    "log.initial.task.delay.ms": 0,
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
}
SMALL = 1 << 16
HISTORY_RECORDS, HISTORY_VALUE = 400, os.urandom(4000)


def limited_client(broker: Broker) -> AdminClient:
    """Return a client that has to pause after each request."""
    quota = ["quota", "set", "request_percentage=0.000001", "--client", "greedy", "--kafka", broker.kafka]
    assert CliRunner().invoke(root, quota).exit_code == 0
    return AdminClient({"bootstrap.servers": broker.kafka, "client.id": "greedy"})


class Traffic:
    """One client of each kind. `burst` does a little of everything, and returns."""

    def __init__(self, broker: Broker, native: Client, producer: confluent_kafka.Producer) -> None:
        self._broker, self._native, self._producer = broker, native, producer
        self._create("orders", {"flush.messages": "1"})
        self._create("history", {"segment.bytes": str(SMALL * 8), "index.interval.bytes": "1"})
        self._create("latest", {"cleanup.policy": "compact", "segment.bytes": str(SMALL),
                                "min.cleanable.dirty.ratio": "0.01"})  # fmt: skip
        self._create("short", {"retention.bytes": str(SMALL), "segment.bytes": str(SMALL)})
        native.produce_many("history", [(b"%d" % number, HISTORY_VALUE) for number in range(HISTORY_RECORDS)])
        self._member = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.kafka, "group.id": "readers", "auto.offset.reset": "earliest",
             "auto.commit.interval.ms": 100, "heartbeat.interval.ms": 100}
        )  # fmt: skip
        self._member.subscribe(["orders"])
        self._greedy = limited_client(broker)

    def _create(self, name: str, configs: dict[str, str]) -> None:
        self._native.create_topic(name, partitions=1, configs=configs)

    def burst(self) -> None:
        """Produce, consume in a group, sync, overwrite keys, outgrow retention, read what is not in memory."""
        for number in range(50):
            self._producer.produce("orders", key=b"%d" % number, value=b"v" * 100)
        self._producer.flush(30)
        self._native.produce_many("latest", [(b"%d" % (number % 7), b"v" * 1000) for number in range(200)])
        self._native.produce_many("short", [(b"k", b"v" * 1000) for _ in range(200)])
        self._member.consume(200, timeout=0.2)
        evict_files(self._broker.data_dir / "history-0", "0*.log")
        evict_files(self._broker.data_dir / "history-0", "0*.index")
        self._read("history", 100)
        self._greedy.list_topics(timeout=30)

    def _read(self, topic: str, count: int) -> None:
        records = self._native.consume(topic, start="beginning", until_end=True)
        for _ in zip(range(count), records, strict=False):
            pass

    def close(self) -> None:
        """Leave the group."""
        self._member.close()


@contextmanager
def traffic_against(broker: Broker) -> Iterator[Traffic]:
    """Clients that are closed at the end."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    with Client(broker.native, batch_bytes=SMALL // 4) as native:
        made = Traffic(broker, native, producer)
        try:
            yield made
        finally:
            made.close()


def can_evict(directory: Path) -> bool:
    """Whether this file system gives up pages: without that nothing is ever cold."""
    from mmap import PAGESIZE

    from tests.broker.log.io.eviction import evict, file_of
    from warmlog.broker.log.io.page_cache import missing_by_mincore

    probe = file_of(directory / ".evictable", 2)
    evict(probe)
    return missing_by_mincore(probe.fd, 2 * PAGESIZE) == 2
