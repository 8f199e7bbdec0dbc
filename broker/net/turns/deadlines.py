"""One timer for all deadlines: a fetch's `max_wait_ms` costs two dictionary operations and no task.

Deadlines are rounded up to ticks. One task sleeps until the first tick at which a deadline expires.
"""

import math
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import trio

TICK_S: Final = 0.001
SPARE_TICKS: Final = 1_000  # unused ticks that the heap may contain before it is rebuilt


class Expiring(Protocol):
    """An object with a deadline."""

    def expire(self) -> None:
        """Record that the deadline has passed. Must not add or remove deadlines."""


class Deadlines:
    """All deadlines of a broker. Used on the event loop only."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Expiring, None]] = {}  # by tick of trio's clock
        self._ticks: list[int] = []  # heap of the keys of `_due`, including some that were removed
        self._sleep = trio.CancelScope()

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def add(self, waiting: Expiring, delay_s: float) -> int:
        """Call `waiting.expire()` after `delay_s` seconds; return the tick, which `remove` needs."""
        tick = math.ceil((trio.current_time() + delay_s) / TICK_S)
        due = self._due.get(tick)
        if due is not None:
            due[waiting] = None
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
        """Remove a deadline; does nothing if it has expired."""
        due = self._due.get(tick)
        if due is not None:
            due.pop(waiting, None)
            if not due:
                del self._due[tick]

    async def run(self) -> None:
        """Expire deadlines until cancelled."""
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
