"""`warmlog log explain`: the way of a fetch, and what of it is in memory.

Owns: the options, and whom to ask: files, or a broker. Must not know: how the way is found (`broker.log.explain`), nor
how it looks (`explain_tables`).

1. Nothing is written, and memory holds afterwards what it held before: asked again, the answer is the same.
2. Offline, no broker is asked and none is disturbed; one that is running knows more of its log's end (what it has by
   heart), and says so when it is asked itself.
3. Where it takes segments away or puts others in their place under the look, files are looked at again.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

from protocol.native.explain import ExplainResponse
from warmlog.cli.explain_tables import show_explanation
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.options import complete_topics, index_interval_option, json_option, native_option
from warmlog.cli.output import print_json
from warmlog.cli.run_with_client import converse
from warmlog.inspect.paths import is_partition_directory

MAX_INT64 = (1 << 63) - 1
MAX_LOOKS = 4  # while segments come and go


class Question(NamedTuple):
    """What is asked for: an offset, or a time in ms; and whether the plain search is to be told beside."""

    offset: int | None
    timestamp: int | None
    plain: bool


def time_ms(value: str) -> int:
    """Milliseconds since the epoch, as such or in ISO 8601 (without a zone it is local time)."""
    try:
        is_number = value.isascii() and value.isdigit()
        timestamp = int(value) if is_number else round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no time like 2026-11-20T10:00:00Z, nor milliseconds.") from None
    if not 0 <= timestamp <= MAX_INT64:
        raise click.BadParameter(f"{value!r}: there is no record of such a time.")
    return timestamp


@click.command(short_help="Show how a fetch would be served: index pages, page faults.")
@click.argument("where", metavar="DIR | TOPIC PARTITION", shell_complete=complete_topics)
@click.argument("partition", metavar="", required=False, type=click.IntRange(min=0))
@click.option("--offset", metavar="N", type=click.IntRange(0, MAX_INT64), help="Explain a fetch of this offset.")
@click.option(
    "--time",
    "timestamp",
    metavar="T",
    type=time_ms,
    help="Explain a lookup of the first record at or after T (ISO 8601 or ms).",
)
@click.option(
    "--search",
    type=click.Choice(["warm", "plain"]),
    default="warm",
    show_default=True,
    help="plain: show a plain binary search of the indexes as well.",
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
    """Show how a fetch would be served: index pages, what is in memory, expected page faults.

    DIR is the directory of a partition, warmlog's or Kafka's; nothing is written to it, and a broker may be running on
    it. With TOPIC and PARTITION, the broker explains the fetch for the log that it has open.

    The output names the segment, the section of the index that is searched (warm or cold), the pages of the index in
    the order in which they are touched, the entry found, the part of the log that is scanned from there to the batch,
    and which of all that is in memory. An index page that is not would be a major page fault.
    """
    if (offset is None) == (timestamp is None):
        raise click.UsageError("Give --offset N or --time T, one of the two.")
    question = Question(offset, timestamp, search == "plain")
    if partition is None:
        name, found = Path(where).resolve().name, explain_directory(Path(where), question, index_interval_bytes)
    else:
        name, found = f"{where}-{partition}", ask_broker(native, where, partition, question)
    if as_json:
        print_json(found)
    else:
        show_explanation(name, found)


def ask_broker(native: str, topic: str, partition: int, question: Question) -> ExplainResponse:
    """The broker's word. Raises Failure."""
    offset, timestamp, plain = question
    return converse(
        native, lambda client: client.explain(topic, partition, offset=offset, timestamp=timestamp, plain=plain)
    )


def explain_directory(directory: Path, question: Question, index_interval_bytes: int) -> ExplainResponse:
    """What the files say. Raises CannotStart, Failure, OSError."""
    from broker.log.errors import LogError
    from broker.log.offline_sight import NoSegmentsError
    from protocol.errors import ProtocolError

    if not directory.is_dir():
        hint = "" if directory.exists() else "; of a topic, name the partition, too"
        raise CannotStart(f"{directory}: {'not a directory' if directory.exists() else 'no such directory'}{hint}")
    if not is_partition_directory(directory):
        raise CannotStart(f"{directory}: not the directory of a partition")
    for attempt in range(1, MAX_LOOKS + 1):
        before = layout(directory)
        try:
            found = look(directory, question, index_interval_bytes)
        except NoSegmentsError as error:
            raise CannotStart(str(error)) from error
        except (OSError, LogError, ProtocolError) as error:
            if attempt == MAX_LOOKS or layout(directory) == before:
                if isinstance(error, OSError):
                    raise
                raise Failure(f"{directory}: {error}") from error
        else:
            if attempt == MAX_LOOKS or layout(directory) == before:
                return found
    raise AssertionError("the last look raises or returns")


def layout(directory: Path) -> dict[str, int]:
    """The log files that there are: another one under the same name is another one. Raises OSError."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.name.endswith(".log")}


def look(directory: Path, question: Question, index_interval_bytes: int) -> ExplainResponse:
    """What the files say that are there now. Raises NoSegmentsError, LogError, ProtocolError, OSError."""
    import msgspec

    from broker.log.explain import SEARCHES, explain_offset, explain_time
    from broker.log.offline_sight import take_offline_sight

    searches = SEARCHES if question.plain else ()
    sight = take_offline_sight(directory, index_interval_bytes=index_interval_bytes)
    if question.offset is None:
        assert question.timestamp is not None, "one of the two is asked for"
        found = explain_time(sight, question.timestamp, searches=searches)
    else:
        found = explain_offset(sight, question.offset, searches=searches)
    return msgspec.convert(found, ExplainResponse, from_attributes=True)
