"""`warmlog produce`: send standard input to a topic.

1. Records read so far are acknowledged before the command waits for more input.
2. After an error or Ctrl-C the command prints the number of records that are known to be stored.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.failure import Failure, Stopped
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
from warmlog.cli.records.input import LineSplitter, RecordInputStream, line_parser
from warmlog.cli.records.record_json import RecordInput
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, PartitionSummary, Summary
    from warmlog.client.settings import Acks, Compression

MAX_LINE_BYTES = 100 << 20  # default of socket.request.max.bytes
ACKS: "dict[str, Acks]" = {"0": 0, "1": 1, "all": "all"}


@click.command(short_help="Send the lines of standard input to a topic.")
@topic_argument
@click.option("--key", metavar="TEXT", help="Key of every record.")
@click.option("--key-separator", metavar="TEXT", type=separator, help="Each line is key, TEXT, value; \\t is a tab.")
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
    help="Send to this partition. Default: by key, else all in turn.",
)
@click.option(
    "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True
)
@click.option(
    "--acks",
    type=click.Choice(list(ACKS)),
    default="all",
    show_default=True,
    help="Replicas that must acknowledge; 0: do not wait.",
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
@click.option("-q", "--quiet", is_flag=True, help="Print neither progress nor the summary.")
@native_option
@json_option("Read lines as JSON objects, as `consume --json` prints them; print the summary as JSON.")
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
    """Send the lines of standard input to a topic.

    A line is a value, byte for byte, without its newline; an empty line is an empty value. With --json a line is an
    object with any of key, value, headers, partition, timestamp (ms), and key_base64, value_base64 for bytes that are
    not text. The topic is created on first use if the broker allows that.
    """
    if key_separator is not None and (as_json or key is not None):
        raise click.UsageError("--key-separator cannot be combined with --json or --key.")
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
            run_with_client(
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
        print_json(stored.as_json())
    elif not quiet:
        click.echo(f"{stored.known()}, {binary_size(progress.size)} in {progress.elapsed_s():.1f} s", err=True)


async def store(client: "AsyncClient", stream: RecordInputStream, stored: "Stored", partition: int | None) -> None:
    """Send records until the end of the input. Raises WarmlogError, Failure."""
    while not stream.at_end:
        await wait_until_readable(stream.descriptor)
        try:
            summary = await client.produce_many(
                stored.topic, messages(stream), partition=partition, on_stored=stored.count
            )
        except ValueError as error:  # for an unknown partition, or a timestamp out of range
            raise Failure(str(error)) from error
        stored.add(summary)
    if stream.failure is not None:
        raise stream.failure


async def wait_until_readable(descriptor: int) -> None:
    """Wait for input or its end. A file is always readable; epoll rejects it with PermissionError."""
    import anyio

    with suppress(PermissionError):
        await anyio.wait_readable(descriptor)


def messages(stream: RecordInputStream) -> Iterator[Any]:
    """Convert the available records for the client."""
    from warmlog.client import Message

    if stream.as_values:
        return stream.ready()  # passed on unchanged, without a call per line
    return (
        Message(item.value, item.key, item.headers, item.timestamp, item.partition)
        if type(item) is RecordInput
        else item
        for item in stream.ready()
    )


class Stored:
    """The acknowledged records. `records` is always up to date, the partitions only after each `add`."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.records = 0
        self._partitions: dict[int, PartitionSummary] = {}

    def count(self, records: int) -> None:
        """Count acknowledged records."""
        self.records += records

    def add(self, summary: "Summary") -> None:
        """Add the partitions and offsets of counted records."""
        for part in summary.partitions:
            before = self._partitions.get(part.partition)
            if before is not None:
                part = part._replace(records=before.records + part.records, first_offset=before.first_offset)  # noqa: PLW2901  # the sum
            self._partitions[part.partition] = part

    def known(self) -> str:
        """Format the summary as text."""
        return f"{self.records:,} record{'' if self.records == 1 else 's'} stored in {self.topic}"

    def as_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object; offsets are -1 with --acks 0."""
        parts = [self._partitions[partition]._asdict() for partition in sorted(self._partitions)]
        return {"topic": self.topic, "records": self.records, "partitions": parts}


def file_size(descriptor: int) -> int | None:
    """Return the size of a regular file, or None for other files."""
    status = os.fstat(descriptor)
    return status.st_size if S_ISREG(status.st_mode) else None
