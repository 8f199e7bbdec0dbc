"""One log: the entry point of the storage engine. Batches are appended at the end and read from anywhere.

    PartitionLog     open, reconfigure, reopen, move, close        here
      .offsets       log start, last stable offset, high watermark, log end        `log_state`
      .appends       plan, write, commit                           `appends.log_appends`
      .rolls         begin a new segment                           `appends.rolls`
      .durability    flush, the recovery point                     `appends.durability`
      .truncation    advance the log start, cut the log end        `appends.truncation`
      .reads         slices, offsets by time, descriptions         `reads.log_reads`
      .old_segments  retention                                     `retention.removal`
      .cleaning      compaction                                    `compaction.plan`

Call everything on the event loop, where it touches memory only (a commit adds at most three small pwrites), except
methods marked "for a worker". Those may run while the event loop plans, commits and reads the same log; `write`,
`rolls.prepare` and `rolls.finish` only one at a time.

Invariants, besides those of the other modules:
1. Readers see committed batches only.
2. After a failed sync, or a write that failed for a reason other than lack of space, the log rejects appends, because
   its file may differ from the state in memory. Reads continue. Appends are accepted again once the end of the log was
   rebuilt (`recovery.reopen`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from random import Random
from typing import Self

from warmlog.broker.log.appends.appender import Appender
from warmlog.broker.log.appends.durability import Durability
from warmlog.broker.log.appends.log_appends import LogAppends
from warmlog.broker.log.appends.rolls import LogRolls
from warmlog.broker.log.appends.truncation import LogTruncation
from warmlog.broker.log.compaction.plan import Cleaning
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.io.directory_names import deleted_directory
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.log_state import HighWatermarkSource, LogOffsets, LogState
from warmlog.broker.log.moving import LogMove, MovedLog, MoveEnd, MoveSource
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.log.producers.replay import Bounds
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.reads.log_reads import LogReads
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.index_repair import IndexRepair
from warmlog.broker.log.recovery.load import LoadedLog, load_log
from warmlog.broker.log.recovery.reopen import FailedLog, Reopened, Reopening
from warmlog.broker.log.retention.log_view import LogBounds, LogView
from warmlog.broker.log.retention.removal import OldSegments
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments


class PartitionLog:
    """One partition's log, created by `open`. The module's docstring describes its parts and their threads."""

    __slots__ = (
        "_appender",
        "_indexes",
        "_state",
        "appends",
        "cleaning",
        "durability",
        "offsets",
        "old_segments",
        "partition",
        "reads",
        "recovery",
        "rolls",
        "topic",
        "truncation",
    )

    recovery: RecoveryReport | None  # repairs made when the log was opened; None after a clean shutdown

    def __init__(
        self,
        context: LogContext,
        loaded: LoadedLog,
        *,
        topic: str,
        partition: int,
        high_watermark: int | None = None,
        space_status: SpaceStatus,
        uses_reserve: bool,
    ) -> None:
        """Take over a loaded log. `high_watermark`: the checkpointed one, if it follows replicas."""
        self.topic = topic
        self.partition = partition
        self.recovery = loaded.report
        state = LogState(context, loaded.segments, loaded.epochs, loaded.producers, topic=topic, partition=partition)
        offsets = LogOffsets(
            state,
            log_start_offset=loaded.log_start_offset,
            log_end_offset=loaded.tail.next_offset,
            source=HighWatermarkSource.REPLICAS if high_watermark is not None else _own_source(context.config),
        )
        appender = Appender(state, loaded.tail, loaded.contiguity)
        shown = offsets.log_end_offset
        if high_watermark is not None:
            shown = min(high_watermark, shown)
        elif offsets.shows_synced_only:
            shown = loaded.recovery_point
        offsets.show(max(shown, loaded.log_start_offset))
        stable = min(loaded.stable_offset, offsets.end_of_transactions())
        durability = Durability(state, offsets, loaded.recovery_point, stable, new_names=loaded.made_files)
        rolls = LogRolls(state, offsets, appender, durability)
        self._state = state
        self._appender = appender
        self._indexes = IndexRepair(lambda: state.segments)
        self.offsets = offsets
        self.durability = durability
        self.rolls = rolls
        self.appends = LogAppends(
            state, offsets, appender, durability, rolls, space_status=space_status, uses_reserve=uses_reserve
        )
        self.truncation = LogTruncation(state, offsets, appender, durability)
        self.reads = LogReads(state, offsets, durability, self._indexes)
        self.old_segments = OldSegments(self._view, self._indexes)
        self.cleaning = Cleaning(self._view, self._indexes)

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
        log = cls(
            context,
            loaded,
            topic=topic,
            partition=partition,
            high_watermark=high_watermark,
            space_status=space_status or SpaceStatus(),
            uses_reserve=uses_reserve,
        )
        if high_watermark is not None:
            try:
                log.truncation.find_unstable()
            except OSError:
                log.close(clean=False)
                raise
        elif log.offsets.high_watermark < log.offsets.log_end_offset:
            with suppress(OSError):  # then the log has failed: maintenance reports it and rebuilds its end
                log.durability.flush()
        return log

    # -- files and sizes -----------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory of the log."""
        return Path(self._state.context.directory)

    @property
    def residency(self) -> Residency:
        """The check that keeps cold reads off the event loop."""
        return self._state.context.files.residency

    @property
    def page_faults(self) -> PageFaults:
        """The counts of page faults, shared by all logs."""
        return self._state.context.files.page_faults

    @property
    def size(self) -> int:
        """Total bytes of all log files."""
        return self._state.segments.size

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._state.segments)

    def segment_base_offsets(self) -> list[int]:
        """Return the base offsets of the segments, oldest first. Memory only."""
        return [segment.base_offset for segment in self._state.segments.snapshot]

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._state.segments.active.base_offset

    @property
    def layout(self) -> object:
        """A token that is replaced whenever a segment is added, removed or renamed.

        If it stays the same while a file is missing, the file is lost.
        """
        return self._state.segments.snapshot

    def is_untrimmed(self, base_offset: int) -> bool:
        """Return whether a segment is active, or sealed and not trimmed yet (`rolls.finish`)."""
        return self._state.segments.is_untrimmed(base_offset)

    @property
    def producers(self) -> Producers:
        """The producers that have records in the log."""
        return self._state.producers

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of its records; `current` is that of new batches."""
        return self._state.epochs

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, or of the records that were removed from an empty log; -1 if unknown."""
        last = max(self.offsets.log_end_offset - 1, self.offsets.log_start_offset)
        return self._state.epochs.epoch_of(last)

    def _view(self) -> LogView:
        """Return the log as retention and compaction see it.

        Compaction does not touch the records of open transactions, nor those that a power cut can lose or reopen.
        """
        offsets = self.offsets
        cleanable_end = min(offsets.last_stable_offset, self.durability.stable_offset)
        bounds = LogBounds(offsets.log_start_offset, offsets.high_watermark, cleanable_end, offsets.log_end_offset)
        return LogView(bounds, self._state.segments, self._state.context, self._appender.contiguity)

    # -- settings and service ------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The current settings."""
        return self._state.context.config

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings, starting with the next append.

        If `flush.messages` is no longer 1, records that wait for their sync become readable immediately, unless they
        wait for replicas.
        """
        self._state.context = replace(self._state.context, config=config)
        self._appender.reconfigure()
        self.durability.flush_messages = config.flush_messages
        if not self.offsets.shows_replicated:
            self.stop_following_replicas()

    def follow_replicas(self) -> None:
        """Move the high watermark by `offsets.advance_high_watermark` only, from now on."""
        self.offsets.high_watermark_source = HighWatermarkSource.REPLICAS

    def stop_following_replicas(self) -> None:
        """Make the high watermark follow the log end, or the recovery point if every append is synced."""
        offsets = self.offsets
        offsets.high_watermark_source = _own_source(self.config)
        if self.failed:
            return
        shown = offsets.log_end_offset if offsets.shows_all else self.durability.recovery_point
        if shown > offsets.high_watermark:
            offsets.show(shown)

    @property
    def failed(self) -> bool:
        """Whether the log has failed and rejects appends until its end is rebuilt."""
        return self._state.failure is not None

    @property
    def failure(self) -> str | None:
        """Why the log has failed; None if it has not."""
        return self._state.failure

    def fail(self, reason: object) -> None:
        """Reject appends until the log is rebuilt. A failed write has the same effect."""
        self._state.fail(reason)

    # -- reopening -----------------------------------------------------------------------------------------------------

    def begin_reopening(self) -> Reopening:
        """Return the task that rebuilds the end of a failed log; call `make` in a worker, then `finish_reopening`.

        Meanwhile no worker may use the log or rearrange its segments.
        """
        assert self.failed, "only a failed log is rebuilt"
        self.appends.abandon()
        bounds = Bounds(self.offsets.log_start_offset, self.offsets.log_end_offset)
        failed = FailedLog(
            self._state.context,
            self._state.segments.snapshot,
            bounds,
            self.durability.recovery_point,
            self._appender.snapshots,
            self._state.producers.capture(),
        )
        return Reopening(failed, self._indexes.moving)

    def finish_reopening(self, reopened: Reopened) -> None:
        """Continue with the rebuilt, durable end of the log, and accept appends again.

        If records were lost, a new leader epoch has to begin. Call `reopened.close_replaced` afterwards.
        """
        end = reopened.tail.next_offset
        self._state.segments = Segments(reopened.segments)
        self.offsets.log_end_offset = end
        producers = self._state.producers if reopened.producers is None else reopened.producers
        self._appender.restart(reopened.tail, producers)
        self.offsets.show(min(self.offsets.high_watermark, end) if self.offsets.shows_replicated else end)
        self.durability.reopened(self.offsets.end_of_transactions())
        if reopened.producers is not None:
            self._state.epochs.truncate_from_end(end)
        self._state.failure = None

    # -- moving --------------------------------------------------------------------------------------------------------

    def begin_move(self, data_directory: str) -> LogMove:
        """Begin to move the log to another data directory; see `moving` for the next steps. Memory only."""
        state = self._state
        source = MoveSource(self.topic, self.partition, state.context, lambda: state.segments, self._indexes.moving)
        return LogMove(source, data_directory)

    def end_of_move(self) -> MoveEnd:
        """Return the state that the last step of a move needs.

        Nothing may be written until `finish_move`, or until that step has failed.
        """
        return MoveEnd(
            log_end_offset=self.offsets.log_end_offset,
            producers=self._state.producers.capture(),
            epochs=self._state.epochs.entries,
            snapshots=self._appender.snapshots,
        )

    def finish_move(self, moved: MovedLog, space_status: SpaceStatus) -> Sequence[Segment]:
        """Continue in the new directory, where all is durable; return the old segments, to be closed in a worker.

        `space_status` is that of the new data directory. Plans remain valid: offsets and positions are the same.
        """
        old, active = self._state.segments, moved.segments.active
        self._state.context = replace(self._state.context, directory=moved.directory)
        active.activate(self._state.context.config, self._appender.committed)
        active.recent = old.active.recent
        self._state.segments = moved.segments
        for segment in old.snapshot:
            segment.removed = True
        self._appender.relocate()
        self.durability.reopened(self.offsets.end_of_transactions())
        self.appends.space_status = space_status
        if self.offsets.shows_synced_only:
            self.offsets.show(self.offsets.log_end_offset)
        return old.snapshot

    # -- close ---------------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Write the last time index entry, sync, trim the indexes and close the files. Blocking. Raises OSError.

        With `clean` False, or if the log has failed, only close the files. Further calls do nothing.
        """
        if self._state.closed:
            return
        try:
            if clean and not self.failed:
                self._settle()
                self.durability.checkpoint_epochs()
        finally:
            self._state.closed = True
            self._state.producers.release()
            for segment in self._state.segments.snapshot:
                segment.close()

    def _settle(self) -> None:
        """Make everything durable and trim all indexes."""
        for segment in self._state.segments.snapshot:
            if segment.is_untrimmed:  # its `rolls.finish` has not begun or not ended; doing it twice is harmless
                self.rolls.finish(segment)
        active = self._state.segments.active
        self._appender.write_last_time()
        if self._appender.snapshot_producers():
            self.durability.names_made()
        self.durability.flush()
        active.offset_index.seal()
        active.time_index.seal()
        active.trim()
        self.durability.turns.take(active.sync)

    def delete(self) -> Path:
        """Close the log and rename its directory for deletion; return the new path. Raises OSError.

        The caller unlinks the files later. A slice that is being sent keeps its descriptor.
        """
        self.close(clean=False)
        source = self.directory
        target = source.with_name(deleted_directory(self.topic, self.partition))
        self._state.context.disk.rename(str(source), str(target))
        return target


def _own_source(config: LogConfig) -> HighWatermarkSource:
    """Return the source of the high watermark of a log without replicas."""
    return HighWatermarkSource.SYNCED if config.flush_messages == 1 else HighWatermarkSource.END
