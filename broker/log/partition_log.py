"""One log: the entry point of the storage engine. Batches are appended at the end and read from anywhere.

    LogState         offsets, segments, settings, leader epochs        `log_state`
    AppendableLog    plan, write, commit, roll                         `appendable_log`
    PartitionLog     open, read, flush, reopen, move, truncate, close  here

Call everything on the event loop, where it touches memory only (a commit adds at most three small pwrites), except
methods marked "for a worker". Those may run while the event loop plans, commits and reads the same log; `write`,
`prepare_roll` and `finish_roll` only one at a time.

Invariants, besides those of the other two modules:
1. Readers see committed batches only.
2. After a failed sync, or a failed write that was not for want of space, the log rejects appends, because its file may
   differ from the state in memory. Reads continue. Appends are accepted again once the end of the log was rebuilt
   (`recovery.reopen`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from random import Random
from typing import Self

from warmlog.broker.log.append import PlannedAppend, RollReason
from warmlog.broker.log.appendable_log import AppendableLog
from warmlog.broker.log.appender import PreparedRoll
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.errors import LogFailedError, OffsetOutOfRangeError
from warmlog.broker.log.flush import FlushPlan
from warmlog.broker.log.index.time import TimestampOffset
from warmlog.broker.log.io.directory_names import deleted_directory
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.log_state import HighWatermarkSource
from warmlog.broker.log.moving import LogMove, MovedLog, MoveEnd, MoveSource
from warmlog.broker.log.producers.replay import Bounds, states_at
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.table import ProducerBudget, Producers
from warmlog.broker.log.producers.transactions import UnstableTransactions
from warmlog.broker.log.reads.reading import aborted_in, read_slice
from warmlog.broker.log.reads.time_search import TimeView, first_at_or_past, largest
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.load import load_log
from warmlog.broker.log.recovery.rebuild_transactions import rebuild_sealed
from warmlog.broker.log.recovery.reopen import FailedLog, Reopened, Reopening
from warmlog.broker.log.recovery.truncate import cut_segments, restart_at
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments

__all__ = [
    "FlushPlan",
    "LogFailedError",
    "LogRead",
    "OffsetOutOfRangeError",
    "PartitionLog",
    "PlannedAppend",
    "PreparedRoll",
    "RollReason",
]


_REPLICAS = HighWatermarkSource.REPLICAS


class PartitionLog(AppendableLog):
    """One partition's log, created by `open`. See the module's docstring for what may be called where."""

    __slots__ = ()

    @classmethod
    def open(
        cls,
        directory: str | PathLike[str],
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        files: OpenFiles,
        clock: Callable[[], int],
        random: Random,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool,
        space_status: SpaceStatus | None = None,
        uses_reserve: bool = False,
        scanned: Callable[[int], None] = lambda _: None,
        budget: ProducerBudget | None = None,
        high_watermark: int | None = None,
        known_end: int | None = None,
    ) -> Self:
        """Open a log's directory, creating it if needed. Blocking. Raises MissingFilesError, OSError.

        `clock` returns ms since the epoch. `recovery_point` and `log_start_offset` come from the checkpoints. `clean`:
        the last shutdown was clean, so that only the end of the active segment is read; otherwise the log is recovered
        from the recovery point, `scanned` is called with the number of bytes checked since its last call, and
        `recovery` reports the repairs. `space_status` is that of its data directory; `uses_reserve`: accept appends
        even if space is short. `high_watermark` comes from the checkpoint if it follows replicas; `known_end` is the
        largest offset in the checkpoints if it does not (`load_log`).
        """
        path = fspath(directory)
        context = LogContext(
            directory=path,
            config=config,
            files=files,
            clock=clock,
            random=random,
            scanned=scanned,
            budget=budget or ProducerBudget(),
        )
        loaded = load_log(
            context,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            known_end=known_end,
        )
        log = cls(context, loaded, topic=topic, partition=partition, high_watermark=high_watermark)
        log.space_status = space_status or SpaceStatus()
        log.uses_reserve = uses_reserve
        if high_watermark is not None:
            try:
                log._find_unstable()
            except OSError:
                log.close(clean=False)
                raise
        elif log.high_watermark < log.log_end_offset:
            with suppress(OSError):  # then the log has failed: maintenance reports it and rebuilds its end
                log.flush()
        return log

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_end: int | None = None,
        min_one_message: bool = False,
        with_aborted: bool = False,
    ) -> LogRead:
        """Return a slice of at most `max_bytes` from the batch that contains `offset`, or the next one after a gap.

        The slice ends before `isolation_end` (None: the log end), possibly inside a batch. At or past that bound, or
        with `max_bytes` 0, there is no slice, only a position. `min_one_message`: include the whole first batch, even
        if it is larger than `max_bytes`. `with_aborted`: also find the aborted transactions of the slice.

        Raises OffsetOutOfRangeError, ValueError for a negative `max_bytes`, IndexCorruptError (see `rebuild_indexes`),
        OSError.
        """
        if self._closed:
            raise self._refusal()
        if max_bytes < 0:
            raise ValueError(f"max_bytes is negative: {max_bytes}")
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, log_end)
        bound = None if isolation_end is None or isolation_end >= log_end else isolation_end
        search = self._context.config.index_search
        segments = self._segments
        if offset == log_end:
            return LogRead(None, segments.active.base_offset, segments.active.size)
        found = read_slice(segments, offset, max_bytes, bound=bound, search=search, min_one_message=min_one_message)
        if with_aborted and found.slice is not None:
            aborted = aborted_in(segments, offset, found, log_end)
            if aborted:
                found = found._replace(aborted=aborted)
        return found

    # -- time ----------------------------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp: int, *, isolation_end: int | None = None) -> TimestampOffset | None:
        """Find the first record at or past a timestamp (ms); None if there is none.

        For a worker, during appends and rolls, too. Rebuilds corrupt indexes of sealed segments. Raises OSError;
        CorruptBatchError for a damaged batch; IndexCorruptError for the active segment.
        """
        return self._indexes.run(
            lambda: first_at_or_past(self._time_view(isolation_end), timestamp), self._context.config
        )

    def largest_timestamp(self) -> TimestampOffset | None:
        """Find the first record with the largest timestamp, or None. For a worker. Raises as `offset_for_time` does."""
        return self._indexes.run(lambda: largest(self._time_view(None)), self._context.config)

    def _time_view(self, isolation_end: int | None) -> TimeView:
        end = self.log_end_offset
        return TimeView(
            segments=self._segments.snapshot,
            start_offset=self.log_start_offset,
            end_offset=end if isolation_end is None else min(end, isolation_end),
            search=self._context.config.index_search,
            note_unreadable=lambda base_offset, reason: self.note_unreadable("time_lookup", base_offset, reason),
        )

    def rebuild_indexes(self, base_offset: int) -> None:
        """Rebuild a sealed segment's indexes from its log, after IndexCorruptError. For a worker. Raises OSError.

        An active segment must be sealed first.
        """
        self._indexes.rebuild(base_offset, self._context.config)
        with self._indexes.moving:
            segment = self._segments.get(base_offset)
            if segment is not None and segment.may_have_aborted and not self.is_untrimmed(base_offset):
                snapshots = ProducerSnapshots(self._context.disk, self._context.directory)
                snapshots.find()
                rebuild_sealed(snapshots, self._segments.snapshot, segment)

    # -- flush ---------------------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushPlan:
        """Return what must be synced to make everything committed so far durable; call its `sync` in a worker."""
        return self._plan_flush()

    def finish_flush(self, plan: FlushPlan) -> None:
        """Move the recovery point after a plan was synced. If the sync failed, call `fail` instead."""
        self._durability.finish(plan, self._segments.active)
        if self.shows_synced_only and self.recovery_point > self.high_watermark:
            self._show(self.recovery_point)

    def flush(self) -> None:
        """Begin, sync and finish a flush in one call. Blocking; for tools and tests.

        Raises OSError, and then the log has failed.
        """
        plan = self.begin_flush()
        plan.sync()
        self.finish_flush(plan)

    # -- reopening -----------------------------------------------------------------------------------------------------

    def begin_reopening(self) -> Reopening:
        """Return the task that rebuilds the end of a failed log; call `make` in a worker, then `finish_reopening`.

        Meanwhile no worker may use the log or rearrange its segments.
        """
        assert self.failed, "only a failed log is rebuilt"
        self.abandon()
        bounds = Bounds(self.log_start_offset, self.log_end_offset)
        failed = FailedLog(
            self._context,
            self._segments.snapshot,
            bounds,
            self.recovery_point,
            self._appender.snapshots,
            self.producers.capture(),
        )
        return Reopening(failed, self._indexes.moving)

    def finish_reopening(self, reopened: Reopened) -> None:
        """Continue with the rebuilt, durable end of the log, and accept appends again.

        If records were lost, whoever assigns leader epochs must begin a new one. Call `reopened.close_replaced`
        afterwards.
        """
        end = reopened.tail.next_offset
        self._segments = Segments(reopened.segments)
        self.log_end_offset = end
        producers = self.producers if reopened.producers is None else reopened.producers
        self._appender.restart(self._segments, reopened.tail, producers)
        self._show(min(self.high_watermark, end) if self.high_watermark_source is _REPLICAS else end)
        self._durability.reopened(end, self._end_of_transactions())
        if reopened.producers is not None:
            self._epochs.truncate_from_end(end)
        self._appender.writer.restore()

    # -- moving --------------------------------------------------------------------------------------------------------

    def begin_move(self, data_directory: str) -> LogMove:
        """Begin to move the log to another data directory; see `moving` for the next steps. Memory only."""
        source = MoveSource(self.topic, self.partition, self._context, lambda: self._segments, self._indexes.moving)
        return LogMove(source, data_directory)

    def end_of_move(self) -> MoveEnd:
        """Return the state that the last step of a move needs.

        Nothing may be written until `finish_move`, or until that step has failed.
        """
        return MoveEnd(
            log_end_offset=self.log_end_offset,
            producers=self.producers.capture(),
            epochs=self._epochs.entries,
            snapshots=self._appender.snapshots,
        )

    def finish_move(self, moved: MovedLog, space_status: SpaceStatus) -> Sequence[Segment]:
        """Continue in the new directory, where all is durable; return the old segments, to be closed in a worker.

        `space_status` is that of the new data directory. Plans remain valid: offsets and positions are the same.
        """
        old, active = self._segments, moved.segments.active
        self._context = replace(self._context, directory=moved.directory)
        active.activate(self._context.config, self._appender.committed)
        active.recent = old.active.recent
        self._segments = moved.segments
        for segment in old.snapshot:
            segment.removed = True
        self._appender.relocate(self._context, moved.segments)
        self._durability.reopened(self.log_end_offset, self._end_of_transactions())
        self.space_status = space_status
        if self.shows_synced_only:
            self._show(self.log_end_offset)
        return old.snapshot

    # -- log start and truncation --------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> bool:
        """Advance the log start offset; return False if it is there or past it already.

        Segments below it stay until `old_segments.take_out`. Raises OffsetOutOfRangeError past the high watermark.
        """
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._show(self.high_watermark)
        self._epochs.truncate_from_start(offset)
        return True

    def truncate_to(self, offset: int) -> None:
        """Remove every batch with a record at or past `offset`, and the leader epochs without records at the end.

        For a follower that has diverged from its leader: if its last epoch stayed although it has no records, every
        fetch would diverge again. The log ends after the last batch that remains. Nothing may be planned, and no worker
        may use the log. Blocking. Raises OSError.

        To truncate below the recovery point, call `lower_recovery_point` and write a checkpoint first: after a crash,
        recovery repairs a truncation that was interrupted, or records appended after it, only past the checkpointed
        recovery point.
        """
        if offset < self.log_end_offset:
            self._durability.names_made()
            try:
                self._truncate(offset)
            except OSError as error:
                self.fail(error)
                raise
        self._epochs.truncate_from_end(self.log_end_offset)
        self.checkpoint_epochs()

    def _truncate(self, offset: int) -> None:
        self._segments, tail = cut_segments(self._context, self._segments, offset, self._appender.contiguity)
        end = tail.next_offset
        start = min(self.log_start_offset, end)
        self._appender.restart(self._segments, tail, self._rebuild_producers(end))
        self.log_start_offset, self.log_end_offset = start, end  # only now: reopening compares with it what is left
        self._show(min(self.high_watermark, end))
        self._find_unstable()
        self._durability.truncated(end, self._end_of_transactions())
        # Removed segments, and above all producer snapshots, must not reappear beside new records.
        self._context.disk.sync_directory(self._context.directory)

    def lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point to the segment that a truncation to this offset is about to cut.

        The log will end after that segment's last whole batch below the offset, which is not read here.
        """
        holder = self._segments.floor(offset)
        end = offset if holder is None else holder.base_offset
        self._durability.truncated(end, end)

    def prepare_anew(self, offset: int) -> None:
        """Announce `start_anew`; write a checkpoint before calling it. Memory only.

        If it is interrupted, the next startup finds the log as it was, a part of it, or an empty log at `offset`. Until
        then readers find nothing below `offset`.
        """
        first = self._segments.first.base_offset
        if offset <= self.log_end_offset:
            self.lower_recovery_point(min(first, offset))
        self.log_start_offset = max(offset, first)

    def start_anew(self, offset: int) -> None:
        """Remove everything, and let the log begin and end at `offset`. Blocking. Raises OSError.

        For a follower whose leader has no records at its log end any more. Nothing may be planned, and no worker may
        use the log. Call `prepare_anew` first.
        """
        self._durability.names_made()
        appender = self._appender
        try:
            restarted = restart_at(
                self._context, self._segments, offset, appender.contiguity, appender.snapshots, end=self.log_end_offset
            )
        except OSError as error:
            self.fail(error)
            raise
        self._segments, tail = restarted
        self.log_start_offset = self.log_end_offset = offset
        appender.restart(self._segments, tail, Producers(self._context.clock, self._context.budget))
        self._show(offset)
        self._durability.reopened(offset, offset)
        self._epochs.truncate_from_end(0)
        self.checkpoint_epochs()

    def _find_unstable(self) -> None:
        """Find the transactions open at the high watermark whose markers lie past it. Blocking. Raises OSError."""
        shown, end = self.high_watermark, self.log_end_offset
        if shown == end:
            return
        snapshots = self._appender.snapshots
        snapshots.find()
        unstable = UnstableTransactions()
        for state in states_at(snapshots, self._segments.snapshot, shown).values():
            first_offset = state.transaction_first_offset
            if first_offset >= 0 and self.producers.open_transactions.get(state.producer_id) != first_offset:
                unstable.add(first_offset, end - 1)
        self.producers.unstable = unstable
        self._show(shown)

    def _rebuild_producers(self, end: int) -> Producers:
        snapshots = self._appender.snapshots
        snapshots.find()
        before = self.producers.capture()
        return self._context.rebuild_producers(snapshots, self._segments.snapshot, end, before=before)

    # -- close ---------------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Write the last time index entry, sync, trim the indexes and close the files. Blocking. Raises OSError.

        With `clean` False, or if the log has failed, only close the files. Further calls do nothing.
        """
        if self._closed:
            return
        try:
            if clean and not self.failed:
                self._settle()
                self.checkpoint_epochs()
        finally:
            self._closed = True
            self.producers.release()
            for segment in self._segments.snapshot:
                segment.close()

    def _settle(self) -> None:
        """Make everything durable and trim all indexes."""
        for segment in self._segments.snapshot:
            if segment.is_untrimmed:  # its `finish_roll` has not begun or not ended; doing it twice is harmless
                self.finish_roll(segment)
        active = self._segments.active
        self._appender.write_last_time()
        if self._appender.snapshot_producers():
            self._durability.names_made()
        self.flush()
        active.offset_index.seal()
        active.time_index.seal()
        active.trim()
        self._durability.turns.take(active.sync)

    def delete(self) -> Path:
        """Close the log and rename its directory for deletion; return the new path. Raises OSError.

        The caller unlinks the files later. A slice that is being sent keeps its descriptor.
        """
        self.close(clean=False)
        source = self.directory
        target = source.with_name(deleted_directory(self.topic, self.partition))
        self._context.disk.rename(str(source), str(target))
        return target
