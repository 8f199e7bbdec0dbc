"""`warmlog cluster describe`: the brokers of a cluster, the leaders of partitions, and missing replicas."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import json_option, native_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.protocol.response import MetadataResponse, PartitionMetadata, TopicMetadata

BROKER_COLUMNS = (
    Column("broker", number=True),
    Column("address"),
    Column("rack"),
    Column("leads", number=True),
    Column("replicas", number=True),
    Column("role"),
)
PARTITION_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("leader", number=True),
    Column("epoch", number=True),
    Column("replicas"),
    Column("in sync"),
    Column("eligible"),
    Column("state"),
)


@click.command(short_help="Show brokers, leaders, in-sync replicas, and under-replicated partitions.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Show every partition of a topic; repeatable.")
@click.option("--all", "all_partitions", is_flag=True, help="Show every partition of every topic.")
@native_option
@json_option("One JSON object: cluster_id, controller, brokers, partitions (of all topics, or of the given ones).")
def describe(topics: tuple[str, ...], all_partitions: bool, native: str, as_json: bool) -> None:
    """Show the brokers of a cluster, and the partitions that lack a leader or in-sync replicas.

    A standalone broker is a cluster of one. A partition is under-replicated while one of its replicas is not in sync;
    without a leader it can be neither read nor written. Eligible replicas are not in sync but have all committed
    records; one of them is elected if there is no in-sync replica.
    """
    metadata = run_with_client(native, lambda client: client.metadata())
    unknown = set(topics) - {topic.name for topic in metadata.topics}
    if unknown:
        raise Failure(f"no such topic: {', '.join(sorted(unknown))} (`warmlog topic list` lists them)")
    if as_json:
        print_json(form(metadata, topics))
        return
    leads, holds = totals(metadata)
    print_line(f"cluster {metadata.cluster_id}: {counted(len(metadata.brokers), 'broker')}")
    rows = [
        (
            broker.node_id,
            f"{broker.host}:{broker.port}",
            broker.rack or "",
            leads.get(broker.node_id, 0),
            holds.get(broker.node_id, 0),
            "controller" if broker.node_id == metadata.controller else "",
        )
        for broker in metadata.brokers
    ]
    print_table(BROKER_COLUMNS, rows)
    is_shown = [topic for topic in metadata.topics if not topics or topic.name in topics]
    partitions = [(topic, partition) for topic in is_shown for partition in topic.partitions]
    ill = [(topic, partition) for topic, partition in partitions if state_of(partition)]
    print_line(f"{counted(len(partitions), 'partition')}, {len(ill)} without a leader or under-replicated")
    shown = partitions if topics or all_partitions else ill
    if shown:
        print_table(PARTITION_COLUMNS, [row(topic, partition) for topic, partition in shown])


def totals(metadata: "MetadataResponse") -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return for each broker the number of partitions it leads and the number of its replicas."""
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    for topic in metadata.topics:
        for partition in topic.partitions:
            leads[partition.leader] = leads.get(partition.leader, 0) + 1
            for broker in partition.replicas:
                holds[broker] = holds.get(broker, 0) + 1
    return leads, holds


def state_of(partition: "PartitionMetadata") -> str:
    """Return the problem of a partition, or an empty string if there is none."""
    if partition.leader < 0:
        return "no leader"
    return "under-replicated" if set(partition.replicas) - set(partition.in_sync) else ""


def row(topic: "TopicMetadata", partition: "PartitionMetadata") -> tuple[Any, ...]:
    """Return a partition as a row of the table."""
    leader = partition.leader if partition.leader >= 0 else "-"
    lists = (
        " ".join(map(str, brokers or ())) for brokers in (partition.replicas, partition.in_sync, partition.eligible)
    )
    return topic.name, partition.partition, leader, partition.leader_epoch, *lists, state_of(partition)


def form(metadata: "MetadataResponse", topics: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON form."""
    return {
        "cluster_id": metadata.cluster_id,
        "controller": metadata.controller,
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack or None}
            for broker in metadata.brokers
        ],
        "partitions": list(_partition_forms(metadata, topics)),
    }


def _partition_forms(metadata: "MetadataResponse", topics: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for topic in metadata.topics:
        if topics and topic.name not in topics:
            continue
        for partition in topic.partitions:
            yield {
                "topic": topic.name,
                "partition": partition.partition,
                "leader": partition.leader if partition.leader >= 0 else None,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "in_sync": list(partition.in_sync),
                "eligible": list(partition.eligible or ()),
                "state": state_of(partition) or "in sync",
            }
