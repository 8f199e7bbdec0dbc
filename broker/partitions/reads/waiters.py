"""Wait for records: the notifications of a partition, and the waiter of one fetch."""

from collections.abc import Callable
from typing import Protocol

from warmlog.broker.log.partition_log import PartitionLog


class FetchWaiter:
    """One waiting fetch. Calls `ready` once: when enough bytes became readable, or on another change.

    `ready` is called in the middle of a commit, so it must only record the event.
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
    """The interface of objects that a partition notifies: a waiting fetch, or a partition of a fetch session."""

    def grown(self, size: int) -> None:
        """Handle bytes that became readable."""

    def moved(self) -> None:
        """Handle a change of the log start offset or of settings."""

    def wake(self) -> None:
        """Check again after any other change. The waiter may be dismissed in this call."""


class WaitingFetches:
    """The objects to notify of changes of one log. Belongs to the event loop.

    Fetches of committed records are notified of bytes only while no transaction is open: otherwise an advance of the
    high watermark makes nothing readable for them, and they wait until the last stable offset advances. Fetches of
    followers are notified of bytes below the log end.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._waiters: set[Waiter] = set()
        self._committed: set[Waiter] = set()  # fetches of committed records
        self._followers: set[Waiter] = set()
        self._stable_end = 0  # the last stable offset of which `_committed` was notified
        self._was_stable = False  # whether it was the high watermark

    @property
    def is_empty(self) -> bool:
        """Whether no waiter depends on the high watermark."""
        return not self._waiters and not self._committed

    def enlist(self, waiter: Waiter, *, committed: bool, to_log_end: bool = False) -> None:
        """Notify a waiter of changes, until `dismiss`."""
        if to_log_end:
            self._followers.add(waiter)
            return
        if not committed:
            self._waiters.add(waiter)
            return
        if not self._committed:
            self._remember_stable_end()
        self._committed.add(waiter)

    def dismiss(self, waiter: Waiter) -> None:
        """Stop notifying a waiter."""
        self._waiters.discard(waiter)
        self._committed.discard(waiter)
        self._followers.discard(waiter)

    def appended(self, size: int) -> None:
        """Notify followers that the log end has advanced by `size` bytes."""
        for waiter in self._followers:
            waiter.grown(size)

    def grown(self, size: int) -> None:
        """Notify fetches that the high watermark has advanced by `size` bytes."""
        for waiter in self._waiters:
            waiter.grown(size)
        if self._committed:
            before, was_stable = self._stable_end, self._was_stable
            self._remember_stable_end()
            has_moved, is_stable = self._stable_end > before, was_stable and self._was_stable
            for waiter in tuple(self._committed):
                if is_stable:
                    waiter.grown(size)
                elif has_moved:
                    waiter.wake()
                else:
                    waiter.moved()  # the high watermark, which a fetch session reports
        for waiter in self._followers:
            waiter.moved()  # their next fetch gets it, unless `wake_followers` follows

    def shown(self, size: int | None) -> None:
        """Notify fetches of an advance of the high watermark by `size` bytes; None if unknown."""
        if size is None:
            self.wake()
        else:
            self.grown(size)

    def wake_followers(self) -> None:
        """End the waiting fetches of followers, so that they get the high watermark now, not with the next fetch."""
        for waiter in self._followers:
            waiter.wake()

    def moved(self) -> None:
        """Notify waiters of a change of the log start offset or of settings."""
        for waiters in (self._waiters, self._committed, self._followers):
            for waiter in waiters:
                waiter.moved()

    def wake(self) -> None:
        """Make every waiter check again."""
        self._remember_stable_end()  # it may have moved back
        for waiters in (self._waiters, self._committed, self._followers):
            for waiter in tuple(waiters):
                waiter.wake()

    def _remember_stable_end(self) -> None:
        self._stable_end = self._log.offsets.last_stable_offset
        self._was_stable = self._stable_end == self._log.offsets.high_watermark
