"""Waiting for records: the notifications of a partition, and the waiter of one fetch."""

from collections.abc import Callable
from typing import Protocol


class FetchWaiter:
    """One waiting fetch. Calls `ready` once: when enough bytes became readable, or on another change.

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
        """Ignore changes of the log start offset and of settings."""

    def wake(self) -> None:
        """Call `ready` now."""
        self._call()

    def _call(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()


class Waiter(Protocol):
    """What a partition notifies: a waiting fetch, or a partition of a fetch session."""

    def grown(self, size: int) -> None:
        """Note that bytes became readable."""

    def moved(self) -> None:
        """Note that the log start offset or the settings have changed."""

    def wake(self) -> None:
        """Check again, after any other change."""
