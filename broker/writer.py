"""What all partitions of a broker share for writing: whose queue is due, background tasks, and the rounds of fsync.

Owns: the threads of background writes, and the grouping of syncs. Must not know: what a partition queues, or how a log
is written.

Invariants:
1. One round of fsync on request at a time, over all logs that are due; who asks during one shares the next (group
   commit).
2. What runs in the background is finished, even if the broker is cancelled: a write or a roll is not left half done.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import trio

from broker.log.partition_log import FlushPlan
from broker.metrics import Metrics

MAX_OPENING_THREADS = 2  # they compute, and each may hold a block of the largest size that is opened
ALONE = 16  # times in a row that a client writes: with as few as two at work none comes so often
MAX_WRITE_THREADS = 8  # two keep a disk busy; more let one slow directory not hold up the others
# Of one round: file systems let syncs that come together share a commit of their journal. 32 logs on ext4 took 5.2 ms
# one after the other, 3.1 ms by two or four threads, 4.0 ms by eight. (On a quiet machine 3.3, 1.8 by four, 1.6 by
# eight, of the 6 ms that a round of 32 producers takes with their requests.) One syncfs for all of them took 0.4 ms,
# but it waits for everything on the file system, also for logs that nobody wants synced, and tells of a failure without
# saying whose.
MAX_SYNC_THREADS = 4
# So many turns of the loop a round waits for others where producers share rounds: whoever was answered by the last one
# is back by then. Else two halves of them take turns, each waiting for the other's sync.
GATHERING_TURNS = 4
MIN_SYNCS_A_THREAD = 2  # for less, waking another thread takes as long as it saves

T = TypeVar("T")


class Queued(Protocol):
    """A partition as the writer sees it."""

    def write_queued(self) -> None:
        """Write what is queued, or have a task do it. Never waits."""

    def begin_flush(self) -> FlushPlan | None:
        """What a sync of the log has to do; `flushed` must follow. None if the log is out of service."""

    def flushed(self, plan: FlushPlan | None, error: Exception | None) -> None:
        """Take the outcome of a sync."""


class Writer:
    """What all partitions of a broker share for writing.

    The nursery and threads of their background writes, and the rounds of fsync.

    `write_queued()` is called by whoever has queued appends, once it has queued all it has: so appends that came
    together go out together.
    """

    def __init__(self, *, nursery: trio.Nursery, metrics: Metrics, loop_write_max_bytes: int) -> None:
        self.metrics = metrics
        self.loop_write_max_bytes = loop_write_max_bytes
        self._nursery = nursery
        self._threads = trio.CapacityLimiter(MAX_WRITE_THREADS)
        self._openers = trio.CapacityLimiter(MAX_OPENING_THREADS)
        self._queued: list[Queued] = []
        self._due: dict[Queued, None] = {}
        self._flushing = False
        self._waiting_appends = 0  # for the next round
        self._shared_appends = 0  # that the last one served
        self._last_client = 0
        self._in_a_row = 0  # how often it has come since another one did

    def enlist(self, partition: Queued) -> None:
        """Remember a partition whose queue is to be written."""
        self._queued.append(partition)

    def is_shared(self, client: object) -> bool:
        """Whether the last one to come here was another client: then it is worth a turn of the loop before writing.

        What others have received in this turn goes out in the same write, and the replies leave one after the other,
        which wakes a sleeping peer once (32 connections with 4 requests in flight: a fifth more requests/s). A client
        that is alone does not wait.
        """
        last, self._last_client = self._last_client, id(client)  # its id: nothing here keeps a gone client alive
        self._in_a_row = self._in_a_row + 1 if last == id(client) else 0
        return bool(last) and last != id(client)

    def is_alone(self, client: object) -> bool:
        """Whether for some time nobody else has come here."""
        return self._in_a_row >= ALONE and self._last_client == id(client)

    def write_queued(self) -> None:
        """Write what is queued: small writes at once, others by a task. Never waits."""
        queued = self._queued
        if queued:
            self._queued = []
            for partition in queued:
                partition.write_queued()

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in the background, to its end.

        A broker that is cancelled waits for it: a write or a roll is not left half done.
        """
        self._nursery.start_soon(_to_the_end, run)

    async def in_worker(self, work: Callable[[], object]) -> None:
        """Run what only waits for the disk in a worker."""
        await trio.to_thread.run_sync(work, limiter=self._threads)

    async def open_in_worker(self, work: Callable[[], T]) -> T:
        """Run what opens or compresses batches in a worker, a few at a time, so that they leave the loop its share."""
        return await trio.to_thread.run_sync(work, limiter=self._openers)

    def request_flush(self, partition: Queued, appends: int = 1) -> None:
        """Sync a partition's log in the next round, for which so many appends wait.

        One round at a time: who comes during one shares the next (group commit).
        """
        self._due[partition] = None
        self._waiting_appends += appends
        if not self._flushing:
            self._flushing = True
            self.spawn(self._flush_rounds)

    async def flush(self, partitions: Iterable[Queued]) -> None:
        """Sync these now, as one round of their own."""
        await self._flush_round(list(partitions))

    async def _flush_rounds(self) -> None:
        try:
            while self._due:
                if self._shared_appends > 1:  # a producer that is alone waits for nobody
                    for _ in range(GATHERING_TURNS):
                        await trio.lowlevel.checkpoint()
                due, self._due = list(self._due), {}
                self._shared_appends, self._waiting_appends = self._waiting_appends, 0
                await self._flush_round(due)
        finally:
            self._flushing = False

    async def _flush_round(self, partitions: Sequence[Queued]) -> None:
        plans = [partition.begin_flush() for partition in partitions]
        errors: list[Exception | None] = [None] * len(plans)
        started = time.perf_counter()
        with trio.CancelScope(shield=True):  # what has begun is told to every partition
            await self._sync_all(plans, errors)
        self.metrics.fsync_seconds.observe(time.perf_counter() - started)
        for partition, plan, failure in zip(partitions, plans, errors, strict=True):
            partition.flushed(plan, failure)

    async def _sync_all(self, plans: Sequence[FlushPlan | None], errors: list[Exception | None]) -> None:
        """Sync in as many threads as are worth it; puts into `errors` what went wrong with each plan."""
        threads = min(MAX_SYNC_THREADS, len(plans) // MIN_SYNCS_A_THREAD)
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
            errors[share] = await trio.to_thread.run_sync(_sync_each, plans[share], limiter=self._threads)
        except RuntimeError as error:  # the system gave no thread: nothing was synced
            errors[share] = [error] * len(plans[share])


async def _to_the_end(run: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True):
        await run()


def _sync_each(plans: Sequence[FlushPlan | None]) -> list[Exception | None]:
    """Worker: sync one log after the other; an error is that log's own."""
    return [None if plan is None else _sync(plan) for plan in plans]


def _sync(plan: FlushPlan) -> Exception | None:
    try:
        plan.sync()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told to who waits for this log, and to nobody else
        return error
    return None
