"""What is told of appends that a log refuses: at once, then now and then, and when it is over.

The disk may be full of logs, and a client that tries again at once would else write a thousand lines a second.
"""

import logging
import math

import trio

logger = logging.getLogger(__name__)

PAUSE_S = 10.0


class Refusals:
    """Of one log, called `name`."""

    __slots__ = ("_count", "_name", "_tell_at", "told")

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0  # appends, since that was last told
        self._tell_at = -math.inf  # by trio's clock
        self.told = False  # and `over` has not been called since

    def tell(self, reason: object, count: int) -> None:
        """So many appends were refused."""
        now = trio.current_time()
        self._count += count
        if now >= self._tell_at:
            logger.error("%s; %d appends refused", reason, self._count)
            self._count = 0
            self._tell_at = now + PAUSE_S
            self.told = True

    def over(self) -> None:
        """Writes go on."""
        logger.warning("%s: writes go on; %d more appends were refused", self._name, self._count)
        self._count = 0
        self.told = False
