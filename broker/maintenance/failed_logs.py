"""Rebuild failed logs in place: immediately, then at growing intervals while attempts fail.

How a log is rebuilt is in `broker.log.recovery.reopen`.

Invariants:
1. A failed log rejects appends until it is rebuilt; other logs are not affected.
2. A failed or hanging attempt delays no other data directory: attempts run in tasks of their own, with a limit per
   data directory.
3. The interval also grows for a log that fails again soon after it was rebuilt. It is reset once the log has stayed
   healthy for `MAX_PAUSE_S`.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import trio

from warmlog.broker.log.errors import LogError
from warmlog.broker.log.recovery.reopen import Reopened
from warmlog.broker.maintenance.pieces import in_pieces
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0  # after the first attempt; doubled by each further one
MAX_PAUSE_S = 60.0
MAX_AT_ONCE = 2  # per data directory: each attempt copies up to a segment on a disk that also serves requests


@dataclass(slots=True)
class _Attempts:
    """The attempts to rebuild one log; times by trio's clock, pauses in seconds."""

    due_at: float
    pause_s: float = FIRST_PAUSE_S
    is_failed: bool = False
    is_running: bool = False

    def postpone(self) -> None:
        """Schedule the next attempt, after a pause that doubles each time."""
        self.due_at = trio.current_time() + self.pause_s
        self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)


class FailedLogs:
    """Rebuilds the failed logs among `partitions`; `begin` is called periodically."""

    def __init__(self, partitions: Iterable[Partition], metrics: Metrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._attempts: dict[Partition, _Attempts] = {}
        self._limiters: dict[Path, trio.CapacityLimiter] = {}  # by data directory

    async def begin(self, nursery: trio.Nursery) -> None:
        """Begin due attempts, without waiting for them."""
        await self._find()
        now = trio.current_time()
        for partition, attempt in self._attempts.items():
            if attempt.is_failed and not attempt.is_running and attempt.due_at <= now:
                attempt.is_running = True
                nursery.start_soon(self._attempt, partition, attempt)

    async def check(self) -> None:
        """Begin the attempts that are due, and wait for them."""
        async with trio.open_nursery() as nursery:
            await self.begin(nursery)

    async def _find(self) -> None:
        """Log the logs that failed since the last call, and drop those that recovered or were deleted."""
        now = trio.current_time()
        failed: list[Partition] = []
        sound: set[Partition] = set()  # of those that failed before
        async for piece in in_pieces(self._partitions):
            failed += [partition for partition in piece if partition.log.failed]
            sound.update([partition for partition in piece if partition in self._attempts])
        sound.difference_update(failed)
        for partition in sound:
            self._attempts[partition].is_failed = False
        for partition in failed:
            attempts = self._attempts.setdefault(partition, _Attempts(now))
            if not attempts.is_failed:
                attempts.is_failed = True
                self._metrics.log_failures.add()
                logger.error(
                    "%s-%d: log failed; rejecting appends until it is rebuilt: %s",
                    partition.topic, partition.index, partition.log.failure,
                )  # fmt: skip
        kept = set(failed)
        self._attempts = {
            partition: attempt
            for partition, attempt in self._attempts.items()
            if attempt.is_running or partition in kept or (partition in sound and now < attempt.due_at + MAX_PAUSE_S)
        }

    async def _attempt(self, partition: Partition, attempts: _Attempts) -> None:
        directory = partition.log.directory.parent
        try:
            async with self._limiters.setdefault(directory, trio.CapacityLimiter(MAX_AT_ONCE)):
                await self._reopen(partition, attempts)
        finally:
            attempts.is_running = False

    async def _reopen(self, partition: Partition, attempts: _Attempts) -> None:
        started = trio.current_time()
        try:
            reopened = await partition.reopen()
        except (OSError, LogError, ProtocolError) as error:
            attempts.postpone()
            logger.error(  # noqa: TRY400  # the message is enough
                "%s-%d: could not rebuild the failed log, retrying in %g s: %s",
                partition.topic, partition.index, attempts.due_at - trio.current_time(), error,
            )  # fmt: skip
        except Exception:  # a defect in one log must not keep others from being rebuilt
            attempts.postpone()
            logger.exception("%s-%d: could not rebuild the failed log", partition.topic, partition.index)
        else:
            if reopened is not None:  # otherwise its segments are being rearranged: retried next time
                attempts.postpone()
                attempts.is_failed = False
                self._report_rebuilt(partition, reopened, trio.current_time() - started)

    def _report_rebuilt(self, partition: Partition, reopened: Reopened, seconds: float) -> None:
        self._metrics.reopened_logs.add()
        self._metrics.truncated_bytes.add(reopened.truncated_bytes)
        truncated = ""
        if reopened.reason is not None:
            log = partition.log
            truncated = (
                f"; truncated {reopened.truncated_bytes:,} bytes at offset {log.offsets.log_end_offset}"
                f" ({reopened.reason}) and began leader epoch {log.epochs.current}"
            )
        logger.warning(
            "%s-%d: log rebuilt, accepting appends again: copied and flushed %s bytes in %.3f s%s",
            partition.topic, partition.index, f"{reopened.copied_bytes:,}", seconds, truncated,
        )  # fmt: skip
