"""`warmlog produce`: standard input into a topic.

Owns: the options, the way from input to client, and what is told at the end. Must not know: how lines are cut
(`input`), or how records are sent (`warmlog.client`).

1. What has arrived is sent and acknowledged before more is waited for: who types a line has it stored.
2. Ended by an error or by Ctrl-C, it says how many records are known to be stored.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure, Stopped
from warmlog.cli.input import LineSplitter, RecordInputStream, line_parser
from warmlog.cli.options import (
    assignment,
    json_option,
    native_option,
    separator,
    topic_argument,
    zero_option,
)
from warmlog.cli.output import binary_size, print_json
from warmlog.cli.progress import Progress
from warmlog.cli.record_json import RecordInput
from warmlog.cli.run_with_client import converse

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, PartitionSummary, Summary
    from warmlog.client.settings import Acks, Compression

MAX_LINE_BYTES = 100 << 20  # what a request may have by default (socket.request.max.bytes)
ACKS: "dict[str, Acks]" = {"0": 0, "1": 1, "all": "all"}


@click.command(short_help="Store the lines of standard input in a topic.")
@topic_argument
@click.option("--key", metavar="TEXT", help="Key of every record.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    type=separator,
    help="Split each line into key and value at this separator; \\t is a tab.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="KEY=VALUE",
    type=assignment,
    multiple=True,
    help="Header of every record; repeatable.",
)
@click.option(
    "--partition",
    metavar="N",
    type=click.IntRange(min=0),
    help="Target partition. Default: by key, otherwise spread over all.",
)
@click.option(
    "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True
)
@click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Acknowledgement to wait for."
)
@click.option(
    "--linger-ms",
    metavar="MS",
    type=click.FloatRange(min=0),
    default=5,
    show_default=True,
    help="How long a batch waits for more records.",
)
@click.option(
    "--batch-bytes",
    metavar="N",
    type=click.IntRange(min=1),
    default=256 << 10,
    show_default=True,
    help="Maximum size of a batch.",
)
@zero_option
@click.option("-q", "--quiet", is_flag=True, help="Print neither progress nor the count.")
@native_option
@json_option("Read JSON objects as `consume --json` prints them, and print the summary as one.")
def produce(
    topic: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    compression: "Compression",
    acks: str,
    linger_ms: float,
    batch_bytes: int,
    zero_terminated: bool,
    quiet: bool,
    native: str,
    as_json: bool,
) -> None:
    """Store the lines of standard input in a topic.

    A line is a value, byte for byte, without its newline; an empty line is an empty value. With --json a line is an
    object with any of key, value, headers, partition, timestamp (ms), and key_base64, value_base64 for binary data. The
    topic is created on first use if the broker allows that.
    """
    if key_separator is not None and (as_json or key is not None):
        raise click.UsageError("--key-separator goes with neither --json nor --key.")
    parse = line_parser(
        as_json=as_json,
        key_separator=None if key_separator is None else os.fsencode(key_separator),
        key=None if key is None else os.fsencode(key),
        headers=tuple((name, os.fsencode(value)) for name, value in headers),
    )
    descriptor = sys.stdin.fileno()
    stored = Stored(topic)
    with Progress(topic, total_size=file_size(descriptor), enabled=not quiet and not os.isatty(descriptor)) as progress:
        splitter = LineSplitter(b"\0" if zero_terminated else b"\n", max_line_bytes=MAX_LINE_BYTES)
        stream = RecordInputStream(descriptor, splitter, parse, progress.advance)
        try:
            converse(
                native,
                lambda client: store(client, stream, stored, partition),
                compression=compression,
                acks=ACKS[acks],
                linger_ms=linger_ms,
                batch_bytes=batch_bytes,
            )
        except Failure as failure:
            known = f" (at least {stored.known()})" if stored.records else ""
            raise Failure(f"{failure.message}{known}") from failure
        except KeyboardInterrupt:
            raise Stopped(f"at least {stored.known()}") from None
    if as_json:
        print_json(stored.form())
    elif not quiet:
        click.echo(f"{stored.known()}, {binary_size(progress.size)} in {progress.elapsed_s():.1f} s", err=True)


async def store(client: "AsyncClient", stream: RecordInputStream, stored: "Stored", partition: int | None) -> None:
    """Everything that comes, until the end of the input. Raises WarmlogError, Failure."""
    while not stream.at_end:
        await wait_until_readable(stream.descriptor)
        try:
            summary = await client.produce_many(stored.topic, messages(stream), partition=partition)
        except ValueError as error:  # a partition that is not there, a time out of range
            raise Failure(str(error)) from error
        stored.add(summary)
    if stream.failure is not None:
        raise stream.failure


async def wait_until_readable(descriptor: int) -> None:
    """Return when there is something to read, or the end. A file always has, and the kernel refuses to wait for one."""
    import anyio

    with suppress(PermissionError):
        await anyio.wait_readable(descriptor)


def messages(stream: RecordInputStream) -> Iterator[Any]:
    """What has come, as the client takes it."""
    from warmlog.client import Message

    if stream.as_values:
        return stream.ready()  # as they are: a step less for each of a million lines
    return (
        Message(item.value, item.key, item.headers, item.timestamp, item.partition)
        if type(item) is RecordInput
        else item
        for item in stream.ready()
    )


class Stored:
    """What is known to be stored: the sum of what was acknowledged."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.records = 0
        self._partitions: dict[int, PartitionSummary] = {}

    def add(self, summary: "Summary") -> None:
        """More was acknowledged."""
        self.records += summary.records
        for part in summary.partitions:
            before = self._partitions.get(part.partition)
            if before is not None:
                part = part._replace(records=before.records + part.records, first_offset=before.first_offset)  # noqa: PLW2901  # summed up
            self._partitions[part.partition] = part

    def known(self) -> str:
        """For people."""
        return f"{self.records:,} record{'' if self.records == 1 else 's'} stored in {self.topic}"

    def form(self) -> dict[str, Any]:
        """For scripts; offsets are -1 with --acks 0, which nobody answers."""
        parts = [self._partitions[partition]._asdict() for partition in sorted(self._partitions)]
        return {"topic": self.topic, "records": self.records, "partitions": parts}


def file_size(descriptor: int) -> int | None:
    """How much there is to read, where that is known."""
    status = os.fstat(descriptor)
    return status.st_size if S_ISREG(status.st_mode) else None
