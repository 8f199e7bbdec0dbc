"""Workloads with many clients and large requests, compared with Kafka, with their targets."""

from typing import Any

from benchmarks.harness import Workload
from benchmarks.serving.clients import GoClient
from benchmarks.serving.loads import Crowd, WideRequests
from benchmarks.workloads.kafka import BOTH, RECORD_BYTES, at_least, at_most, beside_kafka
from benchmarks.workloads.native import RECORDS, STORED, STORED_RECORDS

WIDE = WideRequests()
VERSIONS = (11, 7)  # versions of Produce: a current client's, and the last but one before the flexible versions


def crowded(connections: int, version: int, partitions: int = 1) -> Workload[Any]:
    """Return a workload of connections with one small request in flight each."""
    crowd = Crowd(connections=connections, version=version, partitions=partitions)
    shape = f"{connections:,} connections, 1 in flight, {partitions} x 100 B, Produce {version}"
    tail = (at_most(0.5, "p99_ms"),) if connections >= 1_000 else ()
    return beside_kafka(
        f"produce-{connections}x1{f'x{partitions}' if partitions > 1 else ''}-v{version}",
        shape,
        crowd.measure,
        at_least(1.2, "requests_per_s"),
        *tail,
        figures=("p50_ms", "p99_ms"),
    )


def of_go(library: str) -> tuple[Workload[Any], Workload[Any]]:
    """Return a workload in which a Go client produces and consumes a million records."""
    clients = tuple(GoClient(broker=broker, library=library) for broker in BOTH)
    return (
        beside_kafka(
            f"{library}-produce",
            f"{library}, default settings, produces a million records of 100 B",
            lambda client, conditions: client.produce(conditions.scaled(RECORDS), RECORD_BYTES, conditions),
            at_least(1, "records_per_s"),
            contestants=clients,
        ),
        beside_kafka(
            f"{library}-consume",
            f"{library}, default settings, consumes a million records of 100 B",
            lambda client, conditions: client.consume(
                STORED, STORED_RECORDS, conditions.scaled(RECORDS), RECORD_BYTES, conditions
            ),
            at_least(1, "records_per_s"),
            contestants=clients,
        ),
    )


SERVING_WORKLOADS: tuple[Workload[Any], ...] = (
    *(crowded(connections, version) for connections in (200, 1_000) for version in VERSIONS),
    *(crowded(8, version, partitions=20) for version in VERSIONS),
    beside_kafka(
        "wide-requests",
        "requests that name 1,000 partitions, each part",
        WIDE.measure,
        cpu=("produce_us", "produce_v7_us", "list_offsets_us", "offset_commit_us", "metadata_us"),
    ),
    beside_kafka(
        "wide-fetches",
        "fetches of 1,000 partitions, each part; active: 1 % have a record",
        WIDE.measure_fetches,
        cpu=("fetch_us", "fetch_active_us", "session_us", "session_active_us"),
    ),
    *of_go("sarama"),
    *of_go("franz"),
)
