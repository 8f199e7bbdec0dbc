"""Locks on names: changes of one topic are serialized, changes of different topics run in parallel."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio


class NameLocks:
    """Locks on names. A caller locks all its names in one step, so callers never deadlock."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._released = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Wait until none of the names is locked, and lock them."""
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
        """Wait until no name is locked."""
        while self._held:
            await self._released.park()
