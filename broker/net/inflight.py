"""The bound on bytes that all connections together have received and not yet answered (`queued.max.request.bytes`).

Only frames too large for a connection's own read are counted here; the small ones are bounded by the number of
connections.
"""

import trio


class InflightBytes:
    """A counting bound, fair in order of arrival. A single frame larger than the bound is let through alone."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._turn = trio.StrictFIFOLock()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held_bytes

    async def acquire(self, size: int) -> None:
        """Wait until `size` more bytes may be held, behind everyone who came before."""
        async with self._turn:
            while self._max_bytes >= 0 and self._held_bytes and self._held_bytes + size > self._max_bytes:
                await self._room.park()
            self._held_bytes += size

    def release(self, size: int) -> None:
        """Give bytes back."""
        self._held_bytes -= size
        if size:
            self._room.unpark_all()
