"""Advance the start of one log, cut its end, or restart it at another offset."""

from warmlog.broker.log.appends.appender import Appender
from warmlog.broker.log.appends.durability import Durability
from warmlog.broker.log.errors import OffsetOutOfRangeError
from warmlog.broker.log.log_state import LogOffsets, LogState
from warmlog.broker.log.producers.replay import states_at
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.producers.transactions import UnstableTransactions
from warmlog.broker.log.recovery.truncate import cut_segments, restart_at


class LogTruncation:
    """The truncations of one log. All but `advance_start` and `prepare_truncate_fully` are blocking."""

    __slots__ = ("_appender", "_durability", "_offsets", "_state")

    def __init__(self, state: LogState, offsets: LogOffsets, appender: Appender, durability: Durability) -> None:
        self._state = state
        self._offsets = offsets
        self._appender = appender
        self._durability = durability

    def advance_start(self, offset: int) -> bool:
        """Advance the log start offset; return False if it is already at or past the new one.

        Segments below it stay until `old_segments.take_out`. Raises OffsetOutOfRangeError past the high watermark.
        """
        offsets = self._offsets
        if not 0 <= offset <= offsets.high_watermark:
            raise OffsetOutOfRangeError(offset, offsets.log_start_offset, offsets.high_watermark)
        if offset <= offsets.log_start_offset:
            return False
        offsets.log_start_offset = offset
        offsets.show(offsets.high_watermark)
        self._state.epochs.truncate_from_start(offset)
        return True

    def truncate_to(self, offset: int) -> None:
        """Remove every batch with a record at or past `offset`, and the leader epochs without records at the end.

        For a follower that has diverged from its leader: if its last epoch stayed without records, every fetch would
        diverge again. The log ends after the last remaining batch. Nothing may be planned, and no worker may use the
        log. Blocking. Raises OSError.

        To truncate below the recovery point, call `Durability.lower_recovery_point` and write a checkpoint first: after
        a crash, recovery repairs a truncation that was interrupted, or records appended after it, only past the
        checkpointed recovery point.
        """
        if offset < self._offsets.log_end_offset:
            self._durability.names_made()
            try:
                self._truncate(offset)
            except OSError as error:
                self._state.fail(error)
                raise
        self._state.epochs.truncate_from_end(self._offsets.log_end_offset)
        self._durability.checkpoint_epochs()

    def _truncate(self, offset: int) -> None:
        state, offsets, context = self._state, self._offsets, self._state.context
        state.segments, tail = cut_segments(context, state.segments, offset, self._appender.contiguity)
        end = tail.next_offset
        start = min(offsets.log_start_offset, end)
        self._appender.restart(tail, self._rebuild_producers(end))
        # Only now, because reopening compares the remaining records with them.
        offsets.log_start_offset, offsets.log_end_offset = start, end
        offsets.show(min(offsets.high_watermark, end))
        self.find_unstable()
        self._durability.truncated(end, offsets.end_of_transactions())
        # Removed segments, and above all producer snapshots, must not reappear beside new records.
        context.disk.sync_directory(context.directory)

    def prepare_truncate_fully(self, offset: int) -> None:
        """Announce `truncate_fully`; write a checkpoint before calling it. Memory only.

        If it is interrupted, the next startup finds the log as it was, a part of it, or an empty log at `offset`. Until
        then readers find nothing below `offset`.
        """
        first = self._state.segments.first.base_offset
        if offset <= self._offsets.log_end_offset:
            self._durability.lower_recovery_point(min(first, offset))
        self._offsets.log_start_offset = max(offset, first)

    def truncate_fully(self, offset: int) -> None:
        """Remove everything; the log then begins and ends at `offset`. Blocking. Raises OSError.

        For a follower whose leader no longer has records at its log end. Nothing may be planned, and no worker may
        use the log. Call `prepare_truncate_fully` first.
        """
        self._durability.names_made()
        state, appender, context = self._state, self._appender, self._state.context
        end = self._offsets.log_end_offset
        try:
            restarted = restart_at(context, state.segments, offset, appender.contiguity, appender.snapshots, end=end)
        except OSError as error:
            state.fail(error)
            raise
        state.segments, tail = restarted
        self._offsets.log_start_offset = self._offsets.log_end_offset = offset
        appender.restart(tail, Producers(context.clock, context.budget))
        self._offsets.show(offset)
        self._durability.reopened(offset)
        state.epochs.truncate_from_end(0)
        self._durability.checkpoint_epochs()

    def find_unstable(self) -> None:
        """Find the transactions open at the high watermark whose markers lie past it. Blocking. Raises OSError."""
        shown, end = self._offsets.high_watermark, self._offsets.log_end_offset
        if shown == end:
            return
        snapshots = self._appender.snapshots
        snapshots.find()
        unstable = UnstableTransactions()
        for state in states_at(snapshots, self._state.segments.snapshot, shown).values():
            first_offset = state.transaction_first_offset
            if first_offset >= 0 and self._state.producers.open_transactions.get(state.producer_id) != first_offset:
                unstable.add(first_offset, end - 1)
        self._state.producers.unstable = unstable
        self._offsets.show(shown)

    def _rebuild_producers(self, end: int) -> Producers:
        snapshots = self._appender.snapshots
        snapshots.find()
        before = self._state.producers.capture()
        return self._state.context.rebuild_producers(snapshots, self._state.segments.snapshot, end, before=before)
