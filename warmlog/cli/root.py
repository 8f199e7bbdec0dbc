"""The table of commands.

Owns: which commands there are, and the options of `warmlog` itself. Must not know: what the commands do.
"""

import click

from protocol.version import VERSION
from warmlog.cli.groups import LazyGroup, RootGroup

COMMANDS = {
    "serve": ("warmlog.cli.serve", "serve", "Run a broker."),
    "topic": ("warmlog.cli.root", "topic", "Create, list, describe, alter and delete topics."),
    "produce": ("warmlog.cli.produce", "produce", "Store the lines of standard input in a topic."),
    "consume": ("warmlog.cli.consume", "consume", "Print the records of a topic."),
    "group": ("warmlog.cli.root", "group", "List, describe, reset and delete consumer groups."),
    "log": ("warmlog.cli.root", "log", "Inspect the files of a data directory, with or without a broker."),
    "pipeline": ("warmlog.cli.root", "pipeline", "Count, archive, replay and audit records, on Spark or without it."),
    "completion": ("warmlog.cli.completion", "completion", "Print the script that completes `warmlog` in a shell."),
}

TOPIC_COMMANDS = {
    "create": ("warmlog.cli.topic", "create", "Create topics."),
    "list": ("warmlog.cli.topic", "list_topics", "List topics."),
    "describe": ("warmlog.cli.topic", "describe", "Show segments, sizes, offsets, times and settings of topics."),
    "alter": ("warmlog.cli.topic", "alter", "Change a topic's settings, or add partitions."),
    "delete": ("warmlog.cli.topic", "delete", "Delete topics and their data."),
}

GROUP_COMMANDS = {
    "list": ("warmlog.cli.group", "list_groups", "List groups."),
    "describe": ("warmlog.cli.group", "describe", "Show members, offsets and lag of groups."),
    "reset": ("warmlog.cli.group", "reset", "Set the committed offsets of a group."),
    "delete": ("warmlog.cli.group", "delete", "Delete groups and their committed offsets."),
}

LOG_COMMANDS = {
    "dump": ("warmlog.cli.dump", "dump", "Print the batches, records and index entries of segment files."),
    "verify": ("warmlog.cli.verify", "verify", "Check partition directories without writing."),
    "explain": ("warmlog.cli.explain", "explain", "Show how a fetch would be served: index pages, page faults."),
    "residency": ("warmlog.cli.residency", "residency", "Draw which parts of segments are in memory."),
    "receipts": ("warmlog.cli.receipts", "receipts", "Show what was recovered after unclean stops."),
    "repair": ("warmlog.cli.repair", "repair", "Recover logs without a broker."),
}

PIPELINE_COMMANDS = {
    "count": ("warmlog.cli.pipeline", "count", "Count records by their batch headers."),
    "archive": ("warmlog.cli.pipeline", "archive", "Write new records into Parquet files, each record once."),
    "replay": ("warmlog.cli.pipeline_replay", "replay", "Send records of an archive or a topic to a topic."),
    "audit": ("warmlog.cli.pipeline_audit", "audit", "Account for every offset; compare an archive with the log."),
    "compact-report": ("warmlog.cli.pipeline_audit", "compact_report", "Report what compaction would save."),
}


def print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Print the version and exit."""
    if value and not context.resilient_parsing:
        click.echo(f"warmlog {VERSION}")
        context.exit()


VERSION_OPTION = click.Option(
    ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=print_version, help="Print the version."
)

root = RootGroup(
    name="warmlog",
    table=COMMANDS,
    params=[VERSION_OPTION],
    help="A log broker: Kafka's storage engine, started in half a second.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
topic = LazyGroup(name="topic", table=TOPIC_COMMANDS, help="Create, list, describe, alter and delete topics.")
group = LazyGroup(name="group", table=GROUP_COMMANDS, help="List, describe, reset and delete consumer groups.")
log = LazyGroup(name="log", table=LOG_COMMANDS, help="Inspect the files of a data directory, with or without a broker.")
pipeline = LazyGroup(
    name="pipeline",
    table=PIPELINE_COMMANDS,
    help="Jobs over partition directories and brokers, on Spark or without it.",
)
