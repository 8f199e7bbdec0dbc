"""Add records to batches, bound the memory of unacknowledged records, and report results.

`BatchDispatcher` sends the batches.

Invariants:
1. `_buffered_bytes` counts every record that is not settled. At `buffer_bytes` no record is added, so the buffer
   exceeds the limit by at most one record.
2. With `linger_ms` 0 a record is sent immediately if nothing is in flight; otherwise together with all records added
   before the event loop's next turn, or before another request may be sent. So batches grow with the load.
"""

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.cluster import Cluster, Topic
from warmlog.client.errors import BufferFullError, ClosedError, WarmlogError
from warmlog.client.producing.batches import Batch, Delivery, Headers, RecordMetadata
from warmlog.client.producing.dispatcher import BatchDispatcher
from warmlog.client.producing.identity import ProducerIdentity
from warmlog.client.producing.partitioner import StickyPartitions, partition_of
from warmlog.client.settings import Settings

GivenHeaders: TypeAlias = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
Timestamp: TypeAlias = int | datetime
Content: TypeAlias = bytes | bytearray | memoryview  # types of a key or value


class Message(NamedTuple):
    """A record for `produce_many`. `timestamp`: ms since the epoch or a datetime; None means now."""

    value: Content | None
    key: Content | None = None
    headers: GivenHeaders = ()
    timestamp: Timestamp | None = None
    partition: int | None = None


Producible: TypeAlias = Content | tuple[Content | None, Content | None] | Message  # value, (key, value), or message


def content(given: Content | None) -> bytes | None:
    """Return a key or value as bytes: a copy if the caller could change it. Raises TypeError."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    if isinstance(given, bytes):
        return given
    raise TypeError(f"key and value must be bytes, bytearray, memoryview or None, not {type(given).__name__}")


class PartitionSummary(NamedTuple):
    """The records that one `produce_many` stored in a partition; other producers' records may lie between them."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


class Summary(NamedTuple):
    """The result of `produce_many`: the number of records, and their partitions and offsets."""

    topic: str
    records: int
    partitions: tuple[PartitionSummary, ...]


class Producer:
    """Produces records. `run` it in a task, `close` it at the end. Not thread-safe. `now_ms`: clock for timestamps.

    `identity`: the identity of a transactional producer; None otherwise.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: TaskStarter,
        settings: Settings,
        random: Random,
        *,
        now_ms: Callable[[], int],
        identity: ProducerIdentity | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._now_ms = now_ms
        self._sticky = StickyPartitions(random)
        self._dispatcher = BatchDispatcher(cluster, tasks, settings, random, settled=self._settled, identity=identity)
        self._identity = identity
        self._outstanding: dict[Batch, None] = {}
        self._buffered_bytes = 0
        self._space = anyio.Event()
        self._filled_batches = 0
        self._unseen_error: Exception | None = None
        self._closed = False

    async def run(self) -> None:
        """Send batches when their linger time or retry delay is over. Runs until cancelled."""
        await self._dispatcher.run()

    async def produce(self, topic: str, message: Message) -> RecordMetadata:
        """Add a record and wait for its acknowledgement. Raises WarmlogError, TypeError, ValueError."""
        topic_info = await self._cluster.topic(topic)
        await self._wait_for_space()
        delivery = self._add_single(topic_info, message)
        if delivery.done:
            await checkpoint()  # with acks=0, nothing else in this call yields to the event loop
        return await delivery.wait()

    def produce_nowait(self, topic: str, message: Message) -> Delivery:
        """Add a record. Raises BufferFullError; UnknownTopicError if the topic is not in the metadata cache."""
        topic_info = self._cluster.last_known_topic(topic)
        if self._buffered_bytes >= self._settings.buffer_bytes:
            raise BufferFullError(
                f"buffer_bytes reached: {self._buffered_bytes} bytes are not acknowledged yet; flush() first"
            )
        return self._add_single(topic_info, message)

    @property
    def buffered_bytes(self) -> int:
        """The size of the records that are not acknowledged."""
        return self._buffered_bytes

    def add(  # noqa: PLR0917  # a call per record: neither keywords nor an object
        self,
        topic_info: Topic,
        value: Content | None,
        key: Content | None,
        headers: GivenHeaders,
        given_time: Timestamp | None,
        partition: int | None,
    ) -> tuple[Batch, int]:
        """Add a record; return its batch, whose last record it is, and its timestamp. Raises TypeError, ValueError.

        Call `send_added` after adding one or more.
        """
        timestamp = self._now_ms() if given_time is None else _milliseconds(given_time)
        if type(value) is not bytes or key is not None:
            value, key = content(value), content(key)
        batch = self._add(topic_info, partition, timestamp, key, value, _header_pairs(headers) if headers else ())
        return batch, timestamp

    def send_added(self) -> None:
        """Make sure that added records are sent."""
        if self._dispatcher.is_idle:
            self._dispatcher.pump()
        else:
            self._dispatcher.pump_soon()

    def report(self, error: Exception) -> None:
        """Make the next `flush` raise the error of a record that could not be added."""
        self._unseen_error = self._unseen_error or error

    async def produce_many(
        self,
        topic: str,
        records: Iterable[Producible] | AsyncIterable[Producible | Sequence[Producible]],
        partition: int | None,
        on_stored: Callable[[int], None] | None = None,
    ) -> Summary:
        """Add records as fast as they are acknowledged, and wait for all. Raises the first error."""
        topic_info = await self._cluster.topic(topic)
        tally = _Tally(topic, on_stored)
        if isinstance(records, AsyncIterable):
            async for item in records:
                items = iter(item if isinstance(item, list) else (item,))
                while self._add_some(topic_info, items, partition, tally):
                    await self._yield_and_wait(tally)
                self._dispatcher.pump_soon()  # the next item may take long
        else:
            items = iter(records)
            while self._add_some(topic_info, items, partition, tally):
                await self._yield_and_wait(tally)
        for batch in tally.unsettled():
            self._dispatcher.close_batch(batch)
        self._dispatcher.pump()
        return await tally.summary()

    async def flush(self) -> None:
        """Send everything and wait until it is settled. Raises the first error that no caller has seen.

        In a transaction, raises its first error every time.
        """
        self._dispatcher.close_all_batches()
        self._dispatcher.pump()
        for batch in list(self._outstanding):
            await batch.wait()
        error, self._unseen_error = self._unseen_error, None
        if self._identity is not None:
            error = self._identity.error or error  # the transaction stays broken
        if error is not None:
            raise error

    def abandon(self, error: WarmlogError) -> None:
        """Fail every record that is not settled: unsent ones now, those in flight once their replies arrive.

        The errors of the latter are reported only to callers that wait for them.
        """
        self._dispatcher.fail_unsent(error)
        for batch in self._outstanding:
            batch.watched = True
        self._unseen_error = None

    def close(self) -> None:
        """Fail every record that is not settled; call `flush` first."""
        self._closed = True
        self._dispatcher.close()

    # -- adding --

    def _add_single(self, topic_info: Topic, message: Message) -> Delivery:
        """Add one record and make sure it is sent."""
        batch, timestamp = self.add(topic_info, *message)
        self.send_added()
        return Delivery(batch, batch.count - 1, timestamp)

    def _add_some(self, topic_info: Topic, items: Iterator[Any], partition: int | None, tally: "_Tally") -> bool:
        """Add records until a batch is full (return True) or no record is left (False)."""
        filled = self._filled_batches
        for item in items:
            kind = type(item)
            if kind is bytes:
                batch = self._add(topic_info, partition, self._now_ms(), None, item, ())
            elif kind is tuple:
                key, value = item
                batch = self._add(topic_info, partition, self._now_ms(), content(key), content(value), ())
            else:
                batch = self._add_message(topic_info, partition, item)
            tally.count(batch)
            if filled != self._filled_batches:
                return True
        return False

    def _add_message(self, topic_info: Topic, partition: int | None, item: object) -> Batch:
        if not isinstance(item, Message):
            if not isinstance(item, Content):
                raise TypeError(f"produce_many takes bytes, (key, value) or Message, not {type(item).__name__}")
            item = Message(item)
        value, key, headers, given_time, wanted = item
        where = partition if wanted is None else wanted
        return self.add(topic_info, value, key, headers, given_time, where)[0]

    def _add(  # noqa: PLR0917  # as above
        self,
        topic_info: Topic,
        wanted: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> Batch:
        """Add a record to its partition's open batch; close the batch when it is full."""
        partition = self._choose(topic_info, key) if wanted is None else wanted
        if not 0 <= partition < topic_info.partitions:
            raise ValueError(
                f"topic {topic_info.name!r} has partitions 0 to {topic_info.partitions - 1}, not {partition}"
            )
        batch = self._dispatcher.open_batch(topic_info.name, partition)
        if batch.count and batch.size + len(value or b"") + len(key or b"") > self._settings.batch_bytes:
            self._close_full(topic_info, batch)
            return self._add(topic_info, wanted, timestamp, key, value, headers)
        try:
            self._buffered_bytes += batch.append(key, value, timestamp, headers)
        finally:
            if not batch.count:
                self._dispatcher.drop_batch(batch)
        if batch.count == 1:
            self._outstanding[batch] = None
        if batch.size >= self._settings.batch_bytes:
            self._close_full(topic_info, batch)
        return batch

    def _choose(self, topic_info: Topic, key: bytes | None) -> int:
        if key is None:
            return self._sticky.current(topic_info.name, topic_info.partitions)
        return partition_of(key, topic_info.partitions)

    def _close_full(self, topic_info: Topic, batch: Batch) -> None:
        self._filled_batches += 1
        self._dispatcher.close_batch(batch)
        self._sticky.move_on(topic_info.name, batch.partition, topic_info.partitions)

    # -- waiting --

    async def _yield_and_wait(self, tally: "_Tally") -> None:
        """Send full batches, yield to the event loop, wait for buffer space, and raise errors of settled batches."""
        self._dispatcher.pump()
        await checkpoint()
        await self._wait_for_space()
        tally.take_settled()

    async def _wait_for_space(self) -> None:
        while self._buffered_bytes >= self._settings.buffer_bytes:
            await self._space.wait()
        if self._closed:
            raise ClosedError

    def _settled(self, batch: Batch) -> None:
        self._buffered_bytes -= batch.size
        del self._outstanding[batch]
        if batch.error is not None and self._identity is not None and self._identity.is_current(batch):
            self._identity.error = self._identity.error or batch.error
        if batch.error is not None and not batch.watched:
            self._unseen_error = self._unseen_error or batch.error
        if self._buffered_bytes < self._settings.buffer_bytes <= self._buffered_bytes + batch.size:
            self._space.set()
            self._space = anyio.Event()


def _milliseconds(given: Timestamp) -> int:
    return round(given.timestamp() * 1000) if isinstance(given, datetime) else given


def _header_pairs(given: GivenHeaders) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((name, content) for name, content in pairs)


class _BatchRecords:
    """The records that one `produce_many` added to one batch: first index, last index and count."""

    __slots__ = ("batch", "first", "last", "records")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.first = self.last = batch.count - 1
        self.records = 1


class _Tally:
    """The records that one `produce_many` added, and their outcome. Retains only unsettled batches."""

    def __init__(self, topic: str, on_stored: Callable[[int], None] | None) -> None:
        self._topic = topic
        self._on_stored = on_stored
        self._current: dict[int, _BatchRecords] = {}
        self._unsettled: deque[_BatchRecords] = deque()
        self._sums: dict[int, PartitionSummary] = {}

    def count(self, batch: Batch) -> None:
        """Count the batch's last record."""
        added = self._current.get(batch.partition)
        if added is not None and added.batch is batch:
            added.last = batch.count - 1
            added.records += 1
        else:
            batch.watched = True
            added = self._current[batch.partition] = _BatchRecords(batch)
            self._unsettled.append(added)

    def unsettled(self) -> list[Batch]:
        """Return the batches that are not settled yet."""
        return [added.batch for added in self._unsettled]

    def take_settled(self) -> None:
        """Sum up the oldest settled batches. Raises the error of a failed one."""
        while self._unsettled and self._unsettled[0].batch.done:
            self._sum_up(self._unsettled.popleft())

    async def summary(self) -> Summary:
        """Wait for all batches. Raises the error of the first failed one."""
        while self._unsettled:
            await self._unsettled[0].batch.wait()
            self.take_settled()
        parts = tuple(self._sums[partition] for partition in sorted(self._sums))
        return Summary(self._topic, sum(part.records for part in parts), parts)

    def _sum_up(self, added: _BatchRecords) -> None:
        first, last = (added.batch.metadata(index, -1).offset for index in (added.first, added.last))
        before = self._sums.get(added.batch.partition)
        if before is not None:
            first = before.first_offset
        records = added.records + (before.records if before else 0)
        self._sums[added.batch.partition] = PartitionSummary(added.batch.partition, records, first, last)
        if self._on_stored is not None:
            self._on_stored(added.records)
