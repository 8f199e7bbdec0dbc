"""Fetch from one broker: the positions of its partitions, and one request in flight.

Invariants:
1. At most one request per broker is in flight. The next one is sent as soon as a reply arrives, so the broker serves it
   while the reply is decoded.
2. Partitions that had data move to the back of the next request, which the broker serves in order. So each partition is
first at some point, and the first partition gets a complete batch regardless of its size.
3. If a request cannot name all partitions, the named ones move to the back, and the request waits for data only for
their share of the maximum wait time.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from warmlog.client.connection.connection import Connection, Reply
from warmlog.client.connection.request_parts import parts
from warmlog.client.settings import Settings
from warmlog.protocol.native.messages import ReceivedFetch, ReceivedPartition
from warmlog.protocol.records.batch import headers
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation


class Cursor:
    """A reader's progress in a partition. `position`: next offset to deliver; `fetch_offset`: next offset to fetch.

    `end`: the offset at which to stop; None for never.
    """

    __slots__ = ("end", "fetch_offset", "high_watermark", "is_paused", "partition", "position", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = 0
        self.fetch_offset = 0
        self.end: int | None = None
        self.high_watermark = -1
        self.is_paused = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def wants_more(self) -> bool:
        """Whether there is more to read."""
        return self.end is None or self.fetch_offset < self.end

    @property
    def is_fetched(self) -> bool:
        """Whether the next fetch should include the partition."""
        return not self.is_paused and self.wants_more

    def seek(self, offset: int) -> None:
        """Continue at this offset."""
        self.position = self.fetch_offset = offset


class Fetched(NamedTuple):
    """One partition's part of a reply to a fetch from `offset`."""

    cursor: Cursor
    offset: int
    partition: ReceivedPartition


class BrokerFetcher:
    """The fetches from one broker. Not thread-safe. `changed`: called when a reply may have arrived."""

    def __init__(
        self, connection: Connection, settings: Settings, isolation: Isolation, changed: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.cursors: list[Cursor] = []
        self._settings = settings
        self._isolation = isolation
        self._changed = changed
        self._requested: list[tuple[Cursor, int]] = []
        self._is_split = False  # whether the last request did not name all wanted partitions
        self._reply: Reply[ReceivedFetch] | None = None

    @property
    def has_arrived(self) -> bool:
        """Whether a reply is ready for `take`."""
        return self._reply is not None and self._reply.done

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch is in flight."""
        return self._reply is not None and not self._reply.done

    def fetch_next(self) -> None:
        """Send the next fetch, unless one is in flight or nothing is wanted."""
        wanted = [cursor for cursor in self.cursors if cursor.is_fetched]
        if self._reply is not None or not wanted:
            return
        part = next(parts(wanted, attrgetter("topic")))
        self._requested = [(cursor, cursor.fetch_offset) for cursor in part]
        self._is_split = len(part) < len(wanted)
        settings = self._settings
        max_wait_ms = settings.fetch_max_wait_ms * len(part) // len(wanted)
        request = FetchRequest(
            partitions=tuple(
                FetchPartition(
                    topic=cursor.topic,
                    partition=cursor.partition,
                    offset=offset,
                    max_bytes=settings.fetch_partition_bytes,
                )
                for cursor, offset in self._requested
            ),
            max_wait_ms=max_wait_ms,
            max_bytes=settings.fetch_bytes,
            isolation=self._isolation,
        )
        changed = self._changed
        self._reply = self.connection.submit(request, ReceivedFetch, extra_s=max_wait_ms / 1000)
        self._reply.when_done(lambda _: changed())

    def take(self) -> list[Fetched]:
        """Return the reply's partitions and advance their cursors. Raises WarmlogError if the whole request failed."""
        assert self._reply is not None
        reply, self._reply = self._reply, None
        fetched = [
            Fetched(cursor, offset, partition)
            for (cursor, offset), partition in zip(self._requested, reply.result().partitions, strict=True)
            if cursor.fetch_offset == offset
            and not cursor.is_paused  # otherwise it was moved or paused after the fetch
        ]
        for cursor, offset, partition in fetched:
            cursor.high_watermark = max(cursor.high_watermark, partition.high_watermark)
            cursor.fetch_offset = max(offset, _end_of_batches(partition.records))
        if self._is_split:
            self._rotate({cursor for cursor, _ in self._requested})
        else:
            self._rotate({cursor for cursor, offset, _ in fetched if cursor.fetch_offset > offset})
        return fetched

    def _rotate(self, served: set[Cursor]) -> None:
        self.cursors.sort(key=served.__contains__)


def _end_of_batches(records: memoryview) -> int:
    """Return the offset after the last complete batch; -1 if there is none."""
    end = -1
    for _, header in headers(records):
        end = header.next_offset
    return end
