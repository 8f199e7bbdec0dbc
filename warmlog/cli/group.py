"""`warmlog group`: list, describe, reset and delete consumer groups.

Lag is the number of offsets from the committed offset to the high watermark: 0 if the group has read everything.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_groups, complete_topics, json_option, native_option, start_position
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.run_with_client import run_with_client
from warmlog.protocol.partitions import TopicPartition

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, Start
    from warmlog.protocol.native.groups import DescribedConsumerGroup

MEMBER_COLUMNS = (Column("member"), Column("instance"), Column("client"), Column("host"), Column("partitions"))
GROUP_COLUMNS = (
    Column("group"),
    Column("state"),
    Column("type"),
    Column("members", number=True),
    Column("partitions", number=True),
    Column("lag", number=True),
)
POSITION_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("committed", number=True),
    Column("start", number=True),
    Column("end", number=True),
    Column("lag", number=True),
    Column("member"),
)
CHANGE_COLUMNS = (
    Column("topic"),
    Column("partition", number=True),
    Column("before", number=True),
    Column("after", number=True),
)
groups_argument = click.argument("groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
F = TypeVar("F", bound=Callable[..., Any])


class Change(NamedTuple):
    """The committed offset of a partition before (None: none) and after a reset."""

    topic: str
    partition: int
    before: int | None
    after: int


@click.command("list", short_help="List groups.")
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only groups in this state; repeatable.")
@native_option
@json_option("One JSON object per group: group, state, protocol_type, type.")
def list_groups(states: tuple[str, ...], native: str, as_json: bool) -> None:
    """List groups.

    States: Empty (no members) and Stable; of type classic also PreparingRebalance and CompletingRebalance (waiting for
    the assignment), of the types consumer (KIP-848) and streams (KIP-1071) Assigning (an assignment is being computed)
    and Reconciling (members are moving to it), of type streams NotReady (topics are missing).
    """
    groups = run_with_client(native, lambda client: client.list_groups(states=states))
    if as_json:
        for group in groups:
            print_json(
                {
                    "group": group.group,
                    "state": group.state,
                    "protocol_type": group.protocol_type,
                    "type": group.type,
                }
            )
        return
    columns = (Column("group"), Column("state"), Column("type"), Column("protocol type"))
    print_table(columns, [(group.group, group.state, group.type, group.protocol_type) for group in groups])


@click.command(short_help="Show members, offsets and lag of groups.")
@click.argument("groups", metavar="GROUP...", nargs=-1, shell_complete=complete_groups)
@click.option("--all", "describe_all", is_flag=True, help="All groups: one line each, with the lag.")
@native_option
@json_option("One JSON object per group with all fields.")
def describe(groups: tuple[str, ...], describe_all: bool, native: str, as_json: bool) -> None:
    """Show members, offsets and lag of groups.

    A partition without `committed` is assigned but has no committed offset; one without `end` no longer exists.
    """
    if bool(groups) == describe_all:
        raise click.UsageError("Give either GROUP... or --all.")

    async def ask(client: "AsyncClient") -> tuple[dict[str, str], tuple["DescribedConsumerGroup", ...]]:
        types = {group.group: group.type for group in await client.list_groups()}
        return types, await client.describe_groups(*(types if describe_all else groups))

    types, described = run_with_client(native, ask)
    if as_json:
        print_json(*[description_json(group) | {"type": types.get(group.group)} for group in described])
        return
    if describe_all:
        print_table(GROUP_COLUMNS, [_group_row(group, types.get(group.group)) for group in described])
        return
    for number, group in enumerate(described):
        if number:
            print_line()
        show_group(group, types.get(group.group))


def _group_row(group: "DescribedConsumerGroup", kind: str | None) -> tuple[object, ...]:
    lag = total_lag(group)
    return (
        group.group,
        group.state,
        kind,
        len(group.members),
        len(group.positions),
        "unknown" if lag is None else f"{lag:,}",
    )


def description_json(group: "DescribedConsumerGroup") -> dict[str, Any]:
    """Return a description as a JSON object, with the lag; unknown values are null."""
    import msgspec

    form: dict[str, Any] = msgspec.to_builtins(group)
    del form["error"], form["message"]
    for position, fields in zip(group.positions, form["positions"], strict=True):
        fields["lag"] = position.lag
        for name in ("offset", "leader_epoch", "log_start_offset", "high_watermark"):
            fields[name] = known(fields[name])
    form["lag"] = total_lag(group)
    return form


def show_group(group: "DescribedConsumerGroup", kind: str | None) -> None:
    """Print a description as tables. `kind`: classic or consumer, None if unknown."""
    lag = total_lag(group)
    print_line(
        f"{group.group}: {group.state}, {f'{kind}, ' if kind else ''}{counted(len(group.members), 'member')},"
        f" {counted(len(group.positions), 'partition')}, lag {'unknown' if lag is None else f'{lag:,}'}"
        + (f", assignor {group.protocol}" if group.protocol else "")
    )
    if group.members:
        print_line()
        print_table(
            MEMBER_COLUMNS,
            [
                (
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    " ".join(f"{entry.topic}-{entry.partition}" for entry in member.partitions),
                )
                for member in group.members
            ],
        )
    if group.positions:
        print_line()
        print_table(
            POSITION_COLUMNS,
            [
                (
                    position.topic,
                    position.partition,
                    known(position.offset),
                    known(position.log_start_offset),
                    known(position.high_watermark),
                    position.lag,
                    position.member_id,
                )
                for position in group.positions
            ],
        )


def known(offset: int) -> int | None:
    """Return an offset, or None for -1 (unknown)."""
    return None if offset < 0 else offset


def total_lag(group: "DescribedConsumerGroup") -> int | None:
    """Return the sum of all known lags, or None if there are partitions but no known lag."""
    lags = [position.lag for position in group.positions if position.lag is not None]
    return sum(lags) if lags or not group.positions else None


def reset_arguments(default: str, outcome: str) -> Callable[[F], F]:
    """Add the arguments of a command that resets offsets. `default`: the topics of a reset without --topic."""
    arguments = (
        click.argument("group", shell_complete=complete_groups),
        click.option(
            "--to",
            "target",
            metavar="WHERE",
            required=True,
            type=start_position,
            help="beginning, end, an offset or an ISO 8601 time (local without a zone).",
        ),
        click.option(
            "--topic",
            "topics",
            metavar="TOPIC",
            multiple=True,
            shell_complete=complete_topics,
            help=f"Only this topic; repeatable. Default: {default}.",
        ),
        click.option(
            "--partition",
            "partitions",
            metavar="N",
            type=click.IntRange(min=0),
            multiple=True,
            help="Only this partition of the one --topic; repeatable.",
        ),
        click.option("--dry-run", is_flag=True, help="Only show the changes."),
        native_option,
        json_option(f"One JSON object per partition: group, topic, partition, before, after, {outcome}."),
    )

    def add(command: F) -> F:
        for argument in reversed(arguments):
            command = argument(command)
        return command

    return add


@click.command(short_help="Reset the committed offsets of a group.")
@reset_arguments("all with committed offsets", "committed")
def reset(group: str, **chosen: Any) -> None:
    """Reset the committed offsets of a group to an end of the log, an offset or a time.

    The group must have no members, since they would continue at their positions and commit their own offsets.
    """

    async def commit(client: "AsyncClient", offsets: dict[TopicPartition, int]) -> None:
        await client.commit_offsets(group, offsets)

    reset_offsets(commit, "committed", group, **chosen)


def reset_offsets(
    commit: Callable[["AsyncClient", dict[TopicPartition, int]], Awaitable[None]],
    outcome: str,
    group: str,
    *,
    target: "Start",
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    native: str,
    as_json: bool,
) -> None:
    """Plan a reset, carry it out by `commit`, and print the changes. Raises UsageError, Failure."""
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition needs exactly one --topic.")

    async def run(client: "AsyncClient") -> list[Change]:
        changes = await plan(client, group, target, topics, partitions)
        if not dry_run:
            await commit(client, {(change.topic, change.partition): change.after for change in changes})
        return changes

    try:
        changes = run_with_client(native, run)
    except ValueError as error:  # for an unknown partition
        raise Failure(str(error)) from error
    if as_json:
        print_json(*({"group": group, **change._asdict(), outcome: not dry_run} for change in changes))
        return
    print_table(CHANGE_COLUMNS, changes)
    if dry_run:
        print_line("\nNothing was changed: this was a dry run.")


async def plan(
    client: "AsyncClient", group: str, target: "Start", topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[Change]:
    """Return the changes of a reset. Raises Failure if the group has members or there is nothing to reset."""
    before = await committed(client, group)
    names = topics or tuple(dict.fromkeys(topic for topic, _ in before))
    if not names:
        raise Failure(f"group {group!r} has no committed offsets: name the topics to set with --topic.")
    changes = []
    for name in dict.fromkeys(names):
        wanted = partitions or None if topics else [index for topic, index in before if topic == name]
        planned = await client.offsets(name, target, partitions=wanted)
        changes += [Change(name, index, before.get((name, index)), after) for index, after in sorted(planned.items())]
    return changes


async def committed(client: "AsyncClient", group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group; empty if it does not exist. Raises Failure if it has members."""
    from warmlog.client import UnknownGroupError

    try:
        (described,) = await client.describe_groups(group)
    except UnknownGroupError:
        return {}
    if described.members:
        raise Failure(f"group {group!r} has {counted(len(described.members), 'member')}: stop them first.")
    return {
        (position.topic, position.partition): position.offset
        for position in described.positions
        if position.offset >= 0
    }


@click.command(short_help="Delete groups and their committed offsets.")
@groups_argument
@click.option("--if-exists", is_flag=True, help="Ignore groups that do not exist.")
@native_option
@json_option("One JSON object per group: group, deleted.")
def delete(groups: tuple[str, ...], if_exists: bool, native: str, as_json: bool) -> None:
    """Delete groups and their committed offsets. They must have no members."""

    async def run(client: "AsyncClient") -> None:
        for name in groups:
            deleted = await delete_group(client, name, if_exists=if_exists)
            if as_json:
                print_json({"group": name, "deleted": deleted})
            else:
                print_line(f"{name} {'deleted' if deleted else 'does not exist'}")

    run_with_client(native, run)


async def delete_group(client: "AsyncClient", name: str, *, if_exists: bool) -> bool:
    """Delete a group; return whether it existed. Raises Failure if it did not exist, unless `if_exists`."""
    from warmlog.client import UnknownGroupError

    try:
        await client.delete_group(name)
    except UnknownGroupError as error:
        if not if_exists:
            raise Failure(error.message) from error
        return False
    return True
