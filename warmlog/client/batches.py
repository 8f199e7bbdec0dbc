"""Records on their way to a broker: batches, and the queue of each partition.

Owns: what a batch goes through (open, closed, sent, settled), and the order of a partition's batches. Must not know:
connections, requests, when to send.

    open     records are added; at most one of each partition
    closed   full, late or flushed; waits for its turn, possibly until `not_before`
    sent     in a request; comes back to the queue if that has to be repeated
    settled  acknowledged or failed: its records have their result

Invariants:
1. The batches of a partition are sent in the order in which they were opened; one that comes back takes its old place.
2. A batch is settled once. If it had to be split, it is settled when both halves are.
"""

from bisect import insort
from collections import deque
from typing import NamedTuple, TypeAlias

import anyio

from protocol.records.builder import BatchBuilder, Codec, build_batch
from protocol.records.reader import records_in
from warmlog.client.errors import WarmlogError

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class RecordMetadata(NamedTuple):
    """Where a record is. `offset`: -1 with acks=0, which nobody answers. `timestamp`: ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Batch:
    """Some records of one partition. `sequence` orders the batches of a partition; times are those of the event loop.

    `size`: of its records, uncompressed. `watched`: somebody has asked for a result, and so will learn of an error.
    """

    __slots__ = (
        "_builder",
        "_encoded",
        "_event",
        "_halves",
        "_whole",
        "attempts",
        "base_offset",
        "born_at",
        "count",
        "done",
        "error",
        "log_append_time",
        "not_before",
        "partition",
        "sequence",
        "size",
        "topic",
        "watched",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, sequence: tuple[int, ...], born_at: float) -> None:
        self.topic = topic
        self.partition = partition
        self.sequence = sequence
        self.born_at = born_at
        self.not_before = born_at
        self.attempts = 0
        self.count = 0
        self.size = 0
        self.base_offset = -1
        self.log_append_time = -1
        self.error: WarmlogError | None = None
        self.done = False
        self.watched = False
        self._builder: BatchBuilder | None = BatchBuilder()
        self._encoded = b""
        self._event: anyio.Event | None = None
        self._whole: Batch | None = None
        self._halves: tuple[Batch, ...] = ()

    def append(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> int:
        """Add a record; give by how many bytes the batch has grown. Raises TypeError, ValueError, and adds nothing."""
        assert self._builder is not None
        before = self.size
        self.size = self._builder.append(key, value, timestamp, headers)
        self.count += 1
        return self.size - before

    def encoded(self, codec: Codec) -> bytes:
        """The batch as it is sent. From the first call on nothing can be added."""
        if self._builder is not None:
            self._encoded = self._builder.build(compression=codec)
            self._builder = None
        return self._encoded

    def split(self, codec: Codec) -> "tuple[Batch, ...]":
        """Two halves, to be sent in place of a batch that was too large. It must have been encoded."""
        rows = [(row.timestamp, row.key, row.value, row.headers) for row in records_in(self._encoded, check_crc=False)]
        middle = len(rows) // 2
        self._encoded = b""
        self._halves = tuple(
            self._half(place, build_batch(part, compression=codec), len(part))
            for place, part in enumerate((rows[:middle], rows[middle:]))
        )
        return self._halves

    def _half(self, place: int, encoded: bytes, count: int) -> "Batch":
        half = Batch(self.topic, self.partition, (*self.sequence, place), self.born_at)
        half._builder = None
        half._encoded = encoded
        half.size = len(encoded)
        half._whole = self
        half.count = count
        return half

    def settle(self, base_offset: int, log_append_time: int, error: WarmlogError | None) -> "Batch | None":
        """The broker has it, or it will not be tried again.

        Gives what is settled by that and was given out to others: this batch or its whole, None if a half is missing.
        """
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.error = error
        self.done = True
        self._builder = None
        self._encoded = b""
        if self._event is not None:
            self._event.set()
        return self if self._whole is None else self._whole.half_settled()

    def half_settled(self) -> "Batch | None":
        """One half is settled; so is the whole if it was the last one."""
        if not all(half.done for half in self._halves):
            return None
        return self.settle(-1, -1, next((half.error for half in self._halves if half.error), None))

    async def wait(self) -> None:
        """Return when settled."""
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Where the record is that was added as number `index`, from 0. Raises WarmlogError if it is not stored."""
        for half in self._halves:
            if index < half.count:
                return half.metadata(index, timestamp)
            index -= half.count
        if self.error is not None:
            raise self.error
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(
            self.topic, self.partition, offset, timestamp if self.log_append_time < 0 else self.log_append_time
        )

    def __lt__(self, other: "Batch") -> bool:
        return self.sequence < other.sequence


class Delivery:
    """What will become of one record."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    @property
    def done(self) -> bool:
        """Whether `metadata` can be had."""
        return self._batch.done

    def metadata(self) -> RecordMetadata:
        """Where the record is. Raises WarmlogError if it is not stored; only when `done`."""
        if not self._batch.done:
            raise RuntimeError("the record is still on its way: await wait()")
        self._batch.watched = True
        return self._batch.metadata(self._index, self._timestamp)

    async def wait(self) -> RecordMetadata:
        """Wait for the acknowledgement. Raises WarmlogError if the record is not stored."""
        self._batch.watched = True
        await self._batch.wait()
        return self._batch.metadata(self._index, self._timestamp)


class PartitionQueue:
    """The unsent batches of one partition."""

    __slots__ = ("_begun", "closed", "open", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.closed: deque[Batch] = deque()
        self.open: Batch | None = None
        self._begun = 0

    def __bool__(self) -> bool:
        return bool(self.closed) or self.open is not None

    def begin(self, now: float) -> Batch:
        """Open a batch; there is none."""
        assert self.open is None
        self._begun += 1
        self.open = Batch(self.topic, self.partition, (self._begun,), now)
        return self.open

    def close(self) -> None:
        """Nothing is added to the open batch any more, if there is one."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    def put_back(self, batch: Batch) -> None:
        """A batch that was sent has to be sent again."""
        insort(self.closed, batch)

    @property
    def head(self) -> Batch:
        """The next batch. The queue is not empty."""
        batch = self.closed[0] if self.closed else self.open
        assert batch is not None
        return batch

    def ready_at(self, linger_s: float) -> float:
        """When the next batch may be sent. The queue is not empty."""
        return self.closed[0].not_before if self.closed else self.head.born_at + linger_s

    def take(self) -> Batch:
        """Take the next batch out, to send it. The queue is not empty."""
        if not self.closed:
            self.close()
        return self.closed.popleft()
