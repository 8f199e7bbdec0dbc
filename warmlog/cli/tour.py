"""`warmlog tour`: create a topic whose index is not in memory, for the console's tour."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.log.residency import MAX_CELLS, survey_files, totals
from warmlog.cli.options import native_option
from warmlog.cli.output import print_line
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient

TOPIC = "warmlog-tour"
RECORDS = 60_000
BATCH_BYTES = 100
CONFIGS = {"index.interval.bytes": "1"}  # so small that each batch has an index entry, for an index of several pages


@click.command(short_help="Create a topic whose index is not in memory, for the console's tour.")
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="The data directory of the broker, which runs on this machine.",
)
@native_option
def tour(data_dir: Path, native: str) -> None:
    """Create a topic whose index is not in memory, for the console's tour.

    The topic `warmlog-tour` gets 60,000 records in small batches, and the kernel is asked to drop the pages of its
    files. An existing topic of that name is deleted first. Continue at the page /ui/tour of the broker's HTTP
    listener.
    """
    directory = data_dir / f"{TOPIC}-0"
    if not data_dir.is_dir():
        raise CannotStart(f"{data_dir}: no such directory; give the broker's with --data-dir")
    run_with_client(native, make_topic, batch_bytes=BATCH_BYTES)
    if not directory.is_dir():
        raise Failure(f"{directory}: the topic was made elsewhere; is {data_dir} the data directory of this broker?")
    evict(directory)
    surveys = list(survey_files(directory, MAX_CELLS))
    _, pages, resident = totals(surveys)
    print_line(f"{TOPIC}: {RECORDS:,} records; {resident} of {pages} pages are in memory. Continue at /ui/tour.")


async def make_topic(client: "AsyncClient") -> None:
    """Recreate the topic with its records."""
    from warmlog.client import UnknownTopicError

    with suppress(UnknownTopicError):
        await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC, partitions=1, configs=CONFIGS)
    await client.produce_many(TOPIC, (b"%d" % number for number in range(RECORDS)))


def evict(directory: Path) -> None:
    """Flush the files of a partition, and ask the kernel to drop their pages. Raises OSError."""
    for path in sorted(directory.iterdir()):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
