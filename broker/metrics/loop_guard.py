"""Detect and log what stalls the event loop.

`LoopClock` measures how long the loop has been running without an I/O wait. A watcher thread samples the loop's stack
after half of the limit, and the loop itself logs the stall when it ends:

    loop     I/O | task | task | I/O | task ....................... | I/O    longer than the limit: logged when it ends
    thread      .      .     .     .       half of the limit: sample the stack

While the loop is idle the thread samples less often, so the stack of a short stall may be missing. Sampling needs the
GIL. If the thread could not get it, the loop was inside the kernel or compiled code without releasing the GIL, for
example in a page fault in a mapping, and that is logged instead. If the stall cannot be attributed to a request either,
a trio instrument names each task step for the next minute, so that the next such stall has a name. Where the loop was
ready to run for most of a stall, while the processors were busy with other threads, the log says that as well.
"""

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from math import inf
from time import perf_counter
from types import FrameType
from typing import NamedTuple

import trio
from trio.lowlevel import Task

from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.metrics.requests import LoopClock, wall_clock_ms
from warmlog.broker.metrics.run_delay import RunDelay

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 1.0  # interval between lines: logging must not add to the stalls of an overloaded loop
TRIO_RUN_LOOP = "unrolled_run"  # the name of trio's function that runs all tasks
MAX_FRAMES = 6  # the innermost frames of a stack
QUIET_SAMPLES = 100  # consecutive samples of a sleeping loop before the thread samples less often
QUIET_FACTOR = 5
KEPT_STALLS = 20
NAMING_S = 60.0  # naming every step of a task costs about 2 % of a small request


class Stall(NamedTuple):
    """A stall that was logged: when it ended, the API of the request, the stack. `api` is empty if it is not known."""

    at_ms: int
    seconds: float
    api: str
    stack: str


class LoopGuard(LoopClock, trio.abc.Clock):
    """Watches the event loop that runs with `clock`; enter `watching` in that loop's thread."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s or inf, self._log_stall)
        self.held = 0  # stalls longer than the limit
        self.recent: deque[Stall] = deque(maxlen=KEPT_STALLS)
        self._is_watching = False
        self.is_quiet = False  # the loop is idle, and the thread samples less often
        self._sample_s = limit_s / 4  # duration after which a stall is sampled
        self._sample: tuple[float, str] = (0.0, "")  # the beginning of the stall sampled last, and its stack
        self._next_log_at = 0.0
        self._unlogged = 0
        self._ended = threading.Event()
        self._names = _TaskNames(self.begin)
        self._run_delay: RunDelay | None = None  # of the loop's thread, while watching
        self._delayed_s = 0.0  # as the thread read it last before a stall

    def declare(self, metrics: Metrics) -> None:
        """Declare the metric of stalls."""
        metrics.counter(
            "warmlog_loop_holds_total",
            "Stalls of the event loop longer than warmlog.loop.stall.log.ms.",
            lambda: [((), self.held)],
        )

    @property
    def clock(self) -> trio.abc.Clock | None:
        """Return the clock for `trio.run`, or None (trio's own) with a limit of 0."""
        return self if self._sample_s else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the block; do nothing with a limit of 0."""
        if not self._sample_s:
            yield
            return
        self._run_delay = RunDelay(threading.get_native_id())
        self._delayed_s = self._run_delay.seconds()
        thread = threading.Thread(target=self._sample_periodically, args=(threading.get_ident(),), daemon=True)
        thread.start()
        self.begin("")  # discard the time up to here: startup stalled the loop before there were clients
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False
            self._names.stop()
            self._ended.set()
            thread.join()
            self._run_delay.close()

    def _log_stall(self, since: float, now: float) -> None:
        if not self._is_watching:
            return
        self.held += 1
        self._unlogged += 1
        if now < self._next_log_at:
            return
        began_at, stack = self._sample
        delayed_s = self._delay_of(now - since)
        is_delayed = delayed_s > (now - since) / 2
        if began_at != since:
            stack = "without releasing the GIL"
            if self.is_quiet and now - since < 2 * QUIET_FACTOR * self._sample_s:
                stack = "no stack was sampled, the loop had been idle"
            elif is_delayed:
                stack = "no stack was sampled"
            elif not self.doing:
                self._names.enable_until(now + NAMING_S)
        if is_delayed:
            delay = f"for {delayed_s * 1e3:.0f} ms of it, it waited for a processor that others used"
            stack = f"{stack}; {delay}" if stack else delay
        by = f" by {self.doing}" if self.doing else ""
        more = f" ({self._unlogged - 1} more not logged)" if self._unlogged > 1 else ""
        logger.warning("the event loop was held for %.0f ms%s: %s%s", (now - since) * 1e3, by, stack, more)
        self.recent.append(Stall(wall_clock_ms(), now - since, str(self.doing), stack))
        self._unlogged = 0
        self._next_log_at = now + LOG_INTERVAL_S

    def _delay_of(self, stall_s: float) -> float:
        """Return for how much of a stall that just ended the loop was ready to run."""
        if self._run_delay is None:
            return 0.0
        before_s, self._delayed_s = self._delayed_s, self._run_delay.seconds()
        return min(self._delayed_s - before_s, stall_s)

    # -- the thread --

    def _sample_periodically(self, loop_thread: int) -> None:
        """Sample twice within the limit, so that every logged stall was sampled.

        Sample less often while the loop is idle: waking this thread was most of an idle broker's CPU time.
        """
        asleep = 0
        while not self._ended.wait(self._sample_s * 2 * (QUIET_FACTOR if self.is_quiet else 1)):
            asleep = 0 if self.is_awake else asleep + 1
            self.is_quiet = asleep >= QUIET_SAMPLES
            began_at = self.began_at
            is_held = not asleep and perf_counter() - began_at >= self._sample_s
            if not is_held and self._run_delay is not None:
                self._delayed_s = self._run_delay.seconds()
            if not is_held or began_at == self._sample[0]:
                continue
            frame = sys._current_frames().get(loop_thread)  # noqa: SLF001  # documented despite its name
            if frame is not None:
                self._sample = began_at, _format_stack(frame)


class _TaskNames(trio.abc.Instrument):
    """Report the name of each task that runs, while enabled."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._until: float | None = None  # perf_counter seconds; None while disabled

    def enable_until(self, until: float) -> None:
        """Enable until a time in perf_counter seconds. Call from the loop's thread."""
        if self._until is None:
            trio.lowlevel.add_instrument(self)
        self._until = until

    def stop(self) -> None:
        """Disable. Call from the loop's thread."""
        if self._until is not None:
            trio.lowlevel.remove_instrument(self)
            self._until = None

    def before_task_step(self, task: Task) -> None:
        """Attribute the following time to a task."""
        self._report(task.name)

    def before_io_wait(self, timeout: float) -> None:
        """Disable after the time set."""
        del timeout
        if self._until is not None and perf_counter() > self._until:
            self.stop()


def _format_stack(frame: FrameType) -> str:
    """Return the innermost frames of a task's stack in one line."""
    of_task = takewhile(lambda each: each[0].f_code.co_name != TRIO_RUN_LOOP, traceback.walk_stack(frame))
    return " < ".join(f"{each.f_code.co_qualname} line {line}" for each, line in islice(of_task, MAX_FRAMES))
