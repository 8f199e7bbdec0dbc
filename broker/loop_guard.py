"""What holds the event loop: every step of a task is timed, and one that took too long is told, with what it was.

Owns: what is told, and the thread that looks at the loop's stack while a step takes long (`measuring.Steps` knows which
one it is, and since when). Must not know: what tasks do.

    loop     step | step | step ............................... | io    longer than the limit: told when it ends
    thread      .     .     .  look: half the limit is over       .     the stack as it was then

The thread needs the GIL for its look. Where it got none, the step was inside the kernel or compiled code without giving
up the GIL (a page fault in a mapping does that), and that is told instead.

Both hooks together cost some 0.4 us a turn of the loop, 0.9 without the compiled twin; `warmlog.loop.stall.log.ms=0`
leaves them out.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

import trio
from trio.lowlevel import Task

from broker.measuring import Steps

logger = logging.getLogger(__name__)

TELL_PAUSE_S = 1.0  # between two lines: a loop that is held all the time is not to be held by its log, too
MAX_FRAMES = 6  # the innermost ones


class LoopGuard(Steps, trio.abc.Instrument):
    """Watches the loop of the thread that enters `watching`."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s, self._tell)
        self.held = 0  # steps that took longer than the limit
        self._look_s = limit_s / 4  # a step that has taken so long is looked at
        self._seen: tuple[float, str] = (0.0, "")  # when the step that was looked at began, and its stack
        self._tell_at = 0.0
        self._untold = 0
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread's loop until the end of the block; with a limit of 0, nothing."""
        if not self._look_s:
            yield
            return
        thread = threading.Thread(target=self._look_now_and_then, args=(threading.get_ident(),), daemon=True)
        thread.start()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)
            self._ended.set()
            thread.join()

    def _tell(self, task: Task, now: float) -> None:
        self.held += 1
        self._untold += 1
        if now < self._tell_at:
            return
        began_at, stack = self._seen
        if began_at != self.began_at:
            stack = "without giving up the GIL"
        doing = f", {self.doing}" if self.doing else ""
        more = f" ({self._untold - 1} more were not told)" if self._untold > 1 else ""
        held_ms = (now - self.began_at) * 1e3
        logger.warning("the event loop was held for %.0f ms by %s%s: %s%s", held_ms, task.name, doing, stack, more)
        self._untold = 0
        self._tell_at = now + TELL_PAUSE_S

    # -- the thread --

    def _look_now_and_then(self, loop_thread: int) -> None:
        """Twice within the limit, so that every step that is told has been looked at."""
        while not self._ended.wait(self._look_s * 2):
            began_at = self.began_at
            if self.task is None or began_at == self._seen[0] or perf_counter() - began_at < self._look_s:
                continue
            frame = sys._current_frames().get(loop_thread)  # noqa: SLF001  # documented, underscore and all
            if frame is not None:
                self._seen = began_at, _in_words(frame)


def _in_words(frame: FrameType) -> str:
    """The innermost frames, without the lines of code."""
    frames = list(traceback.walk_stack(frame))[:MAX_FRAMES]
    return " < ".join(f"{each.f_code.co_qualname} line {line}" for each, line in frames)
