"""Clusters of three brokers as contestants: warmlog on etcd, and Kafka with three nodes that are also controllers.

Topics have three replicas, producers acks=all. Each raw connection is opened to the leader of its partition.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import Protocol

from confluent_kafka.admin import AdminClient, PartitionMetadata

from benchmarks.harness import Conditions, Figures
from benchmarks.load.generator import ROOT, Flow
from benchmarks.load.kafka_wire import QUIET, KafkaWire
from benchmarks.load.native import ANSWER_S
from benchmarks.load.processor_time import ProcessorMeter
from benchmarks.servers.contestants import Produce, Running, appended
from benchmarks.servers.kafka import JVM_OPTIONS, SETTINGS, KafkaBroker, Standing
from interop.kafka_node import KafkaNodes
from interop.warmlog_nodes import WarmlogNodes
from tests.broker.cluster.etcd_process import etcd

REPLICAS = 3
WARM_UP_S = 40.0  # three JVMs share the cores
IN_SYNC_POLL_S = 0.1
HEAP = ("-Xms512m", "-Xmx512m")
_INTERNAL = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
# Kafka's defaults, except for `SETTINGS`; internal topics have three replicas, as by default.
CLUSTER_SETTINGS = {
    **SETTINGS,
    **dict.fromkeys((*_INTERNAL, "share.coordinator.state.topic.replication.factor"), REPLICAS),
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": REPLICAS,
    "min.insync.replicas": 2,
}
WARMLOG_SETTINGS: dict[str, object] = {"default.replication.factor": REPLICAS, "min.insync.replicas": 2}


class Node(Protocol):
    """A broker of a running cluster; it keeps its address across restarts."""

    @property
    def bootstrap(self) -> str:
        """Its address for Kafka's clients."""

    @property
    def pid(self) -> int:
        """The process id."""

    def kill(self) -> None:
        """Kill the process."""

    def start(self) -> None:
        """Restart the process."""


@dataclass(slots=True)
class Cluster:
    """The running brokers of a cluster by id, and its other processes."""

    nodes: dict[int, Node] = field(default_factory=dict)
    pids: tuple[int, ...] = ()

    def running(self) -> Running:
        """Return the address of broker 1, and all current processes; a restarted broker has a new one."""
        first = self.nodes[1]
        host, port = first.bootstrap.split(":")
        others = [node.pid for node in self.nodes.values() if node is not first]
        return Running((host, int(port)), first.pid, (*others, *self.pids))

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.nodes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBroker(KafkaBroker):
    """A cluster used by Kafka's clients."""

    cluster: Cluster
    wire: KafkaWire

    @contextmanager
    def serving(self, conditions: Conditions, partitions: int) -> Iterator[tuple[Running, str]]:
        """Create a topic on the running cluster."""
        with super(ClusterBroker, self).serving(conditions, partitions) as (_, topic):
            yield self.cluster.running(), topic

    def produce(self, produce: Produce, conditions: Conditions) -> Figures:
        """Measure `produce_to` with a partition for each connection."""
        return self.produce_to(produce.connections, produce, conditions)

    def produce_to(self, partitions: int, produce: Produce, conditions: Conditions) -> Figures:
        """Measure requests/s of batches appended by connections that share partitions; latencies with one in flight."""
        with self.serving(conditions, partitions) as (server, topic):
            leaders = self.wire.leaders(server.address, topic)
            flows = [
                Flow(
                    requests=(self.wire.produce(topic, number % partitions, produce.batch),),
                    depth=produce.depth,
                    address=leaders[number % partitions],
                )
                for number in range(produce.connections)
            ]
            result = self.drive(server, flows, conditions)
            self.wire.check_count(server.address, topic, result.replies)
        return appended(produce.batch, result)

    def fail_over(self, partitions: int, every_ms: int, kills: int, conditions: Conditions) -> Figures:
        """Kill leaders one after the other: milliseconds until each of their partitions accepts records again.

        The brokers' processor time for each acknowledged record includes their restarts.
        """
        gaps_ms: list[float] = []
        with self.serving(conditions, partitions) as (server, topic):
            arguments = [self.cluster.bootstrap, topic, str(partitions), str(every_ms)]
            command = [sys.executable, "-m", "benchmarks.load.failover", *arguments]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
            ) as producer:
                assert producer.stdin is not None
                assert producer.stdout is not None
                assert producer.stdout.readline() == "ready\n"
                meter = ProcessorMeter(server.pids)
                for _ in range(kills):
                    victim, line = self._kill_leader(topic, meter)
                    print(line, file=producer.stdin, flush=True)
                    gaps_ms += map(float, producer.stdout.readline().split())
                    victim.start()
                    meter.add(victim.pid)
                    self._wait_until_in_sync(topic)
                producer.stdin.close()
                acknowledged = int(producer.stdout.readline())
                cpu_us_record = meter.us_per(acknowledged)
            self.wire.check_count(server.address, topic, acknowledged)
        return {
            "p50_ms": median(gaps_ms),
            "p99_ms": quantiles(gaps_ms, n=100)[-1],
            "longest_ms": max(gaps_ms),
            "cpu_us_record": cpu_us_record,
        }

    def _kill_leader(self, topic: str, meter: ProcessorMeter) -> tuple[Node, str]:
        """Kill the leader of partition 0; return it, the time of the kill and the partitions it led."""
        found = self._partitions(topic)
        victim = found[0].leader
        meter.remove(self.cluster.nodes[victim].pid)
        self.cluster.nodes[victim].kill()
        killed_at = perf_counter()
        led = [number for number, partition in found.items() if partition.leader == victim]
        return self.cluster.nodes[victim], " ".join(map(str, (killed_at, *led)))

    def _wait_until_in_sync(self, topic: str) -> None:
        while any(len(partition.isrs) < REPLICAS for partition in self._partitions(topic).values()):
            sleep(IN_SYNC_POLL_S)

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": QUIET})
        partitions: dict[int, PartitionMetadata] = admin.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        return partitions


@contextmanager
def start_kafka_cluster(cluster: Cluster, directory: Path) -> Iterator[Running]:
    """Start the reference version of Kafka: three nodes with 512 MB of heap each."""
    with KafkaNodes(directory, jvm_options=(*JVM_OPTIONS, *HEAP), settings=CLUSTER_SETTINGS) as nodes:
        cluster.nodes.update(nodes.nodes)
        yield cluster.running()


@contextmanager
def start_warmlog_cluster(cluster: Cluster, directory: Path) -> Iterator[Running]:
    """Start three warmlogs with all listeners enabled, and an etcd with one member."""
    with (
        etcd(directory / "etcd") as (store,),
        WarmlogNodes(directory, store.url, settings=WARMLOG_SETTINGS) as nodes,
    ):
        cluster.nodes.update(nodes.nodes)
        cluster.pids = (store.pid,)
        yield cluster.running()


def _contestant(name: str, launch: Callable[[Cluster, Path], AbstractContextManager[Running]]) -> ClusterBroker:
    cluster = Cluster()
    standing = Standing(f"{name} cluster", partial(launch, cluster))
    wire = KafkaWire(acks=-1, replicas=REPLICAS)
    return ClusterBroker(
        name=name, start=standing.start, wire=wire, standing=standing, warm_up_s=WARM_UP_S, cluster=cluster
    )


WARMLOG_CLUSTER = _contestant("warmlog", start_warmlog_cluster)
KAFKA_CLUSTER = _contestant("Kafka 4.3.1", start_kafka_cluster)
