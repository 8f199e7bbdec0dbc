"""`warmlog share reset`: set the start offsets of a share group."""

from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import Failure
from warmlog.cli.group import CHANGE_COLUMNS, Change, plan
from warmlog.cli.options import complete_groups, complete_topics, json_option, native_option, start_position
from warmlog.cli.output import print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, Start


@click.command(short_help="Set the start offsets of a share group.")
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--to",
    "target",
    metavar="WHERE",
    required=True,
    type=start_position,
    help="beginning, end, an offset or an ISO 8601 time (local without a zone).",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; repeatable. Default: all topics that the group has read.",
)
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition of the one --topic; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only show the changes.")
@native_option
@json_option("One JSON object per partition: group, topic, partition, before, after, changed.")
def reset(
    group: str,
    target: "Start",
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    native: str,
    as_json: bool,
) -> None:
    """Set the start offsets of a share group to an end of the log, an offset or a time.

    Records from that offset on are delivered as if for the first time. The group must have no members.
    """
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic.")

    async def run(client: "AsyncClient") -> list[Change]:
        changes = await plan(client, group, target, topics, partitions)
        if not dry_run:
            await client.reset_share_group(
                group, {(change.topic, change.partition): change.after for change in changes}
            )
        return changes

    try:
        changes = run_with_client(native, run)
    except ValueError as error:  # for an unknown partition
        raise Failure(str(error)) from error
    if as_json:
        print_json(*({"group": group, **change._asdict(), "changed": not dry_run} for change in changes))
        return
    print_table(CHANGE_COLUMNS, changes)
    if dry_run:
        print_line("\nNothing was changed: this was a dry run.")
