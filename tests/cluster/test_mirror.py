"""Three brokers on etcd mirror another broker: leaders are killed under load, and the copies are promoted."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.cluster.test_growth import INTERNAL, cluster_id, join
from tests.interop.storage.mirroring import (
    LIMIT_S,
    PARTITIONS,
    SMALL,
    TOPICS,
    Served,
    committed,
    content,
    ends,
    load,
    try_ends,
    wait_for_copy,
)
from warmlog import Client
from warmlog.client.errors import WarmlogError
from warmlog.protocol.native.mirrors import MirrorState
from warmlog.protocol.records.batch import headers

pytestmark = pytest.mark.timeout(300)
PROMOTED_HERE = ": promoted at offset"
SETTINGS = {
    "warmlog.cluster.lease.ms": 3000,
    "warmlog.mirror.interval.ms": 200,
    "warmlog.mirror.groups": ".*",
    "default.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "source", "serve") as served:
        admin = AdminClient({"bootstrap.servers": served.kafka})
        for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SMALL) for topic in TOPICS]).values():
            created.result()
        yield served


@pytest.fixture
def cluster(tmp_path: Path, source: Served) -> Iterator[WarmlogNodes]:
    settings = {**SETTINGS, "warmlog.mirror.from": source.kafka}
    with ExitStack() as stack:
        store = stack.enter_context(etcd(tmp_path / "etcd"))[0]
        yield stack.enter_context(WarmlogNodes(tmp_path, store.url, settings=settings))


def leader_of(nodes: WarmlogNodes, topic: str, partition: int) -> int:
    metadata = AdminClient({"bootstrap.servers": nodes.bootstrap}).list_topics(topic, timeout=LIMIT_S)
    found: int = metadata.topics[topic].partitions[partition].leader
    return found


def batches(log: bytes) -> list[tuple[int, int]]:
    """Return the leader epoch and the first offset of each batch."""
    return [(header.leader_epoch, header.base_offset) for _, header in headers(log)]


@pytest.mark.interop  # takes many seconds
def test_killed_leaders_of_a_mirror_are_replaced_and_the_copies_promoted(source: Served, cluster: WarmlogNodes) -> None:
    wait_for_topics(cluster)
    with load(source.kafka, random.Random(7)):
        for _ in range(2):
            at = ends(source.kafka)["plain", 0]
            until(
                lambda at=at: ends(cluster.bootstrap)["plain", 0] > at + 200,  # type: ignore[misc]
                lambda: None,
                "copied records",
                limit_s=LIMIT_S,
            )
            killed = cluster[leader_of(cluster, "plain", 0)]
            killed.kill()
            until(
                lambda at=at: (try_ends(cluster.bootstrap) or {}).get(("plain", 0), 0) > at + 600,  # type: ignore[misc]
                lambda: None,
                "records copied by the next leader",
                limit_s=LIMIT_S,
            )
            killed.start()
    commit(source.kafka, "readers", TopicPartition("plain", 0, 77))
    wait_for_copy(source.kafka, cluster.bootstrap)
    until(lambda: committed(cluster.bootstrap, "readers") == 77, lambda: None, "the offset", limit_s=LIMIT_S)
    expected = ends(source.kafka)
    source_data = {
        (topic, index): content(source_directory(cluster), topic, index)
        for topic in TOPICS
        for index in range(PARTITIONS)
    }
    for node in cluster:
        until(
            lambda node=node: all(content(node.data, *key) == data for key, data in source_data.items()),  # type: ignore[misc]
            lambda: None,
            f"the same bytes on broker {node.node_id}",
            limit_s=LIMIT_S,
        )
    for node in cluster:
        with Client(node.addresses["native"]) as client:
            described = {topic.name: topic for topic in client.describe_mirror().topics}
            assert set(described) == set(TOPICS)
            for topic in TOPICS:
                assert described[topic].state is MirrorState.FOLLOWING, described
                assert [(one.partition, one.lag_records, one.problem) for one in described[topic].partitions] == [
                    (index, 0, None) for index in range(PARTITIONS)
                ]
    with Client(cluster[1].addresses["native"]) as client:
        for topic in TOPICS:
            assert client.promote_topic(topic) == {index: expected[topic, index] for index in range(PARTITIONS)}
    produce(cluster.bootstrap, b"own")
    for index in range(PARTITIONS):
        node = cluster[leader_of(cluster, "plain", index)]
        found = content(node.data, "plain", index)
        copied = source_data["plain", index]
        assert found.startswith(copied)
        latest = max(epoch for epoch, _ in batches(copied))
        assert [epoch > latest for epoch, _ in batches(found[len(copied) :])] == [True]
    for topic in TOPICS:
        assert read_committed(cluster.bootstrap, topic, own=topic == "plain") == read_committed(source.kafka, topic)


def source_directory(cluster: WarmlogNodes) -> Path:
    return cluster[1].data.parent / "source"


def read_committed(bootstrap: str, topic: str, *, own: bool = False) -> list[tuple[int, int, bytes]]:
    """Return all committed records; `own`: without those that were produced to the copy."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[tuple[int, int, bytes]] = []
    ended: set[int] = set()

    def step() -> None:
        message = reader.poll(0.2)
        if message is None:
            return
        if message.error() is not None:
            ended.add(message.partition())
        elif not own or message.value() != b"own":
            found.append((message.partition(), message.offset(), message.value()))

    until(lambda: len(ended) == PARTITIONS, step, "all records", limit_s=LIMIT_S)
    reader.close()
    return sorted(found)


@pytest.mark.interop  # takes many seconds
def test_a_promotion_is_finished_by_the_brokers_that_are_left(source: Served, cluster: WarmlogNodes) -> None:
    wait_for_topics(cluster)
    with load(source.kafka, random.Random(8)):
        at = ends(source.kafka)["plain", 0]
        until(lambda: ends(cluster.bootstrap)["plain", 0] > at + 200, lambda: None, "copied records", limit_s=LIMIT_S)
    wait_for_copy(source.kafka, cluster.bootstrap)
    expected = {index: ends(source.kafka)["plain", index] for index in range(PARTITIONS)}
    leaders = {leader_of(cluster, "plain", index) for index in range(PARTITIONS)}
    frozen = cluster[min(leaders)]
    asked, left = [node for node in cluster if node is not frozen]
    with ThreadPoolExecutor() as pool:
        os.kill(frozen.pid, signal.SIGSTOP)
        promoting = pool.submit(promote, asked.addresses["native"])
        until(lambda: PROMOTED_HERE in asked.logged + left.logged, lambda: None, "a promoted partition")
        frozen.kill()
        asked.kill()
        assert isinstance(promoting.exception(), WarmlogError | None)
    asked.start()  # two are enough for min.insync.replicas, which a promotion waits for
    until(lambda: described(left) == expected, lambda: None, "the end of the promotion", limit_s=LIMIT_S)
    frozen.start()
    produce(cluster.bootstrap, b"own")
    assert read_committed(cluster.bootstrap, "plain", own=True) == read_committed(source.kafka, "plain")


def promote(native: str) -> None:
    with Client(native) as client:
        client.promote_topic("plain")


def described(node: WarmlogNode) -> dict[int, int] | None:
    """Return where the partitions of a topic were promoted, None before the last one is."""
    try:
        with Client(node.addresses["native"]) as client:
            topics = {topic.name: topic for topic in client.describe_mirror().topics}
    except WarmlogError:
        return None  # it still names a broker that was killed
    if topics["plain"].state is not MirrorState.PROMOTED:
        return None
    return {one.partition: one.promoted_at for one in topics["plain"].partitions}


@pytest.mark.interop  # takes many seconds
def test_a_mirror_by_itself_grows_into_a_cluster_and_remains_one(tmp_path: Path, source: Served) -> None:
    mirroring = {"warmlog.mirror.from": source.kafka, "warmlog.mirror.interval.ms": 200}
    node = WarmlogNode(1, tmp_path, {**INTERNAL, **mirroring})
    produce(source.kafka, b"first")
    with ExitStack() as stack:
        store = stack.enter_context(etcd(tmp_path / "etcd"))[0]
        node.start()
        stack.callback(node.kill)
        wait_for_copy(source.kafka, node.bootstrap)
        assert node.stop() == 0
        join(node, store, cluster_id(node))
        produce(source.kafka, b"second")
        wait_for_copy(source.kafka, node.bootstrap)
        with Client(node.addresses["native"]) as client:
            assert client.promote_topic("plain") == dict.fromkeys(range(PARTITIONS), 2)
        produce(node.bootstrap, b"own")
        assert read_committed(node.bootstrap, "plain", own=True) == read_committed(source.kafka, "plain")
        assert node.stop() == 0


def produce(bootstrap: str, value: bytes) -> None:
    """Produce one record to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for index in range(PARTITIONS):
        producer.produce("plain", value, partition=index)
    assert producer.flush(LIMIT_S) == 0


@pytest.mark.interop  # takes many seconds
def test_status_names_leaders_that_do_not_mirror(tmp_path: Path, source: Served, cluster: WarmlogNodes) -> None:
    wait_for_topics(cluster)
    node = cluster[2]
    assert node.stop() == 0
    del node._settings["warmlog.mirror.from"]
    node.start()
    until(lambda: try_problems(cluster[1]) == set(), lambda: None, "other leaders", limit_s=LIMIT_S)
    elect = ["partition", "elect", "--kafka", cluster[1].bootstrap]
    subprocess.run([sys.executable, "-m", "warmlog", *elect], check=True, capture_output=True)
    expected = {"broker 2, which leads it, has no warmlog.mirror.from"}
    until(lambda: try_problems(cluster[3]) == expected, lambda: None, "a leader that does not mirror", limit_s=LIMIT_S)


def wait_for_topics(cluster: WarmlogNodes) -> None:
    until(lambda: try_ends(cluster.bootstrap) is not None, lambda: None, "the topics", limit_s=LIMIT_S)


def try_problems(node: WarmlogNode) -> set[str] | None:
    """Return what `mirror status` names as problems of partitions, None while a broker cannot be asked."""
    try:
        with Client(node.addresses["native"]) as client:
            topics = client.describe_mirror().topics
    except WarmlogError:
        return None
    return {one.problem for topic in topics for one in topic.partitions if one.problem is not None}
