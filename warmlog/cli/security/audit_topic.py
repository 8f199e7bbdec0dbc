"""Read the audit log's topic: its partitions merged by time, each event once."""

import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from warmlog.cli.failure import Failure
from warmlog.cli.output import counted
from warmlog.cli.run_with_client import run_with_client

if TYPE_CHECKING:
    from warmlog.client import AsyncClient, ConsumedRecord, Start
    from warmlog.client.consuming.stream import BatchStream

TOPIC: Final = "__warmlog_audit"
MAX_KNOWN: Final = 50_000  # recent values, to detect events that brokers have sent again


def read_topic(native: str, since_ms: int | None, take: Callable[[str], bool], *, follow: bool) -> None:
    """Pass the value of each record to `take`, which returns whether it is an event. Raises Failure.

    Records are passed in order of time up to the current end and, with `follow`, later ones as they arrive. Values that
    are not events are reported on standard error.
    """

    async def copy(client: "AsyncClient") -> None:
        if not any(topic.name == TOPIC for topic in await client.list_topics()):
            raise Failure(
                f"no topic {TOPIC}: no broker has warmlog.audit.topic=true, nothing has been recorded yet,"
                " or the user may not DESCRIBE it"
            )
        seen = _Seen()
        ends = await client.offsets(TOPIC, "end")
        skipped = 0
        async for record in _until(client, ends, since_ms):
            if seen.is_new(record):
                skipped += not take(_text(record))
        if skipped:
            click.echo(f"warmlog: {TOPIC}: skipped {counted(skipped, 'record')} without an event", err=True)
        sys.stdout.flush()
        if follow:
            await _follow(client, ends, seen, take)

    run_with_client(native, copy)


async def _until(
    client: "AsyncClient", ends: Mapping[int, int], since_ms: int | None
) -> "AsyncIterator[ConsumedRecord]":
    """Yield the records from a time up to these offsets, in order of time."""
    start: Start = "beginning" if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC)
    starts = await client.offsets(TOPIC, start)
    streams = [
        client.consume_batches(TOPIC, starts[each], partitions=(each,), until_end=True, auto_create=False)
        for each in ends
    ]
    async for record in _merged(streams):
        if record.offset < ends[record.partition]:
            yield record


async def _follow(client: "AsyncClient", starts: Mapping[int, int], seen: "_Seen", take: Callable[[str], bool]) -> None:
    """Pass on records as they arrive, starting at these offsets."""
    async with client.consume_batches(TOPIC, "end", auto_create=False) as stream:
        for partition, offset in starts.items():
            stream.seek(offset, partition=partition)
        async for records in stream:
            for record in records:
                if seen.is_new(record):
                    take(_text(record))
            sys.stdout.flush()


class _Seen:
    """The most recently read values."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()

    def is_new(self, record: "ConsumedRecord") -> bool:
        """Return whether a value is not among the most recent ones."""
        digest = hash(record.value)
        if digest in self._known:
            return False
        self._known[digest] = None
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return True


async def _merged(streams: "list[BatchStream]") -> "AsyncIterator[ConsumedRecord]":
    """Merge streams in order of time, provided that each stream is in that order."""
    heads = [head for each in streams if (head := await _Head(each).advanced()) is not None]
    while heads:
        first = min(heads, key=_Head.time)
        yield first.record
        if await first.advanced() is None:
            heads.remove(first)


class _Head:
    """The next record of a stream."""

    record: "ConsumedRecord"

    def __init__(self, stream: "BatchStream") -> None:
        self._stream = stream
        self._left: Iterator[ConsumedRecord] = iter(())

    def time(self) -> int:
        """Return the record's time."""
        return self.record.timestamp

    async def advanced(self) -> "_Head | None":
        """Return the head advanced to the next record, or None if there is none."""
        while (record := next(self._left, None)) is None:
            records = await anext(aiter(self._stream), None)
            if records is None:
                return None
            self._left = iter(records)
        self.record = record
        return self


def _text(record: "ConsumedRecord") -> str:
    return (record.value or b"").decode(errors="replace")
