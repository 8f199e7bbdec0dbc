"""Which log is compacted next: all logs are looked at once per wave, and the dirty ones are cleaned, dirtiest first.

Choosing anew among all logs after each one that was cleaned would cost the square of their number. So a look at all of
them makes a queue, which all cleaner threads take from; each log is looked at again, alone, when its turn comes. A
queue that takes long to clean is made again, so that logs that have become dirtier meanwhile are not overlooked, but so
seldom that looking takes no more than a hundredth of the time.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

import trio

from broker.log.compaction.cleanable import Cleanable
from broker.log.errors import LogError
from broker.log.partition_log import PartitionLog
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from protocol.errors import ProtocolError

LOGS_PER_LOOK = 64  # by one call of a worker: some milliseconds at most
PARTITIONS_PER_TURN = 500  # that are considered in one go on the event loop
MAX_SHARE = 0.01  # of the time that may be spent on looking


@dataclass(frozen=True, slots=True)
class Due:
    """A log whose turn it is."""

    partition: Partition
    cleanable: Cleanable


class DirtyLogs:
    """The queue of logs to clean; belongs to the event loop.

    `may_be_cleaned` tells whether a log is to be looked at, `failed` is called with one that cannot be. The figures are
    those of the last look: the highest dirty ratio, and by how many ms `max.compaction.lag.ms` is exceeded at most.
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
        self._looking = trio.Lock()
        self._looks_again_at = 0.0  # by the monotonic clock

    async def take(self) -> Due | None:
        """Return the next log that is due, which from now on nobody else gets from this queue; None if there is none.

        Looks at all logs when the queue is used up or too old.
        """
        async with self._looking:
            has_looked = not self._queue or time.monotonic() >= self._looks_again_at
            if has_looked:
                await self._look()
            due = await self._first()
            if due is None and not has_looked:
                await self._look()
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

    async def _look(self) -> None:
        """Look at all logs, and queue those that are due."""
        began_at = time.monotonic()
        found: list[Due] = []
        left = iter(self._partitions)
        while turn := list(islice(left, PARTITIONS_PER_TURN)):
            candidates = iter([partition for partition in turn if self._may_be_cleaned(partition)])
            while together := list(islice(candidates, LOGS_PER_LOOK)):
                found += await self._find(together)
            await trio.lowlevel.checkpoint()
        due = [each for each in found if each.cleanable.is_due(each.partition.log.config)]
        due.sort(key=lambda each: each.cleanable.ratio, reverse=True)
        self._queue = deque(each.partition for each in due)
        self.max_ratio = max((each.cleanable.ratio for each in found), default=0.0)
        self.max_delay_ms = max((each.cleanable.delay_ms for each in found), default=0)
        ended_at = time.monotonic()
        self._looks_again_at = ended_at + (ended_at - began_at) / MAX_SHARE

    async def _find(self, partitions: Sequence[Partition]) -> list[Due]:
        """Look at logs, in a worker; report those that cannot be read."""
        asked = [(partition.log, self._partitions.cleaned_up_to(partition)) for partition in partitions]
        with ExitStack() as stack:
            for partition in partitions:
                stack.enter_context(partition.inside())
            outcomes = await trio.to_thread.run_sync(_find_each, asked)
        found = []
        for partition, outcome in zip(partitions, outcomes, strict=True):
            if isinstance(outcome, Cleanable):
                found.append(Due(partition, outcome))
            elif self._partitions.get(partition.topic, partition.index) is partition:  # else it was deleted meanwhile
                self._failed(partition, outcome)
        return found


def _find_each(asked: Sequence[tuple[PartitionLog, int | None]]) -> list[Cleanable | Exception]:
    return [_find(log, checkpoint) for log, checkpoint in asked]


def _find(log: PartitionLog, checkpoint: int | None) -> Cleanable | Exception:
    try:
        return log.cleaning.find(checkpoint)
    except (OSError, LogError, ProtocolError) as error:
        return error
