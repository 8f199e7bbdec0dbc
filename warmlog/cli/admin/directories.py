"""`warmlog broker directories` and `warmlog partition relocate`: the data directories of brokers (KIP-113)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from warmlog.cli.admin.kafka_cluster import (
    ALTER_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    KafkaCluster,
    kafka_cluster,
    kafka_option,
    problem_of,
)
from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_topics, json_option
from warmlog.cli.output import Column, binary_size, print_json, print_line, print_table
from warmlog.protocol.partitions import TopicPartition

COLUMNS = (
    Column("broker", number=True),
    Column("directory"),
    Column("partitions", number=True),
    Column("size", number=True),
    Column("free", number=True),
    Column("arriving"),
    Column("state"),
)


@dataclass(frozen=True, slots=True)
class Directory:
    """A data directory of a broker, with the bytes of its partitions and of the partitions being moved to it."""

    broker: int
    path: str
    sizes: Mapping[TopicPartition, int]
    arriving: Mapping[TopicPartition, int]  # bytes copied so far
    free: int | None
    total: int | None
    problem: str | None

    @property
    def size(self) -> int:
        """The size of all partitions in bytes."""
        return sum(self.sizes.values()) + sum(self.arriving.values())


@click.command(short_help="Show the data directories of brokers, and partitions being moved to them.")
@click.argument("broker", required=False, type=click.IntRange(min=0))
@kafka_option
@json_option("One JSON object per directory with its partitions and their bytes.")
def directories(broker: int | None, kafka: str, as_json: bool) -> None:
    """Show the data directories of all brokers, or of one: their partitions, bytes, free space and errors.

    `arriving` lists partitions that are being copied to a directory by `warmlog partition relocate` or one of Kafka's
    tools.
    """
    with kafka_cluster(kafka) as cluster:
        brokers = sorted(each.node_id for each in cluster.metadata.brokers) if broker is None else [broker]
        described = [directory for node in brokers for directory in directories_of(cluster, node)]
    if as_json:
        print_json(*map(directory_json, described))
        return
    print_table(
        COLUMNS,
        [
            (
                each.broker,
                each.path,
                len(each.sizes),
                binary_size(each.size),
                None if each.free is None else binary_size(each.free),
                ", ".join(f"{topic}-{number}" for topic, number in sorted(each.arriving)),
                each.problem or "online",
            )
            for each in described
        ],
    )


@click.command(short_help="Move a partition to another data directory of its broker.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(min=0))
@click.option(
    "--to", "path", metavar="DIR", required=True, help="The directory, as `warmlog broker directories` prints it."
)
@click.option("--broker", type=click.IntRange(min=0), help="Id of the broker, if several have a replica.")
@kafka_option
def relocate(topic: str, partition: int, path: str, broker: int | None, kafka: str) -> None:
    """Move a partition to another data directory of its broker, while it is served.

    The command returns when the move has begun; `warmlog broker directories` shows how much has been copied. The
    broker's setting `replica.alter.log.dirs.io.max.bytes.per.second` limits the rate.
    """
    with kafka_cluster(kafka) as cluster:
        replicas = cluster.replicas().get((topic, partition))
        if replicas is None:
            raise Failure(f"no partition {partition} of a topic {topic!r}")
        if broker is None and len(replicas) > 1:
            raise Failure(f"{topic}-{partition} is on brokers {', '.join(map(str, replicas))}: choose one by --broker")
        node = replicas[0] if broker is None else broker
        if node not in replicas:
            raise Failure(f"{topic}-{partition} is not on broker {node}, but on {', '.join(map(str, replicas))}")
        known = [directory.path for directory in directories_of(cluster, node)]
        if path not in known:
            raise Failure(f"broker {node} has no data directory {path}: it has {', '.join(known)}")
        begin_move(cluster, node, path, (topic, partition))
    print_line(f"{topic}-{partition}: being moved to {path} of broker {node}")


def begin_move(cluster: KafkaCluster, broker: int, path: str, partition: TopicPartition) -> None:
    """Begin to move a partition. Raises Failure."""
    topic, number = partition
    target = {"path": path, "topics": ({"name": topic, "partitions": (number,)},)}
    response = cluster.ask_broker(broker, ALTER_LOG_DIRS, {"dirs": (target,)})
    ((result,),) = [moved["partitions"] for moved in response["results"]]
    problem = problem_of(result)
    if problem is not None:
        raise Failure(f"{topic}-{number}: {problem}")


def directories_of(cluster: KafkaCluster, broker: int) -> list[Directory]:
    """Return the data directories of a broker. Raises Failure."""
    response = cluster.ask_broker(broker, DESCRIBE_LOG_DIRS, {"topics": None})
    return [_directory(broker, result) for result in response["results"]]


def _directory(broker: int, fields: Mapping[str, Any]) -> Directory:
    kinds: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = ({}, {})
    for topic in fields["topics"]:
        for entry in topic["partitions"]:
            kinds[entry["is_future_key"]][topic["name"], entry["partition_index"]] = entry["partition_size"]
    free, total = (known if (known := fields[name]) >= 0 else None for name in ("usable_bytes", "total_bytes"))
    return Directory(broker, fields["log_dir"], *kinds, free, total, problem_of(fields))


def directory_json(directory: Directory) -> dict[str, Any]:
    """Return a directory as a JSON object; unknown values are null."""
    return {
        "broker": directory.broker,
        "directory": directory.path,
        "error": directory.problem,
        "free_bytes": directory.free,
        "total_bytes": directory.total,
        **{
            name: [
                {"topic": topic, "partition": number, "bytes": size} for (topic, number), size in sorted(held.items())
            ]
            for name, held in (("partitions", directory.sizes), ("arriving", directory.arriving))
        },
    }
