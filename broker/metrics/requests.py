"""Counters, histograms and clocks: the measurements made for every request.

Cython compiles this module. Everything here is used on the event loop only, without locks.
"""

from __future__ import annotations

from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Protocol

from warmlog import uncompiled as cython

if cython.compiled:
    import cython
    from cython.cimports.posix.time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Counter", "Histogram", "LoopClock", "StageHistograms", "Staged", "compiled", "wall_clock_ms"]

compiled = cython.compiled


@cython.cclass
class Counter:
    """A counter."""

    value = cython.declare(cython.double, visibility="readonly")

    def add(self, amount: cython.double = 1) -> None:
        """Add `amount`."""
        self.value += amount


@cython.cclass
class Histogram:
    """Observations in seconds, counted by bucket; at most 32 bounds."""

    bounds = cython.declare(tuple, visibility="readonly")
    total = cython.declare(cython.double, visibility="readonly")
    _bounds: cython.double[32]
    _counts: cython.longlong[33]
    _last: cython.int

    def __init__(self, bounds: tuple) -> None:
        if len(bounds) > 32:
            raise ValueError(f"{len(bounds)} bounds are more than 32")
        if not cython.compiled:
            self._bounds, self._counts = [0.0] * 32, [0] * 33
        self.bounds = bounds
        self.total = 0.0
        self._last = len(bounds)
        for number in range(len(bounds)):
            self._bounds[number] = bounds[number]

    @property
    def counts(self) -> list:
        """Return the count of each bucket; the last has no upper bound."""
        return [self._counts[number] for number in range(self._last + 1)]

    def observe(self, seconds: cython.double) -> None:
        """Count an observation."""
        self.count_times(seconds, 1)

    @cython.final
    @cython.cfunc
    @cython.exceptval(check=False)
    def count_times(self, seconds: cython.double, times: cython.longlong) -> cython.void:
        """Count a number of equal observations."""
        bucket: cython.int = 0
        while bucket < self._last and self._bounds[bucket] < seconds:
            bucket += 1
        self._counts[bucket] += times
        self.total += seconds * times


class Staged(Protocol):
    """Requests that passed through their stages together: received, begun, handled (perf_counter seconds)."""

    count: int
    received_at: float
    begun_at: float
    handled_at: float


@cython.cclass
class StageHistograms:
    """The histograms of one kind of request: one for the total, one for each stage."""

    _whole: Histogram
    _queue: Histogram
    _handle: Histogram
    _wait: Histogram
    _send: Histogram

    def __init__(self, whole: Histogram, queue: Histogram, handle: Histogram, wait: Histogram, send: Histogram) -> None:
        self._whole, self._queue, self._handle, self._wait, self._send = whole, queue, handle, wait, send

    def observe(self, staged: Staged, done_at: cython.double, sent_at: cython.double) -> None:
        """Count requests whose response was sent."""
        received_at: cython.double = staged.received_at
        begun_at: cython.double = staged.begun_at
        handled_at: cython.double = staged.handled_at
        count: cython.longlong = staged.count
        self._whole.count_times(sent_at - received_at, count)
        self._queue.count_times(begun_at - received_at, count)
        self._handle.count_times(handled_at - begun_at, count)
        self._wait.count_times(done_at - handled_at, count)
        self._send.count_times(sent_at - done_at, count)


@cython.cclass
class LoopClock:
    """A clock for trio that measures how long the event loop runs without returning to its I/O wait.

    trio reads its clock after each I/O wait, and queries the sleep time before the next one. Between two readings the
    loop is thus either asleep or occupied by a task. (A trio instrument would see every step of a task, at twice the
    cost of all other measurements together.) The methods are those of `trio.abc.Clock`.
    """

    doing = cython.declare(object, visibility="readonly")  # the API of the request being handled, where known
    began_at = cython.declare(cython.double, visibility="readonly")  # perf_counter seconds
    is_awake = cython.declare(cython.bint, visibility="readonly")
    _limit_s: cython.double
    _on_stall: object

    def __init__(self, limit_s: cython.double, on_stall: Callable[[float, float], None]) -> None:
        """Call `on_stall(began_at, ended_at)` when the loop was occupied for longer than the limit."""
        self.doing = ""
        self._limit_s = limit_s
        self._on_stall = on_stall

    def start_clock(self) -> None:
        """Do nothing: the clock needs no start."""

    def current_time(self) -> float:
        """Return the time in seconds, and begin a new measurement."""
        return self._pass("")

    def begin(self, doing: object) -> float:
        """Begin a new measurement, attributed to `doing`. Returns the time in perf_counter seconds."""
        return self._pass(doing)

    def deadline_to_sleep_time(self, deadline: cython.double) -> float:
        """Return how long the loop may sleep, and record that it sleeps."""
        now: cython.double = self._pass("")
        self.is_awake = False
        return deadline - now

    @cython.final
    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _pass(self, doing: object) -> cython.double:
        now: cython.double = monotonic()
        if self.is_awake and now - self.began_at > self._limit_s:
            self._on_stall(self.began_at, now)
        self.began_at, self.is_awake, self.doing = now, True, doing
        return now


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def monotonic() -> cython.double:
    """Return perf_counter seconds."""
    if cython.compiled:
        moment = cython.declare(timespec)
        clock_gettime(CLOCK_MONOTONIC, cython.address(moment))
        return moment.tv_sec + moment.tv_nsec * 1e-9
    else:  # noqa: RET505 - Cython would call it unreachable
        return perf_counter()


def wall_clock_ms() -> cython.longlong:
    """Return milliseconds since the epoch."""
    if cython.compiled:
        moment = cython.declare(timespec)
        clock_gettime(CLOCK_REALTIME, cython.address(moment))
        return moment.tv_sec * 1000 + moment.tv_nsec // 1000000
    else:  # noqa: RET505 - the same
        return time_ns() // 1_000_000
