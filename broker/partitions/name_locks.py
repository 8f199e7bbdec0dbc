"""Exclusive use of names: changes of different topics run side by side, those of one topic one after the other."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio


class NameLocks:
    """Locks on names, taken all at once, so that two holders of several never wait for each other."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._released = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Wait until nobody holds any of the names, and hold them."""
        wanted = set(names)
        while not self._held.isdisjoint(wanted):
            await self._released.park()
        self._held |= wanted
        try:
            yield
        finally:
            self._held -= wanted
            self._released.unpark_all()

    async def all_released(self) -> None:
        """Return once nobody holds any name."""
        while self._held:
            await self._released.park()
