"""Failed logs come back by themselves: each is made anew in place, at once, then ever more seldom while that fails.

Owns: which log's turn it is, the pauses, and what is told. Must not know how a log is made anew
(`broker.log.recovery.reopen`).

Invariants:
1. A log that failed goes on failing appends until it is made anew; other logs notice nothing.
2. What goes wrong with one log is told, and the others' turn comes: also where its disk hangs, for nobody waits for an
   attempt, and a few at a time is meant for each data directory.
3. The pauses of a log that fails again and again grow, too: it must have been in service for as long as the longest.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import trio

from broker.log.errors import LogError
from broker.log.recovery.reopen import Reopened
from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition
from protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0  # after the first attempt; each further one doubles it
MAX_PAUSE_S = 60.0
MAX_AT_ONCE = 2  # in a data directory: each copies up to a segment, from the disk that serves the others


@dataclass(slots=True)
class _Attempts:
    """Of one log; times by trio's clock, pauses in seconds."""

    due_at: float
    pause_s: float = FIRST_PAUSE_S
    is_failed: bool = False
    is_running: bool = False

    def postpone(self) -> None:
        """Let the next attempt wait, twice as long as this one did."""
        self.due_at = trio.current_time() + self.pause_s
        self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)


class Reopener:
    """Looks after the failed logs among `partitions`; `begin` is called every so often."""

    def __init__(self, partitions: Iterable[Partition], metrics: Metrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._attempts: dict[Partition, _Attempts] = {}
        self._limiters: dict[Path, trio.CapacityLimiter] = {}  # by data directory

    def begin(self, nursery: trio.Nursery) -> None:
        """Begin attempts at those failed logs whose turn it is. Never waits."""
        self._find()
        now = trio.current_time()
        for partition, one in self._attempts.items():
            if one.is_failed and not one.is_running and one.due_at <= now:
                one.is_running = True
                nursery.start_soon(self._attempt, partition, one)

    async def check(self) -> None:
        """As `begin`; returns when what it began is over."""
        async with trio.open_nursery() as nursery:
            self.begin(nursery)

    def _find(self) -> None:
        """Tell of the logs that failed since the last look, and forget those that are well again, or gone."""
        now, seen = trio.current_time(), {partition: partition.log.failed for partition in self._partitions}
        for partition, failed in seen.items():
            if not failed:
                if partition in self._attempts:
                    self._attempts[partition].is_failed = False
                continue
            attempts = self._attempts.setdefault(partition, _Attempts(now))
            if not attempts.is_failed:
                attempts.is_failed = True
                self._metrics.log_failures.add()
                logger.error(
                    "%s-%d: out of service, appends are refused until it is made anew: %s",
                    partition.topic, partition.index, partition.log.failure,
                )  # fmt: skip
        self._attempts = {
            partition: one
            for partition, one in self._attempts.items()
            if one.is_running or (partition in seen and (one.is_failed or now < one.due_at + MAX_PAUSE_S))
        }

    async def _attempt(self, partition: Partition, one: _Attempts) -> None:
        directory = partition.log.directory.parent
        try:
            async with self._limiters.setdefault(directory, trio.CapacityLimiter(MAX_AT_ONCE)):
                await self._reopen(partition, one)
        finally:
            one.is_running = False

    async def _reopen(self, partition: Partition, one: _Attempts) -> None:
        started = trio.current_time()
        try:
            reopened = await partition.reopen()
        except (OSError, LogError, ProtocolError) as error:
            one.postpone()
            logger.error(  # noqa: TRY400  # the sentence is enough
                "%s-%d: still out of service, it is tried again in %g s: %s",
                partition.topic, partition.index, one.due_at - trio.current_time(), error,
            )  # fmt: skip
        except Exception:  # a defect that one log brings out keeps no other from its turn
            one.postpone()
            logger.exception("%s-%d: could not be made anew", partition.topic, partition.index)
        else:
            if reopened is not None:  # else its segments are being rearranged: the next time
                one.postpone()
                one.is_failed = False
                self._came_back(partition, reopened, trio.current_time() - started)

    def _came_back(self, partition: Partition, reopened: Reopened, seconds: float) -> None:
        self._metrics.reopened_logs.add()
        self._metrics.truncated_bytes.add(reopened.truncated_bytes)
        cut = ""
        if reopened.reason is not None:
            log = partition.log
            cut = (
                f"; {reopened.truncated_bytes:,} bytes cut at offset {log.log_end_offset} ({reopened.reason}),"
                f" leader epoch {log.leader_epoch} begins"
            )
        logger.warning(
            "%s-%d: in service again: %s bytes copied and synced in %.3f s%s",
            partition.topic, partition.index, f"{reopened.copied_bytes:,}", seconds, cut,
        )  # fmt: skip
