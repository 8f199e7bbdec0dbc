"""Hand records to a producer that runs in another thread.

Invariants:
1. The caller's thread only appends to a queue; the producer's thread is woken once for all records queued meanwhile.
2. Records of a topic keep their order, even while they wait for the topic's metadata.
3. `_held_bytes` counts every record that was handed over and is not in a batch yet. Together with the producer's
   unacknowledged bytes it exceeds `buffer_bytes` by at most one record.
4. Every delivery gets an outcome: its batch's outcome, an error, or ClosedError from `close`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from threading import Lock
from typing import NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from warmlog.client.connection.cluster import Cluster, Topic
from warmlog.client.errors import BufferFullError, ClosedError, WarmlogError
from warmlog.client.producing.batches import Batch, RecordMetadata
from warmlog.client.producing.producer import GivenHeaders, Producer, Timestamp

RECORDS_PER_TURN = 500  # per turn of the event loop: about 1 ms


Fields: TypeAlias = tuple[bytes | None, bytes | None, GivenHeaders, Timestamp | None, int | None]  # fields of a Message
NOTHING: Fields = (None, None, (), None, None)


class BlockingDelivery:
    """The pending result of one record produced from another thread, with the methods of a future."""

    __slots__ = ("_batch", "_error", "_handoff", "_index", "_timestamp", "message", "size", "topic")

    def __init__(self, handoff: "Handoff", topic: str, message: Fields, size: int) -> None:
        self._handoff = handoff
        self._batch: Batch | None = None
        self._error: Exception | None = None  # error of a record that is in no batch
        self.topic = topic
        self.message = message
        self.size = size

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed."""
        return self._error is not None or (self._batch is not None and self._batch.done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement. Raises the error of a record that is not stored, TimeoutError."""
        if not self.done():
            self._handoff.wait_for(self, timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._batch is not None
        return self._batch.metadata(self._index, self._timestamp)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the outcome, and return the error of a record that is not stored. Raises TimeoutError."""
        try:
            self.result(timeout)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is asked for
            return error
        return None

    # -- the producer's thread --

    def add_to(self, batch: Batch, timestamp: int) -> None:
        """Record that this is the last record of a batch."""
        self.message = NOTHING
        self._index = batch.count - 1
        self._timestamp = timestamp
        self._batch = batch  # set last, since the other thread reads this first

    def fail(self, error: Exception) -> None:
        """Record that this record cannot be added to any batch."""
        self.message = NOTHING
        self._error = error

    async def wait(self) -> None:
        """Wait for the outcome."""
        await self._handoff.drain()
        if self._batch is not None:
            self._batch.watched = True
            await self._batch.wait()


class ClientThread(NamedTuple):
    """Another thread's event loop: `call_soon` calls a function there, `start` runs a coroutine function."""

    call_soon: Callable[[Callable[[], object]], object]
    start: Callable[[Callable[[], Awaitable[None]]], "Future[None]"]


class Handoff:
    """The queue into a producer. `run` it in a task of the producer's thread, and `close` it at the end.

    `thread`: the producer's thread.
    """

    def __init__(self, producer: Producer, cluster: Cluster, buffer_bytes: int, thread: "ClientThread") -> None:
        self._producer = producer
        self._cluster = cluster
        self._buffer_bytes = buffer_bytes
        self.thread = thread
        self._lock = Lock()
        self._queue: deque[BlockingDelivery] = deque()
        self._held_bytes = 0
        self._is_awake = False
        self._closed = False
        self._wake = anyio.Event()
        self._waiting: dict[str, deque[BlockingDelivery]] = {}  # records waiting for metadata, by topic
        self._changed = anyio.Event()

    # -- the caller's thread --

    def put(self, topic: str, message: Fields) -> BlockingDelivery:
        """Hand over a record. Raises BufferFullError, ClosedError."""
        value, key, _, _, _ = message
        size = len(value or b"") + len(key or b"")
        delivery = BlockingDelivery(self, topic, message, size)
        with self._lock:
            if self._closed:
                raise ClosedError
            held = self._held_bytes + self._producer.buffered_bytes
            if held >= self._buffer_bytes:
                raise BufferFullError(f"buffer_bytes reached: {held} bytes are not acknowledged yet; flush() first")
            self._held_bytes += size
            self._queue.append(delivery)
            wakes, self._is_awake = not self._is_awake, True
        if wakes:
            self.thread.call_soon(self._wake_up)
        return delivery

    def wait_for(self, delivery: BlockingDelivery, timeout: float | None) -> None:
        """Wait for a delivery's outcome. Raises TimeoutError, ClosedError."""
        outcome = self.thread.start(delivery.wait)
        try:
            outcome.result(timeout)
        except CancelledError:
            raise ClosedError from None
        finally:
            outcome.cancel()

    def close(self) -> None:
        """Refuse further records, and fail those that are in no batch."""
        with self._lock:
            self._closed = True
        with suppress(RuntimeError):  # the loop has ended
            self.thread.call_soon(self._end)

    # -- the producer's thread --

    def _end(self) -> None:
        for items in (self._queue, *self._waiting.values()):
            for delivery in items:
                delivery.fail(ClosedError("closed before the record was sent"))
            items.clear()
        self._wake.set()

    def _wake_up(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Add records as they are handed over. Runs until `close` or cancellation."""
        while not self._closed:
            await self._add_queued()
            await self._wake.wait()
            self._wake = anyio.Event()

    async def drain(self) -> None:
        """Wait until every record handed over so far is in a batch, or has failed."""
        await self._add_queued()
        while self._waiting:
            await self._changed.wait()

    async def _add_queued(self) -> None:
        """Add records until none is queued."""
        while items := self._take():
            for name, group in groupby(items, attrgetter("topic")):
                topic = None if name in self._waiting else self._cluster.cached_topic(name)
                if topic is None:
                    self._wait_for_topic(name, group)
                else:
                    self._add(topic, group)
            self._producer.send_added()
            await checkpoint()

    def _take(self) -> list[BlockingDelivery]:
        """Remove the first records from the queue. They must be added before the next ones are taken."""
        with self._lock:
            queue = self._queue
            items = [queue.popleft() for _ in range(min(len(queue), RECORDS_PER_TURN))]
            self._is_awake = bool(items)
        return items

    def _add(self, topic: Topic, items: Iterable[BlockingDelivery]) -> None:
        """Add records to batches."""
        add = self._producer.add
        size = 0
        for delivery in items:
            size += delivery.size
            try:
                batch, timestamp = add(topic, *delivery.message)
            except (TypeError, ValueError) as error:
                delivery.fail(error)
                self._producer.report(error)
            else:
                delivery.add_to(batch, timestamp)
        with self._lock:
            self._held_bytes -= size

    # -- metadata --

    def _wait_for_topic(self, name: str, items: Iterable[BlockingDelivery]) -> None:
        if name not in self._waiting:
            self._waiting[name] = deque()
            self._cluster.start_soon(partial(self._look_up, name))
        self._waiting[name].extend(items)

    async def _look_up(self, name: str) -> None:
        """Add the records of a topic when its metadata has arrived; later records wait behind them until then."""
        items = self._waiting[name]
        try:
            topic = await self._cluster.topic(name)
            while items:
                self._add(topic, [items.popleft() for _ in range(min(len(items), RECORDS_PER_TURN))])
                self._producer.send_added()
                await checkpoint()
        except WarmlogError as error:
            with self._lock:
                self._held_bytes -= sum(delivery.size for delivery in items)
            for delivery in items:
                delivery.fail(error)
                self._producer.report(error)
        del self._waiting[name]
        self._changed.set()
        self._changed = anyio.Event()
