"""Read one log: slices of its segments, offsets by time, and descriptions of its content."""

from warmlog.broker.log.appends.durability import Durability
from warmlog.broker.log.descriptions import LogDescription, LogRead
from warmlog.broker.log.errors import OffsetOutOfRangeError
from warmlog.broker.log.index.time import TimestampOffset
from warmlog.broker.log.io.unreadable import BatchReader
from warmlog.broker.log.log_state import LogOffsets, LogState
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.reads.describe import describe_segment
from warmlog.broker.log.reads.explain import LogSnapshot, take_snapshot
from warmlog.broker.log.reads.reading import aborted_in, read_slice
from warmlog.broker.log.reads.time_search import TimeView, first_at_or_past, largest
from warmlog.broker.log.recovery.index_repair import IndexRepair
from warmlog.broker.log.recovery.rebuild_transactions import rebuild_sealed


class LogReads:
    """The read side of a log. For the event loop, unless marked "for a worker"."""

    __slots__ = ("_durability", "_indexes", "_offsets", "_state")

    def __init__(self, state: LogState, offsets: LogOffsets, durability: Durability, indexes: IndexRepair) -> None:
        self._state = state
        self._offsets = offsets
        self._durability = durability
        self._indexes = indexes

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_end: int | None = None,
        min_one_batch: bool = False,
        with_aborted: bool = False,
    ) -> LogRead:
        """Return a slice of at most `max_bytes` from the batch that contains `offset`, or the next one after a gap.

        The slice ends before `isolation_end` (None: the log end), possibly inside a batch. At or past that bound, or
        with `max_bytes` 0, there is no slice, only a position. `min_one_batch`: include the whole first batch, even
        if it is larger than `max_bytes`. `with_aborted`: also find the aborted transactions of the slice.

        Raises OffsetOutOfRangeError, ValueError for a negative `max_bytes`, IndexCorruptError (see `rebuild_indexes`),
        OSError.
        """
        if self._state.closed:
            raise self._state.refusal()
        if max_bytes < 0:
            raise ValueError(f"max_bytes is negative: {max_bytes}")
        log_end = self._offsets.log_end_offset
        if not self._offsets.log_start_offset <= offset <= log_end:
            raise OffsetOutOfRangeError(offset, self._offsets.log_start_offset, log_end)
        bound = None if isolation_end is None or isolation_end >= log_end else isolation_end
        search = self._state.context.config.index_search
        segments = self._state.segments
        if offset == log_end:
            return LogRead(None, segments.active.base_offset, segments.active.size)
        result = read_slice(segments, offset, max_bytes, bound=bound, search=search, min_one_batch=min_one_batch)
        if with_aborted and result.slice is not None:
            aborted = aborted_in(segments, offset, result, log_end)
            if aborted:
                result = result._replace(aborted=aborted)
        return result

    # -- time ----------------------------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp: int, *, isolation_end: int | None = None) -> TimestampOffset | None:
        """Find the first record at or past a timestamp (ms); None if there is none.

        For a worker, during appends and rolls, too. Rebuilds corrupt indexes of sealed segments. Raises OSError;
        CorruptBatchError for a damaged batch; IndexCorruptError for the active segment.
        """
        return self._indexes.run(
            lambda: first_at_or_past(self._time_view(isolation_end), timestamp), self._state.context.config
        )

    def largest_timestamp(self) -> TimestampOffset | None:
        """Find the first record with the largest timestamp, or None. For a worker. Raises as `offset_for_time` does."""
        return self._indexes.run(lambda: largest(self._time_view(None)), self._state.context.config)

    def _time_view(self, isolation_end: int | None) -> TimeView:
        end = self._offsets.log_end_offset
        return TimeView(
            segments=self._state.segments.snapshot,
            start_offset=self._offsets.log_start_offset,
            end_offset=end if isolation_end is None else min(end, isolation_end),
            search=self._state.context.config.index_search,
            note_unreadable=lambda base_offset, reason: self.note_unreadable("time_lookup", base_offset, reason),
        )

    def rebuild_indexes(self, base_offset: int) -> None:
        """Rebuild a sealed segment's indexes from its log, after IndexCorruptError. For a worker. Raises OSError.

        An active segment must be sealed first.
        """
        self._indexes.rebuild(base_offset, self._state.context.config)
        with self._indexes.moving:
            segment = self._state.segments.get(base_offset)
            if segment is not None and segment.may_have_aborted and not self._state.segments.is_untrimmed(base_offset):
                snapshots = ProducerSnapshots(self._state.context.disk, self._state.context.directory)
                snapshots.find()
                rebuild_sealed(snapshots, self._state.segments.snapshot, segment)

    def note_unreadable(self, reader: BatchReader, base_offset: int, reason: object) -> None:
        """Report a batch whose CRC matches but whose records a reader cannot read."""
        state = self._state
        state.context.files.unreadable.note(reader, f"{state.topic}-{state.partition}", base_offset, reason)

    def snapshot(self) -> LogSnapshot:
        """Return the log in its current state, to explain a fetch in a worker. Memory only."""
        return take_snapshot(
            self._state.segments,
            self._offsets.log_start_offset,
            self._offsets.log_end_offset,
            self._state.context.config.index_search,
        )

    def has_changed(self, snapshot: LogSnapshot) -> bool:
        """Return whether segments have changed since a snapshot, so that files may have been removed or renamed."""
        return self._state.segments.snapshot is not snapshot.segments

    def describe(self) -> LogDescription:
        """Describe the log and its segments. For a worker, since it reads time indexes. Raises OSError."""
        end = self._offsets.log_end_offset
        return LogDescription(
            topic=self._state.topic,
            partition=self._state.partition,
            leader_epoch=self._state.epochs.current,
            log_start_offset=self._offsets.log_start_offset,
            high_watermark=self._offsets.high_watermark,
            log_end_offset=end,
            recovery_point=self._durability.recovery_point,
            size=self._state.segments.size,
            failure=self._state.failure,
            segments=self._indexes.run(
                lambda: tuple(describe_segment(segment, end) for segment in self._state.segments.snapshot),
                self._state.context.config,
            ),
        )
