"""A rate-limited log of rejected appends.

A full disk can affect every log, and clients that retry immediately would cause thousands of lines per second.
"""

import logging
import math

import trio

logger = logging.getLogger(__name__)

PAUSE_S = 10.0


class RefusalLog:
    """Logs rejected appends of the log or resource called `name`, and the end of the rejections."""

    __slots__ = ("_count", "_name", "_next_at", "is_active")

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0  # appends rejected since the last line
        self._next_at = -math.inf  # by trio's clock
        self.is_active = False  # rejections were logged since `end` was last called

    def report(self, reason: object, count: int) -> None:
        """Count rejected appends, and log them unless a line was logged recently."""
        now = trio.current_time()
        self._count += count
        if now >= self._next_at:
            logger.error("%s; %d appends rejected", reason, self._count)
            self._count = 0
            self._next_at = now + PAUSE_S
            self.is_active = True

    def end(self) -> None:
        """Log that appends are accepted again."""
        logger.warning("%s: accepting appends again; %d more were rejected", self._name, self._count)
        self._count = 0
        self.is_active = False
