"""A standalone broker grows into a cluster of three, and back to one, under load: no record is lost or doubled."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop.warmlog_nodes import WarmlogNode
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.broker.kafka_client import kafka_client
from tests.clients.waiting import until
from tests.cluster.load import Load

pytestmark = pytest.mark.timeout(240)
PARTITIONS = 3
LIMIT_S = 60.0
RETENTION = ConfigEntry("log.retention.ms", "777777777", incremental_operation=AlterConfigOpType.SET)
INTERNAL = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd(tmp_path / "etcd") as members:
        yield members[0]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[WarmlogNode]]:
    found = [WarmlogNode(number, tmp_path, INTERNAL) for number in (1, 2, 3)]
    yield found
    for node in found:
        node.kill()


def cluster_id(node: WarmlogNode) -> str:
    lines = (node.data / "meta.properties").read_text().splitlines()
    return next(line.split("=", 1)[1] for line in lines if line.startswith("cluster.id="))


def join(node: WarmlogNode, store: EtcdProcess, name: str) -> None:
    """Start a broker as a member of a cluster."""
    node._settings |= {"warmlog.cluster.etcd": store.url, "warmlog.cluster.id": name}
    node.start()


def admin_of(*nodes: WarmlogNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": ",".join(node.bootstrap for node in nodes)})


def create(node: WarmlogNode) -> None:
    admin = admin_of(node)
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(LIMIT_S)


def replicas(admin: AdminClient) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    """Return the replicas, and those in sync, of all partitions."""
    topics = admin.list_topics(timeout=LIMIT_S).topics
    return {
        (name, index): (sorted(each.replicas), sorted(each.isrs))
        for name, topic in topics.items()
        for index, each in topic.partitions.items()
    }


def reassign(node: WarmlogNode, admin: AdminClient, wanted: Sequence[int]) -> None:
    """Move every partition to these brokers, and return when they are the replicas, all in sync."""
    partitions = list(replicas(admin))
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "replicas": list(wanted)}]}
        for name, index in partitions
    ]

    async def ask() -> None:
        async with kafka_client(node.bootstrap) as client:
            reply = await client.ask("AlterPartitionReassignments", 0, timeout_ms=10_000, topics=topics)
            codes = {one["error_code"] for topic in reply["responses"] for one in topic["partitions"]}
            assert codes == {0}, reply

    trio.run(ask)
    expected = sorted(wanted), sorted(wanted)
    until(lambda: set(map(repr, replicas(admin).values())) == {repr(expected)}, lambda: None, "the reassignment")


@pytest.mark.interop  # takes many seconds
def test_a_broker_grows_to_three_and_back_to_one(store: EtcdProcess, brokers: list[WarmlogNode]) -> None:
    one, two, three = brokers
    one.start()
    admin = admin_of(one)
    created = admin.create_topics([NewTopic("t", PARTITIONS, 1, config={"retention.ms": "-1"}), NewTopic("tx", 1, 1)])
    for each in created.values():
        each.result(LIMIT_S)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[RETENTION])
    admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
    writer = Producer({"bootstrap.servers": one.bootstrap, "transactional.id": "w"})
    writer.init_transactions(LIMIT_S)
    group = Consumer({"bootstrap.servers": one.bootstrap, "group.id": "g", "enable.auto.commit": False})
    group.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
    group.close()
    name = cluster_id(one)
    writer.begin_transaction()
    writer.produce("tx", b"before")
    assert writer.flush(LIMIT_S) == 0
    with Load(one.bootstrap, "t", PARTITIONS) as load:
        load.wait_for(300)
        assert one.stop() == 0
        join(one, store, name)  # under load: clients try again
        load.wait_for(300)
        writer.produce("tx", b"after")  # in the transaction that was open
        writer.commit_transaction(LIMIT_S)
        for node in (two, three):
            join(node, store, name)
        reassign(one, admin, [2, 3, 1])
        load.wait_for(300)
        two.kill()  # it may lead
        load.wait_for(300)
        two.start()
        until(lambda: all(isr == [1, 2, 3] for _, isr in replicas(admin).values()), lambda: None, "broker 2")
        reassign(one, admin, [1])
        for node in (two, three):
            assert node.stop() == 0
        load.wait_for(300)
        assert one.stop() == 0
        one.start()
        load.wait_for(300)
    assert load.failures == []
    for history in load.histories(one.bootstrap).values():
        assert history.anomalies() == []
    assert set(replicas(admin)) >= {("t", 0), ("tx", 0), ("__consumer_offsets", 1), ("__transaction_state", 1)}
    group = Consumer({"bootstrap.servers": one.bootstrap, "group.id": "g"})
    assert group.committed([TopicPartition("t", 0)], timeout=LIMIT_S)[0].offset == 7
    group.close()
    for kind, described, setting, value in (
        (ResourceType.TOPIC, "t", "retention.ms", "-1"),
        (ResourceType.BROKER, "1", "log.retention.ms", RETENTION.value),
    ):
        resource = ConfigResource(kind, described)
        assert admin.describe_configs([resource])[resource].result(LIMIT_S)[setting].value == value
    writer.begin_transaction()
    writer.produce("tx", b"last")
    writer.commit_transaction(LIMIT_S)
    reader = Consumer({"bootstrap.servers": one.bootstrap, "group.id": "r", "isolation.level": "read_committed"})
    reader.assign([TopicPartition("tx", 0, 0)])
    assert [message.value() for message in reader.consume(3, LIMIT_S)] == [b"before", b"after", b"last"]
    reader.close()


@pytest.mark.interop  # takes many seconds
def test_a_broker_that_was_killed_does_not_join(store: EtcdProcess, brokers: list[WarmlogNode]) -> None:
    one = brokers[0]
    one.start()
    create(one)
    name = cluster_id(one)
    one.kill()
    with pytest.raises(RuntimeError, match="was not closed cleanly: start this broker once without"):
        join(one, store, name)
    one._settings.pop("warmlog.cluster.etcd")
    one._settings.pop("warmlog.cluster.id")
    one.start()
    assert one.stop() == 0
    join(one, store, name)
    assert ("t", 0) in replicas(admin_of(one))


@pytest.mark.interop  # takes many seconds
def test_a_broker_with_a_topic_that_the_cluster_has_does_not_join(
    store: EtcdProcess, brokers: list[WarmlogNode]
) -> None:
    one, two, _ = brokers
    one.start()
    create(one)
    name = cluster_id(one)
    assert one.stop() == 0
    join(two, store, name)
    create(two)
    with pytest.raises(RuntimeError, match="topic 't' exists in the cluster with another id"):
        join(one, store, name)
    admin = admin_of(two)
    admin.delete_topics(["t"])["t"].result(LIMIT_S)
    join(one, store, name)
    assert replicas(admin_of(one))["t", 0] == ([1], [1])


def test_settings_of_a_broker_without_topics_go_along(store: EtcdProcess, brokers: list[WarmlogNode]) -> None:
    one = brokers[0]
    one.start()
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[RETENTION])
    admin = admin_of(one)
    admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
    name = cluster_id(one)
    assert one.stop() == 0
    join(one, store, name)
    one.kill()
    one.start()
    described = ConfigResource(ResourceType.BROKER, "1")
    admin = admin_of(one)
    found = admin.describe_configs([described])[described].result(LIMIT_S)
    assert found["log.retention.ms"].value == RETENTION.value
