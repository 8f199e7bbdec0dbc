"""docs/cluster.md, step by step: brokers are added, replaced, lost and upgraded, and etcd is restored from a snapshot.

The commands are those of the document. Only starting and stopping processes, which it leaves to whoever runs them, is
done here.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.clients.waiting import until
from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from tests.requires import lacks
from warmlog.broker.cluster.etcd.endpoints import parse_endpoints
from warmlog.broker.log.directory.names import CLUSTER_STATE
from warmlog.broker.settings.listeners import advertised_addresses
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import FIELDS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

BLOCKS = shell_blocks("docs/cluster.md")
SETTINGS = {"default.replication.factor": 3, "warmlog.cluster.lease.ms": 2000}
RECORDS = 1000
COUNT = "warmlog consume demo --from beginning --until-end | wc -l"


class Story:
    """Three brokers and etcd, and a shell in which the commands of the document run."""

    def __init__(self, root: Path, commands: Path, store: EtcdProcess, nodes: WarmlogNodes) -> None:
        self.store = store
        self.nodes = dict(nodes.nodes)
        self._root = root
        self._commands = commands

    def run(self, block: str, **variables: object) -> str:
        """Run a block of the document, or another command; return its output."""
        known: dict[str, object] = {"ETCD": self.store.url}
        for node in self.nodes.values():
            if node.is_running:
                known |= {"WARMLOG_KAFKA": node.addresses["kafka"], "WARMLOG_NATIVE": node.addresses["native"]}
        return run_block(BLOCKS.get(block, block), self._commands, self._root, {**known, **variables})

    def add(self, node_id: int) -> WarmlogNode:
        """Start another broker with an empty directory."""
        directory = self._root / f"machine-{node_id}-{len(list(self._root.iterdir()))}"
        directory.mkdir()
        settings = {"warmlog.cluster.etcd": self.store.url, **SETTINGS}
        self.nodes[node_id] = WarmlogNode(node_id, directory, settings)
        self.nodes[node_id].start()
        return self.nodes[node_id]

    def partitions(self) -> list[Mapping[str, Any]]:
        """Return the partitions of demo."""
        found = json.loads(self.run("warmlog cluster describe --json"))["partitions"]
        return [one for one in found if one["topic"] == "demo"]

    def replicas(self) -> set[int]:
        """Return the brokers that have a replica of demo."""
        return {broker for one in self.partitions() for broker in one["replicas"]}

    def wait_until_on(self, *brokers: int) -> None:
        """Return when these brokers, and no others, have the replicas of demo, all of them in sync."""
        while self.replicas() != set(brokers):
            pass
        self.run("wait")

    def known_revision(self, node_id: int) -> int:
        """Return the revision of etcd that a broker has seen."""
        found: int = json.loads((self.nodes[node_id].data / CLUSTER_STATE).read_text())["revision"]
        return found

    def records(self) -> int:
        """Return how many records demo has."""
        return int(self.run(COUNT))


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    commands = command_directory(tmp_path)
    if shutil.which("etcdutl") is None:
        add_command(commands, "etcdutl", "etcdctl")  # etcd 3.4
    with etcd(tmp_path / "etcd") as (store,), WarmlogNodes(tmp_path, store.url, settings=SETTINGS) as nodes:
        made = Story(tmp_path, commands, store, nodes)
        try:
            assert made.run("first").split()[-1] == str(RECORDS)
            yield made
        finally:
            for node in made.nodes.values():
                node.kill()


def test_every_block_is_run_by_a_test() -> None:
    about_nodes = ROOT / "tests" / "warmlog" / "cli" / "nodes" / "test_document.py"
    source = Path(__file__).read_text() + about_nodes.read_text()
    assert [name for name in BLOCKS if f'"{name}"' not in source] == []


def test_its_settings_are_settings(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    plain, nearby, grown, secured = blocks
    (tmp_path / "broker1.toml").write_text(plain)
    (tmp_path / "nearby.toml").write_text(nearby)
    (tmp_path / "grown.toml").write_text(grown)
    (tmp_path / "secured.toml").write_text(secured)
    settings = load_settings(tmp_path / "broker1.toml")
    assert advertised_addresses(settings).get("kafka") == ("broker1", 9092)
    assert load_settings(tmp_path / "nearby.toml").selects_by_rack
    for file in ("broker1.toml", "grown.toml", "secured.toml"):
        endpoints = parse_endpoints(load_settings(tmp_path / file, assignments=["node.id=1"]).warmlog_cluster_etcd)
        assert [endpoint.host for endpoint in endpoints] == ["etcd1", "etcd2", "etcd3"]


def test_etcd_is_secured(tmp_path: Path) -> None:
    commands = command_directory(tmp_path)
    run_block(BLOCKS["etcd-certificates"], commands, tmp_path, {})
    tls = ("--cert-file", tmp_path / "etcd1.pem", "--key-file", tmp_path / "etcd1.key")
    demands = ("--trusted-ca-file", tmp_path / "ca.pem", "--client-cert-auth")
    with etcd(tmp_path / "etcd", options=(*tls, *demands), scheme="https") as (store,):
        run_block(BLOCKS["etcd-users"], commands, tmp_path, {"ETCD": store.url})
        (text,) = re.findall(r"```toml\n([^`]*ca\.file.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
        (tmp_path / "secured.toml").write_text(text.replace("/etc/warmlog", str(tmp_path)))
        settings = load_settings(tmp_path / "secured.toml", assignments=["node.id=1", "warmlog.cluster.id=shop"])
        given = {name: settings.effective(name) for name in FIELDS if name.startswith("warmlog.cluster.")}
        node = WarmlogNode(1, tmp_path, {**given, "warmlog.cluster.etcd": store.url})
        try:
            node.start()
            native = {"WARMLOG_NATIVE": node.addresses["native"]}
            run_block("warmlog topic create demo", commands, tmp_path, native)
            assert node.stop() == 0
        finally:
            node.kill()


def test_brokers_are_upgraded_in_turn(story: Story) -> None:
    for node in story.nodes.values():
        assert node.stop() == 0
        node.start()
        story.run("wait")
    story.run("elect")
    assert {one["leader"] for one in story.partitions()} == {one["replicas"][0] for one in story.partitions()}
    assert story.records() == RECORDS


def test_brokers_are_added_and_replaced(story: Story) -> None:
    story.add(4)
    assert story.replicas() == {1, 2, 3}
    story.run("spread")
    story.wait_until_on(1, 2, 3, 4)

    story.nodes[2].kill()
    story.add(2)  # without data
    story.run("wait")
    assert story.records() == RECORDS

    story.nodes[3].kill()
    story.add(5)
    story.run("replace")
    story.wait_until_on(1, 2, 4, 5)
    assert story.records() == RECORDS
    assert story.run("unregister") == "broker 3 removed\n"


def test_a_move_is_throttled_until_the_limit_is_removed(story: Story) -> None:
    story.add(4)
    story.run("throttled")
    rates = "warmlog config show broker default"
    assert "leader.replication.throttled.rate" in story.run(rates)
    story.wait_until_on(2, 3, 4)
    story.run("verify")
    assert "throttled" not in story.run(rates)
    assert "throttled" not in story.run("warmlog config show topic demo")
    assert story.records() == RECORDS


def test_a_broker_moves_to_another_machine_with_its_data(story: Story, tmp_path: Path) -> None:
    moved = story.nodes[3]
    assert moved.stop() == 0
    moved.data = moved.data.rename(tmp_path / "moved")
    before, moved.addresses = moved.addresses, dict.fromkeys(moved.addresses, "127.0.0.1:0")
    moved.start()
    assert moved.addresses["kafka"] != before["kafka"]
    story.run("wait")
    assert story.replicas() == {1, 2, 3}
    assert story.records() == RECORDS


def leader_of_0(story: Story) -> int | None:
    leader: int | None = next(one for one in story.partitions() if one["partition"] == 0)["leader"]
    return leader


def test_a_replica_that_lacks_records_leads_when_that_is_asked_for(story: Story) -> None:
    partition = next(one for one in story.partitions() if one["partition"] == 0)
    late, other, last = (story.nodes[broker] for broker in partition["in_sync"])
    late.kill()
    story.run("seq 10 | warmlog produce demo --partition 0")
    other.kill()
    last.kill()
    late.start()
    until(lambda: leader_of_0(story) is None, lambda: None, "the loss of the leader")
    story.run("unclean")
    assert leader_of_0(story) == late.node_id


def test_an_etcd_that_was_restored_is_accepted_on_purpose(story: Story) -> None:
    if shutil.which("etcdctl") is None:
        lacks("etcdctl is not installed: apt-get install etcd-client")
    story.run("etcd-backup")
    for node in story.nodes.values():  # decisions that the snapshot lacks
        assert node.stop() == 0
        node.start()
        story.run("wait")
    for node in story.nodes.values():
        assert node.stop() == 0
    restore(story)
    with pytest.raises(RuntimeError, match="restored from a backup that lacks decisions already carried out"):
        story.nodes[1].start()
    for _ in range(story.known_revision(1)):  # so many transactions that the revision does not tell any more
        story.run("identity", CLUSTER="warmlog")
    with pytest.raises(RuntimeError, match="is another Kafka cluster's store"):
        story.nodes[1].start()
    for node in story.nodes.values():
        story.run("forget", WARMLOG=node.data)
    for node in story.nodes.values():
        node.begin()
    for node in story.nodes.values():
        node.wait_until_ready()
    story.run("wait")
    assert story.records() == RECORDS
    story.run("seq 10 | warmlog produce demo")
    assert story.records() == RECORDS + 10


def restore(story: Story) -> None:
    """Restart etcd with the state of the snapshot."""
    store = story.store
    store.kill()
    store.wipe()
    variables = {"ETCD_DATA": store.data, "ETCD_NAME": store.name, "ETCD_MEMBERS": store.bootstrap}
    peer = store.bootstrap.partition("=")[2]
    story.run("etcd-restore", **variables, ETCD_PEER=peer)
    store.start()
