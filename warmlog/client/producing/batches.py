"""Batches of records to send, and the queue of each partition.

    open     records are added; at most one batch per partition
    closed   full, past its linger time or flushed; waits in the queue, possibly until `not_before`
    sent     in a request; returns to the queue for a retry
    settled  acknowledged or failed: its records have their result

Invariants:
1. A partition's batches are sent in the order in which they were opened; a retried batch keeps its position.
2. A batch settles once. A batch that was split settles when both halves have.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import anyio

from warmlog.client.errors import WarmlogError
from warmlog.protocol.records.builder import BatchBuilder, Codec
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.record import Row

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class RecordMetadata(NamedTuple):
    """The position of a stored record. `offset` is -1 with acks=0. `timestamp`: ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerStamp(NamedTuple):
    """The header fields of a transactional batch: its producer, and the sequence of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class Batch:
    """Records of one partition. `sequence` orders a partition's batches; times are those of the event loop.

    `size`: uncompressed size of the records. `watched`: a caller waits for the result and will see an error. `stamp`:
    set before a batch of a transaction is sent for the first time.
    """

    __slots__ = (
        "_builder",
        "_encoded",
        "_event",
        "_halves",
        "_split_from",
        "attempts",
        "base_offset",
        "count",
        "done",
        "error",
        "log_append_time",
        "not_before",
        "opened_at",
        "partition",
        "sequence",
        "size",
        "stamp",
        "topic",
        "watched",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, sequence: tuple[int, ...], opened_at: float) -> None:
        self.topic = topic
        self.partition = partition
        self.sequence = sequence
        self.opened_at = opened_at
        self.not_before = opened_at
        self.attempts = 0
        self.count = 0
        self.size = 0
        self.base_offset = -1
        self.log_append_time = -1
        self.error: WarmlogError | None = None
        self.done = False
        self.watched = False
        self.stamp: ProducerStamp | None = None
        self._builder: BatchBuilder | None = BatchBuilder()
        self._encoded = b""
        self._event: anyio.Event | None = None
        self._split_from: Batch | None = None
        self._halves: tuple[Batch, ...] = ()

    def append(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> int:
        """Add a record; return by how many bytes the batch grew. Raises TypeError or ValueError and adds nothing."""
        assert self._builder is not None
        before = self.size
        self.size = self._builder.append(key, value, timestamp, headers)
        self.count += 1
        return self.size - before

    def encoded(self, codec: Codec) -> bytes:
        """Return the encoded batch. No records can be added after the first call."""
        if self._builder is not None:
            stamp = {} if self.stamp is None else {**self.stamp._asdict(), "attributes": TRANSACTIONAL_BIT}
            self._encoded = self._builder.build(compression=codec, **stamp)
            self._builder = None
        return self._encoded

    def split(self) -> "tuple[Batch, ...]":
        """Split a batch that was too large into two halves to send instead. It must have been encoded."""
        rows = [(row.timestamp, row.key, row.value, row.headers) for row in records_in(self._encoded, check_crc=False)]
        middle = len(rows) // 2
        self._encoded = b""
        self._halves = tuple(self._half(position, part) for position, part in enumerate((rows[:middle], rows[middle:])))
        return self._halves

    def _half(self, position: int, rows: Sequence[Row]) -> "Batch":
        half = Batch(self.topic, self.partition, (*self.sequence, position), self.opened_at)
        half._builder = BatchBuilder()
        half._builder.extend(rows)
        half.size = half._builder.size
        half._split_from = self
        half.count = len(rows)
        return half

    def settle(self, base_offset: int, log_append_time: int, error: WarmlogError | None) -> "Batch | None":
        """Record the outcome: acknowledged, or failed for good.

        Return the producer's batch if it is now settled: this one or the one it was split from; else None.
        """
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.error = error
        self.done = True
        self._builder = None
        self._encoded = b""
        if self._event is not None:
            self._event.set()
        return self if self._split_from is None else self._split_from.half_settled()

    def half_settled(self) -> "Batch | None":
        """Settle a split batch and return it if both halves are settled, else return None."""
        if not all(half.done for half in self._halves):
            return None
        return self.settle(-1, -1, next((half.error for half in self._halves if half.error), None))

    async def wait(self) -> None:
        """Wait until the batch is settled."""
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Return the position of the stored record at `index` (from 0). Raises WarmlogError if it is not stored."""
        for half in self._halves:
            if index < half.count:
                return half.metadata(index, timestamp)
            index -= half.count
        if self.error is not None:
            raise self.error.with_traceback(None)  # omits the errors of other records
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(
            self.topic, self.partition, offset, timestamp if self.log_append_time < 0 else self.log_append_time
        )

    def __lt__(self, other: "Batch") -> bool:
        return self.sequence < other.sequence


class Delivery:
    """The pending result of one produced record."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    @property
    def done(self) -> bool:
        """Whether `metadata` can be called."""
        return self._batch.done

    def metadata(self) -> RecordMetadata:
        """Return the position of the stored record, once it is `done`. Raises WarmlogError if it is not stored."""
        if not self._batch.done:
            raise RuntimeError("the record is not acknowledged yet: await wait()")
        self._batch.watched = True
        return self._batch.metadata(self._index, self._timestamp)

    async def wait(self) -> RecordMetadata:
        """Wait for the acknowledgement. Raises WarmlogError if the record is not stored."""
        self._batch.watched = True
        await self._batch.wait()
        return self._batch.metadata(self._index, self._timestamp)


class PartitionQueue:
    """The unsent batches of one partition. `is_waiting`: no batch may be sent before the reply to the last one."""

    __slots__ = ("_opened", "closed", "is_waiting", "open", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.closed: deque[Batch] = deque()
        self.open: Batch | None = None
        self.is_waiting = False
        self._opened = 0

    def __bool__(self) -> bool:
        return bool(self.closed) or self.open is not None

    def begin(self, now: float) -> Batch:
        """Open a batch. There must be no open batch."""
        assert self.open is None
        self._opened += 1
        self.open = Batch(self.topic, self.partition, (self._opened,), now)
        return self.open

    def close(self) -> None:
        """Close the open batch, if there is one."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    def put_back(self, batch: Batch) -> None:
        """Queue a batch that must be sent again."""
        insort(self.closed, batch)

    @property
    def head(self) -> Batch:
        """The next batch. The queue must not be empty."""
        batch = self.closed[0] if self.closed else self.open
        assert batch is not None
        return batch

    def ready_at(self, linger_s: float) -> float:
        """Return when the next batch may be sent. The queue must not be empty."""
        return self.closed[0].not_before if self.closed else self.head.opened_at + linger_s

    def take(self) -> Batch:
        """Remove the next batch, to send it. The queue must not be empty."""
        if not self.closed:
            self.close()
        return self.closed.popleft()
