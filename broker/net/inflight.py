"""Memory budgets shared by all connections: for unanswered requests and for unsent replies.

`queued.max.request.bytes` bounds received requests. Only frames larger than one read count; small ones are bounded by
the number of connections. A frame's share grows as its bytes arrive, so that an announced size alone takes no budget
from connections that send.

`warmlog.queued.max.reply.bytes` bounds replies of more than `large_work.FREE_REPLY_BYTES`. While a reply is encoded its
share is the maximum size, then the actual size until it is sent.

Invariants:
1. The sum of the shares stays within the budget, except for the oldest share, which never waits: its frame arrives, is
   answered, and frees its budget. So incomplete frames cannot block each other forever.
"""

from collections.abc import Callable

import trio


class Share:
    """Bytes held by one frame: a request until it is answered, or a reply until it is sent."""

    __slots__ = ("granted", "size", "wanted")

    def __init__(self) -> None:
        self.size = 0
        self.wanted = 0  # additional bytes, waiting for budget
        self.granted: Callable[[], None] | None = None


class InflightBytes:
    """A budget and its shares, oldest first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` of -1 means unlimited."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._shares: dict[Share, None] = {}
        self._waiting: dict[Share, None] = {}  # in the order of their requests

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held_bytes

    def grow(self, share: Share, size: int, granted: Callable[[], None]) -> bool:
        """Add `size` bytes to a share and return True, or return False and call `granted` once they are added.

        A share's age counts from its first call. `granted` may only set a flag or schedule work.
        """
        self._shares.setdefault(share)
        share.wanted = size
        if self._grant(share):
            return True
        share.granted = granted
        self._waiting[share] = None
        return False

    async def reserve(self, share: Share, size: int) -> None:
        """Wait until `size` bytes are added to a share. Call `release` if this is cancelled."""
        granted = trio.Event()
        if not self.grow(share, size, granted.set):
            await granted.wait()

    def shrink(self, share: Share, size: int) -> None:
        """Reduce a share to `size` bytes."""
        freed = share.size - size
        if freed > 0 and share in self._shares:
            share.size = size
            self._held_bytes -= freed
            self._grant_waiting()

    def release(self, share: Share) -> None:
        """Release a share, waiting or not; does nothing for one that was released or belongs to another budget."""
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
