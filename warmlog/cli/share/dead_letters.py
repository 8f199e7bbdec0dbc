"""`warmlog share dead-letters` and `redrive`: records that a share group gave up (KIP-1191).

A dead letter names its record in headers, and has the record's key and value if the group copies them. While its topic
still has the record, the record itself is preferred, since it has its original headers.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from warmlog.cli.failure import Failure
from warmlog.cli.options import complete_topics, json_option, native_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.records.record_json import put_bytes
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, ConsumedRecord

PREFIX = "__dlq.errors."
REDRIVE_GROUP = "warmlog-redrive"
AT_ONCE = 100  # dead letters processed together
MAX_GAP = 1_000  # gaps of up to this many records are read instead of skipped
COLUMNS = (
    Column("offset", number=True),
    Column("group"),
    Column("record"),
    Column("deliveries", number=True),
    Column("reason"),
)


class DeadLetter(NamedTuple):
    """A dead letter: its position, the record that it represents, and the reason why the group gave up the record."""

    letter: "ConsumedRecord"
    topic: str
    partition: int
    offset: int
    group: str
    deliveries: int
    reason: str

    @property
    def place(self) -> str:
        """The position of the record: topic, partition and offset."""
        return f"{self.topic}-{self.partition}@{self.offset}"


def parsed(record: "ConsumedRecord") -> DeadLetter | None:
    """Parse the headers of a dead letter, or return None if the record is not a dead letter."""
    fields = {name.removeprefix(PREFIX): value for name, value in record.headers if name.startswith(PREFIX)}
    try:
        return DeadLetter(
            letter=record,
            topic=(fields["topic"] or b"").decode(),
            partition=int(fields["partition"] or b""),
            offset=int(fields["offset"] or b""),
            group=(fields.get("group") or b"").decode(),
            deliveries=int(fields.get("delivery.count") or 0),
            reason=(fields.get("message") or b"").decode(),
        )
    except (KeyError, ValueError):
        return None


topic_argument = click.argument("topic", metavar="DEAD_LETTER_TOPIC", shell_complete=complete_topics)
group_option = click.option("--group", metavar="GROUP", help="Only dead letters of this share group.")


@click.command("dead-letters", short_help="Show the dead letters in a topic.")
@topic_argument
@group_option
@native_option
@json_option("One JSON object per dead letter, with the key and value if it has them.")
def show(topic: str, group: str | None, native: str, as_json: bool) -> None:
    """Show the dead letters in a topic: the records that share groups gave up, and the reasons.

    A group writes them if its errors.deadletterqueue.topic.name is set, and the topic has
    errors.deadletterqueue.group.enable=true.
    """

    async def run(client: "AsyncClient") -> list[DeadLetter]:
        stream = client.consume_batches(topic, "beginning", until_end=True, auto_create=False)
        return [letter async for records in stream for letter in _letters(records, group)]

    letters = run_with_client(native, run)
    if as_json:
        print_json(*[_form(letter) for letter in letters])
        return
    rows = [(each.letter.offset, each.group, each.place, each.deliveries, each.reason) for each in letters]
    print_table(COLUMNS, rows)


def _letters(records: "list[ConsumedRecord]", group: str | None) -> list[DeadLetter]:
    letters = [letter for record in records if (letter := parsed(record)) is not None]
    return [letter for letter in letters if group in {None, letter.group}]


def _form(letter: DeadLetter) -> dict[str, Any]:
    fields: dict[str, Any] = {**letter._asdict(), "timestamp": letter.letter.timestamp}
    del fields["letter"]
    put_bytes(fields, "key", letter.letter.key)
    return put_bytes(fields, "value", letter.letter.value)


@click.command(short_help="Produce the records of dead letters again.")
@topic_argument
@group_option
@click.option("--to", "target", metavar="TOPIC", help="Produce to this topic. Default: where each record comes from.")
@click.option("--dry-run", is_flag=True, help="Only show the records.")
@native_option
@json_option("One JSON object per record: topic, partition, offset, group, deliveries, reason, target, produced.")
def redrive(topic: str, group: str | None, target: str | None, dry_run: bool, native: str, as_json: bool) -> None:
    """Produce the records of dead letters again, so that they are delivered as new records.

    Every group that reads the topic gets them, not only the one that gave them up: choose another topic with --to to
    avoid that. The consumer group warmlog-redrive stores which dead letters are done, so that the next call continues
    after them; dead letters of groups other than --group also count as done. If the command is interrupted, the next
    call produces up to 100 records a second time.

    The exit status is 1 if a record is neither in its topic nor in its dead letter.
    """

    async def run(client: "AsyncClient") -> int:
        lost = 0
        async for letters in _open(client, topic, group, commits=not dry_run):
            records = await _originals(client, letters)
            if not dry_run:
                await _produce(client, [(target or letter.topic, records[letter.place]) for letter in letters])
            for letter in letters:
                is_known = records[letter.place] is not None
                lost += not is_known
                _show_done(letter, target or letter.topic, is_known=is_known, produced=not dry_run, as_json=as_json)
        return lost

    lost = run_with_client(native, run)
    if dry_run and not as_json:
        print_line("Nothing was produced: this was a dry run.")
    if lost:
        raise Failure(f"{counted(lost, 'record')} cannot be produced again.")


def _show_done(letter: DeadLetter, to: str, *, is_known: bool, produced: bool, as_json: bool) -> None:
    if as_json:
        print_json(_form(letter) | {"target": to, "produced": is_known and produced})
    else:
        done = f"to {to}" if is_known else "lost: no longer in its topic"
        print_line(f"{letter.place}: {done}")


async def _produce(client: "AsyncClient", records: "Sequence[tuple[str, ConsumedRecord | None]]") -> None:
    """Produce records to their topics, in this order. Raises WarmlogError."""
    from warmlog.client import BufferFullError

    for topic in {topic for topic, record in records if record is not None}:
        await client.topic(topic)
    for topic, record in records:
        if record is None:
            continue
        produce = partial(client.produce_nowait, topic, key=record.key, value=record.value, headers=record.headers)
        try:
            produce()
        except BufferFullError:
            await client.flush()
            produce()
    await client.flush()


async def _open(
    client: "AsyncClient", topic: str, group: str | None, *, commits: bool
) -> AsyncIterator[list[DeadLetter]]:
    """Yield lists of the dead letters that are not done, up to the end of the topic.

    When the next list is requested, the last one counts as done.
    """
    if not commits:
        done = await _committed(client, topic)
        async for records in client.consume_batches(topic, "beginning", until_end=True, auto_create=False):
            letters = _letters(records, group)
            yield [each for each in letters if each.letter.offset >= done.get(each.letter.partition, 0)]
        return
    stream = client.consume_batches(
        topic, "beginning", group=REDRIVE_GROUP, until_end=True, auto_commit=False, auto_create=False
    )
    async with stream:
        async for records in stream:
            for begin in range(0, len(records), AT_ONCE):
                part = records[begin : begin + AT_ONCE]
                yield _letters(part, group)
                await stream.commit({(topic, record.partition): record.offset + 1 for record in part})


async def _committed(client: "AsyncClient", topic: str) -> dict[int, int]:
    from warmlog.client import UnknownGroupError

    try:
        (described,) = await client.describe_groups(REDRIVE_GROUP)
    except UnknownGroupError:
        return {}
    return {each.partition: each.offset for each in described.positions if each.topic == topic}


async def _originals(client: "AsyncClient", letters: list[DeadLetter]) -> "dict[str, ConsumedRecord | None]":
    """Return the record of each dead letter by position, from its topic or from the letter; None if neither has it."""
    known: dict[str, ConsumedRecord | None] = {}
    offsets: dict[tuple[str, int], set[int]] = {}
    for letter in letters:
        has_copy = letter.letter.key is not None or letter.letter.value is not None
        known[letter.place] = replace(letter.letter, headers=()) if has_copy else None
        offsets.setdefault((letter.topic, letter.partition), set()).add(letter.offset)
    for (topic, partition), wanted in offsets.items():
        for record in await _read(client, topic, partition, deque(sorted(wanted))):
            known[f"{topic}-{partition}@{record.offset}"] = record
    return known


async def _read(client: "AsyncClient", topic: str, partition: int, wanted: deque[int]) -> "list[ConsumedRecord]":
    """Return the records of a partition at these ascending offsets that still exist."""
    from warmlog.client import UnknownTopicError

    records: list[ConsumedRecord] = []
    stream = client.consume(
        topic, wanted[0], partitions=[partition], until_end=True, out_of_range="beginning", auto_create=False
    )
    try:
        async with stream:
            async for record in stream:
                while wanted and wanted[0] < record.offset:
                    wanted.popleft()
                if wanted and wanted[0] == record.offset:
                    records.append(record)
                    wanted.popleft()
                if not wanted:
                    break
                if wanted[0] > record.offset + MAX_GAP:
                    stream.seek(wanted[0], partition=partition)
    except (UnknownTopicError, ValueError):  # for an unknown topic or partition
        pass
    return records
