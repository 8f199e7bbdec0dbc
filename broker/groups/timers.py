"""The timers of all groups: one task and one heap with one entry per group, however many members it has.

A heartbeat extends a deadline without touching the heap: a group's `wake_at_s` may be too early, in which case expiring
it does nothing but set the next time. Without groups the task sleeps.
"""

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from time import perf_counter

import trio

from warmlog.broker.groups.effects import NEVER
from warmlog.broker.groups.state import Group

logger = logging.getLogger(__name__)

MAX_LOGGED = 200  # characters of a group's name
PIECE_S = 0.002  # before other tasks run: clients choose how many groups are due at a time


class Timers:
    """The groups by the time when they are due."""

    def __init__(self, expire: Callable[[Group], None]) -> None:
        """Call `expire` with each group that is due; it may schedule any group."""
        self._expire = expire
        self._heap: list[tuple[float, int, Group]] = []
        self._scheduled: dict[Group, float] = {}
        self._tie = itertools.count()
        self._is_earlier = trio.Event()

    def schedule(self, group: Group) -> None:
        """Expire a group at its `wake_at_s`, unless it is scheduled for that time or earlier already."""
        when_s = group.wake_at_s
        if when_s >= self._scheduled.get(group, NEVER):
            return
        if not self._heap or when_s < self._heap[0][0]:
            self._is_earlier.set()
        self._scheduled[group] = when_s
        heapq.heappush(self._heap, (when_s, next(self._tie), group))

    def forget(self, group: Group) -> None:
        """Cancel a group's timer. Its heap entry is skipped when it comes up."""
        self._scheduled.pop(group, None)

    async def run(self) -> None:
        """Expire groups when they are due, until cancelled."""
        while True:
            deadline_s = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=deadline_s):
                await self._is_earlier.wait()
            self._is_earlier = trio.Event()
            piece_end = perf_counter() + PIECE_S
            for group in self._take_due():
                self._expire_group(group)
                if perf_counter() >= piece_end:
                    await trio.lowlevel.checkpoint()
                    piece_end = perf_counter() + PIECE_S
            await trio.lowlevel.checkpoint()

    def _expire_group(self, group: Group) -> None:
        """Expire one group. A defect that it triggers must not stop the timers of the others."""
        try:
            self._expire(group)
        except Exception:
            logger.exception("group %.*r: serving its timeouts failed", MAX_LOGGED, group.group_id)

    def _take_due(self) -> list[Group]:
        due, now_s = [], trio.current_time()
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, group = heapq.heappop(self._heap)
            if self._scheduled.get(group) == when_s:
                del self._scheduled[group]
                due.append(group)
        return due
