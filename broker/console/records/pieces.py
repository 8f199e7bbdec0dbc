"""Divide a thread's work into pieces with pauses, so that the event loop need not wait for the GIL.

Compiled code keeps the GIL until it returns: a thread that decodes a batch of 16 MiB would block the event loop for
tens of milliseconds. The console decodes record by record in Python, and pauses for as long as it has worked, so that
it takes at most half of a core; only one thread decodes at a time (`Tools.worker`).
"""

from time import perf_counter, sleep
from typing import Final

PIECE_S: Final = 0.0002  # seconds of work before a pause


class Pieces:
    """The work of one thread."""

    __slots__ = ("_began_at",)

    def __init__(self) -> None:
        self._began_at = perf_counter()

    def pause(self) -> None:
        """Pause if a piece is done. Call it after each record."""
        worked = perf_counter() - self._began_at
        if worked >= PIECE_S:
            sleep(worked)
            self._began_at = perf_counter()
