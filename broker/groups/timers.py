"""When a group wants to be looked at: one task and one heap for all of them, however many members they have.

Owns: the order in which groups are due. Must not know: what is due in a group.

A heartbeat moves a deadline out and costs nothing here: a group's `wake_at_s` may be earlier than what is due, then the
look finds nothing and says when to come again. With no group there is nothing to wake for.
"""

import heapq
import itertools
import logging
import math
from collections.abc import Callable

import trio

from broker.groups.state import NEVER, Group

logger = logging.getLogger(__name__)

MAX_SHOWN = 200  # characters of a group's name


class Timers:
    """The groups that are to be looked at, by time."""

    def __init__(self, look: Callable[[Group], None]) -> None:
        """`look` is called for a group that is due; it may schedule any group."""
        self._look = look
        self._heap: list[tuple[float, int, Group]] = []
        self._planned: dict[Group, float] = {}
        self._tie = itertools.count()
        self._is_earlier = trio.Event()

    def schedule(self, group: Group) -> None:
        """Look at a group when it says, unless that is planned for as early a time already."""
        when_s = group.wake_at_s
        if when_s >= self._planned.get(group, NEVER):
            return
        if not self._heap or when_s < self._heap[0][0]:
            self._is_earlier.set()
        self._planned[group] = when_s
        heapq.heappush(self._heap, (when_s, next(self._tie), group))

    def forget(self, group: Group) -> None:
        """Do not look at a group any more; its place in the heap is passed over when it comes up."""
        self._planned.pop(group, None)

    async def run(self) -> None:
        """Look at what is due, until cancelled."""
        while True:
            deadline_s = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=deadline_s):
                await self._is_earlier.wait()
            self._is_earlier = trio.Event()
            for group in self._take_due():
                self._look_at(group)
            await trio.lowlevel.checkpoint()

    def _look_at(self, group: Group) -> None:
        """A boundary for errors: a defect that one group brings out is that group's alone."""
        try:
            self._look(group)
        except Exception:
            logger.exception("group %.*r: its time-outs could not be served", MAX_SHOWN, group.group_id)

    def _take_due(self) -> list[Group]:
        due, now_s = [], trio.current_time()
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, group = heapq.heappop(self._heap)
            if self._planned.get(group) == when_s:
                del self._planned[group]
                due.append(group)
        return due
