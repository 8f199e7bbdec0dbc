"""A real Prometheus scrapes a real cluster while brokers and etcd fail: graphs have data, and the right alerts fire."""

from collections.abc import Iterator, Mapping
from math import isnan

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.deploy.conftest import Tool
from tests.deploy.files import CLUSTER_DASHBOARDS, asked, cluster_alerts, selectors
from tests.deploy.monitoring.prometheus import Prometheus, prometheus, until, value_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

TOPIC, PARTITIONS = "orders", 6
LIMIT_S = 60.0
SILENCE_S = 5.0


class Watched:
    """A cluster with its etcd and a producer, and the Prometheus that scrapes it."""

    def __init__(self, store: EtcdProcess, nodes: WarmlogNodes, server: Prometheus) -> None:
        self.store = store
        self.nodes = nodes
        self.server = server
        self._producer = confluent_kafka.Producer({"bootstrap.servers": nodes.bootstrap, "acks": "1", "log_level": 0})

    def produce(self) -> None:
        """Write some records to every partition."""
        for partition in range(PARTITIONS):
            for _ in range(20):
                self._producer.produce(TOPIC, b"v" * 100, partition=partition)
        self._producer.flush(1)

    def states(self) -> Mapping[str, str]:
        """Return the state of each alert about clusters by its name: inactive, pending or firing.

        Not of the one about a slow store: the disk here may be slow.
        """
        names = {rule["alert"] for rule in cluster_alerts()} - {"WarmlogStoreSlow"}
        return {rule["name"]: rule["state"] for rule in self.server.rules() if rule["name"] in names}

    def fires(self) -> set[str]:
        """Return the alerts about clusters that fire."""
        return {name for name, state in self.states().items() if state == "firing"}


@pytest.fixture(scope="module")
def watched(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("cluster")
    with etcd(directory / "etcd") as (store,), WarmlogNodes(directory, store.url) as nodes:
        targets = [node.addresses["http"] for node in nodes]
        with prometheus(tool("prometheus"), directory / "run", targets, pending_s=2) as server:
            create_topic(nodes)
            yield Watched(store, nodes, server)


def create_topic(nodes: WarmlogNodes) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "3"})
    for future in admin.create_topics([topic]).values():
        future.result(LIMIT_S)


def test_a_killed_broker_is_seen_in_graphs_and_alerts(watched: Watched) -> None:
    server = watched.server
    wanted = {selector for rule in cluster_alerts() for selector in selectors(rule["expr"])}

    def missing() -> list[str]:
        return [selector for selector in wanted if not value_of(server, selector)]

    until(lambda: not missing(), watched.produce, missing)
    until(lambda: value_of(server, "up") == [1, 1, 1], watched.produce, lambda: "a broker that was never scraped")
    until(lambda: set(watched.states().values()) == {"inactive"}, watched.produce, watched.states)

    empty = list(asked(CLUSTER_DASHBOARDS))

    def all_have_data() -> bool:
        empty[:] = [(panel, expression) for panel, expression in empty if not has_data(expression)]
        return not empty

    def has_data(expression: str) -> bool:
        values = value_of(server, expression)
        return bool(values) and not all(map(isnan, values))

    watched.nodes[1].kill()
    until(all_have_data, watched.produce, lambda: empty)  # elections show in the graphs for a while only
    expected = {"WarmlogUnderReplicated", "WarmlogBelowMinIsr"}
    until(lambda: watched.fires() == expected, watched.produce, watched.states)

    watched.nodes[1].start()
    until(lambda: not watched.fires(), watched.produce, watched.states)


def test_an_etcd_that_does_not_answer_is_seen(watched: Watched) -> None:
    server = watched.server
    silence = "min (warmlog_cluster_store_silence_seconds)"
    errors = "min (sum by (instance) (increase(warmlog_cluster_store_errors_total[30s])))"
    watched.store.freeze()
    try:
        until(lambda: any(value > SILENCE_S for value in value_of(server, silence)), watched.produce, server.rules)
        until(lambda: any(value_of(server, errors)), watched.produce, server.rules)
    finally:
        watched.store.thaw()
    until(lambda: any(value < SILENCE_S for value in value_of(server, silence)), watched.produce, server.rules)
    until(lambda: not watched.fires(), watched.produce, watched.states)
