"""`warmlog records delete`: advance the log start offset."""

import click

from warmlog.cli.admin.kafka_cluster import DELETE_RECORDS, TIMEOUT_MS, Fields, kafka_cluster, kafka_option, problem_of
from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_topics
from warmlog.cli.output import print_line

END = -1


def offset_or_end(value: str) -> int:
    """Parse an offset or `end`."""
    if value == "end":
        return END
    if not (value.isascii() and value.isdigit()) or int(value) >= 1 << 63:
        raise click.BadParameter(f"{value!r} is neither an offset nor `end`.")
    return int(value)


@click.command(short_help="Delete the records of a partition before an offset.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(min=0))
@click.option(
    "--before",
    "offset",
    metavar="OFFSET",
    required=True,
    type=offset_or_end,
    help="The first offset to keep; `end` deletes all records.",
)
@kafka_option
def delete(topic: str, partition: int, offset: int, kafka: str) -> None:
    """Delete the records of a partition before an offset. This cannot be undone."""
    with kafka_cluster(kafka) as cluster:
        requested = {"partition_index": partition, "offset": offset}
        request = {"topics": ({"name": topic, "partitions": (requested,)},), "timeout_ms": TIMEOUT_MS}
        result = cluster.ask_leader(topic, partition, DELETE_RECORDS, request, _only_partition)
    problem = problem_of(result)
    if problem is not None:
        raise Failure(f"{topic}-{partition}: {problem}")
    print_line(f"{topic}-{partition} begins at offset {result['low_watermark']}")


def _only_partition(response: Fields) -> Fields:
    result: Fields
    ((result,),) = [entry["partitions"] for entry in response["topics"]]
    return result
