"""The worker threads of one data directory, and its rounds of fsync.

Each data directory has its own, so that a disk that is slow or hangs delays nothing on another one.

    writes       segments begun, appends too large for the event loop, rounds of fsync     a producer waits
    upkeep       rolled segments trimmed and synced, indexes rebuilt                        nobody waits

Invariants:
1. At most one requested round of fsync per directory is under way. Whoever asks during a round shares the next one
   (group commit).
2. Upkeep never takes a thread that writes could use: its syncs are of whole segments.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import trio

from broker.log.partition_log import FlushPlan
from broker.metrics.registry import Metrics

MAX_WRITE_THREADS = 8  # two keep a disk busy; more let one slow file not hold up the others
MAX_UPKEEP_THREADS = 4
# Threads of one round. File systems merge concurrent syncs into one journal commit: 32 logs on ext4 took 5.2 ms one
# after the other, 3.1 ms by two or four threads, 4.0 ms by eight. One syncfs took 0.4 ms, but it waits for everything
# on the file system, and reports a failure without saying whose it is.
MAX_SYNC_THREADS = 4
MIN_SYNCS_PER_THREAD = 2  # for less, waking another thread takes as long as it saves
# Where producers share rounds, a round waits for so many turns of the event loop: whoever was answered by the last one
# is back by then. Otherwise two halves of them take turns, each waiting for the other's sync.
GATHERING_TURNS = 4

T = TypeVar("T")


class Syncable(Protocol):
    """A partition as a round of fsync sees it."""

    def begin_flush(self) -> FlushPlan | None:
        """Return what a sync of the log has to do, or None if the log has failed; `flushed` must follow."""

    def flushed(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Take the outcome of a sync."""


_Begun: TypeAlias = tuple[Syncable, FlushPlan | None]


class DiskWorkers:
    """The threads and sync rounds of one data directory. Belongs to the event loop."""

    def __init__(self, spawn: Callable[[Callable[[], Awaitable[None]]], None], metrics: Metrics) -> None:
        """Over `spawn`, which runs an async function in the background to its end."""
        self._spawn = spawn
        self._metrics = metrics
        self.writes = trio.CapacityLimiter(MAX_WRITE_THREADS)
        self.upkeep = trio.CapacityLimiter(MAX_UPKEEP_THREADS)
        self._due: dict[Syncable, None] = {}
        self._flushing = False
        self._flushing_by_time = False
        self._waiting_appends = 0  # for the next round
        self._shared_appends = 0  # that the last one served

    async def write(self, work: Callable[[], T]) -> T:
        """Run work that a producer waits for."""
        return await trio.to_thread.run_sync(work, limiter=self.writes)

    async def keep_up(self, work: Callable[[], T]) -> T:
        """Run work that nobody waits for."""
        return await trio.to_thread.run_sync(work, limiter=self.upkeep)

    def request_flush(self, partition: Syncable, appends: int = 1) -> None:
        """Sync a log in the next round, which so many appends wait for."""
        self._due[partition] = None
        self._waiting_appends += appends
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush_rounds)

    def flush_by_time(self, partitions: Iterable[Syncable]) -> None:
        """Sync these logs in a round of their own, unless the one before is still under way. Never waits."""
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
                if self._shared_appends > 1:  # a producer that is alone waits for nobody
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
        with trio.CancelScope(shield=True):  # every partition learns the outcome of what has begun
            await self._sync_all(plans, errors)
        self._metrics.fsync_seconds.observe(time.perf_counter() - started)
        for (partition, plan), failure in zip(begun, errors, strict=True):
            partition.flushed(plan, failure)

    async def _sync_all(self, plans: Sequence[FlushPlan | None], errors: list[Exception | None]) -> None:
        """Sync in as many threads as are worth it; put into `errors` what went wrong with each plan."""
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
        except RuntimeError as error:  # no thread could be started: nothing was synced
            errors[share] = [error] * len(plans[share])


def _begin(partitions: Iterable[Syncable]) -> list[_Begun]:
    return [(partition, partition.begin_flush()) for partition in partitions]


def _sync_each(plans: Sequence[FlushPlan | None]) -> list[Exception | None]:
    """Sync one log after the other, in a worker; an error concerns that log only."""
    return [None if plan is None else _sync(plan) for plan in plans]


def _sync(plan: FlushPlan) -> Exception | None:
    try:
        plan.sync()
    except Exception as error:  # noqa: BLE001  # reported to whoever waits for this log
        return error
    return None
