"""Budgets of memory for messages: received requests until they are answered, and replies until they are sent.

`queued.max.request.bytes` bounds the first, `warmlog.queued.max.reply.bytes` the second. A connection has at most one
share of each; messages of a few KiB are not counted (`UNCOUNTED_BYTES`), since the number of connections bounds them.

A peer can make the broker hold memory by sending or reading slowly, on any number of connections. So a share measures
how fast its peer moves the message. While a share waits for memory, connections in its way are closed, the slowest
first:

| closed if its message moves below | for at least | and                                                              |
|-----------------------------------|--------------|------------------------------------------------------------------|
| `SLOW_RATE`                       | `SLOW_S`     |                                                                  |
| `FAIR_RATE`                       | `UNFAIR_S`   | it is greedy                                                     |
| any rate                          | `LONG_S`     | it is greedy; its own time of waiting for memory counts          |

A connection is greedy if it holds more than a fair share and the waiting one wants less, or if its address holds more
than a fair share of an address and the waiting one has another address. Without the third row, peers that quickly send
endless large messages would fill the budget, wait for each other, and lock out all others.

A complete message is never in the way: the broker is processing it, and will free its memory.

Invariants:
1. The shares stay within the budget, except for the oldest share, which never waits: its message arrives, is answered,
   and frees its memory. So incomplete messages cannot block each other. Memory that is already held is counted even if
   it exceeds the budget (`charge`); then the slowest connections are closed until it does not.
2. Large messages, of more than 1/64 of the budget (`LARGE_BYTES` at least), leave a quarter of the budget to others,
   and the smallest share that waits is served first: a few large messages never delay small ones.
3. A share that wants less than a fair share waits for messages of others for at most `LONG_S` and two checks, plus the
   time that the broker takes to process complete ones.
"""

import math
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, Protocol

import trio
from sortedcontainers import SortedKeyList

UNCOUNTED_BYTES: Final = 4 << 10
LARGE_BYTES: Final = 1 << 20
SLOW_RATE: Final = 64 << 10  # bytes per second
SLOW_S: Final = 1.0
FAIR_RATE: Final = 4 << 20
UNFAIR_S: Final = 0.1
LONG_S: Final = 2.0
CHECK_S: Final = 0.025  # interval between checks for connections to close, while a share waits
EVICTIONS: Final = 32  # closed at each check: each takes about 50 us


class Progress:
    """A peer's progress in sending or reading a message: bytes, and time in seconds."""

    __slots__ = ("is_late", "moved", "since")

    def __init__(self) -> None:
        self.since = math.inf  # when the message began to move; infinite while none does
        self.moved = 0
        self.is_late = False  # whether it was too slow when `exceeds` was last called

    def begin(self, now: float) -> None:
        """Start to measure a message, unless one is being measured."""
        if self.since == math.inf:
            self.since = now
            self.moved = 0

    def end(self) -> None:
        """Stop measuring: the message is complete."""
        self.since = math.inf
        self.is_late = False

    def exceeds(self, now: float, patience_s: float, min_rate: float) -> bool:
        """Return whether the message is slower than `min_rate` bytes per second after `patience_s` of patience.

        True only at the second call in a row, because after a pause of the whole machine sockets are served first.
        """
        was_late = self.is_late
        self.is_late = now - self.since > patience_s + self.moved / min_rate
        return was_late and self.is_late


class Holder(Protocol):
    """The connection that a share belongs to."""

    def evict(self, reason: str) -> None:
        """Close the connection, which releases its shares."""


class Share:
    """Memory of one connection in one budget, in bytes.

    `address`: the peer's, without the port. `holder`: None once the connection is closed, which breaks a cycle.
    """

    __slots__ = ("address", "granted", "holder", "progress", "size", "waits_since", "wanted")

    def __init__(self, holder: Holder, address: str, progress: Progress) -> None:
        self.holder: Holder | None = holder
        self.address = address
        self.progress = progress
        self.size = 0
        self.wanted = 0  # additional bytes, waiting for memory
        self.waits_since = math.inf
        self.granted: Callable[[], None] | None = None

    @property
    def total(self) -> int:
        """The size of the share including the bytes that it waits for."""
        return self.size + self.wanted

    def moving_s(self, now: float) -> float:
        """How long the message has been moving, without waits for memory; negative if there is none."""
        return min(now, self.waits_since) - self.progress.since


class MemoryBudget:
    """A budget and its shares, oldest first. Used on the event loop only."""

    def __init__(
        self,
        max_bytes: int,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`max_bytes` of -1 means unlimited. `spawn` starts a task in the background."""
        self._max_bytes = max_bytes if max_bytes >= 0 else math.inf
        self._large_bytes = max(LARGE_BYTES, self._max_bytes / 64)
        self._spawn = spawn
        self._clock = clock
        self._held_bytes = 0
        self._shares: dict[Share, None] = {}
        self._waiting: SortedKeyList = SortedKeyList(key=_order)
        self._is_watched = False
        self.evicted = 0  # connections closed to free memory for others

    @property
    def held_bytes(self) -> int:
        """The number of bytes held."""
        return self._held_bytes

    def grow(self, share: Share, size: int, granted: Callable[[], None]) -> bool:
        """Add `size` bytes to a share and return True, or return False and call `granted` once they are added.

        A share's age counts from its first call. `granted` may only set a flag or schedule work.
        """
        self._shares.setdefault(share)
        if self._fits(share, size):
            self._add(share, size)
            return True
        share.wanted = size
        share.granted = granted
        share.waits_since = self._clock()
        self._waiting.add(share)
        self._watch_waiting()
        return False

    async def reserve(self, share: Share, size: int) -> None:
        """Wait until `size` bytes are added to a share. Call `release` if this is cancelled."""
        granted = trio.Event()
        if not self.grow(share, size, granted.set):
            await granted.wait()

    def charge(self, share: Share, size: int) -> None:
        """Count `size` bytes for a share that does not wait; its connection holds them already."""
        self._shares.setdefault(share)
        self._add(share, size - share.size)
        if self._held_bytes > self._max_bytes:
            self._watch_waiting()

    def shrink(self, share: Share, size: int) -> None:
        """Reduce a share to `size` bytes."""
        freed = share.size - size
        if freed > 0 and share in self._shares:
            self._add(share, -freed)
            self._grant_waiting()

    def release(self, share: Share) -> None:
        """Release a share, waiting or not; does nothing for one that was released."""
        if share in self._shares:
            self._stop_waiting(share)
            del self._shares[share]
            self._add(share, -share.size)
            self._grant_waiting()

    def _watch_waiting(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._spawn(self._watch)

    async def _watch(self) -> None:
        """Close connections in the way until no share waits."""
        try:
            while self._waiting or self._held_bytes > self._max_bytes:
                await trio.sleep(CHECK_S)
                self.evict_slowest()
        finally:
            self._is_watched = False

    def evict_slowest(self) -> None:
        """Close connections in the way of the first waiting share; see the table above."""
        first: Share | None = self._waiting[0] if self._waiting else None
        for victim, rate in self._victims(first)[:EVICTIONS]:
            if self._held_bytes <= self._max_bytes and (first is None or first.waits_since == math.inf):
                break
            self.evicted += 1
            size = victim.size
            if victim.holder is not None:
                victim.holder.evict(f"holds {size} bytes for a message that moves at {rate / 1024:.1f} KiB/s")
            self.release(victim)

    def _add(self, share: Share, size: int) -> None:
        share.size += size
        self._held_bytes += size

    def _fits(self, share: Share, size: int) -> bool:
        limit = self._max_bytes if share.size + size <= self._large_bytes else self._max_bytes * 0.75
        return self._held_bytes + size <= limit or next(iter(self._shares)) is share

    def _grant_waiting(self) -> None:
        waiting = self._waiting
        oldest = next(iter(self._shares), None)
        if oldest is not None and oldest.waits_since != math.inf:
            self._grant(oldest)
        while waiting and self._fits(waiting[0], waiting[0].wanted):
            self._grant(waiting[0])

    def _grant(self, share: Share) -> None:
        size, granted = share.wanted, share.granted
        share.progress.since += self._clock() - share.waits_since
        self._stop_waiting(share)
        self._add(share, size)
        assert granted is not None
        granted()

    def _stop_waiting(self, share: Share) -> None:
        if share.waits_since != math.inf:
            self._waiting.remove(share)
            share.wanted, share.waits_since, share.granted = 0, math.inf, None

    def _victims(self, first: Share | None) -> list[tuple[Share, float]]:
        """Return the shares in the way of the first waiting one, with their rates, the slowest first."""
        if not self._shares:
            return []
        now = self._clock()
        held: dict[str, int] = {}
        for share in self._shares:
            held[share.address] = held.get(share.address, 0) + share.size
        fair, fair_of_address = self._max_bytes / len(self._shares), self._max_bytes / len(held)
        victims = []
        for share in self._shares:
            moving_s = share.moving_s(now)
            if moving_s < UNFAIR_S or not share.size or share is first:
                continue
            rate = share.progress.moved / moving_s
            is_slow = rate < SLOW_RATE and moving_s >= SLOW_S
            is_greedy = (
                first is None
                or share.size > fair >= first.total
                or (share.address != first.address and held[share.address] > fair_of_address)
            )
            if is_slow or (is_greedy and (rate < FAIR_RATE or now - share.progress.since >= LONG_S)):
                victims.append((share, rate))
        return sorted(victims, key=_rate)


def _order(share: Share) -> tuple[int, float]:
    return share.total, share.waits_since


def _rate(victim: tuple[Share, float]) -> float:
    return victim[1]
