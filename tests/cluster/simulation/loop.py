"""Run the real code of several brokers in one loop, so that a run depends on a seed only.

trio shuffles the tasks that are ready; here by a generator with a known seed. Calls that
would run in worker threads run at once, on the loop, after a random pause of simulated time.
"""

import math
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

import trio
from trio._core import _run as trio_run

from warmlog.broker.partitions.disks import startup, storage

T = TypeVar("T")

MAX_THREAD_PAUSE_S = 0.004


def run(seed: int, main: Callable[[Random], Awaitable[T]]) -> T:
    """Run `main` with a generator of random numbers; the same seed gives the same run."""

    async def begin() -> T:
        return await main(Random(f"main {seed}"))

    clock = Clock()
    with _deterministic(seed, clock):
        return trio.run(begin, clock=clock)


class Clock(trio.abc.Clock):
    """Jumps to the next deadline as soon as no task can run, since nothing comes from outside of the loop.

    Costs about half as much as trio's `MockClock`, whose jumps take another turn of the loop.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Do nothing: the time begins at 0."""

    def current_time(self) -> float:
        """Return the simulated time, also to threads, and to code that measures how long something takes."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump: trio asks how long to sleep when no task can run."""
        if deadline == math.inf:  # at the end of a run, when trio wakes up itself
            return math.inf
        self._now = max(self._now, deadline)
        return 0.0


@contextmanager
def _deterministic(seed: int, clock: Clock) -> Iterator[None]:
    threads, entropy = Random(f"threads {seed}"), Random(f"entropy {seed}")

    async def run_sync(work: Callable[..., Any], *arguments: object, **_: object) -> Any:
        await trio.sleep(threads.random() * MAX_THREAD_PAUSE_S)
        return work(*arguments)

    with ExitStack() as stack:
        stack.enter_context(patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(patch.object(trio_run, "_r", _Tasks(Random(f"tasks {seed}"))))
        stack.enter_context(_patched_here(trio.to_thread, "run_sync", run_sync))
        stack.enter_context(_patched_here(trio.from_thread, "check_cancelled", lambda: None))
        stack.enter_context(_patched_here(time, "perf_counter", clock.current_time))
        stack.enter_context(_patched_here(time, "monotonic", clock.current_time))
        stack.enter_context(_patched_here(os, "urandom", entropy.randbytes))  # for uuid4
        for module in (startup, storage):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", _Inline))
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def _patched_here(module: object, name: str, simulated: Callable[..., Any]) -> Iterator[None]:
    """Replace a function for this thread, also in modules of warmlog that import it by name.

    Other threads may run brokers that are not simulated.
    """
    original = getattr(module, name)
    here = {threading.get_ident()}  # empty after the run, since modules that are imported in it keep `chosen`

    def chosen(*arguments: Any, **named: Any) -> Any:
        return (simulated if threading.get_ident() in here else original)(*arguments, **named)

    with ExitStack() as stack:
        for user in [module, *_importers(name, original)]:
            stack.enter_context(patch.object(user, name, chosen))
        try:
            yield
        finally:
            here.clear()


def _importers(name: str, function: Callable[..., Any]) -> list[object]:
    modules = [module for path, module in sys.modules.items() if path.startswith("warmlog.")]
    return [module for module in modules if vars(module).get(name) is function]


class _Tasks(Random):
    """By what trio orders the tasks of this thread's loop; loops of other threads must not draw from it."""

    def __init__(self, seeded: Random) -> None:
        super().__init__()
        self._me = threading.get_ident()
        self._seeded = seeded

    def random(self) -> float:
        """Return a number, a known one in this thread."""
        return self._seeded.random() if threading.get_ident() == self._me else super().random()

    def getrandbits(self, count: int, /) -> int:
        """Return bits, known ones in this thread."""
        return self._seeded.getrandbits(count) if threading.get_ident() == self._me else super().getrandbits(count)


class _Inline(Executor):
    """Runs work at once instead of in threads."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take no thread, whatever is asked for."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        """Run work."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*arguments, **named))
        except BaseException as error:  # noqa: BLE001  # raised where the result is taken
            future.set_exception(error)
        return future
