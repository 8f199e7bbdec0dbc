"""Read cold pages for one fetch in worker threads, and record failures.

Index and header pages come first, then the slices up to the read-ahead limit, so that a disk error can be reported as
KAFKA_STORAGE_ERROR. The sender reads the rest chunk by chunk.
"""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial

import trio

from warmlog.broker.api.errors import EXPECTED
from warmlog.broker.api.fetch.reader import FetchReader
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.reads.read_ahead import ReadAhead

MAX_READS = 8  # reads of index and header pages; a gap between batches takes several


class Warming:
    """The cold reads of one fetch. `failures`: partitions that cannot be read, and the error to report."""

    __slots__ = ("_find", "_missed", "_reads", "failures")

    def __init__(self, reads: ReadAhead, find: Callable[[str, int], Partition | None]) -> None:
        """Read for one fetch. `find` returns the current partition that the fetch reads."""
        self._reads = reads
        self._find = find
        self.failures: dict[Partition, Exception] = {}
        self._missed: dict[Partition, object] = {}  # the log's layout when a file was missing

    async def warm_up(
        self, reader: FetchReader, consumer: Hashable, read_again: Callable[[], Awaitable[FetchReader]]
    ) -> None:
        """Read the slices of a response into the page cache, while errors can still be reported.

        Partitions whose index and header pages are still missing after MAX_READS reads get no records this time.
        """
        reads, latest = self._reads, reader
        for _ in range(MAX_READS):
            if not latest.cold_lookups:
                break
            async with trio.open_nursery() as nursery:
                for partition, cold in latest.cold_lookups:
                    nursery.start_soon(self._attempt, partition, partial(reads.look_up, consumer, cold))
            latest = await read_again()
        known, left = len(self.failures), reads.limits.ahead_bytes
        for partition, piece in latest.cold_slices:
            if left > 0:
                length = min(len(piece), left)
                left -= length
                await self._attempt(partition, partial(reads.bring, consumer, piece, piece.position, length))
        latest.cold_slices.clear()
        if len(self.failures) > known:
            await read_again()

    async def _attempt(self, partition: Partition, read: Callable[[], Awaitable[object]]) -> None:
        """Run a read for a partition; an error is reported for that partition alone."""
        try:
            await read()
        except IndexCorruptError as damage:
            try:
                partition.rebuild(damage)
            except StorageError as refusal:
                self._fail(partition, refusal)
        except FileNotFoundError as error:
            if self._is_lost(partition):
                self._fail(partition, error)
        except EXPECTED as error:
            self._fail(partition, error)

    def _is_lost(self, partition: Partition) -> bool:
        """Return whether a file is missing for the second time although the log's layout has not changed.

        Otherwise the segment or the whole log was removed in the meantime, and the next pass reads another file.
        """
        layout = partition.log.layout
        is_lost = self._missed.get(partition) is layout
        self._missed[partition] = layout
        return is_lost and self._find(partition.topic, partition.index) is partition

    def _fail(self, partition: Partition, error: Exception) -> None:
        self.failures[partition] = error
        partition.cannot_read(error)
