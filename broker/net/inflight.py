"""The bounds on bytes of all connections together: requests that are not answered, and replies that are not sent.

`queued.max.request.bytes` bounds what was received. Only frames too large for a connection's own read are counted; the
small ones are bounded by the number of connections. A frame's share grows as it arrives: what is only announced takes
no room from those who send.

`warmlog.queued.max.reply.bytes` bounds replies of more than `large_work.FREE_REPLY_BYTES`. A reply's share is the most
that it may take while it is encoded, and then what it takes, until it is sent.

Invariants:
1. The shares together stay within the bound, but for that of the oldest frame, which never waits: it arrives, is
   answered, and makes room. So nothing is stuck when the room is full of parts.
"""

from collections.abc import Callable

import trio


class Share:
    """What one frame holds, in bytes: a request's until it is answered, a reply's until it is sent."""

    __slots__ = ("granted", "size", "wanted")

    def __init__(self) -> None:
        self.size = 0
        self.wanted = 0  # more, as soon as there is room
        self.granted: Callable[[], None] | None = None


class InflightBytes:
    """The shares of all frames, oldest first."""

    def __init__(self, max_bytes: int) -> None:
        """With `max_bytes` -1 there is no bound."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._shares: dict[Share, None] = {}
        self._waiting: dict[Share, None] = {}  # in the order in which they asked

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held_bytes

    def grow(self, share: Share, size: int, granted: Callable[[], None]) -> bool:
        """Let a frame hold `size` more bytes if there is room; otherwise call `granted` once it does.

        The first call gives a share its place in the order of age. `granted` must only take note.
        """
        self._shares.setdefault(share)
        share.wanted = size
        if self._grant(share):
            return True
        share.granted = granted
        self._waiting[share] = None
        return False

    async def reserve(self, share: Share, size: int) -> None:
        """Let a frame hold so many bytes more, once there is room. If this is cancelled, `release` must follow."""
        granted = trio.Event()
        if not self.grow(share, size, granted.set):
            await granted.wait()

    def shrink(self, share: Share, size: int) -> None:
        """Let a frame hold no more than so many bytes."""
        freed = share.size - size
        if freed > 0 and share in self._shares:
            share.size = size
            self._held_bytes -= freed
            self._grant_waiting()

    def release(self, share: Share) -> None:
        """Give a share back, waiting or not; nothing happens if that was done, or if it belongs to another bound."""
        if share in self._shares:
            del self._shares[share]
            self._waiting.pop(share, None)
            self._held_bytes -= share.size
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        for waiting in list(self._waiting):
            if self._grant(waiting):
                del self._waiting[waiting]
                assert waiting.granted is not None
                waiting.granted()

    def _grant(self, share: Share) -> bool:
        is_oldest = next(iter(self._shares)) is share
        if not is_oldest and 0 <= self._max_bytes < self._held_bytes + share.wanted:
            return False
        share.size += share.wanted
        self._held_bytes += share.wanted
        return True
