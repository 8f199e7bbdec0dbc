"""Times in options, and waiting at equal intervals."""

import time
from collections.abc import Callable
from contextlib import suppress

import click


def duration(value: str) -> float:
    """Parse `10s`, `500ms`, `5m` or `1h` into seconds."""
    from warmlog.pipeline.options import duration_ms

    milliseconds = 0
    with suppress(ValueError, KeyError):
        milliseconds = duration_ms(value, default_unit="")
    if not milliseconds:
        raise click.BadParameter(f"{value!r} is not a duration like 10s, 500ms, 5m or 1h.")
    return milliseconds / 1000


class Interval:
    """Waits for points in time at equal intervals; missed ones are skipped."""

    def __init__(
        self,
        every_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep
        self._next = clock() + every_s

    def wait(self) -> None:
        """Wait for the next point in time."""
        now = self._clock()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(self._next, now) + self._every_s
