"""`warmlog mirror status` and `promote`: show and promote a running broker's copies."""

from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_topics, json_option, native_option
from warmlog.cli.output import Column, print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient
    from warmlog.protocol.native.mirrors import DescribeMirrorResponse, MirroredPartition, MirroredTopic

FOLLOWING = "following"
COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("state"),
    Column("end", number=True),
    Column("source end", number=True),
    Column("lag records", number=True),
    Column("lag bytes", number=True),
    Column("lag s", number=True),
    Column("promoted at", number=True),
    Column("problem"),
)


@click.command(short_help="Show the progress of the copies.")
@click.argument("topics", metavar="[TOPIC...]", nargs=-1, shell_complete=complete_topics)
@native_option
@json_option("One JSON object: source, problem, topics with all fields; -1 is unknown.")
def status(topics: tuple[str, ...], native: str, as_json: bool) -> None:
    """Show the progress of mirrored topics: the given topics, or all.

    States: following; refused (see the problem); stopped (nothing mirrors it now); promoted (writable, since the offset
    `promoted at`). `lag bytes` is an estimate. `lag s` is the time since the copy was last known to be complete.
    All brokers of a cluster are queried. The exit status is 1 if a topic is refused or has a problem.
    """
    described = run_with_client(native, lambda client: client.describe_mirror())
    shown = chosen(described, topics)
    if as_json:
        print_json(description_json(described, shown))
    else:
        print_line(f"source: {described.source or 'none'}" + (f": {described.problem}" if described.problem else ""))
        if shown:
            print_table(COLUMNS, [row for topic in shown for row in rows(topic)])
    problems = [
        topic.name for topic in shown if topic.problem or any(partition.problem for partition in topic.partitions)
    ]
    if described.problem or problems:
        raise click.exceptions.Exit(1)


def chosen(described: "DescribeMirrorResponse", topics: tuple[str, ...]) -> "list[MirroredTopic]":
    """Return the requested topics. Raises Failure for a topic that is not mirrored."""
    by_name = {topic.name: topic for topic in described.topics}
    for name in topics:
        if name not in by_name:
            raise Failure(f"topic {name!r} is not mirrored")
    return [by_name[name] for name in topics] if topics else list(described.topics)


def rows(topic: "MirroredTopic") -> list[tuple[object, ...]]:
    """Return the rows of a topic: one for each partition, or one with the problem if it has no partitions here."""
    if not topic.partitions:
        return [(topic.name, None, str(topic.state), *[None] * 6, topic.problem)]
    return [row(topic, partition) for partition in topic.partitions]


def row(topic: "MirroredTopic", partition: "MirroredPartition") -> tuple[object, ...]:
    """Return the cells of a partition; unknown values are empty."""
    numbers = [partition.end, partition.source_end, partition.lag_records, partition.lag_bytes]
    known = [None if number < 0 else number for number in numbers]
    lag_s = None if partition.lag_ms < 0 else round(partition.lag_ms / 1000, 1)
    promoted_at = None if partition.promoted_at < 0 else partition.promoted_at
    return (
        topic.name,
        partition.partition,
        str(topic.state),
        *known,
        lag_s,
        promoted_at,
        partition.problem or topic.problem,
    )


def description_json(described: "DescribeMirrorResponse", topics: "list[MirroredTopic]") -> dict[str, Any]:
    """Return a description as a JSON object."""
    import msgspec

    return {
        "source": described.source,
        "problem": described.problem,
        "topics": [msgspec.to_builtins(topic) for topic in topics],
    }


@click.command(short_help="Stop mirroring topics, and make them writable.")
@click.argument("topics", metavar="[TOPIC...]", nargs=-1, shell_complete=complete_topics)
@click.option("--all", "every", is_flag=True, help="Promote all mirrored topics.")
@native_option
@json_option("One JSON object per topic: topic, offsets.")
def promote(topics: tuple[str, ...], every: bool, native: str, as_json: bool) -> None:
    """Stop mirroring topics, and make them writable at the end of their copies, which is printed.

    Stop the producers at the source first, and wait until `status` shows no lag: records not copied by then are missing
    in the copies. Transactions that are open in the copies are aborted. A promoted topic is not mirrored again. In a
    cluster, the in-sync replicas of each partition must have all copied records; repeat the command if that takes too
    long.
    """
    if every is bool(topics):
        raise click.UsageError("Give either TOPIC... or --all.")

    async def promote_each(client: "AsyncClient") -> dict[str, dict[int, int]]:
        names = topics
        if every:
            described = (await client.describe_mirror()).topics
            names = tuple(topic.name for topic in described if topic.cluster_id and topic.state != "promoted")
        return {name: await client.promote_topic(name) for name in names}

    for name, offsets in run_with_client(native, promote_each).items():
        if as_json:
            print_json({"topic": name, "offsets": list(offsets.values())})
        else:
            print_line(f"{name} promoted at offsets {' '.join(map(str, offsets.values()))}")
