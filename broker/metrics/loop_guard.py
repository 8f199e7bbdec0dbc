"""What holds the event loop: the time from one reading of its clock to the next, and what it did meanwhile.

Owns: what is told, and the thread that looks at the loop's stack while it is held (`measuring.LoopClock` knows since
when). Must not know: what tasks do.

    loop     io | task | task | io | task ..................... | io    longer than the limit: told when it ends
    thread      .     .     .     .      look: half the limit is over   the stack as it was then

While the loop does nothing but sleep, the thread looks less often, and a short hold may go by unseen. It needs the GIL
for its look. Where it got none, the loop was inside the kernel or compiled code without giving up the GIL (a page fault
in a mapping does that), and that is told instead. If it was no request, either, nobody knows who it was: so from then
on, for a while, trio tells of each step that a task takes, and the next time it has a name.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from math import inf
from time import perf_counter
from types import FrameType

import trio
from trio.lowlevel import Task

from broker.metrics.requests import LoopClock

logger = logging.getLogger(__name__)

TELL_PAUSE_S = 1.0  # between two lines: a loop that is held all the time is not to be held by its log, too
TRIOS_LOOP = "unrolled_run"  # the function that takes the steps of all tasks
MAX_FRAMES = 6  # the innermost ones
QUIET_LOOKS = 100  # in a row at a loop that was asleep: then the thread looks five times less often, until it is awake
QUIET_TIMES = 5
NAMING_S = 60.0  # for which every step of a task is told: that costs some 2 % of a small request


class LoopGuard(LoopClock, trio.abc.Clock):
    """Watches the loop that was started with it as its clock, from the thread of which `watching` is entered."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s or inf, self._tell)
        self.held = 0  # how often, for longer than the limit
        self._is_watching = False
        self.is_quiet = False  # so that the thread looks less often
        self._look_s = limit_s / 4  # when it has been held for so long, it is looked at
        self._seen: tuple[float, str] = (0.0, "")  # since when it was held when it was looked at, and its stack
        self._tell_at = 0.0
        self._untold = 0
        self._ended = threading.Event()
        self._names = _TaskNames(self.begin)

    @property
    def clock(self) -> trio.abc.Clock | None:
        """For `trio.run`; with a limit of 0, trio's own."""
        return self if self._look_s else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the block; with a limit of 0, nothing."""
        if not self._look_s:
            yield
            return
        thread = threading.Thread(target=self._look_now_and_then, args=(threading.get_ident(),), daemon=True)
        thread.start()
        self.begin("")  # whatever has held the loop up to here, opening the metadata for one, kept nobody waiting
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False
            self._names.stop()
            self._ended.set()
            thread.join()

    def _tell(self, since: float, now: float) -> None:
        if not self._is_watching:
            return
        self.held += 1
        self._untold += 1
        if now < self._tell_at:
            return
        began_at, seen = self._seen
        if began_at != since:
            is_unseen = self.is_quiet and now - since < 2 * QUIET_TIMES * self._look_s
            seen = "nobody looked, since the loop had been asleep" if is_unseen else "without giving up the GIL"
            if not self.doing and not is_unseen:
                self._names.tell_until(now + NAMING_S)
        by = f" by {self.doing}" if self.doing else ""
        more = f" ({self._untold - 1} more were not told)" if self._untold > 1 else ""
        logger.warning("the event loop was held for %.0f ms%s: %s%s", (now - since) * 1e3, by, seen, more)
        self._untold = 0
        self._tell_at = now + TELL_PAUSE_S

    # -- the thread --

    def _look_now_and_then(self, loop_thread: int) -> None:
        """Twice within the limit, so that whatever is told has been looked at.

        Less often while the loop does nothing but sleep: most of what an idle broker used was to wake this thread.
        """
        asleep = 0
        while not self._ended.wait(self._look_s * 2 * (QUIET_TIMES if self.is_quiet else 1)):
            asleep = 0 if self.is_awake else asleep + 1
            self.is_quiet = asleep >= QUIET_LOOKS
            began_at = self.began_at
            if asleep or began_at == self._seen[0] or perf_counter() - began_at < self._look_s:
                continue
            frame = sys._current_frames().get(loop_thread)  # noqa: SLF001  # documented, underscore and all
            if frame is not None:
                self._seen = began_at, _in_words(frame)


class _TaskNames(trio.abc.Instrument):
    """Tells the name of each task that takes a step, for a while."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._until: float | None = None  # perf_counter seconds; none while trio does not know of this

    def tell_until(self, until: float) -> None:
        """From the loop's thread."""
        if self._until is None:
            trio.lowlevel.add_instrument(self)
        self._until = until

    def stop(self) -> None:
        """From the loop's thread."""
        if self._until is not None:
            trio.lowlevel.remove_instrument(self)
            self._until = None

    def before_task_step(self, task: Task) -> None:
        """Attribute what follows to this task."""
        self._tell(task.name)

    def before_io_wait(self, timeout: float) -> None:
        """Look whether it was long enough."""
        del timeout
        if self._until is not None and perf_counter() > self._until:
            self.stop()


def _in_words(frame: FrameType) -> str:
    """Describe the innermost frames of a task, without lines of code."""
    of_task = takewhile(lambda each: each[0].f_code.co_name != TRIOS_LOOP, traceback.walk_stack(frame))
    return " < ".join(f"{each.f_code.co_qualname} line {line}" for each, line in islice(of_task, MAX_FRAMES))
