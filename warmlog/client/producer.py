"""Records into batches.

Owns: choosing the partition, adding to the partition's batch, back-pressure, and what a user is told. Must not know:
when a batch is sent and what happens to it then (`sender`).

Invariants:
1. `_buffered_bytes` counts every record that is not settled. Beyond `buffer_bytes` nobody adds any, so what waits is
   bounded by that and one record.
2. With `linger_ms` 0 a record is sent at once if nothing is in flight, else together with what comes until the loop's
   next turn, or until a request may be sent again: the busier, the larger the batches.
"""

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from warmlog.client.batches import Batch, Delivery, Headers, RecordMetadata
from warmlog.client.cluster import Cluster, Topic
from warmlog.client.errors import BufferFullError, ClosedError, WarmlogError
from warmlog.client.partitioner import StickyChoice, partition_of
from warmlog.client.sender import Sender
from warmlog.client.settings import Settings

Row: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]  # timestamp, key, value, headers
GivenHeaders: TypeAlias = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
Timestamp: TypeAlias = int | datetime


class Message(NamedTuple):
    """A record to produce, for `produce_many`. `timestamp`: ms since the epoch or a datetime; None: now."""

    value: bytes | None
    key: bytes | None = None
    headers: GivenHeaders = ()
    timestamp: Timestamp | None = None
    partition: int | None = None


class PartitionSummary(NamedTuple):
    """What `produce_many` has stored in one partition. Others' records may lie between the two offsets."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


class Summary(NamedTuple):
    """What `produce_many` has stored: how many records, and where."""

    topic: str
    records: int
    partitions: tuple[PartitionSummary, ...]


class Producer:
    """Produces. `run` it in a task, `close` it at the end. Not thread-safe. `now_ms`: the clock of records."""

    def __init__(
        self, cluster: Cluster, tasks: TaskGroup, settings: Settings, random: Random, *, now_ms: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._now_ms = now_ms
        self._sticky = StickyChoice(random)
        self._sender = Sender(cluster, tasks, settings, random, settled=self._settled)
        self._outstanding: dict[Batch, None] = {}
        self._buffered_bytes = 0
        self._room = anyio.Event()
        self._filled_batches = 0
        self._unseen_error: WarmlogError | None = None
        self._closed = False

    async def run(self) -> None:
        """Send what has waited long enough. Runs until cancelled."""
        await self._sender.run()

    async def produce(self, topic: str, message: Message) -> RecordMetadata:
        """Add a record and wait for its acknowledgement. Raises WarmlogError, TypeError, ValueError."""
        known = await self._cluster.topic(topic)
        await self._wait_for_room()
        delivery = self._add_alone(known, message)
        if delivery.done:
            await checkpoint()  # with acks=0 nothing else in here waits, and the loop must have its turns
        return await delivery.wait()

    def produce_nowait(self, topic: str, message: Message) -> Delivery:
        """Add a record. Raises BufferFullError, or UnknownTopicError where the topic has not been asked for before."""
        known = self._cluster.topic_as_heard(topic)
        if self._buffered_bytes >= self._settings.buffer_bytes:
            raise BufferFullError(f"{self._buffered_bytes} bytes of records wait for their acknowledgement already")
        return self._add_alone(known, message)

    async def produce_many(
        self, topic: str, records: Iterable[Any] | AsyncIterable[Any], partition: int | None
    ) -> Summary:
        """Add records as fast as they are acknowledged, and wait for the last one. Raises at the first that fails."""
        known = await self._cluster.topic(topic)
        tally = _Tally(topic)
        if isinstance(records, AsyncIterable):
            async for item in records:
                items = iter(item if isinstance(item, list) else (item,))
                while self._add_some(known, items, partition, tally):
                    await self._breathe(tally)
                self._sender.kick()  # the next one may be long in coming
        else:
            items = iter(records)
            while self._add_some(known, items, partition, tally):
                await self._breathe(tally)
        for batch in tally.unsettled():
            self._sender.close_batch(batch)
        self._sender.pump()
        return await tally.summary()

    async def flush(self) -> None:
        """Send everything and wait until it is settled. Raises the first error that nobody has been told yet."""
        self._sender.close_all_batches()
        self._sender.pump()
        for batch in list(self._outstanding):
            await batch.wait()
        error, self._unseen_error = self._unseen_error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Give up what is not settled; `flush` before."""
        self._closed = True
        self._sender.close()

    # -- adding --

    def _add_alone(self, known: Topic, message: Message) -> Delivery:
        """Add one record and see to it that it is sent."""
        value, key, headers, given_time, partition = message
        timestamp = self._timestamp(given_time)
        batch = self._add(known, partition, (timestamp, key, value, _plain_headers(headers)))
        if self._sender.is_idle:
            self._sender.pump()
        else:
            self._sender.kick()
        return Delivery(batch, batch.count - 1, timestamp)

    def _add_some(self, known: Topic, items: Iterator[Any], partition: int | None, tally: "_Tally") -> bool:
        """Add records until a batch is full (True), or there are no more (False)."""
        filled = self._filled_batches
        for item in items:
            kind = type(item)
            if kind is bytes:
                batch = self._add(known, partition, (self._now_ms(), None, item, ()))
            elif kind is tuple:
                key, value = item
                batch = self._add(known, partition, (self._now_ms(), key, value, ()))
            else:
                batch = self._add_message(known, partition, item)
            tally.count(batch)
            if filled != self._filled_batches:
                return True
        return False

    def _add_message(self, known: Topic, partition: int | None, item: object) -> Batch:
        if not isinstance(item, Message):
            raise TypeError(f"a record to produce is bytes, (key, value) or a Message, not {type(item).__name__}")
        value, key, headers, given_time, wanted = item
        where = partition if wanted is None else wanted
        return self._add(known, where, (self._timestamp(given_time), key, value, _plain_headers(headers)))

    def _add(self, known: Topic, wanted: int | None, row: Row) -> Batch:
        """Add a record to the open batch of its partition; close that if it is full."""
        timestamp, key, value, headers = row
        partition = self._choose(known, key) if wanted is None else wanted
        if not 0 <= partition < known.partitions:
            raise ValueError(f"topic {known.name!r} has partitions 0 to {known.partitions - 1}, not {partition}")
        batch = self._sender.open_batch(known.name, partition)
        if batch.count and batch.size + len(value or b"") + len(key or b"") > self._settings.batch_bytes:
            self._fill(known, batch)
            return self._add(known, wanted, row)
        try:
            self._buffered_bytes += batch.append(key, value, timestamp, headers)
        finally:
            if not batch.count:
                self._sender.drop_batch(batch)
        self._outstanding.setdefault(batch)
        if batch.size >= self._settings.batch_bytes:
            self._fill(known, batch)
        return batch

    def _choose(self, known: Topic, key: bytes | None) -> int:
        if key is None:
            return self._sticky.current(known.name, known.partitions)
        return partition_of(key, known.partitions)

    def _fill(self, known: Topic, batch: Batch) -> None:
        self._filled_batches += 1
        self._sender.close_batch(batch)
        self._sticky.move_on(known.name, batch.partition, known.partitions)

    def _timestamp(self, given: Timestamp | None) -> int:
        if given is None:
            return self._now_ms()
        return round(given.timestamp() * 1000) if isinstance(given, datetime) else given

    # -- waiting --

    async def _breathe(self, tally: "_Tally") -> None:
        """Send what is full, let others run, wait for room, and notice what has failed."""
        self._sender.pump()
        await checkpoint()
        await self._wait_for_room()
        tally.take_settled()

    async def _wait_for_room(self) -> None:
        while self._buffered_bytes >= self._settings.buffer_bytes:
            await self._room.wait()
        if self._closed:
            raise ClosedError

    def _settled(self, batch: Batch) -> None:
        self._buffered_bytes -= batch.size
        del self._outstanding[batch]
        if batch.error is not None and not batch.watched:
            self._unseen_error = self._unseen_error or batch.error
        if self._buffered_bytes < self._settings.buffer_bytes <= self._buffered_bytes + batch.size:
            self._room.set()
            self._room = anyio.Event()


def _plain_headers(given: GivenHeaders) -> Headers:
    if not given:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((name, content) for name, content in pairs)


class _Run:
    """Records that one `produce_many` has put into one batch: the first's and the last's index, and their number."""

    __slots__ = ("batch", "first", "last", "records")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.first = self.last = batch.count - 1
        self.records = 1


class _Tally:
    """What one `produce_many` has added, and what has become of it. Holds on to what is not settled only."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._current: dict[int, _Run] = {}
        self._runs: deque[_Run] = deque()
        self._sums: dict[int, PartitionSummary] = {}

    def count(self, batch: Batch) -> None:
        """A record was added to the batch, its last one."""
        run = self._current.get(batch.partition)
        if run is not None and run.batch is batch:
            run.last = batch.count - 1
            run.records += 1
        else:
            batch.watched = True
            run = self._current[batch.partition] = _Run(batch)
            self._runs.append(run)

    def unsettled(self) -> list[Batch]:
        """The batches that are still on their way."""
        return [run.batch for run in self._runs]

    def take_settled(self) -> None:
        """Sum up the oldest that are settled. Raises the error of one that failed."""
        while self._runs and self._runs[0].batch.done:
            self._sum_up(self._runs.popleft())

    async def summary(self) -> Summary:
        """Wait for all. Raises the error of the first that failed."""
        while self._runs:
            await self._runs[0].batch.wait()
            self.take_settled()
        parts = tuple(self._sums[partition] for partition in sorted(self._sums))
        return Summary(self._topic, sum(part.records for part in parts), parts)

    def _sum_up(self, run: _Run) -> None:
        first, last = (run.batch.metadata(index, -1).offset for index in (run.first, run.last))
        before = self._sums.get(run.batch.partition)
        if before is not None:
            first = before.first_offset
        records = run.records + (before.records if before else 0)
        self._sums[run.batch.partition] = PartitionSummary(run.batch.partition, records, first, last)
