"""Waiting for a log to grow: what a partition reports, and the waiter of one fetch."""

from collections.abc import Callable
from typing import Protocol


class FetchWaiter:
    """One waiting fetch. Calls `ready` once: when enough bytes have become readable, or something else has changed.

    `ready` is called in the middle of a commit, so it must only take note.
    """

    __slots__ = ("_missing_bytes", "_ready")

    def __init__(self, missing_bytes: int, ready: Callable[[], None]) -> None:
        self._missing_bytes = missing_bytes
        self._ready: Callable[[], None] | None = ready

    def grown(self, size: int) -> None:
        """Count bytes that became readable."""
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self._call()

    def moved(self) -> None:
        """Ignore a change that is not waited for."""

    def wake(self) -> None:
        """Look again, however little has come."""
        self._call()

    def _call(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()


class Waiter(Protocol):
    """Anything enlisted with a partition: a waiting fetch, or a partition of a fetch session."""

    def grown(self, size: int) -> None:
        """Take note that so many bytes became readable."""

    def moved(self) -> None:
        """The log start or the settings have changed."""

    def wake(self) -> None:
        """Look again: something else has changed."""
