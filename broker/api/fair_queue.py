"""Let connections take turns at something of which there is little: the one that has been served least goes first.

This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with service measured afterwards instead of known before.
Each connection has a tag, the service that it has received; nobody's tag falls behind the tag of what is being served,
so that a connection cannot save up service while it asks for none. Among equal tags the smaller work goes first. So a
connection that asks for little waits for the work in progress only, however many others ask for much.
"""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush
from time import perf_counter

import trio

KEPT_TAGS = 1_000  # before tags that no longer matter are dropped


class FairQueue:
    """A number of slots, and the connections that wait for one. Used on the event loop only."""

    __slots__ = ("_clock", "_free", "_max_tags", "_number", "_queue", "_slots", "_tags", "_virtual")

    def __init__(self, slots: int, clock: Callable[[], float] = perf_counter) -> None:
        self._slots = self._free = slots
        self._clock = clock
        self._virtual = 0.0  # the tag of what was last given a slot; when nothing is served, the largest tag
        self._tags: dict[Hashable, float] = {}
        self._queue: list[tuple[float, float, int, trio.Event]] = []
        self._number = 0
        self._max_tags = KEPT_TAGS

    @asynccontextmanager
    async def slot(self, who: Hashable, size: float = 0.0) -> AsyncIterator[None]:
        """Hold a slot within the block. `size` orders connections that have been served equally."""
        tag = await self.acquire(who, size)
        began = self._clock()
        try:
            yield
        finally:
            self.release(who, tag, self._clock() - began)

    async def acquire(self, who: Hashable, size: float = 0.0) -> float:
        """Wait for a slot; return the tag to `release` it with."""
        tag = max(self._virtual, self._tags.get(who, 0.0))
        if self._free and not self._queue:
            self._free -= 1
            self._virtual = tag
            return tag
        granted = trio.Event()
        self._number += 1
        entry = (tag, size, self._number, granted)
        heappush(self._queue, entry)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self._pass_on()
            else:
                self._queue.remove(entry)
                heapify(self._queue)
            raise
        return tag

    def release(self, who: Hashable, tag: float, served_s: float) -> None:
        """Give a slot back after so many seconds of service."""
        served = self._tags[who] = max(tag, self._tags.get(who, 0.0)) + served_s
        if self._free == self._slots - 1 and not self._queue:
            self._virtual = max(self._virtual, served)
        if len(self._tags) > self._max_tags:
            self._tags = {each: kept for each, kept in self._tags.items() if kept > self._virtual}
            self._max_tags = KEPT_TAGS + 2 * len(self._tags)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._queue:
            tag, _, _, granted = heappop(self._queue)
            self._virtual = max(self._virtual, tag)
            granted.set()
        else:
            self._free += 1
