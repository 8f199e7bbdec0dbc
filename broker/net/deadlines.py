"""One timer for everything that waits for a time: a fetch's `max_wait_ms` costs two dictionary operations, and no task.

Deadlines are rounded up to ticks; the task sleeps until the first tick at which something is due.
"""

import math
from heapq import heapify, heappop, heappush
from typing import Protocol

import trio

TICK_S = 0.001
SPARE_TICKS = 1_000  # so many that nothing waits for any more are kept before they are swept out


class Expiring(Protocol):
    """What waits for a time."""

    def expire(self) -> None:
        """Take note that the time is over. Must not add or remove deadlines."""


class Deadlines:
    """Who waits until when. Belongs to the loop."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Expiring, None]] = {}  # by tick of trio's clock
        self._ticks: list[int] = []  # a heap of the ticks above, and of some that are not there any more
        self._sleep = trio.CancelScope()

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def add(self, waiting: Expiring, delay_s: float) -> int:
        """Call `waiting.expire()` after so many seconds; returns the tick, for `remove`."""
        tick = math.ceil((trio.current_time() + delay_s) / TICK_S)
        found = self._due.get(tick)
        if found is not None:
            found[waiting] = None
            return tick
        self._due[tick] = {waiting: None}
        if len(self._ticks) > 2 * len(self._due) + SPARE_TICKS:
            self._ticks = list(self._due)
            heapify(self._ticks)
        else:
            heappush(self._ticks, tick)
        if self._ticks[0] == tick:
            self._sleep.deadline = tick * TICK_S
        return tick

    def remove(self, waiting: Expiring, tick: int) -> None:
        """Take back what was added; nothing happens if its time has come already."""
        found = self._due.get(tick)
        if found is not None:
            found.pop(waiting, None)
            if not found:
                del self._due[tick]

    async def run(self) -> None:
        """Call what is due, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._next_deadline()) as self._sleep:
                await trio.sleep_forever()
            self._expire(trio.current_time())

    def _next_deadline(self) -> float:
        while self._ticks and self._ticks[0] not in self._due:
            heappop(self._ticks)
        return self._ticks[0] * TICK_S if self._ticks else math.inf

    def _expire(self, now: float) -> None:
        while self._ticks and self._ticks[0] * TICK_S <= now:
            for waiting in self._due.pop(heappop(self._ticks), ()):
                waiting.expire()
