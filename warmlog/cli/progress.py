"""The progress line of long operations, on standard error if that is a terminal.

It is redrawn at most every `REDRAW_S` seconds and erased at the end.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from warmlog.cli.output import binary_size

REDRAW_S = 0.2
ERASE_LINE = "\r\x1b[K"


class Progress:
    """A context manager that counts items and bytes and draws the line.

    With `total_size` (bytes) the line also shows a percentage. If `enabled` is False, nothing is drawn.
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
        """Count finished items and bytes, and redraw the line if it is due."""
        self.count += count
        self.size += size
        now = self._clock()
        if self._enabled and now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._stream.write(f"{ERASE_LINE}{self.line()}")
            self._stream.flush()

    def erase(self) -> None:
        """Erase the line before other output; the next `advance` may draw it again."""
        if self._enabled:
            self._stream.write(ERASE_LINE)
            self._stream.flush()

    def line(self) -> str:
        """Format as `words: 512,000 records, 48.1 MiB (42 %), 310,000 records/s`."""
        share = f" ({100 * self.size // self._total_size} %)" if self._total_size else ""
        return f"{self._label}: {self.count:,} records, {binary_size(self.size)}{share}, {self.rate():,.0f} records/s"

    def rate(self) -> float:
        """Return items per second since the start."""
        return self.count / max(self.elapsed_s(), 1e-9)

    def elapsed_s(self) -> float:
        """Return seconds since the start."""
        return self._clock() - self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.erase()
