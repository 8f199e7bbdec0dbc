"""`warmlog log explain`: explain how a fetch would be served, without serving it.

1. Nothing is written, and the page cache is restored, so a repeated call gives the same answer.
2. With a directory, no broker is involved. A running broker caches the position of a recent batch, so its own answer
   near the end of the log may need no scan.
3. If segments are removed or replaced while files are read, the read is repeated.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.log.explain_tables import show_explanation
from warmlog.cli.options import complete_topics, index_interval_option, json_option, native_option
from warmlog.cli.output import print_json
from warmlog.cli.run_with_client import run_with_client
from warmlog.inspect.paths import is_partition_directory
from warmlog.protocol.explanation import Explanation

MAX_INT64 = (1 << 63) - 1
MAX_ATTEMPTS = 4  # attempts while segments are removed or replaced


class Target(NamedTuple):
    """An offset, or a timestamp in ms. `plain`: also explain the plain binary search of the indexes."""

    offset: int | None
    timestamp: int | None
    plain: bool


def time_ms(value: str) -> int:
    """Parse a time in ISO 8601 (without a zone: local time) or in milliseconds since the epoch."""
    try:
        is_number = value.isascii() and value.isdigit()
        timestamp = int(value) if is_number else round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither a time like 2026-11-20T10:00:00Z nor milliseconds since 1970."
        ) from None
    if not 0 <= timestamp <= MAX_INT64:
        raise click.BadParameter(f"{value!r} is out of the range of record timestamps.")
    return timestamp


@click.command(short_help="Explain how a fetch would be served: index pages, resident pages, faults.")
@click.argument("where", metavar="DIR | TOPIC PARTITION", shell_complete=complete_topics)
@click.argument("partition", metavar="", required=False, type=click.IntRange(min=0))
@click.option("--offset", metavar="N", type=click.IntRange(0, MAX_INT64), help="Explain the fetch of this offset.")
@click.option(
    "--time", "timestamp", metavar="T", type=time_ms, help="Explain the first record at or after T: ISO 8601 or ms."
)
@click.option(
    "--search",
    type=click.Choice(["warm", "plain"]),
    default="warm",
    show_default=True,
    help="plain: also explain the plain binary search of the indexes.",
)
@index_interval_option
@native_option
@json_option("One JSON object: offsets, segment, lookups with their pages, scan, batch.")
def explain(
    where: str,
    partition: int | None,
    offset: int | None,
    timestamp: int | None,
    search: str,
    index_interval_bytes: int,
    native: str,
    as_json: bool,
) -> None:
    """Explain how a fetch would be served: index pages, resident pages, faults.

    DIR is the directory of a partition of warmlog or Kafka. Nothing is written to it, and a broker may be running. With
    TOPIC and PARTITION, a broker explains its open log.

    The output shows the segment, whether the warm or the cold section of the index is searched, the pages of the index
    in order of access, the matching entry, and the part of the log scanned from there to the batch, each with its
    resident pages. An index page that is not resident would cause a major page fault.
    """
    if (offset is None) == (timestamp is None):
        raise click.UsageError("Give either --offset N or --time T.")
    target = Target(offset, timestamp, search == "plain")
    if partition is None:
        name, explanation = Path(where).resolve().name, explain_directory(Path(where), target, index_interval_bytes)
    else:
        name, explanation = f"{where}-{partition}", ask_broker(native, where, partition, target)
    if as_json:
        print_json(explanation)
    else:
        show_explanation(name, explanation)


def ask_broker(native: str, topic: str, partition: int, target: Target) -> Explanation:
    """Let the broker explain the fetch. Raises Failure."""
    offset, timestamp, plain = target
    return run_with_client(
        native, lambda client: client.explain(topic, partition, offset=offset, timestamp=timestamp, plain=plain)
    )


def explain_directory(directory: Path, target: Target, index_interval_bytes: int) -> Explanation:
    """Explain the fetch from the files of a partition. Raises CannotStart, Failure, OSError."""
    from warmlog.broker.log.errors import LogError
    from warmlog.inspect.log_snapshot import NoSegmentsError
    from warmlog.protocol.errors import ProtocolError

    if not directory.is_dir():
        hint = "" if directory.exists() else "; for a topic of a broker, give TOPIC PARTITION"
        raise CannotStart(f"{directory}: {'not a directory' if directory.exists() else 'no such directory'}{hint}")
    if not is_partition_directory(directory):
        raise CannotStart(f"{directory}: not the directory of a partition")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        before = log_inodes(directory)
        try:
            explanation = explain_files(directory, target, index_interval_bytes)
        except NoSegmentsError as error:
            raise CannotStart(str(error)) from error
        except (OSError, LogError, ProtocolError) as error:
            if attempt == MAX_ATTEMPTS or log_inodes(directory) == before:
                if isinstance(error, OSError):
                    raise
                raise Failure(f"{directory}: {error}") from error
        else:
            if attempt == MAX_ATTEMPTS or log_inodes(directory) == before:
                return explanation
    raise AssertionError("the last attempt raises or returns")


def log_inodes(directory: Path) -> dict[str, int]:
    """Return the inodes of the log files by name: compaction replaces files under the same name. Raises OSError."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.name.endswith(".log")}


def explain_files(directory: Path, target: Target, index_interval_bytes: int) -> Explanation:
    """Explain the fetch from the current files. Raises NoSegmentsError, LogError, ProtocolError, OSError."""
    from warmlog.broker.log.reads.explain import SEARCHES, explain_offset, explain_time
    from warmlog.inspect.log_snapshot import read_log_snapshot

    searches = SEARCHES if target.plain else ()
    snapshot = read_log_snapshot(directory, index_interval_bytes=index_interval_bytes)
    if target.offset is None:
        assert target.timestamp is not None, "a target is an offset or a timestamp"
        return explain_time(snapshot, target.timestamp, searches=searches)
    return explain_offset(snapshot, target.offset, searches=searches)
