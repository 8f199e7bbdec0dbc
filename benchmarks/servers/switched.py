"""A broker whose residency gate or metrics can be switched while it serves.

So both sides of a comparison run in one process, with the same memory, sockets and other load on the machine.

    python -m benchmarks.servers.switched DIRECTORY

It prints `ready ... native=HOST:PORT ...`, then answers each line of `gate|measuring on|off` on standard input with
`done`.

The switch exists only here, not for users. With `measuring off`, nothing is counted, page faults are not queried, and
the event loop uses trio's own clock; a request still reads it about five times.
"""

import gc
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT, SystemClock  # no public API changes the clock of a running loop

from warmlog.broker.app import Broker
from warmlog.broker.listening import Addresses, listen
from warmlog.broker.log.io.page_cache import Off
from warmlog.broker.log.io.page_faults import PageFaults, Where
from warmlog.broker.metrics.families import SeriesCounter, SeriesHistogram
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.metrics.registry import RequestMetrics
from warmlog.broker.metrics.requests import Staged
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings

TRIOS_CLOCK = SystemClock(offset=0.0)  # the same time as the guard's clock, so that deadlines are valid on both sides


class SilentCounter(SeriesCounter):
    """Does not count."""

    __slots__ = ()

    def add(self, amount: float = 1) -> None:
        """Do nothing."""


class SilentHistogram(SeriesHistogram):
    """Does not count."""

    __slots__ = ()

    def observe(self, seconds: float) -> None:
        """Do nothing."""


class SilentRequestMetrics(RequestMetrics):
    """Does not count."""

    __slots__ = ()

    def observe(self, staged: Staged, done_at: float, sent_at: float) -> None:
        """Do nothing."""


class SilentPageFaults(PageFaults):
    """Does not query page faults."""

    __slots__ = ()

    def begin(self) -> None:
        """Do nothing."""

    def end(self, where: Where) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


SILENT: dict[type, type] = {
    SeriesCounter: SilentCounter,
    SeriesHistogram: SilentHistogram,
    RequestMetrics: SilentRequestMetrics,
    PageFaults: SilentPageFaults,
}
LOUD = {silent: loud for loud, silent in SILENT.items()}


class Switches:
    """The switches of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._residency = broker._files.residency  # noqa: SLF001  # the switch is not the broker's
        self._method = self._residency.method
        self._is_off: set[str] = set()

    def turn(self, what: str, *, on: bool) -> None:
        """Switch a feature, in the loop's thread."""
        turned: dict[str, Callable[[bool], None]] = {"gate": self._gate, "measuring": self._measuring}
        if on is (what in self._is_off):
            turned[what](on)
            self._is_off ^= {what}

    def _gate(self, on: bool) -> None:
        self._residency.method = self._method if on else Off()

    def _measuring(self, on: bool) -> None:
        become(LOUD if on else SILENT, gc.get_objects())
        GLOBAL_RUN_CONTEXT.runner.clock = self._broker.guard.clock if on else TRIOS_CLOCK


def become(other: dict[type, type], objects: Iterable[Any]) -> int:
    """Change the type of all objects of one type to the other; return their number."""
    changed = [each for each in objects if type(each) in other]
    for each in changed:
        each.__class__ = other[type(each)]
    return len(changed)


async def serve(settings: Settings, guard: LoopGuard) -> None:
    """Serve until standard input ends."""
    with ExitStack() as stack:
        free = "127.0.0.1:0"
        listening = await listen(settings, stack, kafka=free, native=free, http=free)
        broker, stop = Broker(settings, stack, guard, listening), trio.Event()

        async def obey() -> None:
            await started.wait()
            switches = Switches(broker)
            while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                what, state = line.split()
                switches.turn(what, on=state == "on")
                print("done", flush=True)
            stop.set()

        def ready(addresses: Addresses) -> None:
            gc.collect()
            print(addresses.line(), flush=True)
            started.set()

        started = trio.Event()
        with broker.guard.watching():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(obey)
                await broker.serve(ready, stop)


def main() -> None:
    """Serve the directory named on the command line."""
    settings = load_settings(data_dir=Path(sys.argv[1]))
    guard = LoopGuard(settings.warmlog_loop_stall_log_ms / 1000)
    trio.run(serve, settings, guard, clock=guard.clock)


if __name__ == "__main__":
    main()
