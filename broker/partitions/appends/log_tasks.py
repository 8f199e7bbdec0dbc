"""The tasks that use one log: background work, and exclusive rearrangement of its segments.

Invariants:
1. A log is not closed, moved or rebuilt while another task uses it.
2. At most one task at a time removes or replaces segments. It is cancelled when the partition is retired.
3. Background work is completed even if the broker is cancelled; an exception in it fails its own log only.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.writer import Writer

logger = logging.getLogger(__name__)


class LogTasks:
    """The tasks that use one log. Belongs to the event loop."""

    def __init__(self, log: PartitionLog, writer: Writer) -> None:
        self._log = log
        self._writer = writer
        self.running = 0  # tasks and flushes that use the log
        self.on_health: Callable[[], None] | None = None  # the log has failed, or was rebuilt
        self._rearranging: trio.CancelScope | None = None
        self.is_retired = False  # set when appends are refused, and the log may be closed
        self._changed = trio.lowlevel.ParkingLot()

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an async function to completion in the background."""
        self.enter()
        self._writer.spawn(partial(self._run, run))

    async def _run(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:
            self._log.fail(error)
            logger.exception("%s-%d: log failed", self._log.topic, self._log.partition)
            self.report_health()
        finally:
            self.leave()

    def report_health(self) -> None:
        """Report that the log has failed, perhaps again, or was rebuilt."""
        if self.on_health is not None:
            self.on_health()

    def enter(self) -> None:
        """Count a task or flush that uses the log; `leave` must follow."""
        self.running += 1

    def leave(self) -> None:
        """Record that a task or flush no longer uses the log."""
        self.running -= 1
        self.wake()

    def wake(self) -> None:
        """Wake the tasks that wait in `changed`."""
        self._changed.unpark_all()

    async def changed(self) -> None:
        """Wait until a task has left, or `wake` is called."""
        await self._changed.park()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Keep the log open and in place within the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @property
    def is_rearranging(self) -> bool:
        """Whether a task removes or replaces segments."""
        return self._rearranging is not None

    @contextmanager
    def rearranging(self) -> Iterator[trio.CancelScope | None]:
        """Allow the block to remove or replace segments; None if another task does, or the partition is retired.

        The scope is cancelled when the partition is retired.
        """
        if self._rearranging is not None or self.is_retired:
            yield None
            return
        with self.inside(), trio.CancelScope() as scope:
            self._rearranging = scope
            try:
                yield scope
            finally:
                self._rearranging = None

    def cancel_rearranging(self) -> None:
        """Cancel the task that removes or replaces segments, if any."""
        if self._rearranging is not None:
            self._rearranging.cancel()

    def retire(self) -> None:
        """Allow no further task to remove or replace segments."""
        self.is_retired = True
        self.cancel_rearranging()
