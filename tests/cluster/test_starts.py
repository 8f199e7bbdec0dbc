"""Starts and stops that go wrong, with real processes: each ends with one clear line and status 2, and loses nothing.

A broker that only has to wait, because etcd is away, says so, and can be stopped meanwhile.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNode
from tests.broker.cluster.etcd_process import EtcdProcess, etcd, etcdctl
from tests.cluster.load import read_all
from warmlog.broker.log.directory.names import CLUSTER_STATE

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]  # takes many seconds
LIMIT_S = 30.0
REFUSED = 2  # the exit status
SETTINGS = {"warmlog.cluster.lease.ms": 2000, "warmlog.stop.timeout.ms": 1000}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EtcdProcess]:
    with etcd(tmp_path / "etcd") as (member,):
        yield member


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[EtcdProcess]:
    """An etcd that has nothing to do with the first one."""
    with etcd(tmp_path / "other-etcd") as (member,):
        yield member


@contextmanager
def broker(directory: Path, etcd_urls: str, **settings: object) -> Iterator[WarmlogNode]:
    """Broker 1, not started yet; killed at the end."""
    directory.mkdir(exist_ok=True)
    given = {name.replace("_", "."): value for name, value in settings.items()}
    node = WarmlogNode(1, directory, SETTINGS | {"warmlog.cluster.etcd": etcd_urls} | given)
    try:
        yield node
    finally:
        node.kill()


@pytest.fixture
def node(tmp_path: Path, store: EtcdProcess) -> Iterator[WarmlogNode]:
    """A broker that runs, with three records in a topic."""
    with broker(tmp_path, store.url) as node:
        node.start()
        produce(node)
        yield node


def produce(node: WarmlogNode) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(LIMIT_S)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in (b"a", b"b", b"c"):
        producer.produce("t", value)
    assert producer.flush(LIMIT_S) == 0


def refusal(node: WarmlogNode) -> str:
    """Start a broker that refuses to, and return the last line of its log."""
    node.begin()
    assert node.wait_until_ended() == REFUSED
    return node.logged.splitlines()[-1]


def assert_unharmed(node: WarmlogNode) -> None:
    """Start a broker, and expect all records and the history that its data had at the last clean stop."""
    node.start()
    (reads,) = read_all(node.bootstrap, "t", 1).values()
    assert [read.value for read in reads] == [b"a", b"b", b"c"]
    assert node.stop() == 0
    assert "none of its replicas as complete" not in node.logged
    assert "may lack acknowledged records" not in node.logged


# -- an id that another broker has --


def test_an_id_that_a_live_broker_has_is_refused(node: WarmlogNode, store: EtcdProcess, tmp_path: Path) -> None:
    with broker(tmp_path / "other", store.url) as other:
        last = refusal(other)
    assert "node.id 1 is in use by a broker with other data directories, at 127.0.0.1:" in last
    assert node.logged.count("is registered with epoch") == 1
    assert node.stop() == 0
    assert_unharmed(node)


@pytest.mark.interop  # takes many seconds
def test_a_copy_of_the_directory_of_a_live_broker_is_refused(
    node: WarmlogNode, store: EtcdProcess, tmp_path: Path
) -> None:
    shutil.copytree(node.data, tmp_path / "other" / node.data.name, ignore=shutil.ignore_patterns("*.tmp"))
    with broker(tmp_path / "other", store.url) as other:
        last = refusal(other)
    assert "node.id 1 is in use by a broker with a copy of these data directories, at 127.0.0.1:" in last
    assert node.logged.count("is registered with epoch") == 1
    assert node.stop() == 0
    assert_unharmed(node)


def test_a_broker_may_come_back_at_another_address(node: WarmlogNode, tmp_path: Path, store: EtcdProcess) -> None:
    node.kill()
    with broker(tmp_path, store.url, warmlog_cluster_lease_ms=60_000) as same:
        same.start()
        assert "waiting for an earlier registration to end" not in same.logged


@pytest.mark.interop  # takes many seconds
def test_a_start_that_waits_for_its_id_can_be_stopped(store: EtcdProcess, tmp_path: Path) -> None:
    with (
        broker(tmp_path, store.url, warmlog_cluster_lease_ms=600_000) as node,
        broker(tmp_path / "other", store.url, warmlog_cluster_lease_ms=600_000) as other,
    ):
        node.start()
        with node.frozen():  # one that renews its lease would be known to live
            other.begin()
            other.wait_until_logged("waiting for an earlier registration to end")
            assert other.stop() == 0


# -- another cluster --


def test_a_directory_of_another_cluster_is_refused(node: WarmlogNode, store: EtcdProcess, tmp_path: Path) -> None:
    assert node.stop() == 0
    with broker(tmp_path, store.url, warmlog_cluster_id="other") as other:
        last = refusal(other)
    assert last == f"warmlog: data directory {node.data} belongs to cluster warmlog, not other"
    assert_unharmed(node)


@pytest.mark.interop  # takes many seconds
@pytest.mark.parametrize("is_among_them", [False, True], ids=["another etcd", "two etcds"])
def test_another_etcd_is_refused(
    is_among_them: bool, node: WarmlogNode, store: EtcdProcess, other_store: EtcdProcess, tmp_path: Path
) -> None:
    assert node.stop() == 0
    urls = f"{store.url},{other_store.url}" if is_among_them else other_store.url
    with broker(tmp_path, urls) as other:
        last = refusal(other)
    assert last.startswith(f"warmlog: the etcd at {other_store.url} belongs to etcd cluster ")
    assert "give the endpoints of the etcd that this Kafka cluster has used so far, and only those" in last
    assert_unharmed(node)


@pytest.mark.interop  # takes many seconds
def test_a_running_broker_refuses_another_etcd_when_it_meets_it(
    node: WarmlogNode, store: EtcdProcess, other_store: EtcdProcess, tmp_path: Path
) -> None:
    assert node.stop() == 0
    other_store.kill()
    with broker(tmp_path, f"{store.url},{other_store.url}") as other:
        other.start()
        other_store.start()
        store.kill()
        assert other.wait_until_ended() == REFUSED
        last = other.logged.splitlines()[-1]
    assert last.startswith(f"warmlog: the etcd at {other_store.url} belongs to etcd cluster ")
    store.start()
    assert_unharmed(node)


def test_an_etcd_restored_from_an_old_backup_is_refused(node: WarmlogNode, store: EtcdProcess, tmp_path: Path) -> None:
    store.save(tmp_path / "backup")
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("later", 1, 1)])["later"].result(LIMIT_S)
    store.kill()
    shutil.copytree(store.data, tmp_path / "latest")
    store.restore(tmp_path / "backup")
    store.start()
    assert node.wait_until_ended() == REFUSED
    running = node.logged.splitlines()[-1]
    starting = refusal(node)
    for last in (running, starting):
        assert "it was wiped, or restored from a backup that lacks decisions already carried out" in last
        assert "\n" not in last
    store.kill()
    store.wipe()
    shutil.copytree(tmp_path / "latest", store.data)
    store.start()
    assert_unharmed(node)


@pytest.mark.interop  # takes many seconds
def test_an_etcd_restored_from_an_old_backup_is_refused_however_much_was_written_since(
    node: WarmlogNode, store: EtcdProcess, tmp_path: Path
) -> None:
    store.save(tmp_path / "backup")
    assert node.stop() == 0
    node.start()
    assert node.stop() == 0
    store.kill()
    store.restore(tmp_path / "backup")
    store.start()
    known = json.loads((node.data / CLUSTER_STATE).read_text())["revision"]
    for number in range(known):
        etcdctl("--endpoints", store.url, "put", "other", str(number))
    last = refusal(node)
    assert last.startswith("warmlog: etcd knows broker 1 as registered at revision ")
    assert "restored from a backup that lacks decisions already carried out" in last


# -- etcd is away --


def test_a_start_waits_for_etcd(node: WarmlogNode, store: EtcdProcess) -> None:
    assert node.stop() == 0
    store.kill()
    node.begin()
    node.wait_until_logged(f"waiting for the cluster's store: {store.url}: cannot connect")
    store.start()
    node.wait_until_ready()
    assert node.stop() == 0
    assert_unharmed(node)


@pytest.mark.interop  # takes many seconds
def test_a_start_that_waits_for_etcd_can_be_stopped(node: WarmlogNode, store: EtcdProcess) -> None:
    assert node.stop() == 0
    store.kill()
    node.begin()
    node.wait_until_logged("waiting for the cluster's store")
    assert node.stop() == 0
    store.start()
    assert_unharmed(node)


def test_a_broker_can_stop_while_etcd_is_away(node: WarmlogNode, store: EtcdProcess) -> None:
    store.kill()
    assert node.stop() == 0
    assert "broker 1: cannot revoke its lease, which will expire" in node.logged
    store.start()
    assert_unharmed(node)
