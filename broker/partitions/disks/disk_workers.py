"""The worker threads and fsync rounds of one data directory.

Each data directory has its own, so that a slow or hanging disk does not delay others.

    writes       rolls, appends too large for the event loop, rounds of fsync     producers wait for these
    upkeep       trimming and flushing of rolled segments, index rebuilds          nothing waits for these

Invariants:
1. At most one requested round of fsync runs per directory. Requests during a round share the next one (group commit).
2. Upkeep never uses a thread of the writes: its flushes cover whole segments.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import trio

from warmlog.broker.log.appends.durability import FlushPlan
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.disks.write_stalls import WriteStalls

MAX_WRITE_THREADS: Final = 8  # two keep a disk busy; with more, a slow file does not delay the others
MAX_UPKEEP_THREADS: Final = 4
# Threads of a round. File systems merge concurrent fsyncs into one journal commit: 32 logs on ext4 took 5.2 ms in one
# thread, 3.1 ms in two or four, 4.0 ms in eight. One syncfs took 0.4 ms, but it waits for the whole file system, and
# does not say which file failed.
MAX_SYNC_THREADS: Final = 4
MIN_SYNCS_PER_THREAD: Final = 2  # with fewer, waking another thread takes as long as it saves
# If producers share rounds, a round waits for this many turns of the event loop, in which the producers answered by the
# last round send their next appends. Otherwise two halves of them would alternate, waiting for each other's fsync.
GATHERING_TURNS: Final = 4

T = TypeVar("T")


class Syncable(Protocol):
    """A partition in a round of fsync."""

    def begin_flush(self) -> FlushPlan | None:
        """Return what to fsync, or None if the log has failed; `flushed` must follow."""

    def flushed(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Record the outcome."""


_Begun: TypeAlias = tuple[Syncable, FlushPlan | None]


class DiskWorkers:
    """The worker threads and fsync rounds of one data directory. Belongs to the event loop."""

    def __init__(self, spawn: Callable[[Callable[[], Awaitable[None]]], None], metrics: Metrics) -> None:
        """`spawn` runs async functions to completion in the background."""
        self._spawn = spawn
        self._metrics = metrics
        self.writes = trio.CapacityLimiter(MAX_WRITE_THREADS)
        self.upkeep = trio.CapacityLimiter(MAX_UPKEEP_THREADS)
        self.stalls = WriteStalls()
        self._due: dict[Syncable, None] = {}
        self._flushing = False
        self._flushing_by_time = False
        self._waiting_appends = 0  # waiting for the next round
        self._shared_appends = 0  # served by the last round

    async def write(self, work: Callable[[], T]) -> T:
        """Run work that producers wait for."""
        return await trio.to_thread.run_sync(work, limiter=self.writes)

    async def keep_up(self, work: Callable[[], T]) -> T:
        """Run work that nothing waits for."""
        return await trio.to_thread.run_sync(work, limiter=self.upkeep)

    def request_flush(self, partition: Syncable, appends: int = 1) -> None:
        """Flush a log in the next round, which this many appends wait for."""
        self._due[partition] = None
        self._waiting_appends += appends
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush_rounds)

    def flush_by_time(self, partitions: Iterable[Syncable]) -> None:
        """Flush logs in a separate round, unless the previous one is still running. Never waits."""
        if not self._flushing_by_time:
            self._flushing_by_time = True
            begun = _begin(partitions)
            self._spawn(lambda: self._flush_by_time(begun))

    async def _flush_by_time(self, begun: Sequence[_Begun]) -> None:
        try:
            await self._flush_round(begun)
        finally:
            self._flushing_by_time = False

    async def _flush_rounds(self) -> None:
        try:
            while self._due:
                if self._shared_appends > 1:  # a single producer does not wait for others
                    for _ in range(GATHERING_TURNS):
                        await trio.lowlevel.checkpoint()
                due, self._due = self._due, {}
                self._shared_appends, self._waiting_appends = self._waiting_appends, 0
                await self._flush_round(_begin(due))
        finally:
            self._flushing = False

    async def _flush_round(self, begun: Sequence[_Begun]) -> None:
        plans = [plan for _, plan in begun]
        errors: list[Exception | None] = [None] * len(plans)
        started = time.perf_counter()
        with trio.CancelScope(shield=True):  # every partition must learn its outcome
            await self._sync_all(plans, errors)
        self._metrics.fsync_seconds.observe(time.perf_counter() - started)
        for (partition, plan), failure in zip(begun, errors, strict=True):
            partition.flushed(plan, failure)

    async def _sync_all(self, plans: Sequence[FlushPlan | None], errors: list[Exception | None]) -> None:
        """Fsync in several threads if that is faster; store the outcome of each plan in `errors`."""
        threads = min(MAX_SYNC_THREADS, len(plans) // MIN_SYNCS_PER_THREAD)
        if threads <= 1:
            await self._sync_share(plans, errors, slice(None))
            return
        async with trio.open_nursery() as nursery:
            for first in range(threads):
                nursery.start_soon(self._sync_share, plans, errors, slice(first, None, threads))

    async def _sync_share(
        self, plans: Sequence[FlushPlan | None], errors: list[Exception | None], share: slice
    ) -> None:
        try:
            errors[share] = await trio.to_thread.run_sync(_sync_each, plans[share], limiter=self.writes)
        except RuntimeError as error:  # no thread could be started: nothing was flushed
            errors[share] = [error] * len(plans[share])


def _begin(partitions: Iterable[Syncable]) -> list[_Begun]:
    return [(partition, partition.begin_flush()) for partition in partitions]


def _sync_each(plans: Sequence[FlushPlan | None]) -> list[Exception | None]:
    """Fsync logs one after the other in a worker thread; an error affects only its own log."""
    return [None if plan is None else _sync(plan) for plan in plans]


def _sync(plan: FlushPlan) -> Exception | None:
    try:
        plan.sync()
    except Exception as error:  # noqa: BLE001  # reported to whoever waits for this log
        return error
    return None
