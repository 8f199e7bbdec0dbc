"""Who waits for a log to grow: what a partition tells them, and how a fetch waits."""

from typing import Protocol

import trio


class FetchWaiter:
    """One waiting fetch.

    Woken when the partitions it is enlisted with have grown by so many bytes, or one of them has changed otherwise.
    """

    __slots__ = ("_event", "_missing_bytes", "was_told")

    def __init__(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self._event = trio.Event()
        self.was_told = False  # of anything at all

    def grown(self, size: int) -> None:
        """Count bytes that became readable."""
        self.was_told = True
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self._event.set()

    def moved(self) -> None:
        """Note a change that is not waited for."""
        self.was_told = True

    def wake(self) -> None:
        """Look again, whatever has come."""
        self.was_told = True
        self._event.set()

    async def wait(self) -> None:
        """Return when enough has come."""
        await self._event.wait()


class Waiter(Protocol):
    """What is told that a log grows: a waiting fetch, or a partition of a fetch session."""

    def grown(self, size: int) -> None:
        """So many bytes became readable."""

    def moved(self) -> None:
        """The log start or the settings have changed."""

    def wake(self) -> None:
        """Something else has changed: look again."""
