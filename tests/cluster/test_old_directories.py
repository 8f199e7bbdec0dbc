"""Three broker processes with two data directories each: old copies and lost directories of one lose no record.

That broker is the last one in sync, and the first one that comes back.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcd, etcdctl
from tests.clients.waiting import until
from tests.cluster.load import read_all

pytestmark = pytest.mark.timeout(180)
PARTITIONS = 6
LIMIT_S = 60.0
BEFORE, AFTER = 500, 100  # records that are in the copies, and later ones


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd(tmp_path / "etcd") as members:
        yield members[0]


@pytest.fixture
def cluster(tmp_path: Path, store: EtcdProcess) -> Iterator[WarmlogNodes]:
    with WarmlogNodes(tmp_path, store.url, directories=2) as nodes:
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(LIMIT_S)
        yield nodes


def produce(nodes: WarmlogNodes, count: int) -> None:
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


def wait_until_in_sync(nodes: WarmlogNodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})

    def is_whole() -> bool:
        partitions = admin.list_topics("t", timeout=LIMIT_S).topics["t"].partitions.values()
        return all(len(partition.isrs) == 3 for partition in partitions)

    until(is_whole, lambda: None, "every replica to be in sync")


def stored(nodes: WarmlogNodes) -> int:
    return sum(len(reads) for reads in read_all(nodes.bootstrap, "t", PARTITIONS).values())


def copy_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-copy")


def restore(directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy_of(directory), directory)


def lose_partitions(directory: Path) -> None:
    for partition in directory.glob("t-*"):
        shutil.rmtree(partition)


def stop_with_an_old_copy(nodes: WarmlogNodes) -> WarmlogNode:
    """Write, copy a broker's directories while it is stopped, write more, and stop all brokers, that one last."""
    produce(nodes, BEFORE)
    old = nodes[2]
    assert old.stop() == 0
    for directory in old.directories:
        shutil.copytree(directory, copy_of(directory))
    old.start()
    wait_until_in_sync(nodes)
    produce(nodes, AFTER)
    for number in (1, 3, 2):
        assert nodes[number].stop() == 0
    return old


@pytest.mark.interop  # takes many seconds
def test_the_last_broker_in_sync_leads_at_once_if_its_directories_are_the_newest(cluster: WarmlogNodes) -> None:
    """Otherwise the other tests show nothing."""
    last = stop_with_an_old_copy(cluster)
    last.start()
    admin = AdminClient({"bootstrap.servers": last.bootstrap})
    leaders = {one.leader for one in admin.list_topics("t", timeout=LIMIT_S).topics["t"].partitions.values()}
    assert leaders == {last.node_id}
    assert "none of its replicas as complete" not in last.logged


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(
            lambda directories: restore(directories[0]),
            "{0} is an older copy, last used in registration",
            id="the first is an old copy",
        ),
        pytest.param(
            lambda directories: restore(directories[1]),
            "{1} is an older copy, closed in registration",
            id="the second is an old copy",
            marks=pytest.mark.interop,
        ),
        pytest.param(
            lambda directories: shutil.rmtree(directories[1]),
            "{1} was emptied or replaced",
            id="the second is empty",
            marks=pytest.mark.interop,
        ),
        pytest.param(
            lambda directories: lose_partitions(directories[1]),
            "{1}/t-",
            id="the second lost partitions",
            marks=pytest.mark.interop,
        ),
    ],
)
def test_nothing_is_lost_if_a_directory_is_not_the_newest(
    spoil: Callable[[list[Path]], None], said: str, cluster: WarmlogNodes
) -> None:
    old = stop_with_an_old_copy(cluster)
    spoil(old.directories)
    old.start()
    assert said.format(*old.directories) in old.logged
    for number in (1, 3):
        cluster[number].start()
    wait_until_in_sync(cluster)
    assert stored(cluster) == BEFORE + AFTER


@pytest.mark.interop  # takes many seconds
def test_nothing_is_lost_if_an_unregistered_broker_comes_back_with_old_copies(
    cluster: WarmlogNodes, store: EtcdProcess
) -> None:
    old = stop_with_an_old_copy(cluster)
    etcdctl("--endpoints", store.url, "del", "/warmlog/warmlog/known/2")
    for directory in old.directories:
        restore(directory)
    old.start()
    assert "the store does not know the broker" in old.logged
    for number in (1, 3):
        cluster[number].start()
    wait_until_in_sync(cluster)
    assert stored(cluster) == BEFORE + AFTER


@pytest.mark.interop  # takes many seconds
def test_nothing_is_lost_if_a_disk_comes_back_that_was_replaced_meanwhile(cluster: WarmlogNodes) -> None:
    replaced = cluster[2]
    produce(cluster, BEFORE)
    assert replaced.stop() == 0
    replaced.directories[1].rename(copy_of(replaced.directories[1]))
    replaced.start()
    assert f"{replaced.directories[1]} was emptied or replaced" in replaced.logged
    wait_until_in_sync(cluster)
    produce(cluster, AFTER)
    for number in (1, 3, 2):
        assert cluster[number].stop() == 0
    restore(replaced.directories[1])
    replaced.start()
    assert f"{replaced.directories[1]} is an older copy" in replaced.logged
    for number in (1, 3):
        cluster[number].start()
    wait_until_in_sync(cluster)
    assert stored(cluster) == BEFORE + AFTER
