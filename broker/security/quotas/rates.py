"""Measure rates as Kafka does. Times are whole milliseconds of any clock; only their differences matter.

A `Rate` keeps the sums of the latest `samples` windows. The time that they are divided by is never less than all whole
windows, so that a new client may send a burst of as much as the windows allow.

    |  1 s  |  1 s  | ...  |  1 s  | part |     11 samples of 1 s: 10 whole windows, and the part of the current one
    oldest                               now

A `TokenBucket` is filled at the quota's rate, up to `samples` windows of it, and may be overdrawn.

Source: org.apache.kafka.common.metrics.stats.Rate, SampledStat, TokenBucket; org.apache.kafka.server.quota.QuotaUtils.
"""

from typing import Final, NamedTuple

MS: Final = 1000
MAX_THROTTLE_MS: Final = (1 << 31) - 1  # the largest value of a response's field


class Windows(NamedTuple):
    """The number of samples kept, and the milliseconds of each."""

    samples: int = 11
    window_ms: int = MS


class _Sample:
    """The sum of one window, its beginning, and the time of the last addition."""

    __slots__ = ("began", "last", "total")

    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        """Begin another window."""
        self.began = self.last = now
        self.total = 0.0


class Rate:
    """The rate of something, per second."""

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now: int) -> None:
        """Add a value to the current window; a negative one cancels a value recorded at the same time."""
        samples, windows = self._samples, self._windows
        if not samples:
            samples.append(_Sample(now))
        sample = samples[self._current]
        if now - sample.began >= windows.window_ms:
            # one more than `samples`: the oldest may have begun before the measured time, and overlap it
            self._current = (self._current + 1) % (windows.samples + 1)
            if self._current == len(samples):
                samples.append(_Sample(now))
            sample = samples[self._current]
            sample.reset(now)
        sample.total += value
        sample.last = now

    def total(self, now: int) -> float:
        """Return the sum over the measured time."""
        expires, total = self._windows.samples * self._windows.window_ms, 0.0
        for sample in self._samples:
            if now - sample.last >= expires:
                sample.reset(now)
            total += sample.total
        return total

    def elapsed(self, now: int) -> int:
        """Return the milliseconds that the sum is divided by. Call `total` before."""
        samples, window_ms = self._windows
        elapsed = now - min([sample.began for sample in self._samples], default=now)
        missing = samples - 1 - elapsed // window_ms
        return max(1, elapsed + max(0, missing) * window_ms)

    def throttle_ms(self, bound: float, now: int) -> int:
        """Return how long to record nothing until the rate is back at `bound`; 0 if it is not above."""
        total = self.total(now)
        elapsed = self.elapsed(now)
        rate = total / (elapsed / MS)
        return round(min(MAX_THROTTLE_MS, (rate - bound) / bound * elapsed)) if rate > bound else 0


class TokenBucket:
    """Tokens accumulated at a rate, up to a burst."""

    __slots__ = ("_at", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._at: int | None = None  # initially full

    def _refill(self, bound: float, now: int) -> float:
        samples, window_ms = self._windows
        burst = samples * window_ms / MS * bound
        passed = samples * window_ms if self._at is None else now - self._at
        self._tokens, self._at = min(burst, self._tokens + bound * passed / MS), now
        return burst

    def record(self, value: float, bound: float, now: int) -> None:
        """Remove tokens, even beyond those available."""
        burst = self._refill(bound, now)
        self._tokens = min(burst, self._tokens - value)

    def throttle_ms(self, bound: float, now: int) -> int:
        """Return how long it takes until the bucket is no longer overdrawn; 0 if it is not."""
        self._refill(bound, now)
        return round(min(MAX_THROTTLE_MS, -self._tokens / bound * MS)) if self._tokens < 0 else 0
