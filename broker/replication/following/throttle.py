"""Keep what is fetched from all leaders together within a rate."""

from collections.abc import Callable

import trio

MAX_SLEEP_S = 1.0  # then the rate is read again: it may have been raised


class Throttle:
    """Shares a rate in bytes per second, 0 for none, which may change. Belongs to the event loop."""

    def __init__(self, rate: Callable[[], int] = lambda: 0) -> None:
        self.bytes = 0  # passed since the start
        self._rate = rate
        self._owed = 0.0  # bytes that were received before their time
        self._since = 0.0  # on trio's clock

    def at_most(self, max_bytes: int) -> int:
        """Return how much to fetch at once: what the rate allows in a second, so that no wait is long."""
        rate = self._rate()
        return min(max_bytes, rate) if rate else max_bytes

    async def passed(self, size: int) -> None:
        """Count received bytes, and wait until others may be asked for."""
        self.bytes += size
        self._settle()
        self._owed += size
        while (rate := self._rate()) and self._owed > 0:
            await trio.sleep(min(self._owed / rate, MAX_SLEEP_S))
            self._settle()
        if not rate:
            self._owed = 0.0

    def _settle(self) -> None:
        """Deduct what the rate allowed since the last time."""
        now = trio.current_time()
        self._owed = max(0.0, self._owed - (now - self._since) * self._rate())
        self._since = now
