"""Three brokers on etcd mirror a Kafka with TLS and logins, through a kill, more partitions and a deletion."""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from interop.kafka_node import KafkaNode
from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.interop.storage.mirroring import (
    LIMIT_S,
    PARTITIONS,
    SMALL,
    TOPICS,
    committed,
    content,
    ends,
    load,
    try_ends,
    wait_for_copy,
)
from tests.interop.storage.test_secured_mirror import create_user, mirror_settings, secured
from warmlog import Client

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

SETTINGS = {
    "warmlog.cluster.lease.ms": 3000,
    "warmlog.mirror.interval.ms": 200,
    "warmlog.mirror.groups": ".*",
    "warmlog.mirror.delete.topics": "true",
    "default.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
}


def leader_of(bootstrap: str, topic: str, partition: int) -> int:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=LIMIT_S)
    leader: int = metadata.topics[topic].partitions[partition].leader
    return leader


def partitions_of(bootstrap: str, topic: str) -> int:
    """Return how many partitions a topic has, 0 if it does not exist."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=LIMIT_S).topics
    return len(topics[topic].partitions) if topic in topics else 0


def test_a_secured_kafka_is_mirrored_by_a_cluster(tmp_path: Path) -> None:
    settings = {**SETTINGS, **mirror_settings(tmp_path)}
    with ExitStack() as stack:
        secured_settings = secured(tmp_path / "certificates")
        node = stack.enter_context(KafkaNode(tmp_path / "kafka", settings=secured_settings, secured="SASL_SSL"))
        create_user(node.bootstrap, "mirror")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        topics = [*(NewTopic(topic, PARTITIONS, 1, config=SMALL) for topic in TOPICS), NewTopic("doomed", 1, 1)]
        for each in admin.create_topics(topics).values():
            each.result()
        until(lambda: try_ends(node.bootstrap) is not None, lambda: None, "leaders of the topics")
        store = stack.enter_context(etcd(tmp_path / "etcd"))[0]
        settings["warmlog.mirror.from"] = node.secured_bootstrap
        nodes = stack.enter_context(WarmlogNodes(tmp_path, store.url, settings=settings))
        until(lambda: try_ends(nodes.bootstrap) is not None, lambda: None, "the topics", limit_s=LIMIT_S)
        with load(node.bootstrap, random.Random(11)):
            at = ends(nodes.bootstrap)["plain", 0]
            until(lambda: ends(nodes.bootstrap)["plain", 0] > at + 200, lambda: None, "records", limit_s=LIMIT_S)
            killed = nodes[leader_of(nodes.bootstrap, "plain", 0)]
            killed.kill()
            grown = admin.create_partitions([NewPartitions("plain", PARTITIONS + 1)])
            admin.delete_topics(["doomed"])["doomed"].result()
            grown["plain"].result()
            until(
                lambda: (try_ends(nodes.bootstrap) or {}).get(("plain", 0), 0) > at + 600,
                lambda: None,
                "records copied by the next leader",
                limit_s=LIMIT_S,
            )
            killed.start()
        produce_to_the_new_partition(node.bootstrap)
        commit(node.bootstrap, "readers", TopicPartition("plain", 0, 77))
        wait_for_copy(node.bootstrap, nodes.bootstrap)
        until(lambda: committed(nodes.bootstrap, "readers") == 77, lambda: None, "the offset", limit_s=LIMIT_S)
        until(
            lambda: partitions_of(nodes.bootstrap, "plain") == PARTITIONS + 1, lambda: None, "growth", limit_s=LIMIT_S
        )
        until(lambda: not partitions_of(nodes.bootstrap, "doomed"), lambda: None, "the deletion", limit_s=LIMIT_S)
        logs = [("plain", PARTITIONS), *((topic, index) for topic in TOPICS for index in range(PARTITIONS))]
        for topic, index in logs:
            there = content(node.data, topic, index)
            assert there
            for each in nodes:
                until(
                    lambda: content(each.data, topic, index) == there,  # noqa: B023  # awaited at once
                    lambda: None,
                    f"the bytes of {topic}-{index} on broker {each.node_id}",
                    limit_s=LIMIT_S,
                )
        with Client(nodes[1].addresses["native"]) as client:
            promoted = client.promote_topic("plain")
        assert promoted == {index: end_of(node.bootstrap, index) for index in range(PARTITIONS + 1)}
        for each in nodes:
            assert each.stop() == 0
            assert "Traceback" not in each.log.read_text()


def produce_to_the_new_partition(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(50):
        producer.produce("plain", b"%d" % number, partition=PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


def end_of(bootstrap: str, partition: int) -> int:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return int(reader.get_watermark_offsets(TopicPartition("plain", partition), LIMIT_S)[1])
    finally:
        reader.close()
