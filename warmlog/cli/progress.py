"""The line that says how far long work has come.

Owns: its look, and that it shows only where a person sees it: standard error is a terminal. Must not know: what the
work is.

1. It is redrawn a few times a second, however often the work reports.
2. It is gone when the work ends; what is worth keeping, the command prints itself.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from warmlog.cli.output import binary_size

REDRAW_S = 0.2  # five times a second looks alive, and costs nothing beside the work
ERASE_LINE = "\r\x1b[K"


class Progress:
    """A context manager; `advance` counts.

    `total_size` (bytes): the line then tells per cent. `enabled` False: nothing is ever drawn.
    """

    def __init__(
        self,
        label: str,
        *,
        total_size: int | None = None,
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._total_size = total_size
        self._stream = stream or sys.stderr
        self._enabled = enabled and self._stream.isatty()
        self._clock = clock
        self._started = self._drawn = clock()
        self.count = 0
        self.size = 0

    def advance(self, count: int, size: int) -> None:
        """So many more items and bytes are done."""
        self.count += count
        self.size += size
        now = self._clock()
        if self._enabled and now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._stream.write(f"{ERASE_LINE}{self.line()}")
            self._stream.flush()

    def erase(self) -> None:
        """Make room for a line of output; the next report draws the line again."""
        if self._enabled:
            self._stream.write(ERASE_LINE)
            self._stream.flush()

    def line(self) -> str:
        """`words: 512,000 records, 48.1 MiB (42 %), 310,000 records/s`."""
        share = f" ({100 * self.size // self._total_size} %)" if self._total_size else ""
        return f"{self._label}: {self.count:,} records, {binary_size(self.size)}{share}, {self.rate():,.0f} records/s"

    def rate(self) -> float:
        """Items a second since the start."""
        return self.count / max(self.elapsed_s(), 1e-9)

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.erase()
