"""`warmlog topic`: create, list, describe, alter and delete topics.

Several topics are processed in order. The first failure ends the command; earlier topics remain changed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import configs_option, json_option, native_option, topic_argument, topics_argument
from warmlog.cli.output import Column, binary_size, counted, iso_time, print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient
    from warmlog.protocol.response import PartitionDescription, TopicDescription

PARTITION_COLUMNS = (
    Column("partition", number=True),
    Column("start", number=True),
    Column("end", number=True),
    Column("records", number=True),
    Column("high watermark", number=True),
    Column("flushed", number=True),
    Column("size", number=True),
    Column("segments", number=True),
    Column("epoch", number=True),
)
SEGMENT_COLUMNS = (
    Column("partition", number=True),
    Column("base offset", number=True),
    Column("next offset", number=True),
    Column("size", number=True),
    Column("index", number=True),
    Column("times", number=True),
    Column("largest timestamp"),
    Column("modified"),
    Column("state"),
)


@click.command(short_help="Create topics.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of partitions. Default: the broker's num.partitions.",
)
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of replicas of each partition. Default: the broker's default.replication.factor.",
)
@configs_option("A setting of the topic, such as segment.bytes=1048576; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Leave existing topics unchanged.")
@native_option
@json_option("One JSON object per topic: name, topic_id, partitions, created.")
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    native: str,
    as_json: bool,
) -> None:
    """Create topics."""

    async def run(client: "AsyncClient") -> None:
        for name in topics:
            made = await client.create_topic(
                name,
                partitions=partitions or -1,
                replication_factor=replication_factor,
                configs=dict(configs),
                if_not_exists=if_not_exists,
            )
            if made is None:
                existing = await client.topic(name, auto_create=False)
                print_created(name, existing.topic_id, existing.partitions, created=False, as_json=as_json)
            else:
                print_created(name, made.topic_id, made.partitions, created=True, as_json=as_json)

    run_with_client(native, run)


def print_created(name: str, topic_id: str | None, partitions: int, *, created: bool, as_json: bool) -> None:
    """Print whether a topic was created."""
    if as_json:
        print_json({"name": name, "topic_id": topic_id, "partitions": partitions, "created": created})
    else:
        print_line(f"{name} {'created' if created else 'already exists'}: {counted(partitions, 'partition')}")


@click.command("list", short_help="List topics.")
@click.option("--sizes", is_flag=True, help="Include records and bytes of each topic, without copies on replicas.")
@native_option
@json_option("One JSON object per topic: name, topic_id, partitions, with --sizes also records, bytes.")
def list_topics(sizes: bool, native: str, as_json: bool) -> None:
    """List topics."""
    if sizes:
        _list_sizes(native, as_json=as_json)
        return
    topics = run_with_client(native, lambda client: client.list_topics())
    if as_json:
        forms = (
            {"name": topic.name, "topic_id": topic.topic_id, "partitions": len(topic.partitions)} for topic in topics
        )
        print_json(*forms)
        return
    columns = (Column("topic"), Column("partitions", number=True), Column("id"))
    print_table(columns, [(topic.name, len(topic.partitions), topic.topic_id) for topic in topics])


def _list_sizes(native: str, *, as_json: bool) -> None:
    async def ask(client: "AsyncClient") -> tuple["TopicDescription", ...]:
        names = [topic.name for topic in await client.list_topics()]
        return await client.describe_topics(*names)

    rows = [
        (
            topic.name,
            topic.topic_id,
            len(topic.partitions),
            sum(partition.log_end_offset - partition.log_start_offset for partition in topic.partitions),
            sum(partition.size for partition in topic.partitions),
        )
        for topic in run_with_client(native, ask)
    ]
    if as_json:
        names = ("name", "topic_id", "partitions", "records", "bytes")
        print_json(*(dict(zip(names, row, strict=True)) for row in rows))
        return
    columns = (Column("topic"), *(Column(name, number=True) for name in ("partitions", "records", "size")))
    print_table(columns, [(name, count, f"{records:,}", binary_size(size)) for name, _, count, records, size in rows])


@click.command(short_help="Show segments, sizes, offsets, times and settings of topics.")
@topics_argument
@click.option("--configs", "all_configs", is_flag=True, help="Show all settings, including defaults.")
@native_option
@json_option("One JSON object per topic with all fields.")
def describe(topics: tuple[str, ...], all_configs: bool, native: str, as_json: bool) -> None:
    """Show segments, sizes, offsets, times and settings of topics.

    A segment holds the offsets from its base offset up to the next offset (exclusive). `index` and `times` are the
    numbers of entries in its two indexes. Records below the offset `flushed` are flushed to disk.
    """
    described = run_with_client(native, lambda client: client.describe_topics(*topics))
    if as_json:
        print_json(*(description_json(topic) for topic in described))
        return
    for number, topic in enumerate(described):
        if number:
            print_line()
        show_topic(topic, all_configs=all_configs)


def description_json(topic: "TopicDescription") -> dict[str, Any]:
    """Return a description as a JSON object. `failure`: why a partition rejects appends, or null."""
    import msgspec

    form: dict[str, Any] = msgspec.to_builtins(topic)
    for part in (form, *form["partitions"]):
        del part["error"], part["message"]
    for part, partition in zip(form["partitions"], topic.partitions, strict=True):
        part["failure"] = (partition.message or partition.error.name) if partition.error else None
    return form


def show_topic(topic: "TopicDescription", *, all_configs: bool) -> None:
    """Print a description as tables."""
    size = sum(partition.size for partition in topic.partitions)
    records = sum(partition.log_end_offset - partition.log_start_offset for partition in topic.partitions)
    print_line(
        f"{topic.name}: {counted(len(topic.partitions), 'partition')}, {counted(records, 'record')},"
        f" {binary_size(size)}, id {topic.topic_id}"
    )
    configs = [config for config in topic.configs if all_configs or config.source != "default"]
    print_line()
    if configs:
        columns = (Column("setting"), Column("value"), Column("set on"))
        print_table(columns, [(config.name, config.value, config.source) for config in configs])
        print_line()
    print_table(PARTITION_COLUMNS, map(partition_row, topic.partitions))
    for partition in topic.partitions:
        if partition.error and is_readable(partition):
            print_line(f"partition {partition.partition}: {partition.message or partition.error.name}")
    print_line()
    print_table(SEGMENT_COLUMNS, segment_rows(topic.partitions))


def is_readable(partition: "PartitionDescription") -> bool:
    """Return whether a partition can be read, so that its offsets are known; it may still reject appends."""
    return partition.log_end_offset >= 0


def partition_row(partition: "PartitionDescription") -> tuple[object, ...]:
    """Return the cells of a partition, or the reason why it is unavailable."""
    if not is_readable(partition):
        return (partition.partition, *[None] * 7, partition.message or partition.error.name)
    return (
        partition.partition,
        partition.log_start_offset,
        partition.log_end_offset,
        partition.log_end_offset - partition.log_start_offset,
        partition.high_watermark,
        partition.flushed_offset,
        binary_size(partition.size),
        len(partition.segments),
        partition.leader_epoch,
    )


def segment_rows(partitions: "Iterable[PartitionDescription]") -> Iterable[tuple[object, ...]]:
    """Yield the cells of all segments."""
    for partition in partitions:
        for segment in partition.segments:
            yield (
                partition.partition,
                segment.base_offset,
                segment.next_offset,
                binary_size(segment.size),
                segment.offset_index_entries,
                segment.time_index_entries,
                iso_time(segment.max_timestamp),
                iso_time(segment.modified_ms),
                "active" if segment.active else None,
            )


@click.command(short_help="Change a topic's settings, or add partitions.")
@topic_argument
@click.option("--partitions", metavar="N", type=click.IntRange(min=1), help="Increase the number of partitions to N.")
@configs_option("A setting of the topic; repeatable.")
@click.option(
    "--reset", "resets", metavar="KEY", multiple=True, help="Reset a setting to the broker's value; repeatable."
)
@native_option
@json_option("One JSON object: the name and the changes.")
def alter(
    topic: str,
    partitions: int | None,
    configs: tuple[tuple[str, str], ...],
    resets: tuple[str, ...],
    native: str,
    as_json: bool,
) -> None:
    """Change a topic's settings, or add partitions. With more partitions, keys map to other partitions than before."""
    changes: dict[str, str | None] = {**dict(configs), **dict.fromkeys(resets)}
    if not changes and partitions is None:
        raise click.UsageError("Nothing to change: give --partitions, --config or --reset.")
    run_with_client(native, lambda client: client.alter_topic(topic, configs=changes, partitions=partitions))
    if as_json:
        print_json({"name": topic, "partitions": partitions, "configs": changes})
    else:
        print_line(f"{topic} altered")


@click.command(short_help="Delete topics and their data.")
@topics_argument
@click.option("--if-exists", is_flag=True, help="Ignore topics that do not exist.")
@native_option
@json_option("One JSON object per topic: name, deleted.")
def delete(topics: tuple[str, ...], if_exists: bool, native: str, as_json: bool) -> None:
    """Delete topics and their data."""

    async def run(client: "AsyncClient") -> None:
        for name in topics:
            deleted = await delete_topic(client, name, if_exists=if_exists)
            if as_json:
                print_json({"name": name, "deleted": deleted})
            else:
                print_line(f"{name} {'deleted' if deleted else 'does not exist'}")

    run_with_client(native, run)


async def delete_topic(client: "AsyncClient", name: str, *, if_exists: bool) -> bool:
    """Delete a topic; return whether it existed. Raises Failure if it did not exist, unless `if_exists`."""
    from warmlog.client import UnknownTopicError

    try:
        await client.delete_topic(name)
    except UnknownTopicError as error:
        if not if_exists:
            raise Failure(error.message) from error
        return False
    return True
