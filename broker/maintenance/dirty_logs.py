"""Choose the logs to compact: scan all logs, queue those that are due, dirtiest first.

Scanning all logs after each compacted one would take quadratic time. Instead, one scan fills a queue that all cleaners
take from, and each log is checked again when it is taken. A queue that takes long to work off is replaced by a new
scan, so that logs that became dirtier are not overlooked; scanning takes at most one percent of the time.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import trio

from warmlog.broker.log.compaction.cleanable import Cleanable
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ProtocolError

LOGS_PER_CALL = 64  # logs per call of a worker thread, which takes some milliseconds
PARTITIONS_PER_TURN = 500  # logs considered per turn of the event loop
MAX_SHARE = 0.01  # share of the time that scans may take


@dataclass(frozen=True, slots=True)
class Due:
    """A log that is due for compaction."""

    partition: Partition
    cleanable: Cleanable


class DirtyLogs:
    """The queue of logs to clean; belongs to the event loop.

    `may_be_cleaned` decides whether a log is examined; `failed` is called with logs that cannot be. `max_ratio` and
    `max_delay_ms` are from the last scan: the highest dirty ratio, and the longest time by which a log exceeds
    `max.compaction.lag.ms`.
    """

    def __init__(
        self,
        partitions: Partitions,
        may_be_cleaned: Callable[[Partition], bool],
        failed: Callable[[Partition, Exception], None],
    ) -> None:
        self.max_ratio = 0.0
        self.max_delay_ms = 0
        self._partitions = partitions
        self._may_be_cleaned = may_be_cleaned
        self._failed = failed
        self._queue: deque[Partition] = deque()
        self._lock = trio.Lock()
        self._next_scan_at = 0.0  # by the monotonic clock

    async def take(self) -> Due | None:
        """Remove and return the next log that is due, or None. Scans all logs if the queue is empty or too old."""
        async with self._lock:
            has_scanned = not self._queue or time.monotonic() >= self._next_scan_at
            if has_scanned:
                await self._scan()
            due = await self._first()
            if due is None and not has_scanned:
                await self._scan()
                due = await self._first()
            return due

    async def _first(self) -> Due | None:
        while self._queue:
            partition = self._queue.popleft()
            if self._may_be_cleaned(partition):
                for due in await self._find([partition]):
                    if due.cleanable.is_due(partition.log.config):
                        return due
        return None

    async def _scan(self) -> None:
        """Examine all logs, and queue those that are due."""
        began_at = time.monotonic()
        dirty: list[Due] = []
        left = iter(self._partitions)
        while turn := list(islice(left, PARTITIONS_PER_TURN)):
            candidates = iter([partition for partition in turn if self._may_be_cleaned(partition)])
            while together := list(islice(candidates, LOGS_PER_CALL)):
                dirty += await self._find(together)
            await trio.lowlevel.checkpoint()
        due = [each for each in dirty if each.cleanable.is_due(each.partition.log.config)]
        due.sort(key=lambda each: each.cleanable.ratio, reverse=True)
        self._queue = deque(each.partition for each in due)
        self.max_ratio = max((each.cleanable.ratio for each in dirty), default=0.0)
        self.max_delay_ms = max((each.cleanable.delay_ms for each in dirty), default=0)
        ended_at = time.monotonic()
        self._next_scan_at = ended_at + (ended_at - began_at) / MAX_SHARE

    async def _find(self, partitions: Sequence[Partition]) -> list[Due]:
        """Examine logs in a worker thread, and report those that cannot be read."""
        logs = [(partition.log, self._partitions.cleaned_up_to(partition)) for partition in partitions]
        with ExitStack() as stack:
            for partition in partitions:
                stack.enter_context(partition.inside())
            outcomes = await trio.to_thread.run_sync(_find_each, logs)
        due = []
        for partition, outcome in zip(partitions, outcomes, strict=True):
            if isinstance(outcome, Cleanable):
                due.append(Due(partition, outcome))
            elif (
                self._partitions.local(partition.topic, partition.index) is partition
            ):  # else it was deleted in the meantime
                self._failed(partition, outcome)
        return due


def _find_each(logs: Sequence[tuple[PartitionLog, int | None]]) -> list[Cleanable | Exception]:
    return [_find(log, checkpoint) for log, checkpoint in logs]


def _find(log: PartitionLog, checkpoint: int | None) -> Cleanable | Exception:
    try:
        return log.cleaning.find(checkpoint)
    except (OSError, LogError, ProtocolError) as error:
        return error
