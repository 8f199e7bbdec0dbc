"""warmlog's own client and commands in a cluster: any broker will do, whoever leads and coordinates."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from warmlog import BrokerError, Client

pytestmark = pytest.mark.timeout(180)
LIMIT_S = 60.0
GROUPS = [f"g{n}" for n in range(6)]
IDS = [f"x{n}" for n in range(6)]
VALUES = [b"%d" % n for n in range(60)]
# Coordinators of several groups on several brokers.
SETTINGS = {"warmlog.cluster.lease.ms": 3000, "offsets.topic.num.partitions": 6, "default.replication.factor": 3}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmlogNodes]:
    directory = tmp_path_factory.mktemp("cluster")
    settings = SETTINGS | {"transaction.state.log.num.partitions": 6}
    with (
        etcd(directory / "etcd") as (store,),
        WarmlogNodes(directory, store.url, settings=settings, has_racks=True) as running,
        Client(running[1].addresses["native"]) as client,
    ):
        for topic in ("t", "kept", "saved"):
            client.create_topic(topic, partitions=6)
            client.produce_many(topic, [(None, value) for value in VALUES])
        yield running


def run(nodes: WarmlogNodes, node_id: int, *arguments: str) -> Any:
    """Run a command against a broker, and return its JSON: an object, or one for each line."""
    command = [sys.executable, "-m", "warmlog", *arguments, "--json", "--native", nodes[node_id].addresses["native"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def consumed(nodes: WarmlogNodes, node_id: int, group: str) -> list[bytes]:
    with Client(nodes[node_id].addresses["native"]) as client:
        return sorted(record.value or b"" for record in client.consume("t", group=group, until_end=True))


def test_every_broker_tells_the_racks_of_all(nodes: WarmlogNodes) -> None:
    for asked in nodes:
        [described] = run(nodes, asked.node_id, "cluster", "describe")
        assert {one["node_id"]: one["rack"] for one in described["brokers"]} == {
            node.node_id: f"rack-{node.node_id}" for node in nodes
        }


def test_a_topic_gets_as_many_replicas_as_asked_for(nodes: WarmlogNodes) -> None:
    for factor in (1, 2, 3):
        run(nodes, factor, "topic", "create", f"of-{factor}", "--partitions", "2", "--replication-factor", str(factor))
    run(nodes, 1, "topic", "create", "of-default")
    found = AdminClient({"bootstrap.servers": nodes[1].addresses["kafka"]}).list_topics(timeout=LIMIT_S).topics
    replicas = {name: {len(each.replicas) for each in found[name].partitions.values()} for name in found}
    assert [replicas[f"of-{factor}"] for factor in (1, 2, 3, "default")] == [{1}, {2}, {3}, {3}]
    with Client(nodes[1].addresses["native"]) as client, pytest.raises(BrokerError, match="registered brokers, 3"):
        client.create_topic("of-4", replication_factor=4)


@pytest.mark.interop  # takes many seconds
def test_groups_are_used_through_any_broker(nodes: WarmlogNodes) -> None:
    for at, group in enumerate(GROUPS):
        assert consumed(nodes, at % 3 + 1, group) == sorted(VALUES)
    for node_id in (1, 2, 3):
        assert set(GROUPS) <= {one["group"] for one in run(nodes, node_id, "group", "list")}
        for group in GROUPS:
            (found,) = run(nodes, node_id, "group", "describe", group)
            assert found["lag"] == 0
            assert sum(position["high_watermark"] for position in found["positions"]) == len(VALUES)
    run(nodes, 2, "group", "reset", GROUPS[0], "--to", "beginning", "--topic", "t")
    assert consumed(nodes, 3, GROUPS[0]) == sorted(VALUES)
    for at, group in enumerate(GROUPS):
        run(nodes, at % 3 + 1, "group", "delete", group)
    assert not {one["group"] for one in run(nodes, 1, "group", "list")} & set(GROUPS)


@pytest.mark.interop  # takes many seconds
def test_transactions_are_used_through_any_broker(nodes: WarmlogNodes) -> None:
    for at, transactional_id in enumerate(IDS):
        with (
            Client(nodes[at % 3 + 1].addresses["native"]) as client,
            client.transaction(transactional_id) as transaction,
        ):
            transaction.produce("x", value=b"%d" % at)
    for node_id in (1, 2, 3):
        listed = run(nodes, node_id, "transaction", "list")
        assert [one["transactional_id"] for one in listed] == IDS
        assert len(run(nodes, node_id, "transaction", "describe", *IDS)) == len(IDS)
        assert run(nodes, node_id, "transaction", "find-hanging") == []


@pytest.mark.parametrize("group", ["kept", pytest.param("saved", marks=pytest.mark.interop)])
def test_a_member_goes_on_when_its_coordinator_is_killed(nodes: WarmlogNodes, group: str) -> None:
    """The group has the name of the topic."""
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    wanted = {*VALUES, *(b"%s%d" % (group.encode(), n) for n in range(10))}
    addresses = [node.addresses["native"] for node in nodes]
    with Client(addresses) as client, client.consume(group, group=group) as records:
        found = {next(records).value for _ in range(10)}
        coordinator = admin.describe_consumer_groups([group])[group].result(LIMIT_S).coordinator.id
        nodes[coordinator].kill()
        try:
            client.produce_many(group, [(None, value) for value in sorted(wanted - set(VALUES))])
            while not wanted <= found:
                found.add(next(records).value)
        finally:
            nodes[coordinator].start()
    (left,) = run(nodes, 1, "group", "describe", group)
    committed = sum(position["offset"] or 0 for position in left["positions"])
    assert committed >= len(wanted) - 1  # the last record is committed with the next one
