"""Three broker processes on etcd: killed, frozen, restarted in turn, left without etcd or a true clock, under load.

Clients keep histories, which must have no anomaly: nothing acknowledged is lost, doubled, skipped or reordered.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.cluster.load import Load
from tests.requires import lacks

pytestmark = pytest.mark.timeout(180)
PARTITIONS = 3
LIMIT_S = 60.0
DEFAULTS = {"warmlog.cluster.lease.ms": 3000}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd(tmp_path / "etcd") as members:
        yield members[0]


@pytest.fixture
def cluster(tmp_path: Path, store: EtcdProcess) -> Iterator[WarmlogNodes]:
    with WarmlogNodes(tmp_path, store.url, settings=DEFAULTS) as nodes:
        create(nodes, "t", PARTITIONS)
        yield nodes


def create(nodes: WarmlogNodes, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 3)]).values():
        future.result(LIMIT_S)


class Clock:
    """The wall clock of a process, which jumps at will; the monotonic one goes on."""

    def __init__(self, path: Path) -> None:
        library = next(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"), None)
        if library is None:
            lacks("libfaketime is not installed: apt-get install faketime")
        self._path = path
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.jump("+0")

    def jump(self, offset: str) -> None:
        """Set the difference from true time, as faketime writes it: `+5d`, `-50m`."""
        written = self._path.with_suffix(".new")
        written.write_text(offset)
        written.rename(self._path)


def leader_of(nodes: WarmlogNodes, partition: int = 0) -> int:
    metadata = AdminClient({"bootstrap.servers": nodes.bootstrap}).list_topics("t", timeout=LIMIT_S)
    leader: int = metadata.topics["t"].partitions[partition].leader
    return leader


def in_sync(nodes: WarmlogNodes) -> list[int]:
    metadata = AdminClient({"bootstrap.servers": nodes.bootstrap}).list_topics("t", timeout=LIMIT_S)
    return [len(partition.isrs) for partition in metadata.topics["t"].partitions.values()]


@contextmanager
def sound(nodes: WarmlogNodes, *, keeps_watermarks: bool = True) -> Iterator[Load]:
    """Put the cluster under load within the block, and judge the histories afterwards."""
    with Load(nodes.bootstrap, "t", PARTITIONS, rate=300.0, keeps_watermarks=keeps_watermarks) as load:
        load.wait_for(100, limit_s=LIMIT_S)
        yield load
        load.wait_for(100, limit_s=LIMIT_S)
    assert load.failures == []
    histories = load.histories(nodes.bootstrap)
    assert [history.anomalies() for history in histories.values()] == [[]] * PARTITIONS


@pytest.mark.interop  # takes many seconds
def test_killed_leaders_are_replaced_and_come_back(cluster: WarmlogNodes) -> None:
    with sound(cluster) as load:
        for _ in range(3):
            killed = cluster[leader_of(cluster)]
            killed.kill()
            load.wait_for(200, limit_s=LIMIT_S)
            killed.start()
            load.wait_for(200, limit_s=LIMIT_S)


@pytest.mark.interop  # takes many seconds
def test_clients_that_ask_after_a_kill_do_not_hear_of_the_dead_broker(cluster: WarmlogNodes) -> None:
    """librdkafka asks at once, and would ask again a second later.

    A broker that is asked in the turn of its loop in which it loses the connection to the dead one may name that.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    heard = 0
    for _ in range(4):
        killed = cluster[leader_of(cluster)]
        killed.kill()
        metadata = admin.list_topics("t", timeout=LIMIT_S)
        leaders = {one.leader for one in metadata.topics["t"].partitions.values()}
        heard += killed.node_id in {*leaders, *metadata.brokers}
        killed.start()
        while in_sync(cluster) != [3] * PARTITIONS:
            pass
    assert heard <= 1


@pytest.mark.interop  # takes many seconds
def test_a_rolling_restart_shows_no_error_to_idempotent_producers(cluster: WarmlogNodes) -> None:
    with sound(cluster) as load:
        for node in cluster:
            assert node.stop() == 0
            load.wait_for(100, limit_s=LIMIT_S)
            node.start()
            load.wait_for(200, limit_s=LIMIT_S)
    assert load.undelivered == []


@pytest.mark.interop  # takes many seconds
def test_a_frozen_leader_is_replaced_and_writes_nothing_when_it_thaws(cluster: WarmlogNodes) -> None:
    with sound(cluster, keeps_watermarks=False) as load:  # an answer may be late
        with cluster[leader_of(cluster)].frozen():
            load.wait_for(300, limit_s=LIMIT_S)
        load.wait_for(300, limit_s=LIMIT_S)


def test_a_frozen_leader_is_replaced_before_its_lease_ends(tmp_path: Path, store: EtcdProcess) -> None:
    with WarmlogNodes(tmp_path, store.url, settings={"warmlog.cluster.lease.ms": 600_000}) as nodes:
        create(nodes, "t", 1)
        frozen = nodes[leader_of(nodes)]
        others = [node for node in nodes if node is not frozen]
        admin = AdminClient({"bootstrap.servers": ",".join(node.bootstrap for node in others)})
        with frozen.frozen():
            until(
                lambda: (
                    admin.list_topics("t", timeout=LIMIT_S).topics["t"].partitions[0].leader
                    in {node.node_id for node in others}
                ),
                lambda: None,
                "another leader",
            )
        said = f"broker {frozen.node_id} neither answers nor renews its lease"
        assert any(said in node.logged for node in others)


@pytest.mark.interop  # takes many seconds
def test_leaders_go_on_while_etcd_is_away(cluster: WarmlogNodes, store: EtcdProcess) -> None:
    with sound(cluster) as load:
        store.kill()
        load.wait_for(1000, limit_s=LIMIT_S)
        store.start()
        load.wait_for(300, limit_s=LIMIT_S)
        killed = cluster[leader_of(cluster)]
        killed.kill()
        load.wait_for(300, limit_s=LIMIT_S)
        killed.start()
    assert load.undelivered == []


@pytest.mark.interop  # takes many seconds
def test_offsets_of_a_deleted_topic_do_not_come_back_with_another_coordinator(cluster: WarmlogNodes) -> None:
    commit(cluster.bootstrap, "0", TopicPartition("t", 0, 7))  # creates the topic of the coordinators
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    controller = admin.list_topics(timeout=LIMIT_S).controller_id  # must be able to delete the topic
    described = admin.describe_consumer_groups([str(number) for number in range(20)])
    coordinators = {group: future.result(LIMIT_S).coordinator.id for group, future in described.items()}
    group, coordinator = next(
        (group, cluster[broker]) for group, broker in coordinators.items() if broker != controller
    )
    commit(cluster.bootstrap, group, TopicPartition("t", 0, 7))
    os.kill(coordinator.pid, signal.SIGSTOP)
    admin.delete_topics(["t"], operation_timeout=LIMIT_S)["t"].result(LIMIT_S)
    coordinator.kill()
    create(cluster, "t", PARTITIONS)
    with closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})) as consumer:
        (found,) = consumer.committed([TopicPartition("t", 0)], timeout=LIMIT_S)
    assert found.error is None
    assert found.offset == OFFSET_INVALID
    coordinator.start()


@pytest.mark.interop  # takes many seconds
def test_clocks_that_jump_apart_change_nothing(tmp_path: Path, store: EtcdProcess) -> None:
    """Less than an hour behind: a broker refuses timestamps that are further ahead of its own clock."""
    nodes = WarmlogNodes(tmp_path, store.url, settings={"warmlog.cluster.lease.ms": 60_000})
    clocks = [Clock(tmp_path / f"clock-{node.node_id}") for node in nodes]
    for node, clock in zip(nodes, clocks, strict=True):
        node.environment = clock.environment
    with nodes:
        create(nodes, "t", PARTITIONS)
        with sound(nodes) as load:
            for offsets in [("+5d", "-50m", "+0"), ("+0", "+2d", "-50m"), ("-50m", "+0", "+5d")]:
                for clock, offset in zip(clocks, offsets, strict=True):
                    clock.jump(offset)
                load.wait_for(300, limit_s=LIMIT_S)
        assert load.undelivered == []
        assert in_sync(nodes) == [3] * PARTITIONS
        assert [node.logged.count("is registered with epoch") for node in nodes] == [1, 1, 1]
        assert [node.stop() for node in nodes] == [0, 0, 0]


@pytest.mark.interop  # takes many seconds
def test_a_broker_whose_data_was_wiped_is_not_taken_for_in_sync(cluster: WarmlogNodes) -> None:
    with sound(cluster) as load:
        wiped = cluster[leader_of(cluster)]
        wiped.kill()
        os.rename(wiped.data, wiped.data.with_name("wiped"))
        load.wait_for(200, limit_s=LIMIT_S)
        wiped.start()
        load.wait_for(300, limit_s=LIMIT_S)


@pytest.mark.interop  # takes many seconds
def test_all_brokers_killed_at_once_come_back_with_everything(cluster: WarmlogNodes) -> None:
    with sound(cluster) as load:
        for node in cluster:
            os.kill(node.pid, signal.SIGKILL)
        for node in cluster:
            node.kill()
        for node in cluster:
            node.begin()
        for node in cluster:
            node.wait_until_ready()
        load.wait_for(300, limit_s=LIMIT_S)
