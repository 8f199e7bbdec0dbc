"""Workloads that compare with Kafka, over Kafka's protocol, with their targets.

Both servers are warmed up with 20 s of the loads below. Nothing is fsynced. The raw generator sends the same bytes to
both; the clients are Kafka's own tools and confluent-kafka. In every workload, the server may use as much processor
time as Kafka in the same rounds.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Conditions, Figures, Target, Workload
from benchmarks.load.kafka_wire import KafkaWire
from benchmarks.load.paced import Pace
from benchmarks.servers.contestants import Broker, Fetch, Produce
from benchmarks.servers.kafka import (
    KAFKA,
    WARMLOG_KAFKA,
    ConfluentClient,
    JavaTools,
    KafkaBroker,
    start_kafka,
    start_warmlog_for_kafka,
)
from benchmarks.servers.restart import restart_clean
from benchmarks.workloads.native import (
    CONNECTIONS,
    LARGE,
    PARTITIONS,
    RECORDS,
    RESTART_BATCHES,
    SMALL,
    STORED,
    STORED_RECORDS,
)

RECORD_BYTES = 100
LARGE_RECORD_BYTES = 1_000
SMALL_PER_S = 500
KILLS = 10
SHARED = 200_000
CPU_OF_RECORDS, CPU_OF_BYTES, CPU_SHARE = ("cpu_us_record",), ("cpu_us_mb",), ("server_share",)
BOTH = (WARMLOG_KAFKA, KAFKA)
FRESH = (  # started for each measurement, so neither is warm
    Broker(name=WARMLOG_KAFKA.name, start=start_warmlog_for_kafka, wire=KafkaWire()),
    Broker(name=KAFKA.name, start=start_kafka, wire=KafkaWire()),
)
TOOLS = tuple(JavaTools(broker=broker) for broker in BOTH)
CONFLUENT = tuple(ConfluentClient(broker=broker) for broker in BOTH)
SHARING = tuple(ConfluentClient(broker=broker, partitions=4) for broker in BOTH)

ONE_BY_ONE = Produce(connections=1, depth=1, batch=SMALL)
PIPELINED = Produce(connections=1, depth=16, batch=SMALL)
MANY = Produce(connections=32, depth=4, batch=SMALL)
PUSHING = Produce(connections=4, depth=4, batch=LARGE)
FETCH_ONE = Fetch(connections=1, depth=2, batch=STORED, records=STORED_RECORDS)
FETCH_FOUR = Fetch(connections=4, depth=2, batch=STORED, records=STORED_RECORDS)
WARM_UP = (ONE_BY_ONE, PIPELINED, MANY, PUSHING, FETCH_FOUR)


def warm(measure: Callable[[KafkaBroker, Conditions], Figures]) -> Callable[[Any, Conditions], Figures]:
    """Return the measurement, on a warmed-up server."""

    def measure_warm(contestant: Any, conditions: Conditions) -> Figures:
        broker: KafkaBroker = getattr(contestant, "broker", contestant)
        broker.warm(WARM_UP, conditions)
        return measure(contestant, conditions)

    return measure_warm


def beside_kafka(
    name: str,
    title: str,
    measure: Callable[[Any, Conditions], Figures],
    *targets: Target,
    figures: tuple[str, ...] = (),
    contestants: tuple[Any, ...] = BOTH,
    cpu: tuple[str, ...] = CPU_OF_RECORDS,
) -> Workload[Any]:
    """Return a workload of both servers; its figures are the ones with targets, and `figures`.

    `cpu`: figures of the server's processor time, of which warmlog may use as much as Kafka.
    """
    targets += tuple(at_most(1, figure) for figure in cpu)
    return Workload(
        name=f"kafka-{name}",
        title=title,
        figures=(*dict.fromkeys((*(target.figure for target in targets), *figures)),),
        contestants=contestants,
        measure=warm(measure),
        targets=targets,
    )


def at_least(ratio: float, figure: str) -> Target:
    """As a share of Kafka's."""
    return Target(figure=figure, against=KAFKA.name, at_least=ratio)


def at_most(ratio: float, figure: str) -> Target:
    """As a share of Kafka's."""
    return Target(figure=figure, against=KAFKA.name, at_most=ratio)


def producing(name: str, title: str, load: Produce, target: Target, *figures: str) -> Workload[Any]:
    """Return a workload in which the raw generator appends."""
    return beside_kafka(
        name, title, lambda broker, conditions: broker.produce(load, conditions), target, figures=figures
    )


def fetching(name: str, title: str, load: Fetch, target: Target) -> Workload[Any]:
    """Return a workload in which the raw generator reads slices from the page cache."""
    return beside_kafka(
        name, title, lambda broker, conditions: broker.fetch(load, conditions), target, cpu=CPU_OF_BYTES
    )


def sharing(members: int) -> Workload[Any]:
    """Return a workload in which the members of a share group take records."""
    return beside_kafka(
        f"share-{members}",
        f"share group of {members} members (confluent-kafka), 200,000 records of 100 B",
        lambda client, conditions: client.take(conditions.scaled(SHARED), members, conditions),
        at_least(1, "records_per_s"),
        contestants=SHARING,
    )


def tool_produce(records: int, size: int, acks: str) -> Callable[[JavaTools, Conditions], Figures]:
    """Return a measurement with Kafka's producer performance tool."""
    return lambda tools, conditions: tools.produce(conditions.scaled(records), size, acks, conditions)


KAFKA_WORKLOADS: tuple[Workload[Any], ...] = (
    producing("produce-1x1", "1 connection, 1 in flight, 1 x 100 B", ONE_BY_ONE, at_most(0.8, "p50_ms"), "p99_ms"),
    producing("produce-1x16", "1 connection, 16 in flight", PIPELINED, at_least(3, "requests_per_s")),
    producing("produce-32x4", "32 connections, 4 in flight", MANY, at_least(1.3, "requests_per_s")),
    producing("produce-large", "1 MB batches, 4 connections, 4 in flight", PUSHING, at_least(1.1, "mb_per_s")),
    fetching("fetch-1", "1 MiB fetches from memory, 1 connection", FETCH_ONE, at_least(1.2, "mb_per_s")),
    fetching("fetch-4", "1 MiB fetches from memory, 4 connections", FETCH_FOUR, at_least(1, "mb_per_s")),
    beside_kafka(
        "first-appends",
        "first append to each of 1,000 fresh partitions, 200 connections",
        lambda broker, conditions: broker.first_appends(
            conditions.scaled(PARTITIONS), min(CONNECTIONS, conditions.scaled(PARTITIONS)), SMALL, conditions
        ),
        at_least(10, "requests_per_s"),
    ),
    beside_kafka(
        "beside-large",
        "a producer of 500 small requests/s beside four connections that push 1 MB batches",
        lambda broker, conditions: broker.beside(Pace(per_s=SMALL_PER_S, batch=SMALL), PUSHING, conditions),
        at_most(1, "p50_ms"),
        at_most(0.5, "p99_ms"),
        figures=("large_mb_per_s",),
        cpu=CPU_OF_BYTES,
    ),
    beside_kafka(
        "java-produce-100",
        "Java producer, 2 million records of 100 B, acks=1",
        tool_produce(2 * RECORDS, RECORD_BYTES, "1"),
        at_least(1, "records_per_s"),
        at_most(1, "p99_ms"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "java-produce-100-all",
        "the same, acks=all (idempotent, as by default)",
        tool_produce(2 * RECORDS, RECORD_BYTES, "all"),
        at_least(1, "records_per_s"),
        at_most(1, "p99_ms"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "java-produce-1000",
        "Java producer, 300,000 records of 1 KB, acks=all",
        tool_produce(300_000, LARGE_RECORD_BYTES, "all"),
        at_least(1, "records_per_s"),
        at_most(1, "p99_ms"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "java-consume",
        "Java consumer, 4 million records of 100 B",
        lambda tools, conditions: tools.consume(STORED, STORED_RECORDS, conditions.scaled(4 * RECORDS), conditions),
        at_least(1, "records_per_s"),
        contestants=TOOLS,
    ),
    beside_kafka(
        "confluent-produce",
        "confluent-kafka produces a million records of 100 B",
        lambda client, conditions: client.produce(conditions.scaled(RECORDS), RECORD_BYTES, conditions),
        at_least(1, "records_per_s"),
        at_most(1, "p99_ms"),
        contestants=CONFLUENT,
    ),
    beside_kafka(
        "confluent-consume",
        "confluent-kafka consumes a million records of 100 B",
        lambda client, conditions: client.consume(
            STORED, STORED_RECORDS, conditions.scaled(RECORDS), RECORD_BYTES, conditions
        ),
        at_least(1, "records_per_s"),
        contestants=CONFLUENT,
    ),
    sharing(1),
    sharing(10),
    sharing(100),
    beside_kafka(
        "share-redelivery",
        "a record of a share group's member that was killed, until another has it",
        lambda client, conditions: client.redeliver(max(3, conditions.scaled(KILLS)), conditions),
        at_most(1, "p50_ms"),
        figures=("longest_ms",),
        contestants=SHARING,
        cpu=CPU_SHARE,
    ),
    beside_kafka(
        "quiet",
        "a consumer of 1,000 partitions to which nothing comes",
        lambda broker, conditions: broker.quiet(conditions.scaled(PARTITIONS), conditions),
        Target(figure="server_share", at_most=0.01),
        cpu=CPU_SHARE,
    ),
    Workload(
        name="kafka-restart",
        title="restart with 1,000 partitions of 1 MB after a clean stop",
        figures=("clean_s", "cpu_s", "stop_s"),
        contestants=FRESH,
        measure=lambda broker, conditions: restart_clean(
            broker, conditions, partitions=PARTITIONS, batch=STORED, batches=RESTART_BATCHES
        ),
        targets=(at_most(0.25, "clean_s"), at_most(1, "cpu_s")),
    ),
)
