"""`warmlog cluster describe`: the brokers of a cluster, who leads what, and which replicas are missing."""

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


@click.command(short_help="Show brokers, leaders, in-sync replicas, and what is under-replicated.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Show every partition of a topic; repeatable.")
@click.option("--all", "all_partitions", is_flag=True, help="Show every partition of every topic.")
@native_option
@json_option("One JSON object: cluster_id, controller, brokers, partitions (of all topics, or of those given).")
def describe(topics: tuple[str, ...], all_partitions: bool, native: str, as_json: bool) -> None:
    """Show the brokers of a cluster, and the partitions that lack a leader or in-sync replicas.

    A broker by itself is a cluster of one. A partition is under-replicated while some replica of it is not in sync;
    without a leader it can be neither read nor written. Eligible replicas have all committed records without being in
    sync, and one of them leads if no in-sync replica is left.
    """
    found = run_with_client(native, lambda client: client.metadata())
    unknown = set(topics) - {topic.name for topic in found.topics}
    if unknown:
        raise Failure(f"no such topic: {', '.join(sorted(unknown))} (`warmlog topic list` lists them)")
    if as_json:
        print_json(form(found, topics))
        return
    leads, holds = totals(found)
    print_line(f"cluster {found.cluster_id}: {counted(len(found.brokers), 'broker')}")
    rows = [
        (
            broker.node_id,
            f"{broker.host}:{broker.port}",
            broker.rack or "",
            leads.get(broker.node_id, 0),
            holds.get(broker.node_id, 0),
            "controller" if broker.node_id == found.controller else "",
        )
        for broker in found.brokers
    ]
    print_table(BROKER_COLUMNS, rows)
    is_shown = [topic for topic in found.topics if not topics or topic.name in topics]
    partitions = [(topic, one) for topic in is_shown for one in topic.partitions]
    ill = [(topic, one) for topic, one in partitions if state_of(one)]
    print_line(f"{counted(len(partitions), 'partition')}, {len(ill)} without a leader or under-replicated")
    shown = partitions if topics or all_partitions else ill
    if shown:
        print_table(PARTITION_COLUMNS, [row(topic, one) for topic, one in shown])


def totals(found: "MetadataResponse") -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return how many partitions each broker leads, and of how many it has a replica."""
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    for topic in found.topics:
        for one in topic.partitions:
            leads[one.leader] = leads.get(one.leader, 0) + 1
            for broker in one.replicas:
                holds[broker] = holds.get(broker, 0) + 1
    return leads, holds


def state_of(one: "PartitionMetadata") -> str:
    """Return what is wrong with a partition; nothing if all is well."""
    if one.leader < 0:
        return "no leader"
    return "under-replicated" if set(one.replicas) - set(one.in_sync) else ""


def row(topic: "TopicMetadata", one: "PartitionMetadata") -> tuple[Any, ...]:
    """Return a partition as a row of the table."""
    leader = one.leader if one.leader >= 0 else "-"
    lists = (" ".join(map(str, brokers or ())) for brokers in (one.replicas, one.in_sync, one.eligible))
    return topic.name, one.partition, leader, one.leader_epoch, *lists, state_of(one)


def form(found: "MetadataResponse", topics: tuple[str, ...]) -> dict[str, Any]:
    """Return everything for scripts."""
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller,
        "brokers": [
            {"node_id": one.node_id, "host": one.host, "port": one.port, "rack": one.rack or None}
            for one in found.brokers
        ],
        "partitions": list(_partition_forms(found, topics)),
    }


def _partition_forms(found: "MetadataResponse", topics: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for topic in found.topics:
        if topics and topic.name not in topics:
            continue
        for one in topic.partitions:
            yield {
                "topic": topic.name,
                "partition": one.partition,
                "leader": one.leader if one.leader >= 0 else None,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "in_sync": list(one.in_sync),
                "eligible": list(one.eligible or ()),
                "state": state_of(one) or "in sync",
            }
