"""Share a scarce resource between connections in the order of `FairOrder`."""

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from time import perf_counter

import trio

from warmlog.broker.partitions.fair_order import FairOrder, Work


class Slot:
    """A slot that is held or requested."""

    __slots__ = ("began_at", "granted", "work")

    def __init__(self) -> None:
        self.granted = trio.Event()
        self.work: Work[Slot] | None = None
        self.began_at = 0.0


class FairQueue:
    """A number of slots, and the connections waiting for one. Used on the event loop only."""

    __slots__ = ("_clock", "_free", "_order")

    def __init__(self, slots: int, clock: Callable[[], float] = perf_counter) -> None:
        self._free = slots
        self._clock = clock
        self._order: FairOrder[Slot] = FairOrder()

    @asynccontextmanager
    async def slot(self, who: Hashable, size: float = 0.0) -> AsyncIterator[None]:
        """Hold a slot within the block. `size` orders connections that have been served equally."""
        held = await self.acquire(who, size)
        try:
            yield
        finally:
            self.release(held)

    async def acquire(self, who: Hashable, size: float = 0.0) -> Slot:
        """Wait for a slot; `release` must follow."""
        slot = Slot()
        self._order.add(who, slot, size)
        self._grant()
        try:
            if slot.work is None:
                await slot.granted.wait()
        except trio.Cancelled:
            if slot.work is not None:
                self.release(slot)
            else:
                self._order.remove(who, slot)
            raise
        return slot

    def release(self, slot: Slot) -> None:
        """Return a slot."""
        assert slot.work is not None
        self._order.served(slot.work, self._clock() - slot.began_at)
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and self._order:
            self._free -= 1
            work = self._order.take()
            work.item.work = work
            work.item.began_at = self._clock()
            work.item.granted.set()
