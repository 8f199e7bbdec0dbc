"""`warmlog share reset`: set the start offsets of a share group."""

from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.group import reset_arguments, reset_offsets

if TYPE_CHECKING:
    from warmlog.client import AsyncClient
    from warmlog.protocol.partitions import TopicPartition


@click.command(short_help="Set the start offsets of a share group.")
@reset_arguments("all topics that the group has read", "changed")
def reset(group: str, **chosen: Any) -> None:
    """Set the start offsets of a share group to an end of the log, an offset or a time.

    Records from that offset on are delivered as if for the first time. The group must have no members.
    """

    async def change(client: "AsyncClient", offsets: dict["TopicPartition", int]) -> None:
        await client.reset_share_group(group, offsets)

    reset_offsets(change, "changed", group, **chosen)
