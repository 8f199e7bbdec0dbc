"""Transactions in a directory that moves from Kafka: committed, aborted and open ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from interop.kafka_node import KafkaNode, consume, create_topics
from tests.broker.kafka_client import kafka_client
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "transfers"
ISOLATIONS = ("read_committed", "read_uncommitted")


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions()
    return producer


def send(producer: Producer, name: str, count: int) -> None:
    """Produce to the open transaction, one batch for each few records."""
    for number in range(count):
        producer.produce(TOPIC, f"{name}-{number}".encode() + b"x" * 100)
        if number % 7 == 6:
            producer.flush()
    producer.flush()


def write_transactions(bootstrap: str) -> None:
    """Write transactions of two producers that overlap, some of them aborted, and leave one open."""
    first, second = transactional(bootstrap, "first"), transactional(bootstrap, "second")
    for number in range(12):
        for producer in (first, second):
            producer.begin_transaction()
            send(producer, f"round-{number}", 15)
        for producer, aborts in ((second, number % 2), (first, number % 3)):
            if aborts:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    for producer in (first, second):
        producer.begin_transaction()
    send(first, "open", 10)
    send(second, "last", 10)
    second.commit_transaction()


def seen(bootstrap: str) -> list[dict[str, object]]:
    """The partition as the Java consumer sees it, by isolation level."""
    return [consume(bootstrap, TOPIC, isolation=isolation)[0] for isolation in ISOLATIONS]


@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
async def test_we_serve_kafkas_transactions_as_kafka_does(tmp_path: Path, stopped: str) -> None:
    node = KafkaNode(tmp_path / "kafka")
    with node:
        create_topics(node.bootstrap, {TOPIC: {"internal.segment.bytes": 8192, "index.interval.bytes": 512}})
        write_transactions(node.bootstrap)
        expected = seen(node.bootstrap)
        if stopped == "by a kill":
            node.kill()
    committed, everything = expected
    assert len(list((node.data / f"{TOPIC}-0").glob("*.txnindex"))) > 2
    assert committed["end_offset"] < everything["end_offset"], "no transaction is open"  # type: ignore[operator]
    data = tmp_path / "ours"
    with Broker(data_dir=data) as broker:
        async with kafka_client(broker.kafka) as client:
            topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            await client.ask("CreateTopics", topics=[topic], timeout_ms=1000)
    shutil.rmtree(data / f"{TOPIC}-0")
    shutil.copytree(node.data / f"{TOPIC}-0", data / f"{TOPIC}-0")
    if stopped == "by a kill":
        (data / ".kafka_cleanshutdown").unlink()
    with Broker(data_dir=data) as broker:
        assert seen(broker.kafka) == expected
