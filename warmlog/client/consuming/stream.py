"""Read records from partitions: find the start offsets, fetch, decode, recover from errors.

    _connect -> _position_cursors -> BrokerFetcher.fetch_next -> BrokerFetcher.take -> fetch_next -> _decode -> caller

Invariants:
1. A stream has no task of its own. Work in progress belongs to its connections, which close with the stream: at its
end, by `aclose`, or when the stream is garbage collected. So a caller may leave its loop without closing the stream.
2. A partition's records arrive in offset order, each once, even across reconnects.
3. An error is raised after all records that were fetched before it.
4. A cancelled call has consumed nothing: the next call returns the same records.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from random import Random
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from warmlog.client.connection.cluster import NO_LEADER, Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.consuming.broker_fetcher import BrokerFetcher, Cursor, Fetched
from warmlog.client.consuming.subscription import MAX_OFFSET, AtOffset, Start, Subscription
from warmlog.client.errors import OffsetOutOfRangeError, WarmlogError, broker_error
from warmlog.client.settings import Settings
from warmlog.protocol.backoff import delay_s
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.reader import decoded_batches
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsRequest, OffsetQuery
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse

# Minimum number of records per list, if that many have arrived. With small batches, this spreads the cost of an event
# loop turn (a few µs).
RECORDS_PER_LIST = 500
MAX_QUERIES = 3  # offset queries per partition: both ends and the start


class ConsumedRecord(Struct, frozen=True, gc=False):
    """A record as read. `timestamp`: ms since the epoch. `value` is None for a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Signal:
    """Wakes a stream. Connections hold this instead of the stream, so it can be garbage collected (invariant 1)."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


class BatchStream:
    """An async iterator of lists of records, and an async context manager. For one task at a time.

    A list holds records of one or more partitions, and is never empty.
    """

    def __init__(self, cluster: Cluster, settings: Settings, random: Random, subscription: Subscription) -> None:
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._subscription = subscription
        self._signal = _Signal()
        self._cursors: list[Cursor] = []
        self._unpositioned: list[Cursor] = []
        self._connected = False
        self._arrived: deque[tuple[Cursor, Iterator[tuple[BatchHeader, list[ConsumedRecord]]]]] = deque()
        self._failure: WarmlogError | None = None
        self._failed_since: float | None = None
        self._attempts = 0
        self._opened = False
        self._closed = False
        self._busy = False

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """By topic and partition, the offset of the next record to deliver."""
        return {(cursor.topic, cursor.partition): cursor.position for cursor in self._cursors}

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """By topic and partition, the last known high watermark, -1 before the first."""
        return {(cursor.topic, cursor.partition): cursor.high_watermark for cursor in self._cursors}

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """By topic and partition, the number of offsets from the position to the last known high watermark."""
        return lag_of(self.positions, self.high_watermarks)

    def seek(self, offset: int, *, partition: int = 0, topic: str | None = None) -> None:
        """Continue at an offset, of the only topic unless one is named. Raises ValueError. Open the stream first."""
        if not 0 <= offset <= MAX_OFFSET:
            raise ValueError(f"offset must be from 0 to {MAX_OFFSET}, not {offset}")
        self._move(self._cursor(topic, partition), offset)

    def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Stop reading partitions, by default all, until `resume`. Raises ValueError. Open the stream first."""
        for cursor in self._chosen(topic, partitions):
            cursor.is_paused = True
            self._move(cursor, cursor.position)

    def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Read paused partitions again, by default all, from where they were paused. Raises ValueError."""
        for cursor in self._chosen(topic, partitions):
            cursor.is_paused = False
        self._signal.set()

    def chosen(self, *partitions: int, topic: str | None = None) -> list[TopicPartition]:
        """Return (topic, partition) of each given partition, by default of all that are read. Raises ValueError."""
        return [(cursor.topic, cursor.partition) for cursor in self._chosen(topic, partitions)]

    async def assign(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Read exactly these partitions: current ones continue at their positions, new ones begin at their starts.

        Raises WarmlogError. If the call is cancelled, the next step finds the start offsets.
        """
        with self._exclusive():
            gone = [cursor for cursor in self._cursors if (cursor.topic, cursor.partition) not in starts]
            for cursor in gone:
                cursor.is_paused = True  # discards the result of a fetch in flight
                self._move(cursor, cursor.position)
            added = [Cursor(*key) for key in starts.keys() - self.positions.keys()]
            self._cursors = [cursor for cursor in self._cursors if cursor not in gone] + added
            self._unpositioned = [cursor for cursor in self._unpositioned if cursor not in gone] + added
            topics = tuple(dict.fromkeys(topic for topic, _ in starts))
            self._subscription = replace(self._subscription, topics=topics, starts=starts)
            self._connected = False
            await self._open()

    def _move(self, cursor: Cursor, offset: int) -> None:
        """Read a partition from another offset; its received records are discarded."""
        cursor.seek(offset)
        self._arrived = deque((each, batches) for each, batches in self._arrived if each is not cursor)
        self._signal.set()

    def _chosen(self, topic: str | None, partitions: tuple[int, ...]) -> list[Cursor]:
        if partitions:
            return [self._cursor(topic, partition) for partition in partitions]
        return [cursor for cursor in self._cursors if topic in {None, cursor.topic}]

    def _cursor(self, topic: str | None, partition: int) -> Cursor:
        if topic is None and len({cursor.topic for cursor in self._cursors}) > 1:
            raise ValueError("the stream reads several topics: name one")
        for cursor in self._cursors:
            if cursor.partition == partition and topic in {None, cursor.topic}:
                return cursor
        raise ValueError(f"the stream does not read partition {partition}{f' of {topic!r}' if topic else ''}")

    async def __aenter__(self) -> Self:
        with self._exclusive():
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        with self._exclusive():
            records = await self._next_records()
        if not records:
            self.close()
            raise StopAsyncIteration
        return records

    def close(self) -> None:
        """Stop reading; the iterator ends at its next step."""
        self._closed = True
        self._arrived.clear()
        self._close_connections()

    async def aclose(self) -> None:
        """Stop reading; for `contextlib.aclosing`."""
        self.close()

    def __del__(self) -> None:
        self._close_connections()

    # -- steps --

    async def _next_records(self) -> list[ConsumedRecord]:
        """Return the next records; an empty list at the end."""
        await checkpoint()
        await self._open()
        while not (records := self._decode()):
            if self._is_finished():
                break
            await self._step()
        return records

    async def _open(self) -> None:
        """Find the partitions and their start offsets."""
        if not self._opened:
            self._unpositioned = self._cursors = await self._find_partitions()
            self._opened = True
        while self._unpositioned and not self._closed:
            await self._step()

    async def _step(self) -> None:
        """Take one step, or recover from an error. Raises WarmlogError if recovery is impossible."""
        try:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if not self._connected:
                await self._connect()
            if self._unpositioned:
                await self._position_cursors()
            else:
                await self._receive()
        except WarmlogError as error:
            await self._recover(error)

    def _is_finished(self) -> bool:
        return self._closed or (self._failure is None and not any(cursor.wants_more for cursor in self._cursors))

    async def _recover(self, error: WarmlogError) -> None:
        """Wait before the next attempt. Raises the error if it is final or has lasted `delivery_timeout_s`."""
        if self._closed:
            return
        if not error.is_retriable:
            self.close()
            raise error
        now = anyio.current_time()
        self._attempts += 1
        if self._failed_since is None:
            self._failed_since = now
        elif now > self._failed_since + self._settings.delivery_timeout_s:
            self.close()
            raise error
        self._connected = False
        self._cluster.outage.attempt_failed(error)
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            for topic in self._subscription.topics:
                self._cluster.forget_leaders(topic)
        await anyio.sleep(delay_s(self._attempts, self._random))

    # -- start offsets --

    async def _find_partitions(self) -> list[Cursor]:
        if self._subscription.starts is not None:
            return [Cursor(*key) for key in self._subscription.starts]
        cursors = []
        for name in self._subscription.topics:
            topic = await self._cluster.topic(name, auto_create=self._subscription.auto_create)
            wanted = self._subscription.partitions
            for partition in range(topic.partitions) if wanted is None else wanted:
                if not 0 <= partition < topic.partitions:
                    raise ValueError(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
                cursors.append(Cursor(name, partition))
        return cursors

    async def _connect(self) -> None:
        """Assign each cursor to the fetcher of its leader."""
        by_leader: dict[int, list[Cursor]] = {}
        for cursor in self._cursors:
            by_leader.setdefault(await self._leader(cursor), []).append(cursor)
        for node_id in self._fetchers.keys() - by_leader.keys():
            self._fetchers.pop(node_id).connection.close()
        for node_id, cursors in by_leader.items():
            fetcher = self._fetchers.get(node_id)
            if fetcher is None or fetcher.connection.closed:
                connection = await self._cluster.open(node_id)
                fetcher = BrokerFetcher(connection, self._settings, self._subscription.isolation, self._signal.set)
                self._fetchers[node_id] = fetcher
            fetcher.cursors = cursors
        self._connected = True

    async def _leader(self, cursor: Cursor) -> int:
        leader = self._cluster.leader(cursor.topic, cursor.partition)
        if leader != NO_LEADER:
            return leader
        topic = await self._cluster.refresh(cursor.topic, auto_create=False)
        return topic.leaders[cursor.partition]

    async def _position_cursors(self) -> None:
        """Look up the ends of the partitions and offsets by time, and move the cursors there."""
        for node_id, fetcher in self._fetchers.items():
            unpositioned = [cursor for cursor in fetcher.cursors if cursor in self._unpositioned]
            for part in parts(unpositioned, attrgetter("topic"), times=MAX_QUERIES):
                queries = tuple(query for cursor in part for query in self._queries(cursor))
                request = ListOffsetsRequest(partitions=queries, isolation=self._subscription.isolation)
                if fetcher.is_waiting:  # its connection is blocked until the fetch is answered
                    reply = await self._cluster.ask_broker(node_id, request, ListOffsetsResponse)
                else:
                    reply = await fetcher.connection.ask(request, ListOffsetsResponse)
                offsets = iter(reply.partitions)
                for cursor in part:
                    self._set_position(cursor, [next(offsets) for _ in self._queries(cursor)])
        self._unpositioned = []

    def _queries(self, cursor: Cursor) -> list[OffsetQuery]:
        start = self._subscription.start_of(cursor.topic, cursor.partition)
        times = [EARLIEST_TIMESTAMP, LATEST_TIMESTAMP]
        if not isinstance(start, AtOffset):
            times.append(start.timestamp)
        return [OffsetQuery(topic=cursor.topic, partition=cursor.partition, timestamp=time) for time in times]

    def _set_position(self, cursor: Cursor, offsets: list[ListedOffset]) -> None:
        for result in offsets:
            if result.error:
                raise broker_error(result.error, result.message, about=str(cursor))
        first, end = offsets[0].offset, offsets[1].offset
        start = self._subscription.start_of(cursor.topic, cursor.partition)
        cursor.high_watermark = end
        cursor.end = end if self._subscription.until_end else None
        if not isinstance(start, AtOffset):
            by_time = offsets[2].offset
            cursor.seek(end if by_time < 0 else by_time)
        elif first <= start.offset <= end:
            cursor.seek(start.offset)
        else:
            cursor.seek(self._fallback_offset(cursor, start.offset, first, end))

    def _fallback_offset(self, cursor: Cursor, offset: int, log_start_offset: int, high_watermark: int) -> int:
        """Return the offset to read instead of one out of range. Raises OffsetOutOfRangeError unless configured."""
        if self._subscription.out_of_range == "error":
            raise OffsetOutOfRangeError(
                f"{cursor}: offset {offset} is out of range: valid offsets are {log_start_offset} to {high_watermark}",
                log_start_offset=log_start_offset,
                high_watermark=high_watermark,
            )
        return log_start_offset if self._subscription.out_of_range == "beginning" else high_watermark

    # -- reading --

    async def _receive(self) -> None:
        """Wait until a reply arrives, and take it."""
        while not self._closed and not any(fetcher.has_arrived for fetcher in self._fetchers.values()):
            for fetcher in self._fetchers.values():
                fetcher.fetch_next()  # sent again after `seek` and `resume`
            await self._signal.wait()
        for fetcher in list(self._fetchers.values()):
            if fetcher.has_arrived:
                self._take(fetcher)

    def _take(self, fetcher: BrokerFetcher) -> None:
        try:
            fetched = fetcher.take()
        except ProtocolError as problem:
            message = f"{fetcher.connection.address} sent invalid record batches: {problem}"
            raise WarmlogError(message, problem.code) from problem
        for part in fetched:
            if part.partition.error:
                self._take_error(part)
            elif len(part.partition.records):
                self._arrived.append((part.cursor, self._batches(part)))
        if self._failure is None:
            if self._failed_since is not None:
                self._cluster.outage.end()
            self._attempts = 0
            self._failed_since = None
            fetcher.fetch_next()

    def _take_error(self, part: Fetched) -> None:
        cursor, offset, result = part
        try:
            if result.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise broker_error(result.error, result.message, about=str(cursor))
            cursor.seek(self._fallback_offset(cursor, offset, result.log_start_offset, result.high_watermark))
        except WarmlogError as error:
            self._failure = self._failure or error

    def _batches(self, part: Fetched) -> Iterator[tuple[BatchHeader, list[ConsumedRecord]]]:
        cursor = part.cursor
        prefix = (cursor.topic, cursor.partition)
        aborted = part.partition.aborted_transactions
        discards = AbortedFilter(aborted).discards if aborted else None
        return decoded_batches(
            part.partition.records, from_offset=part.offset, discards=discards, make=ConsumedRecord, prefix=prefix
        )

    def _decode(self) -> list[ConsumedRecord]:
        """Decode received records: at least RECORDS_PER_LIST, or all. Empty if there are none."""
        out: list[ConsumedRecord] = []
        while self._arrived and len(out) < RECORDS_PER_LIST:
            cursor, batches = self._arrived[0]
            try:
                header, records = next(batches)
            except StopIteration:
                self._arrived.popleft()
            except ProtocolError as problem:
                self._arrived.clear()
                message = f"{cursor}: corrupt batch at offset {cursor.position}: {problem}"
                self._failure = WarmlogError(message, problem.code)
            else:
                end = header.next_offset
                if cursor.end is not None and end > cursor.end:
                    end = cursor.end
                    records = [record for record in records if record.offset < end]
                cursor.position = end
                out.extend(records)
        return out

    # -- closing --

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("only one task at a time may read a stream")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _close_connections(self) -> None:
        for fetcher in self._fetchers.values():
            if not fetcher.connection.closed:
                fetcher.connection.close()
        self._fetchers = {}


def lag_of(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the number of offsets from each position to the end of its partition, if the end is known."""
    return {key: max(ends[key] - position, 0) for key, position in positions.items() if ends.get(key, -1) >= 0}
