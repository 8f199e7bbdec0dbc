"""The bound on bytes that all connections together have received and not yet answered (`queued.max.request.bytes`).

Only frames too large for a connection's own read are counted here; the small ones are bounded by the number of
connections. A frame's share grows as it arrives: what is only announced takes no room from those who send.

Invariants:
1. The shares together stay within the bound, but for that of the oldest frame, which never waits: it arrives, is
   answered, and makes room. So nothing is stuck when the room is full of parts.
"""

import trio


class Share:
    """What one frame holds, in bytes, from its announcement until it is answered."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class InflightBytes:
    """The shares of all frames, oldest first."""

    def __init__(self, max_bytes: int) -> None:
        """With `max_bytes` -1 there is no bound."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._shares: dict[Share, None] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held_bytes

    async def grow(self, share: Share, size: int) -> None:
        """Wait until a frame may hold `size` more bytes; its first call gives it its place in the order of age."""
        self._shares.setdefault(share)
        while not self._has_room(share, size):
            await self._waiting.park()
        share.size += size
        self._held_bytes += size

    def release(self, share: Share) -> None:
        """Give a share back; nothing happens if that was done."""
        if share in self._shares:
            del self._shares[share]
            self._held_bytes -= share.size
            self._waiting.unpark_all()

    def _has_room(self, share: Share, size: int) -> bool:
        if self._max_bytes < 0 or self._held_bytes + size <= self._max_bytes:
            return True
        return next(iter(self._shares)) is share
