"""Fetching from one broker: the cursors of its partitions, one request under way.

Owns: `Cursor`, the order in which partitions are asked for, what of a reply is whole. Must not know: records as a user
gets them, or what to do about errors (`stream`).

Invariants:
1. There is at most one request under way to a broker. It is made as soon as the reply before it is there, and so is
   answered while that one is read.
2. Partitions that had data go to the back of the next request, in which the broker serves them in order: all get their
   turn, and each is the first at some time, which is when even a batch over all limits comes whole.
"""

from collections.abc import Callable
from typing import NamedTuple

from protocol.native.messages import ReceivedFetch, ReceivedPartition
from protocol.records.batch import headers
from protocol.request import FetchPartition, FetchRequest, Isolation
from warmlog.client.connection import Connection, Reply
from warmlog.client.settings import Settings


class Cursor:
    """How far one partition was read. `position`: what the user gets next; `asked`: what is fetched next.

    `end`: where to stop, None for never.
    """

    __slots__ = ("asked", "end", "high_watermark", "partition", "position", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = 0
        self.asked = 0
        self.end: int | None = None
        self.high_watermark = -1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_wanted(self) -> bool:
        """Whether there is more to fetch."""
        return self.end is None or self.asked < self.end

    def seek(self, offset: int) -> None:
        """Go on at this offset."""
        self.position = self.asked = offset


class Fetched(NamedTuple):
    """What came for one partition, asked for from `offset` on."""

    cursor: Cursor
    offset: int
    partition: ReceivedPartition


class FetchLane:
    """The fetches from one broker. Not thread-safe. `changed`: called when `arrived` may have something."""

    def __init__(
        self, connection: Connection, settings: Settings, isolation: Isolation, changed: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.cursors: list[Cursor] = []
        self._settings = settings
        self._isolation = isolation
        self._changed = changed
        self._asked: list[tuple[Cursor, int]] = []
        self._reply: Reply[ReceivedFetch] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a request is under way, or its reply not taken."""
        return self._reply is not None

    @property
    def has_arrived(self) -> bool:
        """Whether `take` has something."""
        return self._reply is not None and self._reply.done

    def ask(self) -> None:
        """Ask for what comes next, if anything is wanted and nothing is under way."""
        wanted = [cursor for cursor in self.cursors if cursor.is_wanted]
        if self._reply is not None or not wanted:
            return
        self._asked = [(cursor, cursor.asked) for cursor in wanted]
        settings = self._settings
        request = FetchRequest(
            partitions=tuple(
                FetchPartition(
                    topic=cursor.topic,
                    partition=cursor.partition,
                    offset=offset,
                    max_bytes=settings.fetch_partition_bytes,
                )
                for cursor, offset in self._asked
            ),
            max_wait_ms=settings.fetch_max_wait_ms,
            max_bytes=settings.fetch_bytes,
            isolation=self._isolation,
        )
        changed = self._changed
        self._reply = self.connection.submit(request, ReceivedFetch, extra_s=settings.fetch_max_wait_ms / 1000)
        self._reply.when_done(lambda _: changed())

    def take(self) -> list[Fetched]:
        """What has arrived, and move the cursors on. Raises WarmlogError where the request failed as a whole."""
        assert self._reply is not None
        reply, self._reply = self._reply, None
        fetched = [
            Fetched(cursor, offset, partition)
            for (cursor, offset), partition in zip(self._asked, reply.result().partitions, strict=True)
            if cursor.asked == offset  # else it was asked elsewhere meanwhile
        ]
        for cursor, offset, partition in fetched:
            cursor.high_watermark = max(cursor.high_watermark, partition.high_watermark)
            cursor.asked = max(offset, _end_of_batches(partition.records))
        self._rotate({cursor for cursor, offset, _ in fetched if cursor.asked > offset})
        return fetched

    def _rotate(self, served: set[Cursor]) -> None:
        self.cursors.sort(key=served.__contains__)


def _end_of_batches(records: memoryview) -> int:
    """The offset after the last whole batch, -1 if there is none."""
    end = -1
    for _, header in headers(records):
        end = header.next_offset
    return end
