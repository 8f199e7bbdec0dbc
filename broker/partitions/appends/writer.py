"""Shared by all partitions: the queues to write, background tasks, and each data directory's workers.

Invariant: background tasks are completed even if the broker is cancelled, so that no write or roll is left incomplete.
"""

from collections.abc import Awaitable, Callable

import trio

from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.log.io.shared_writes import SharedWrites
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.batch_opener import BatchOpener
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.disks.write_stalls import ALWAYS_ON_LOOP_BYTES, WriteStalls


class Queued:
    """The append queue of a partition, as its writer sees it.

    `page_faults`: the counter of page faults, the same one for all partitions of a broker.
    """

    page_faults: PageFaults

    def write_queued(self) -> None:
        """Write the queue, or start a task that does. Never waits."""
        raise NotImplementedError

    def begin_write(self) -> bool:
        """Begin to write the queue, concurrently with other partitions; return whether `end_write` must follow."""
        raise NotImplementedError

    def end_write(self) -> None:
        """End the write in progress."""
        raise NotImplementedError


class Writer:
    """Writes the queued appends of all partitions. Belongs to the event loop.

    Call `write_queued()` after queueing several appends, so that they are written together.
    """

    def __init__(self, *, nursery: trio.Nursery, metrics: Metrics, loop_write_max_bytes: int) -> None:
        self.metrics = metrics
        self.loop_write_max_bytes = loop_write_max_bytes
        self._loop_bytes_left = loop_write_max_bytes  # for writes above ALWAYS_ON_LOOP_BYTES in this turn
        self._nursery = nursery
        self.opener = BatchOpener(self.spawn)
        self.writes = SharedWrites()
        self._queued: list[Queued] = []
        self._disks: dict[str, DiskWorkers] = {}

    def workers(self, directory: str) -> DiskWorkers:
        """Return the workers of a data directory, by its path."""
        workers = self._disks.get(directory)
        if workers is None:
            workers = self._disks[directory] = DiskWorkers(self.spawn, self.metrics)
        return workers

    def is_idle(self) -> bool:
        """Return whether no worker of any data directory is busy."""
        return not any(each.writes.borrowed_tokens + each.upkeep.borrowed_tokens for each in self._disks.values())

    def enlist(self, partition: Queued) -> None:
        """Add a queue to write."""
        self._queued.append(partition)

    def fits_loop(self, size: int, stalls: WriteStalls) -> bool:
        """Return whether the event loop makes a write itself; if so, it uses up the turn's share of large writes."""
        if size <= ALWAYS_ON_LOOP_BYTES:
            return size <= self.loop_write_max_bytes
        if size > self._loop_bytes_left or stalls.are_recent:
            return False
        self._loop_bytes_left -= size
        return True

    def write_queued(self) -> None:
        """Write all queues: small writes directly, others in background tasks. Never waits."""
        self.opener.written()
        self._loop_bytes_left = self.loop_write_max_bytes
        while self._queued:
            queued, self._queued = self._queued, []
            faults = queued[0].page_faults
            faults.begin()
            if len(queued) == 1:
                queued[0].write_queued()
            else:
                self._write_together(queued)
            faults.end("append")
            faults.leave()

    def _write_together(self, queued: list[Queued]) -> None:
        self.writes.open(len(queued))
        begun = [partition for partition in queued if partition.begin_write()]
        self.writes.close()
        for partition in begun:
            partition.end_write()

    def stop(self) -> None:
        """Stop the thread that shares the writes, if it runs."""
        self.writes.stop()

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in the background; a cancelled broker waits for its end."""
        self._nursery.start_soon(_to_the_end, run)


async def _to_the_end(run: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True):
        await run()
