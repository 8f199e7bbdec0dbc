"""Workloads of a cluster of three brokers with three replicas and acks=all, beside a three-node Kafka.

Like the servers of `workloads.kafka`, clusters are started at their first use, warmed up, and kept running.
"""

from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.servers.cluster import KAFKA_CLUSTER, WARMLOG_CLUSTER, ClusterBroker
from benchmarks.servers.contestants import Produce
from benchmarks.servers.kafka import ConfluentClient, JavaTools
from benchmarks.workloads.kafka import (
    LARGE_RECORD_BYTES,
    MANY,
    ONE_BY_ONE,
    PUSHING,
    RECORD_BYTES,
    at_least,
    at_most,
)
from benchmarks.workloads.native import RECORDS, SMALL

BOTH = (WARMLOG_CLUSTER, KAFKA_CLUSTER)
PARTITIONS = 12
TOOLS = tuple(JavaTools(broker=broker, partitions=PARTITIONS) for broker in BOTH)
CONFLUENT = tuple(ConfluentClient(broker=broker, partitions=PARTITIONS) for broker in BOTH)
CROWD = Produce(connections=200, depth=1, batch=SMALL)
CROWDED_PARTITIONS = 60
WARM_UP = (ONE_BY_ONE, MANY, PUSHING)
KILLS = 3  # kills in a round
PACE = 50_000  # records/s: a third of the slower cluster's maximum


def beside_kafka(
    name: str, title: str, measure: Any, *targets: Target, contestants: tuple[Any, ...] = BOTH, figures: Any = ()
) -> Workload[Any]:
    """Return a workload of both clusters, warmed up; its figures are the ones with targets, and `figures`.

    All brokers of a cluster, and etcd, may use as much processor time for a record as Kafka's.
    """
    targets += (at_most(1, "cpu_us_record"),)

    def measure_warm(contestant: Any, conditions: Conditions) -> Figures:
        broker: ClusterBroker = getattr(contestant, "broker", contestant)
        broker.warm(WARM_UP, conditions)
        measured: Figures = measure(contestant, conditions)
        return measured

    return Workload(
        name=f"kafka-cluster-{name}",
        title=title,
        figures=(*(target.figure for target in targets), *figures),
        contestants=contestants,
        measure=measure_warm,
        targets=targets,
    )


THROUGHPUT, LATENCY = 0.8, 1.2  # share of Kafka's rate to reach

CLUSTER_WORKLOADS: tuple[Workload[Any], ...] = (
    beside_kafka(
        "produce-1x1",
        "three replicas, acks=all: 1 connection, 1 in flight, 1 x 100 B",
        lambda broker, conditions: broker.produce(ONE_BY_ONE, conditions),
        at_most(LATENCY, "p99_ms"),
        figures=("p50_ms",),
    ),
    beside_kafka(
        "produce-32x4",
        "32 connections, 4 in flight, 32 partitions",
        lambda broker, conditions: broker.produce(MANY, conditions),
        at_least(THROUGHPUT, "requests_per_s"),
    ),
    beside_kafka(
        "produce-200x1",
        "200 connections, 1 in flight, 60 partitions",
        lambda broker, conditions: broker.produce_to(CROWDED_PARTITIONS, CROWD, conditions),
        at_least(THROUGHPUT, "requests_per_s"),
        at_most(LATENCY, "p99_ms"),
        figures=("p50_ms",),
    ),
    beside_kafka(
        "produce-large",
        "1 MB batches, 4 connections, 4 in flight, 4 partitions",
        lambda broker, conditions: broker.produce(PUSHING, conditions),
        at_least(THROUGHPUT, "mb_per_s"),
    ),
    beside_kafka(
        "produce-java-100",
        "Java producer, a million records of 100 B, 12 partitions",
        lambda tools, conditions: tools.produce(conditions.scaled(RECORDS), RECORD_BYTES, "all", conditions),
        at_least(THROUGHPUT, "records_per_s"),
        at_most(LATENCY, "p99_ms"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "produce-java-paced",
        "Java producer, 50,000 records of 100 B a second, 12 partitions",
        lambda tools, conditions: tools.produce(conditions.scaled(500_000), RECORD_BYTES, "all", conditions, PACE),
        at_most(LATENCY, "p99_ms"),
        figures=("records_per_s",),
        contestants=TOOLS,
    ),
    beside_kafka(
        "produce-java-1000",
        "Java producer, 200,000 records of 1 KB, 12 partitions",
        lambda tools, conditions: tools.produce(conditions.scaled(200_000), LARGE_RECORD_BYTES, "all", conditions),
        at_least(THROUGHPUT, "records_per_s"),
        at_most(LATENCY, "p99_ms"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "produce-confluent",
        "confluent-kafka produces a million records of 100 B, 12 partitions",
        lambda client, conditions: client.produce(conditions.scaled(RECORDS), RECORD_BYTES, conditions),
        at_least(THROUGHPUT, "records_per_s"),
        at_most(LATENCY, "p99_ms"),
        contestants=CONFLUENT,
    ),
    beside_kafka(
        "end-to-end",
        "Java producer to Java consumer, one record of 100 B after the other",
        lambda tools, conditions: tools.end_to_end(conditions.scaled(3_000), RECORD_BYTES, conditions),
        at_most(LATENCY, "p99_ms"),
        figures=("p50_ms",),
        contestants=TOOLS,
    ),
    beside_kafka(
        "failover",
        "a leader of 6 partitions is killed: until each accepts a record",
        lambda broker, conditions: broker.fail_over(6, 10, conditions.scaled(KILLS), conditions),
        Target(figure="p99_ms", at_most=1_000),
        figures=("p50_ms", "longest_ms"),
    ),
    beside_kafka(
        "failover-1000",
        "a leader of 1,000 partitions is killed: until each accepts a record",
        lambda broker, conditions: broker.fail_over(conditions.scaled(1_000), 500, 1, conditions),
        Target(figure="longest_ms", at_most=2_000),
        figures=("p50_ms",),
    ),
)
