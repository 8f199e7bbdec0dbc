"""What is done for every request and every step only to know of it: counting, and noting the time.

Owns: the counts, and the time of the step that is being taken. Must not know: metrics and their names, who asks, what
is told of a step that took long. Chooses the twin: the compiled one (`_measuring.pyx`) where it was built. Either
counts on the event loop only, without locks.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from protocol.records.codec import compiled

__all__ = ["Counter", "Histogram", "StageHistograms", "Staged", "Steps"]


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


class Steps:
    """The step that the loop is taking, and since when; its hooks are those of `trio.abc.Instrument`."""

    def __init__(self, limit_s: float, told: Callable[[Any, float], None]) -> None:
        """`told` is called with the task of a step that took longer than the limit, and the time it ended."""
        self.doing = ""  # what the step is for, as those say who know: the API of a request
        self.task: Any = None  # none between the turns of the loop
        self.began_at = 0.0  # perf_counter seconds
        self._limit_s = limit_s
        self._told = told

    def before_task_step(self, task: Any) -> None:
        """The step before it is over."""
        now = perf_counter()
        if self.task is not None and now - self.began_at > self._limit_s:
            self._told(self.task, now)
        self.task, self.began_at, self.doing = task, now, ""

    def before_io_wait(self, timeout: float) -> None:
        """The turn is over."""
        del timeout
        now = perf_counter()
        if self.task is not None and now - self.began_at > self._limit_s:
            self._told(self.task, now)
        self.task = None


if not TYPE_CHECKING and compiled:
    with suppress(ImportError):
        from broker._measuring import Counter, Histogram, StageHistograms, Steps
