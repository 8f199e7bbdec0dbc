"""Limit the combined rate of several transfers."""

from collections.abc import Callable

import trio

MAX_SLEEP_S = 1.0  # longest wait before the rate, which may have been raised, is read again


class Throttle:
    """Shares a rate in bytes per second, which may change; 0 is no limit. Belongs to the event loop.

    `burst_s`: seconds of a pause for which unused rate can be made up.
    """

    def __init__(self, rate: Callable[[], int] = lambda: 0, *, burst_s: float = 0.0) -> None:
        self.bytes = 0  # counted since the start
        self._rate = rate
        self._burst_s = burst_s
        self._owed = 0.0  # bytes transferred ahead of the rate; negative: unused rate
        self._since = 0.0  # on trio's clock

    def at_most(self, max_bytes: int) -> int:
        """Return how much to fetch in one request: as much as the rate allows in a second, so that no wait is long."""
        rate = self._rate()
        return min(max_bytes, rate) if rate else max_bytes

    async def passed(self, size: int) -> None:
        """Count received bytes, and wait until more may be requested."""
        self.count(size)
        delay_s = self.delay_s
        while delay_s > 0:
            await trio.sleep(min(delay_s, MAX_SLEEP_S))
            delay_s = self.delay_s

    def count(self, size: int, *, is_held_up: bool = True) -> None:
        """Count transferred bytes. Transfers that are never throttled delay others by a second at most."""
        self.bytes += size
        self._settle()
        owed = self._owed + size
        self._owed = owed if is_held_up else max(self._owed, min(owed, self._rate() * MAX_SLEEP_S))

    @property
    def delay_s(self) -> float:
        """How long to pause at the present rate; 0 if bytes may be transferred."""
        rate = self._rate()
        self._settle()
        if not rate:
            self._owed = 0.0
            return 0.0
        return self._owed / rate if self._owed >= 1 else 0.0

    def _settle(self) -> None:
        """Deduct what the rate has allowed since the last call."""
        now, rate = trio.current_time(), self._rate()
        self._owed = max(-self._burst_s * rate, self._owed - (now - self._since) * rate)
        self._since = now
