"""Share the event loop between requests that take long and everybody else.

A request that names thousands of things is answered in pieces of about `PIECE_S`. Between two pieces every other task
that is ready runs once. Requests that take long at the same time queue: only one of them gets a piece per pass of the
loop, so a second client waits for one piece, however many connections ask for much.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

import trio

from protocol.weight import release

T = TypeVar("T")
PIECE_S = 0.002  # a pass of the loop costs some 0.05 ms; a client needs two or three passes for a small request


class Pacer:
    """Where long requests wait for their next piece. One per broker; for the event loop only."""

    __slots__ = ("_paused", "_queue", "_worker")

    def __init__(self) -> None:
        self._worker = trio.CapacityLimiter(1)
        self._paused = 0
        self._queue = trio.lowlevel.ParkingLot()

    @staticmethod
    def piece_end() -> float:
        """When a piece that begins now should end, in perf_counter seconds."""
        return perf_counter() + PIECE_S

    @staticmethod
    def is_over(piece_end: float) -> bool:
        """Whether a piece has taken its time."""
        return perf_counter() >= piece_end

    async def in_worker(self, work: Callable[[], T]) -> T:
        """Run what cannot be done in pieces in a thread, one at a time."""
        return await trio.to_thread.run_sync(work, limiter=self._worker)

    async def free(self, owned: list[Any]) -> None:
        """Free what is in a list, which must hold the last references to it, in pieces."""
        piece_end = self.piece_end()
        for _ in release(owned):
            if self.is_over(piece_end):
                await self.pause()
                piece_end = self.piece_end()

    async def pause(self) -> None:
        """Let all others run, those that paused before included."""
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
