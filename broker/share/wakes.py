"""Wake waiting fetches, a few at a time: an append may concern a waiting fetch of each of a thousand groups."""

from collections import deque
from typing import Final, Protocol

import trio

AT_ONCE: Final = 16  # fetches per step: about 2 ms of work
PAUSE_S: Final = 0.001  # time after which others are again woken immediately


class WaitingFetch(Protocol):
    """A waiting fetch."""

    def wake(self) -> None:
        """Check again whether records are available."""


class Wakes:
    """The fetches to wake. Belongs to the event loop."""

    def __init__(self) -> None:
        self._queue: deque[WaitingFetch] = deque()
        self._has_queue = trio.Event()
        self._left = AT_ONCE
        self._renewed_at = 0.0

    def add(self, fetch: WaitingFetch) -> None:
        """Wake a fetch: immediately, unless AT_ONCE others were just woken."""
        now = trio.current_time()
        if now >= self._renewed_at + PAUSE_S:
            self._left, self._renewed_at = AT_ONCE, now
        if self._left and not self._queue:
            self._left -= 1
            fetch.wake()
        else:
            self._queue.append(fetch)
            self._has_queue.set()

    async def run(self) -> None:
        """Wake queued fetches, with other tasks in between, until cancelled."""
        while True:
            await self._has_queue.wait()
            self._has_queue = trio.Event()
            while self._queue:
                for _ in range(min(AT_ONCE, len(self._queue))):
                    self._queue.popleft().wake()
                await trio.lowlevel.checkpoint()
