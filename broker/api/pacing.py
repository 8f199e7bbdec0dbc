"""Share the event loop between long requests and all other tasks.

A request with thousands of entries is answered in pieces of about `PIECE_S`. Between two pieces every other ready task
runs once. Concurrent long requests queue: one of them gets one piece per pass of the loop, so other clients wait for a
single piece, however many long requests there are.

A request of more than `SHORT_PIECES` is long. At most `LONG_REQUESTS` of them are in progress at a time, since each may
hold values for a reply of many megabytes; the others wait. The connection that has been served least gets the next
slot, or the worker. So a request of a few pieces waits for a few pieces of each long request, not for the end of one.

A garbage collection holds the loop for up to 1 us per examined object. So objects that exist when a piece ends are
exempt from collections (`gc.freeze`, which takes constant time). They are freed when nothing refers to them; only
cycles would stay, and requests leave none.
"""

import gc
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any, Protocol, TypeVar

import trio

from warmlog.broker.api.fair_queue import FairQueue
from warmlog.protocol.weight import release

T = TypeVar("T")
LONG_REQUESTS = 4
SHORT_PIECES = 4
PIECE_S = 0.002  # a pass of the loop costs about 0.05 ms; a client needs two or three passes for a small request


class Worked(Hashable, Protocol):
    """A session, to which the time of its work in a worker is added."""

    worked_s: float


class Pacer:
    """The queue of long requests waiting for their next piece. One per broker; used on the event loop only.

    `clock` returns seconds; only differences between its readings are used.
    """

    __slots__ = ("_paused", "_queue", "_turns", "_worker", "clock", "long_requests")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._worker = trio.CapacityLimiter(1)
        self._turns = FairQueue(1, clock)
        self.long_requests = FairQueue(LONG_REQUESTS, clock)
        self._paused = 0
        self._queue = trio.lowlevel.ParkingLot()

    def piece_end(self) -> float:
        """Return when a piece that begins now should end, in seconds of `clock`."""
        return self.clock() + PIECE_S

    async def in_worker(self, work: Callable[[], T], who: Worked, size: int) -> T:
        """Run indivisible work in a worker thread, one call at a time.

        `who` is the session that it is for; `size` grows with the work: see `FairQueue`.
        """
        async with self._turns.slot(who, size):
            began = self.clock()
            try:
                return await trio.to_thread.run_sync(work, limiter=self._worker)
            finally:
                who.worked_s += self.clock() - began
                gc.freeze()

    async def free(self, owned: list[Any]) -> None:
        """Free the objects in a list in pieces. The list must hold the last references to them."""
        piece_end = self.piece_end()
        for _ in release(owned):
            if self.clock() >= piece_end:
                await self.pause()
                piece_end = self.piece_end()

    async def pause(self) -> None:
        """Let all other tasks run, including requests that paused earlier."""
        gc.freeze()
        self._paused += 1
        try:
            if self._paused > 1:
                await self._queue.park()
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._queue.unpark()
        finally:
            self._paused -= 1
