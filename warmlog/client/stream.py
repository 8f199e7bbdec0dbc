"""Records out of partitions, as a user gets them.

Owns: a stream from its start to its end: which partitions, from where, decoding, what to do about errors. Must not
know: how a fetch is made (`fetching`), or how a user says what to read (`reading`).

    _connect -> _place -> FetchLane.ask -> FetchLane.take -> ask again -> _decode -> the user

Invariants:
1. A stream has no task of its own. What is under way belongs to a connection, which ends with the stream: at its end,
   by `aclose`, or when nobody holds the stream any more. So leaving a loop leaves nothing behind.
2. Records of a partition come in the order of their offsets, each once, over lost connections, too.
3. An error comes after all records that were fetched before it.
4. A call that is cancelled has taken nothing: the next one gives the same records.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from protocol.errors import ErrorCode, ProtocolError
from protocol.records.layout import BatchHeader
from protocol.records.reader import decoded_batches
from protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsRequest, OffsetQuery
from protocol.response import FoundOffset, ListOffsetsResponse
from warmlog.client.backoff import delay_s
from warmlog.client.cluster import NO_LEADER, Cluster
from warmlog.client.errors import OffsetOutOfRangeError, WarmlogError, broker_error
from warmlog.client.fetching import Cursor, Fetched, FetchLane
from warmlog.client.reading import Reading
from warmlog.client.settings import Settings
from warmlog.client.start import AtOffset

# So many records are handed over at a time, if so many are there: it is what a turn of the event loop (a few µs) is
# spread over where batches are small.
ENOUGH_RECORDS = 500


class ConsumedRecord(Struct, frozen=True, gc=False):
    """A record as read. `timestamp`: ms since the epoch; `value` is None for a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Signal:
    """Lets a stream wait for its connections without their knowing it (invariant 1)."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


class BatchStream:
    """An async iterator of lists of records, and an async context manager. Not for several tasks at a time.

    A list holds what is there, of one partition or several, and is never empty.
    """

    def __init__(self, cluster: Cluster, settings: Settings, random: Random, reading: Reading) -> None:
        self._lanes: dict[int, FetchLane] = {}
        self._cluster = cluster
        self._settings = settings
        self._random = random
        self._reading = reading
        self._signal = _Signal()
        self._cursors: list[Cursor] = []
        self._unplaced: list[Cursor] = []
        self._grouped = False
        self._arrived: deque[tuple[Cursor, Iterator[tuple[BatchHeader, list[ConsumedRecord]]]]] = deque()
        self._failure: WarmlogError | None = None
        self._failed_since: float | None = None
        self._attempts = 0
        self._opened = False
        self._closed = False
        self._busy = False

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the offset of the next record to come: where another stream would go on."""
        return {(cursor.topic, cursor.partition): cursor.position for cursor in self._cursors}

    @property
    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the end of the log as last heard, -1 before that."""
        return {(cursor.topic, cursor.partition): cursor.high_watermark for cursor in self._cursors}

    async def __aenter__(self) -> Self:
        with self._alone():
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        with self._alone():
            records = await self._next_records()
        if not records:
            self.close()
            raise StopAsyncIteration
        return records

    def close(self) -> None:
        """Stop reading. The next step of the iterator ends it."""
        self._closed = True
        self._arrived.clear()
        self._hang_up()

    async def aclose(self) -> None:
        """Stop reading, for `contextlib.aclosing`."""
        self.close()

    def __del__(self) -> None:
        self._hang_up()

    # -- steps --

    async def _next_records(self) -> list[ConsumedRecord]:
        """What comes next, empty at the end."""
        await checkpoint()
        await self._open()
        while not (records := self._decode()):
            if self._is_finished():
                break
            await self._step()
        return records

    async def _open(self) -> None:
        """Find the partitions and where to begin in each."""
        if not self._opened:
            self._unplaced = self._cursors = await self._find_partitions()
            self._opened = True
        while self._unplaced and not self._closed:
            await self._step()

    async def _step(self) -> None:
        """Get one step on. Raises WarmlogError if trying again makes no sense, or not any more."""
        try:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if not self._grouped:
                await self._connect()
            if self._unplaced:
                await self._place()
            else:
                await self._receive()
        except WarmlogError as error:
            await self._recover(error)

    def _is_finished(self) -> bool:
        return self._closed or (self._failure is None and not any(cursor.is_wanted for cursor in self._cursors))

    async def _recover(self, error: WarmlogError) -> None:
        """Wait, and look again who leads what; give up where that makes no sense, or for too long made none."""
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
        self._grouped = False
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            for topic in self._reading.topics:
                self._cluster.forget_leaders(topic)
        await anyio.sleep(delay_s(self._attempts, self._random))

    # -- where to read --

    async def _find_partitions(self) -> list[Cursor]:
        if self._reading.places is not None:
            return [Cursor(*place) for place in self._reading.places]
        cursors = []
        for name in self._reading.topics:
            topic = await self._cluster.topic(name, auto_create=self._reading.auto_create)
            wanted = self._reading.partitions
            for partition in range(topic.partitions) if wanted is None else wanted:
                if not 0 <= partition < topic.partitions:
                    raise ValueError(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
                cursors.append(Cursor(name, partition))
        return cursors

    async def _connect(self) -> None:
        """Give each cursor to the lane of its leader."""
        groups: dict[int, list[Cursor]] = {}
        for cursor in self._cursors:
            groups.setdefault(await self._leader(cursor), []).append(cursor)
        for node_id in self._lanes.keys() - groups.keys():
            self._lanes.pop(node_id).connection.close()
        for node_id, cursors in groups.items():
            lane = self._lanes.get(node_id)
            if lane is None or lane.connection.closed:
                connection = await self._cluster.open(node_id)
                lane = FetchLane(connection, self._settings, self._reading.isolation, self._signal.set)
                self._lanes[node_id] = lane
            lane.cursors = cursors
        self._grouped = True

    async def _leader(self, cursor: Cursor) -> int:
        leader = self._cluster.leader(cursor.topic, cursor.partition)
        if leader != NO_LEADER:
            return leader
        topic = await self._cluster.refresh(cursor.topic, auto_create=False)
        return topic.leaders[cursor.partition]

    async def _place(self) -> None:
        """Ask for the ends of the partitions, and for offsets by time, and put the cursors there."""
        for lane in self._lanes.values():
            unplaced = [cursor for cursor in lane.cursors if cursor in self._unplaced]
            queries = tuple(query for cursor in unplaced for query in self._queries(cursor))
            request = ListOffsetsRequest(partitions=queries, isolation=self._reading.isolation)
            found = iter((await lane.connection.ask(request, ListOffsetsResponse)).partitions)
            for cursor in unplaced:
                self._put(cursor, [next(found) for _ in self._queries(cursor)])
        self._unplaced = []

    def _queries(self, cursor: Cursor) -> list[OffsetQuery]:
        start = self._reading.start_of(cursor.topic, cursor.partition)
        times = [EARLIEST_TIMESTAMP, LATEST_TIMESTAMP]
        if not isinstance(start, AtOffset):
            times.append(start.timestamp)
        return [OffsetQuery(topic=cursor.topic, partition=cursor.partition, timestamp=time) for time in times]

    def _put(self, cursor: Cursor, found: list[FoundOffset]) -> None:
        for told in found:
            if told.error:
                raise broker_error(told.error, told.message, about=str(cursor))
        first, end = found[0].offset, found[1].offset
        start = self._reading.start_of(cursor.topic, cursor.partition)
        cursor.high_watermark = end
        cursor.end = end if self._reading.until_end else None
        if not isinstance(start, AtOffset):
            by_time = found[2].offset
            cursor.seek(end if by_time < 0 else by_time)
        elif first <= start.offset <= end:
            cursor.seek(start.offset)
        else:
            cursor.seek(self._instead_of(cursor, start.offset, first, end))

    def _instead_of(self, cursor: Cursor, offset: int, log_start_offset: int, high_watermark: int) -> int:
        """Where to read instead of an offset that is not there. Raises OffsetOutOfRangeError if that is not wanted."""
        if self._reading.out_of_range == "error":
            raise OffsetOutOfRangeError(
                f"{cursor}: offset {offset} is not there; offsets {log_start_offset} to {high_watermark} are",
                log_start_offset=log_start_offset,
                high_watermark=high_watermark,
            )
        return log_start_offset if self._reading.out_of_range == "beginning" else high_watermark

    # -- reading --

    async def _receive(self) -> None:
        """Wait until something has come, and take it."""
        for lane in self._lanes.values():
            lane.ask()
        while not self._closed and not any(lane.has_arrived for lane in self._lanes.values()):
            await self._signal.wait()
        for lane in list(self._lanes.values()):
            if lane.has_arrived:
                self._take(lane)

    def _take(self, lane: FetchLane) -> None:
        try:
            fetched = lane.take()
        except ProtocolError as problem:
            message = f"{lane.connection.address} sent what are no record batches: {problem}"
            raise WarmlogError(message, problem.code) from problem
        for part in fetched:
            if part.partition.error:
                self._take_error(part)
            elif len(part.partition.records):
                self._arrived.append((part.cursor, self._batches(part)))
        if self._failure is None:
            self._attempts = 0
            self._failed_since = None
            lane.ask()

    def _take_error(self, part: Fetched) -> None:
        cursor, offset, told = part
        try:
            if told.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise broker_error(told.error, told.message, about=str(cursor))
            cursor.seek(self._instead_of(cursor, offset, told.log_start_offset, told.high_watermark))
        except WarmlogError as error:
            self._failure = self._failure or error

    def _batches(self, part: Fetched) -> Iterator[tuple[BatchHeader, list[ConsumedRecord]]]:
        cursor = part.cursor
        prefix = (cursor.topic, cursor.partition)
        return decoded_batches(part.partition.records, from_offset=part.offset, make=ConsumedRecord, prefix=prefix)

    def _decode(self) -> list[ConsumedRecord]:
        """Records that are there: enough of them, or all. Empty if there are none."""
        out: list[ConsumedRecord] = []
        while self._arrived and len(out) < ENOUGH_RECORDS:
            cursor, batches = self._arrived[0]
            try:
                header, records = next(batches)
            except StopIteration:
                self._arrived.popleft()
            except ProtocolError as problem:
                self._arrived.clear()
                message = f"{cursor}: the batch at offset {cursor.position} is damaged: {problem}"
                self._failure = WarmlogError(message, problem.code)
            else:
                end = header.next_offset
                if cursor.end is not None and end > cursor.end:
                    end = cursor.end
                    records = [record for record in records if record.offset < end]
                cursor.position = end
                out.extend(records)
        return out

    # -- the end --

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("a stream is read by one task at a time")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _hang_up(self) -> None:
        for lane in self._lanes.values():
            if not lane.connection.closed:
                lane.connection.close()
        self._lanes = {}


class RecordStream:
    """An async iterator of records, and an async context manager. Not for several tasks at a time."""

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self._records: Iterator[ConsumedRecord] = iter(())

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the offset after the last record that was fetched and opened."""
        return self._batches.positions

    @property
    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """By topic and partition, the end of the log as last heard, -1 before that."""
        return self._batches.high_watermarks

    async def __aenter__(self) -> Self:
        await self._batches.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._batches.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        for record in self._records:
            return record
        self._records = iter(await self._batches.__anext__())
        return next(self._records)

    def close(self) -> None:
        """Stop reading. The next step of the iterator ends it."""
        self._records = iter(())
        self._batches.close()

    async def aclose(self) -> None:
        """Stop reading, for `contextlib.aclosing`."""
        self.close()
