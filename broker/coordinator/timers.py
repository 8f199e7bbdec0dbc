"""The timers of a coordinator: one task, and one heap with one entry for each automaton, however many deadlines it has.

A heartbeat extends a deadline without touching the heap: an automaton's `wake_at_s` may be too early, in which case
expiring it does nothing but set the next time. Without automatons the task sleeps.
"""

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from time import perf_counter
from typing import Generic, Protocol, TypeVar

import trio

logger = logging.getLogger(__name__)

PIECE_S = 0.002  # before other tasks run: clients choose how many automatons are due at a time


class Timed(Protocol):
    """An automaton with deadlines."""

    @property
    def wake_at_s(self) -> float:
        """When to expire it at the latest, on the event loop's clock; infinite for never."""


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """Automatons by the time when they are due. Belongs to the event loop."""

    def __init__(self, expire: Callable[[T], None]) -> None:
        """Call `expire` with each automaton that is due; `expire` may schedule any automaton."""
        self._expire = expire
        self._heap: list[tuple[float, int, T]] = []
        self._scheduled: dict[T, float] = {}
        self._tie = itertools.count()
        self._is_earlier = trio.Event()

    def schedule(self, item: T) -> None:
        """Expire an automaton at its `wake_at_s`, unless it is scheduled for that time or earlier already."""
        when_s = item.wake_at_s
        if when_s >= self._scheduled.get(item, math.inf):
            return
        if not self._heap or when_s < self._heap[0][0]:
            self._is_earlier.set()
        self._scheduled[item] = when_s
        heapq.heappush(self._heap, (when_s, next(self._tie), item))

    def forget(self, item: T) -> None:
        """Cancel an automaton's timer. Its heap entry is skipped when it comes up."""
        self._scheduled.pop(item, None)

    async def run(self) -> None:
        """Expire automatons when they are due, until cancelled."""
        while True:
            deadline_s = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=deadline_s):
                await self._is_earlier.wait()
            self._is_earlier = trio.Event()
            piece_end = perf_counter() + PIECE_S
            for item in self._take_due():
                self._expire_item(item)
                if perf_counter() >= piece_end:
                    await trio.lowlevel.checkpoint()
                    piece_end = perf_counter() + PIECE_S
            await trio.lowlevel.checkpoint()

    def _expire_item(self, item: T) -> None:
        """Expire an automaton. A defect that it triggers must not stop the timers of the others."""
        try:
            self._expire(item)
        except Exception:
            logger.exception("%s: unexpected error in a timeout", item)

    def _take_due(self) -> list[T]:
        due, now_s = [], trio.current_time()
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, item = heapq.heappop(self._heap)
            if self._scheduled.get(item) == when_s:
                del self._scheduled[item]
                due.append(item)
        return due
