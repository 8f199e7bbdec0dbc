"""Find the offsets of times in many logs, a group of logs per call of a worker thread.

A lookup may read and decompress batches, so it runs in a thread. Passing it to the thread costs several times as much
as the lookup itself, and the event loop and the thread alternate with the GIL each time. A call therefore looks up one
time after the other until `GROUP_S` have passed; remaining ones return to the queue:

    waiting   [ 128 129 130 ... ]        each call takes the next MAX_GROUP questions
    threads   [ 0 .. 63 ]  [ 64 .. 127 ]
    outcomes  in the order of the questions
"""

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import trio

from warmlog.broker.api.errors import EXPECTED
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.time import TimestampOffset
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.request import MAX_TIMESTAMP

MAX_THREADS = 4  # concurrent calls of all requests: each may read batches, competing with fetches for the disk
MAX_CALLS = 2  # concurrent calls of one request: the other threads are left to other clients
MAX_GROUP = 64  # questions per call
GROUP_S = 0.005  # time after which a call ends: others wait for a thread, and a cancelled request for its calls


class TimeQuestion(NamedTuple):
    """A log, and the time (ms) from which its first record is requested, or MAX_TIMESTAMP."""

    partition: Partition
    timestamp: int


Outcome = TimestampOffset | Exception | None  # the exception is one of `EXPECTED`; None if there is no such record


class TimeLookups:
    """Finds offsets by time, with the threads that all requests share."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(MAX_THREADS)

    async def find(self, questions: Sequence[TimeQuestion]) -> list[Outcome]:
        """Return the outcome of each question in order. Rebuilds corrupt indexes, and looks up the time again."""
        request = _Request(questions, self._threads)
        if len(questions) <= MAX_GROUP:
            await request.look_up()
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_CALLS):
                    nursery.start_soon(request.look_up)
        return request.outcomes


class _Request:
    """The questions of one request, and their outcomes so far."""

    def __init__(self, questions: Sequence[TimeQuestion], threads: trio.CapacityLimiter) -> None:
        self.outcomes: list[Outcome] = [None] * len(questions)
        self._questions = questions
        self._waiting = deque(range(len(questions)))
        self._threads = threads

    async def look_up(self) -> None:
        """Look up groups of questions until none is left. Several tasks may run it."""
        waiting = self._waiting
        while waiting:
            taken = [waiting.popleft() for _ in range(min(MAX_GROUP, len(waiting)))]
            group = [self._questions[at] for at in taken]
            outcomes = await trio.to_thread.run_sync(_look_up_each, group, limiter=self._threads)
            waiting.extendleft(reversed(taken[len(outcomes) :]))
            for at, outcome in zip(taken, outcomes, strict=False):
                self.outcomes[at] = outcome
            for at in taken[: len(outcomes)]:
                await self._rebuild_if_corrupt(at)

    async def _rebuild_if_corrupt(self, at: int) -> None:
        """Rebuild an index that a lookup has detected as corrupt, and queue the question again."""
        damage = self.outcomes[at]
        if isinstance(damage, IndexCorruptError):
            try:
                await self._questions[at].partition.rebuilt(damage)
            except EXPECTED as error:
                self.outcomes[at] = error
            else:
                self._waiting.append(at)


def _look_up_each(questions: Sequence[TimeQuestion]) -> list[Outcome]:
    """Return the outcomes of the first questions, at least one, until the time has passed. Runs in a worker thread."""
    outcomes: list[Outcome] = []
    ends_at = perf_counter() + GROUP_S
    for partition, timestamp in questions:
        trio.from_thread.check_cancelled()
        log = partition.log
        try:
            outcome: Outcome = (
                log.reads.largest_timestamp() if timestamp == MAX_TIMESTAMP else log.reads.offset_for_time(timestamp)
            )
        except EXPECTED as error:
            outcome = error.with_traceback(None)  # it would keep this stack frame, and with it the other outcomes
        outcomes.append(outcome)
        if perf_counter() >= ends_at:
            break
    return outcomes
