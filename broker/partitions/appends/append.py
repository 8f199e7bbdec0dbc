"""One pending append and its outcome."""

from collections.abc import Callable

import trio

from warmlog.broker.log.appends.planned import PlannedAppend
from warmlog.broker.log.partition_log import PartitionLog


class StorageError(Exception):
    """A log could not be written or flushed, so the request was not stored: KAFKA_STORAGE_ERROR for clients."""


class Append:
    """A pending append. It is settled when it is written (and flushed, if required) or has failed."""

    __slots__ = ("_notify", "done", "error", "log", "planned")

    planned: PlannedAppend  # unset if the append is rejected during decompression

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.done = False
        self.error: Exception | None = None  # an error of `AppendQueue.append`, or a StorageError
        self._notify: Callable[[], None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """Set the outcome, and call the callback of `notify`."""
        self.done = True
        self.error = error
        notify, self._notify = self._notify, None  # it often refers to the owner of this append
        if notify is not None:
            notify()

    def notify(self, settled: Callable[[], None]) -> None:
        """Call back when settled, or now if it already is. Only the most recently registered callback is called.

        It is called in the middle of a commit, so it must only record the event.
        """
        if self.done:
            settled()
        else:
            self._notify = settled

    async def wait(self) -> None:
        """Wait until settled; `error` has the outcome. Replaces the callback of `notify`."""
        if not self.done:
            event = trio.Event()
            self.notify(event.set)
            await event.wait()
