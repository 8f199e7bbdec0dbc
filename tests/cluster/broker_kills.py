"""Brokers that are killed again and again: one by itself, or several on etcd."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka.admin import AdminClient

from interop.compare.wire import BY_NAME, ClosedError, Connection
from interop.nodes import Nodes
from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import etcd

LIMIT_S = 60.0


class BrokerKiller:
    """Kills brokers with SIGKILL and starts them again; `kills` counts them by what they were killed as."""

    def __init__(self, nodes: Nodes[WarmlogNode], random: Random) -> None:
        self.kills: Counter[str] = Counter()
        self._nodes, self._random = nodes, random
        self._admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})

    def any_kind(self, weights: Mapping[str, int]) -> str:
        """Return what to kill next, by how often it is to be in relation to each other."""
        (kind,) = self._random.choices(list(weights), list(weights.values()))
        return kind

    def leader(self, kind: str, topic: str) -> None:
        """Kill the leader of a partition of a topic, if the topic exists."""
        partitions = self._admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions
        if partitions:
            self.broker(kind, partitions[self._random.choice(list(partitions))].leader)

    def coordinator(self, kind: str, key_type: int, key: str) -> None:
        """Kill the coordinator of a key."""
        self.broker(kind, coordinator(self._nodes, key_type, key))

    def recovering(self) -> None:
        """Kill a broker, and again while it recovers."""
        node = self._random.choice(list(self._nodes))
        node.kill()
        node.begin()
        time.sleep(self._random.uniform(0.2, 1.5))
        node.kill()
        node.start()
        self.kills["recovering broker"] += 1
        self.kills["broker"] += 1

    def all(self) -> None:
        """Kill all brokers at once."""
        for node in self._nodes:
            node.kill()
            self.kills["all brokers"] += 1
        for node in self._nodes:
            node.begin()
        for node in self._nodes:
            node.wait_until_ready()

    def broker(self, kind: str, number: int) -> None:
        """Kill a broker by its id; there may be none with it at the moment."""
        if number not in self._nodes.nodes:
            return
        self._nodes[number].kill()
        self.kills[kind] += 1
        time.sleep(self._random.uniform(0.0, 1.5))
        self._nodes[number].start()


def coordinator(nodes: Nodes[WarmlogNode], key_type: int, key: str) -> int:
    """Return the id of the coordinator of a key."""
    found = ask(nodes, "FindCoordinator", 6, {"key_type": key_type, "coordinator_keys": [key]})
    return int(found["coordinators"][0]["node_id"])


def ask(nodes: Nodes[WarmlogNode], name: str, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a broker that answers."""
    ends_s = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_s:
        for node in nodes:
            with suppress(OSError, ClosedError), Connection(node.bootstrap) as connection:
                connection.send(BY_NAME[name], version, fields)
                return connection.receive(10)
        time.sleep(0.05)
    raise TimeoutError(f"no broker answers {name}")


class Single(Nodes[WarmlogNode]):
    """A standalone broker."""

    def start(self) -> None:
        """Start it."""
        for node in self.nodes.values():
            node.start()


@contextmanager
def running(directory: Path, brokers: int, settings: Mapping[str, object]) -> Iterator[Nodes[WarmlogNode]]:
    """Run a broker, or several on etcd."""
    if brokers == 1:
        with Single({1: WarmlogNode(1, directory, settings)}) as single:
            yield single
        return
    in_cluster = {"warmlog.cluster.lease.ms": 2000, **settings}
    with (
        etcd(directory / "etcd") as (store,),
        WarmlogNodes(directory, store.url, count=brokers, settings=in_cluster) as nodes,
    ):
        yield nodes
