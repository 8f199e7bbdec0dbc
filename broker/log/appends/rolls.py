"""Roll one log to a new segment: create its files, make it active, then trim and sync the sealed segment's files."""

from warmlog.broker.log.appends.appender import Appender, PreparedRoll
from warmlog.broker.log.appends.durability import Durability
from warmlog.broker.log.appends.planned import PlannedAppend
from warmlog.broker.log.log_state import LogOffsets, LogState
from warmlog.broker.log.segments.segment import Segment


class LogRolls:
    """The rolls of one log. For the event loop, unless marked "for a worker"."""

    __slots__ = ("_appender", "_durability", "_offsets", "_state")

    def __init__(self, state: LogState, offsets: LogOffsets, appender: Appender, durability: Durability) -> None:
        self._state = state
        self._offsets = offsets
        self._appender = appender
        self._durability = durability

    def prepare(self, planned: PlannedAppend) -> PreparedRoll:
        """Create the files of the segment that a plan begins. For a worker.

        A copy may leave a gap before it. Recovery cannot distinguish that from a lost end of the previous segment,
        which is therefore synced first. Raises OSError; then call `LogAppends.abandon`.
        """
        assert planned.new_tail is not None, "the plan rolls"
        if planned.new_tail.base_offset > self._offsets.log_end_offset:
            self._durability.begin_flush().sync()
        return self._appender.prepare_roll(planned.new_tail)

    def commit(self, prepared: PreparedRoll) -> Segment:
        """Make the new segment active; return the sealed one, for `finish`.

        Raises OSError if the sealed segment's last time index entry could not be written; then nothing has rolled, and
        `LogAppends.abandon` must be called.
        """
        sealed = self._appender.commit_roll(prepared)
        self._durability.names_made()
        return sealed

    def finish(self, sealed: Segment) -> None:
        """Truncate a sealed segment's files to their content, and sync them. For a worker.

        Raises OSError; a failed sync fails the log.
        """
        if self._state.closed:
            return
        self._appender.snapshots.write_taken()
        try:
            sealed.trim()
            self._durability.turns.take(sealed.sync)
        except FileNotFoundError:
            if not self._state.closed:  # otherwise the directory has been renamed for deletion
                raise
        sealed.synced = True
        sealed.close_writers()

    def roll(self) -> None:
        """Begin a new segment now, unless the active one is empty. Nothing may be planned. Blocking. Raises OSError."""
        if self._state.segments.active.size:
            self.finish(self.commit_early(self.prepare_early()))

    def prepare_early(self) -> PreparedRoll:
        """Create the files of a segment that begins at the log end without a plan. For a worker. Raises OSError.

        Continue with `commit_early` once nothing is planned, or with `PreparedRoll.forget`; the log end must not
        have moved.
        """
        return self._appender.prepare_roll(self._state.context.new_tail(self._offsets.log_end_offset))

    def commit_early(self, prepared: PreparedRoll) -> Segment:
        """Commit a roll as `commit` does; later plans use the new segment. Raises OSError."""
        sealed = self.commit(prepared)
        self._appender.abandon()
        return sealed

    @property
    def is_near(self) -> bool:
        """Whether the first roll since the log was opened is near, so that `announce` is due."""
        tail = self._appender.committed
        return tail.size * 2 > tail.segment_bytes and not self._appender.contiguity.is_ready

    def announce(self) -> None:
        """Sync, in advance, everything that the first roll would otherwise wait for. For a worker. Raises OSError."""
        self._appender.contiguity.include(self._state.segments.active.base_offset)

    def request(self) -> None:
        """Make the next plan begin a new segment, regardless of the size of the active one."""
        self._appender.request_roll()
