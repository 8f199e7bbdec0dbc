"""`warmlog consume`: print the records of a topic to standard output.

1. Values are written byte for byte, and flushed as soon as they arrive.
2. A list of records is written in one call; only formatting is done for each record.
"""

import os
import sys
from collections.abc import AsyncIterable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click

from warmlog.cli.failure import Failure
from warmlog.cli.options import (
    group_option,
    json_option,
    native_option,
    separator,
    start_position,
    topic_argument,
    zero_option,
)
from warmlog.cli.output import write_bytes
from warmlog.cli.progress import Progress
from warmlog.cli.records.record_json import record_lines
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, ConsumedRecord, GroupProtocol, IsolationName, Start

Lines: TypeAlias = "Callable[[Sequence[ConsumedRecord]], bytes]"


@click.command(short_help="Print the records of a topic.")
@topic_argument
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    type=start_position,
    help="beginning, end, an offset or an ISO 8601 time. Default: end, or beginning with --until-end.",
)
@click.option("--until-end", is_flag=True, help="Stop at the log end as of the start; do not wait for more.")
@click.option("--count", metavar="N", type=click.IntRange(min=0), help="Stop after N records.")
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="read_committed: without aborted transactions, up to the first open one. Default: read_uncommitted.",
)
@group_option
@click.option(
    "--group-protocol",
    type=click.Choice(["auto", "consumer", "classic"]),
    default="auto",
    help="With --group: consumer (KIP-848) or classic. Default: auto, consumer unless the group has classic members.",
)
@click.option("--print-key", is_flag=True, help="Print the key before each value.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    type=separator,
    help="Separator between key and value (default \\t, a tab). Implies --print-key.",
)
@zero_option
@native_option
@json_option("One JSON object per record: topic, partition, offset, timestamp (ms), key, value, headers.")
def consume(
    topic: str,
    start: "Start | None",
    until_end: bool,
    count: int | None,
    partitions: tuple[int, ...],
    isolation: "IsolationName",
    group: str | None,
    group_protocol: "GroupProtocol",
    print_key: bool,
    key_separator: str | None,
    zero_terminated: bool,
    native: str,
    as_json: bool,
) -> None:
    """Print the records of a topic, one value per line.

    The command waits for more records until Ctrl-C, unless --until-end or --count is given. A record without a value (a
    tombstone) is an empty line. --json is lossless: keys and values that are not text are in base64, in key_base64 and
    value_base64.

    With --group the partitions of the topic are shared with the other members of the group. Reading begins at the
    committed offsets, or at --from if there are none. Printed records are committed periodically and at the end.
    """
    if group is not None and partitions:
        raise click.UsageError("--partition cannot be combined with --group, which assigns partitions itself.")
    if as_json and (print_key or key_separator or zero_terminated):
        raise click.UsageError("--json cannot be combined with --print-key, --key-separator or --zero-terminated.")
    end = b"\0" if zero_terminated else b"\n"
    key_end = os.fsencode(key_separator or "\t") if print_key or key_separator else None
    lines = record_lines if as_json else line_format(end, key_end)

    start = start or ("beginning" if until_end else "end")

    async def copy(client: "AsyncClient") -> None:
        if group is None:
            batches = client.consume_batches(
                topic,
                start,
                partitions=partitions or None,
                until_end=until_end,
                isolation=isolation,
                auto_create=False,
            )
            await write_records(batches, topic, lines, count)
            return
        stream = client.consume_batches(
            topic,
            start,
            group=group,
            group_protocol=group_protocol,
            until_end=until_end,
            isolation=isolation,
            auto_create=False,
        )
        async with stream:
            taken = await write_records(stream, topic, lines, count)
            if taken is not None:
                await stream.stop_within(taken)

    try:
        run_with_client(native, copy)
    except ValueError as error:  # for an unknown partition
        raise Failure(str(error)) from error


async def write_records(
    batches: "AsyncIterable[list[ConsumedRecord]]", topic: str, lines: Lines, count: int | None
) -> int | None:
    """Write records as they arrive, at most `count`.

    Returns the number of records of the last list that were written if `count` was reached, otherwise None.
    """
    left = count
    with Progress(topic, enabled=not sys.stdout.isatty()) as progress:
        if left != 0:
            async for records in batches:
                wanted = records if left is None else records[:left]
                data = lines(wanted)
                write_bytes(data)
                progress.advance(len(wanted), len(data))
                if left is not None and (left := left - len(wanted)) == 0:
                    return len(wanted)
    return None


def line_format(end: bytes, key_end: bytes | None) -> Lines:
    """Return a function that formats a record as its value and `end`, after the key and `key_end` if that is set."""
    between = key_end or b""

    def values(records: "Sequence[ConsumedRecord]") -> bytes:
        lines = [record.value or b"" for record in records]
        lines.append(b"")
        return end.join(lines)

    def keys_and_values(records: "Sequence[ConsumedRecord]") -> bytes:
        return b"".join([b"%b%b%b%b" % (record.key or b"", between, record.value or b"", end) for record in records])

    return values if key_end is None else keys_and_values
