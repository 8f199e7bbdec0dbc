"""Workloads of `warmlog serve --nodes 2`, beside one warmlog and Kafka: the gain of a second process on two cores."""

from typing import Any

from benchmarks.harness import Workload
from benchmarks.servers.kafka import JavaTools
from benchmarks.servers.nodes import WARMLOG_NODES
from benchmarks.workloads.cluster import CROWD
from benchmarks.workloads.kafka import BOTH, MANY, RECORD_BYTES, beside_kafka, tool_produce
from benchmarks.workloads.native import RECORDS

CONTESTANTS = (WARMLOG_NODES, *BOTH)
PARTITIONS = 12
TOOLS = tuple(JavaTools(broker=broker, partitions=PARTITIONS) for broker in CONTESTANTS)

NODES_WORKLOADS: tuple[Workload[Any], ...] = (
    beside_kafka(
        "nodes-produce-200x1",
        "two nodes on one machine: 200 connections, 1 in flight, 1 x 100 B",
        lambda broker, conditions: broker.produce(CROWD, conditions),
        figures=("requests_per_s", "p50_ms", "p99_ms"),
        contestants=CONTESTANTS,
    ),
    beside_kafka(
        "nodes-produce-32x4",
        "two nodes on one machine: 32 connections, 4 in flight",
        lambda broker, conditions: broker.produce(MANY, conditions),
        figures=("requests_per_s",),
        contestants=CONTESTANTS,
    ),
    beside_kafka(
        "nodes-produce-java-100",
        "two nodes on one machine: Java's producer tool, a million records of 100 B, acks=1, 12 partitions",
        tool_produce(RECORDS, RECORD_BYTES, "1"),
        figures=("records_per_s", "p99_ms"),
        contestants=TOOLS,
    ),
)
