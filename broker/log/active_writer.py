"""Writing to the active segment's files so that a failure leaves nothing behind.

Owns: the writes of appends and rolls, the way back when one fails, and whether the log is still in service. Must not
know offsets, plans or readers.

Invariants:
1. A write succeeds as a whole, or the file is as long as before.
2. Want of room (ENOSPC, EDQUOT) leaves the log in service. Any other error of a write puts it out of service, and so
   does a failed sync: Linux then marks the pages as clean, so a second sync of the file would succeed and say nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.log.append import Buffer, IndexEntries
from broker.log.index.transaction import AbortedTransaction
from broker.log.io.disk import is_out_of_room
from broker.log.segment import Segment


class ActiveWriter:
    """Writes for one log. `failure` says why it is out of service; None while it is in service."""

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: str | None = None

    def fail(self, reason: object) -> None:
        """Put the log out of service for writes; the first reason stays."""
        if self.failure is None:
            self.failure = str(reason)

    def restore(self) -> None:
        """In service again: the files are others, and sound."""
        self.failure = None

    def write_batches(self, active: Segment, buffers: list[Buffer], position: int) -> None:
        """Write buffers end to end into the log file. Raises OSError."""
        file = active.append_descriptor()
        try:
            file.write_all(buffers, position)
        except OSError as error:
            self._cut_back(active, position, error)
            raise

    def write_entries(self, active: Segment, entries: IndexEntries, aborted: Sequence[AbortedTransaction] = ()) -> bool:
        """Write entries into all indexes, or into none, and then cut the log file back to `active.size`.

        Returns whether a file was created. Raises OSError.
        """
        offset_index, time_index = active.offset_index, active.time_index
        offsets, times = offset_index.entries, time_index.entries
        try:
            if entries.offset_index:
                offset_index.append_encoded(entries.offset_index)
            if entries.time_index:
                time_index.append_encoded(entries.time_index)
            return active.add_aborted(aborted) if aborted else False
        except OSError as error:
            self._cut_back(active, active.size, error)
            with self._failing():
                offset_index.keep_entries(offsets)
            with self._failing():
                time_index.keep_entries(times)
            raise

    def _cut_back(self, active: Segment, position: int, error: OSError) -> None:
        if not is_out_of_room(error):
            self.fail(error)
        with self._failing():
            active.append_descriptor().truncate(position)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error on the way back puts the log out of service; the first error is the one to raise."""
        try:
            yield
        except OSError as error:
            self.fail(error)
