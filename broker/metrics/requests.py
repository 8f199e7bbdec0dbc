"""Counters, histograms and clocks: the measurements made for every request.

Each has a compiled version (`_requests.pyx`), which is used where it was built. Both are used from the event loop
only, without locks.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Protocol

from warmlog.protocol.records.codec import compiled

__all__ = ["Counter", "Histogram", "LoopClock", "StageHistograms", "Staged", "wall_clock_ms"]


class Counter:
    """A counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Add `amount`."""
        self.value += amount


class Histogram:
    """Observations in seconds, counted by bucket; at most 32 bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count an observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Staged(Protocol):
    """Requests that passed through their stages together: received, begun, handled (perf_counter seconds)."""

    count: int
    received_at: float
    begun_at: float
    handled_at: float


class StageHistograms:
    """The histograms of one kind of request: one for the total, one for each stage."""

    __slots__ = ("_histograms",)

    def __init__(self, whole: Histogram, queue: Histogram, handle: Histogram, wait: Histogram, send: Histogram) -> None:
        self._histograms = whole, queue, handle, wait, send

    def observe(self, staged: Staged, done_at: float, sent_at: float) -> None:
        """Count requests whose response was sent."""
        received_at, begun_at, handled_at, count = staged.received_at, staged.begun_at, staged.handled_at, staged.count
        observed = (
            sent_at - received_at,
            begun_at - received_at,
            handled_at - begun_at,
            done_at - handled_at,
            sent_at - done_at,
        )
        for histogram, seconds in zip(self._histograms, observed):  # noqa: B905  # strict costs a third, on every read
            histogram.counts[bisect_left(histogram.bounds, seconds)] += count
            histogram.total += seconds * count


class LoopClock:
    """A clock for trio that measures how long the event loop runs without returning to its I/O wait.

    trio reads its clock after each I/O wait, and asks for the sleep time before the next one. Between two readings the
    loop is thus either asleep or occupied by a task. (A trio instrument would see every step of a task, at twice the
    cost of all other measurements together.) The methods are those of `trio.abc.Clock`.
    """

    def __init__(self, limit_s: float, on_stall: Callable[[float, float], None]) -> None:
        """Call `on_stall(began_at, ended_at)` when the loop was occupied for longer than the limit."""
        self.doing = ""  # the API of the request being handled, where known
        self.began_at = 0.0  # perf_counter seconds
        self.is_awake = False
        self._limit_s = limit_s
        self._on_stall = on_stall

    def start_clock(self) -> None:
        """Do nothing: the clock runs by itself."""

    def current_time(self) -> float:
        """Return the time in seconds, and begin a new measurement."""
        return self._pass("")

    def begin(self, doing: str) -> float:
        """Begin a new measurement, attributed to `doing`. Returns the time in perf_counter seconds."""
        return self._pass(doing)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long the loop may sleep, and note that it sleeps."""
        now = self._pass("")
        self.is_awake = False
        return deadline - now

    def _pass(self, doing: str) -> float:
        now = perf_counter()
        if self.is_awake and now - self.began_at > self._limit_s:
            self._on_stall(self.began_at, now)
        self.began_at, self.is_awake, self.doing = now, True, doing
        return now


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch."""
    return time_ns() // 1_000_000


if not TYPE_CHECKING and compiled:
    with suppress(ImportError):
        from warmlog.broker.metrics._requests import Counter, Histogram, LoopClock, StageHistograms, wall_clock_ms
