"""librdkafka reads from the replica in its rack (KIP-392), with transactions, and without it after a kill."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]  # takes many seconds
LIMIT_S = 60.0
SETTINGS = {"warmlog.cluster.lease.ms": 3000}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WarmlogNodes]:
    with (
        etcd(tmp_path / "etcd") as [store],
        WarmlogNodes(tmp_path, store.url, settings=SETTINGS, has_racks=True) as nodes,
    ):
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        for future in admin.create_topics([NewTopic("t", 1, 3)]).values():
            future.result(LIMIT_S)
        yield nodes


class Reader:
    """A consumer of committed records in a rack. `broker`: from which it reads, as it last told."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.values: list[bytes] = []
        self.broker = -1
        self.errors: list[KafkaError] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "client.rack": rack,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "statistics.interval.ms": 50,
                "stats_cb": self._note,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(["t"])

    def _note(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get("t", {}).get("partitions", {})
        self.broker = partitions.get("0", {}).get("broker", -1)

    def expect(self, values: list[str]) -> None:
        """Read until these are all values so far."""
        self.until(lambda: len(self.values) >= len(values))
        assert [value.decode() for value in self.values] == values

    def until(self, condition: Callable[[], bool]) -> None:
        """Read until a condition holds."""
        while not condition():
            record = self._consumer.poll(0.05)
            if record is not None and record.error() is None:
                self.values.append(record.value())
            elif record is not None:
                self.errors.append(record.error())

    def close(self) -> None:
        self._consumer.close()


def test_committed_records_are_read_from_the_rack_of_the_consumer(cluster: WarmlogNodes) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics("t", timeout=LIMIT_S).topics["t"].partitions[0].leader
    near = next(node for node in cluster if node.node_id != leader)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "p", "log_level": 0})
    producer.init_transactions(LIMIT_S)

    def produce(name: str, *, commit: bool = True) -> None:
        producer.begin_transaction()
        for number in range(20):
            producer.produce("t", f"{name}-{number}")
        producer.flush(LIMIT_S)
        if commit:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)

    reader = Reader(cluster.bootstrap, f"rack-{near.node_id}")
    expected: list[str] = []
    try:
        for number in range(3):
            produce(f"aborted-{number}", commit=False)
            produce(f"committed-{number}")
            expected += [f"committed-{number}-{each}" for each in range(20)]
            reader.expect(expected)
        reader.until(lambda: reader.broker == near.node_id)
        produce("there")
        expected += [f"there-{each}" for each in range(20)]
        reader.expect(expected)
        assert reader.broker == near.node_id
        near.kill()
        produce("elsewhere")
        expected += [f"elsewhere-{each}" for each in range(20)]
        reader.expect(expected)
        reader.until(lambda: reader.broker == leader)
    finally:
        reader.close()
    assert {error.code() for error in reader.errors} <= {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
