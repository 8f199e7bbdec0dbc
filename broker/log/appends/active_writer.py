"""Write to the active segment's files, undo failed writes, and mark the log as failed if one cannot be undone.

Invariants:
1. A write succeeds as a whole, or the file keeps its length.
2. A full disk or quota (ENOSPC, EDQUOT) does not fail the log. Any other write error and a failed sync do: after a
   failed sync, Linux marks the pages as clean, so that a second sync would succeed without having written them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from warmlog.broker.log.index.transaction import AbortedTransaction
from warmlog.broker.log.io.disk import is_out_of_space
from warmlog.broker.log.io.shared_writes import FileWrite, SharedWrites
from warmlog.broker.log.log_state import LogState
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import IndexEntries


class ActiveWriter:
    """The writer of one log, which it marks as failed."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def end_write(self, active: Segment, writes: SharedWrites, write: FileWrite) -> None:
        """End a write to the log file. Raises OSError, after the file was truncated to its previous size."""
        try:
            writes.end(write)
        except OSError as error:
            self._cut_back(active, write.position, error)
            raise

    def write_entries(self, active: Segment, entries: IndexEntries, aborted: Sequence[AbortedTransaction] = ()) -> bool:
        """Append entries to the indexes; return whether a file was created.

        Raises OSError, after the indexes and the log file were truncated to their committed content.
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
            with self._failing_log():
                offset_index.keep_entries(offsets)
            with self._failing_log():
                time_index.keep_entries(times)
            raise

    def _cut_back(self, active: Segment, position: int, error: OSError) -> None:
        if not is_out_of_space(error):
            self._state.fail(error)
        with self._failing_log():
            active.append_descriptor().truncate(position)

    @contextmanager
    def _failing_log(self) -> Iterator[None]:
        """Fail the log on an error while undoing a write, without raising it: the caller raises the write's error."""
        try:
            yield
        except OSError as error:
            self._state.fail(error)
