"""The audit log's topic of three broker processes on etcd, one of which is killed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.warmlog.cli.test_tls import run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]  # takes many seconds
TOPIC = "__warmlog_audit"
LIMIT_S = 60.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[WarmlogNodes]:
    settings = {
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "warmlog.audit.file": tmp_path / "audit.jsonl",
        "warmlog.audit.topic": "true",
        "warmlog.cluster.lease.ms": 3000,
    }
    with etcd(tmp_path / "etcd") as (store,), WarmlogNodes(tmp_path, store.url, settings=settings) as found:
        yield found


def create(nodes: WarmlogNodes, broker: int, topic: str) -> None:
    """Create a topic by a request to one broker, which records it."""
    status, shown = run("topic", "create", topic, "--native", nodes[broker].addresses["native"])
    assert status == 0, shown


def read(nodes: WarmlogNodes, count: int) -> list[dict[str, Any]]:
    """Return so many distinct events of the topic."""
    consumer = Consumer({"bootstrap.servers": nodes.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(3)])
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        message = consumer.poll(LIMIT_S)
        assert message is not None, sorted(found)
        if message.error() is None:
            event = json.loads(message.value())
            found[event["metadata"]["uid"]] = event
    consumer.close()
    return list(found.values())


def test_events_are_kept_while_a_broker_is_dead(nodes: WarmlogNodes, tmp_path: Path) -> None:
    for broker in (1, 2, 3):
        create(nodes, broker, f"before-{broker}")
    recorded = len((tmp_path / "audit.jsonl").read_text().splitlines())
    assert len(read(nodes, recorded)) == recorded
    metadata = AdminClient({"bootstrap.servers": nodes.bootstrap}).list_topics(TOPIC, timeout=LIMIT_S)
    killed = metadata.topics[TOPIC].partitions[0].leader  # of the partition of User:ANONYMOUS
    others = [broker for broker in (1, 2, 3) if broker != killed]
    nodes[killed].kill()
    for broker in others:
        create(nodes, broker, f"without-{broker}")
    nodes[killed].start()
    create(nodes, killed, "after")
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    found = read(nodes, len(lines))
    assert {each["metadata"]["uid"] for each in found} == {json.loads(line)["metadata"]["uid"] for line in lines}
    assert {each["unmapped"]["broker"] for each in found} == {1, 2, 3}

    status, shown = run("audit-log", "--topic", "--native", nodes[others[0]].addresses["native"])
    names = [line.split("create_topics topic ")[1].split()[0] for line in shown.splitlines() if "create_topics" in line]
    assert status == 0, shown
    assert names == [*(f"before-{broker}" for broker in (1, 2, 3)), *(f"without-{each}" for each in others), "after"]
