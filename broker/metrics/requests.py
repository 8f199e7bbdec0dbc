"""What is done for every request and every turn of the loop only to know of it: counting, and noting the time.

Owns: the counts, and since when the loop has been held. Must not know: metrics and their names, who asks, what is told
of it. Chooses the twin: the compiled one (`_measuring.pyx`) where it was built. Either counts on the event loop only,
without locks.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from protocol.records.codec import compiled

__all__ = ["Counter", "Histogram", "LoopClock", "StageHistograms", "Staged"]


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Count `amount` more."""
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
    """So many requests that went through their stages together: received, begun, handled (perf_counter seconds)."""

    count: int
    received_at: float
    begun_at: float
    handled_at: float


class StageHistograms:
    """The histograms of one kind of request: of the whole, and of each stage."""

    __slots__ = ("_histograms",)

    def __init__(self, whole: Histogram, queue: Histogram, handle: Histogram, wait: Histogram, send: Histogram) -> None:
        self._histograms = whole, queue, handle, wait, send

    def observe(self, staged: Staged, done_at: float, sent_at: float) -> None:
        """Count requests when their reply is sent."""
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
    """The clock of an event loop, which knows by it what the loop is at, and since when.

    trio reads its clock after each look for input and output, and asks how long it may sleep before one. So from one
    reading to the next, the loop is either asleep or held by whoever runs in it. To have trio tell of every step,
    instead, was half of what all measuring cost. Its methods are those of `trio.abc.Clock`.
    """

    def __init__(self, limit_s: float, told: Callable[[float, float], None]) -> None:
        """`told` is called when the loop was held for longer than the limit: since when, and when that ended."""
        self.doing = ""  # what holds it, as those say who know: the API of a request
        self.began_at = 0.0  # perf_counter seconds
        self.is_awake = False
        self._limit_s = limit_s
        self._told = told

    def start_clock(self) -> None:
        """Nothing: time goes on by itself."""

    def current_time(self) -> float:
        """In seconds. The loop, or a task of it, has come here."""
        return self._pass("")

    def begin(self, doing: str) -> float:
        """Attribute the time until the clock is read again to this. Returns now, in perf_counter seconds."""
        return self._pass(doing)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """How long the loop may sleep; it does."""
        now = self._pass("")
        self.is_awake = False
        return deadline - now

    def _pass(self, doing: str) -> float:
        now = perf_counter()
        if self.is_awake and now - self.began_at > self._limit_s:
            self._told(self.began_at, now)
        self.began_at, self.is_awake, self.doing = now, True, doing
        return now


if not TYPE_CHECKING and compiled:
    with suppress(ImportError):
        from broker.metrics._requests import Counter, Histogram, LoopClock, StageHistograms
