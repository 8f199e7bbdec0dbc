"""The state of one log: its offsets, segments and settings, and how far readers may read.

Invariants:
1. log start <= last stable offset <= high watermark <= log end, recovery point <= log end.
2. The last stable offset is the first offset of the oldest open transaction, or the high watermark if none is open
   below it.
3. The high watermark has one source (`HighWatermarkSource`). It moves back only when the log is cut, not when the
   source changes. If it follows replicas, it comes from a checkpoint at startup, as nothing in the log tells it.
"""

from dataclasses import replace
from enum import Enum
from pathlib import Path

from warmlog.broker.log.appender import Appender
from warmlog.broker.log.compaction.plan import Cleaning
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.describe import describe_segment
from warmlog.broker.log.descriptions import LogDescription, RecoveryReport
from warmlog.broker.log.directory.checkpoint import LEADER_EPOCHS, write_epochs
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.flush import Durability, SyncTurns
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.log.io.unreadable import BatchReader
from warmlog.broker.log.leader_epochs import LeaderEpochs
from warmlog.broker.log.log_view import LogBounds, LogView
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.reads.explain import LogSnapshot, take_snapshot
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.index_repair import IndexRepair
from warmlog.broker.log.recovery.load import LoadedLog
from warmlog.broker.log.removal import OldSegments


class HighWatermarkSource(Enum):
    """The offset that the high watermark of a log follows."""

    END = "end"  # the log end
    SYNCED = "synced"  # the recovery point (`flush.messages` = 1): a power cut removes nothing that was read
    REPLICAS = "replicas"  # `advance_high_watermark`: the leader decides, by how far its followers are


_END = HighWatermarkSource.END  # bound once: reading a member of an enum takes longer than the rest of a comparison
_SYNCED = HighWatermarkSource.SYNCED
_REPLICAS = HighWatermarkSource.REPLICAS


class LogState:
    """The current state of a log. For the event loop, unless marked "for a worker"."""

    __slots__ = (
        "_appender",
        "_closed",
        "_context",
        "_durability",
        "_epochs",
        "_indexes",
        "_segments",
        "cleaning",
        "flush_messages",
        "high_watermark",
        "high_watermark_source",
        "last_stable_offset",
        "log_end_offset",
        "log_start_offset",
        "old_segments",
        "partition",
        "recovery",
        "space_status",
        "topic",
        "uses_reserve",
    )

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    high_watermark_source: HighWatermarkSource
    last_stable_offset: int
    flush_messages: int  # the setting: sync after this many records past the recovery point
    space_status: SpaceStatus  # of its disk
    uses_reserve: bool  # accept appends even if space is short
    recovery: RecoveryReport | None  # what opening the log repaired; None after a clean shutdown

    def __init__(
        self, context: LogContext, loaded: LoadedLog, *, topic: str, partition: int, high_watermark: int | None = None
    ) -> None:
        """Take over a loaded log. `high_watermark`: the checkpointed one, if it follows replicas."""
        self.topic = topic
        self.partition = partition
        self._context = context
        self._segments = loaded.segments
        self._appender = Appender(
            context, loaded.segments, loaded.tail, loaded.producers, loaded.contiguity, epochs=loaded.epochs
        )
        self._epochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.tail.next_offset
        self.flush_messages = context.config.flush_messages
        shown = self.log_end_offset
        self.high_watermark_source = self._own_source() if high_watermark is None else _REPLICAS
        if high_watermark is not None:
            shown = min(high_watermark, shown)
        elif self.shows_synced_only:
            shown = loaded.recovery_point
        self._show(max(shown, loaded.log_start_offset))
        self.recovery = loaded.report
        turns = SyncTurns(self._appender.writer)
        stable = min(loaded.stable_offset, self._end_of_transactions())
        self._durability = Durability(loaded.recovery_point, stable, new_names=loaded.made_files, turns=turns)
        self._closed = False
        self.space_status = SpaceStatus()
        self.uses_reserve = False
        self._indexes = IndexRepair(lambda: self._segments)
        self.old_segments = OldSegments(self._view, self._indexes)
        self.cleaning = Cleaning(self._view, self._indexes)

    def note_unreadable(self, reader: BatchReader, base_offset: int, reason: object) -> None:
        """Report a batch whose CRC matches but whose records a reader cannot read."""
        self._context.files.unreadable.note(reader, f"{self.topic}-{self.partition}", base_offset, reason)

    # -- files and sizes -----------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory of the log."""
        return Path(self._context.directory)

    @property
    def residency(self) -> Residency:
        """The check that keeps cold reads off the event loop."""
        return self._context.files.residency

    @property
    def page_faults(self) -> PageFaults:
        """The counts of page faults, shared by all logs."""
        return self._context.files.page_faults

    @property
    def size(self) -> int:
        """Total bytes of all log files."""
        return self._segments.size

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment that the next startup would load."""
        return self.old_segments.first_base_offset

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._segments.active.base_offset

    @property
    def layout(self) -> object:
        """A token that is replaced whenever a segment is added, removed or renamed.

        If it stays the same while a file is missing, the file is lost.
        """
        return self._segments.snapshot

    def is_untrimmed(self, base_offset: int) -> bool:
        """Return whether a segment is active, or sealed and not trimmed yet (`finish_roll`)."""
        segment = self._segments.get(base_offset)
        return segment is not None and (segment.next_base_offset is None or segment.is_untrimmed)

    # -- settings and service ------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The current settings."""
        return self._context.config

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings, starting with the next append.

        If `flush.messages` is no longer 1, records that wait for their sync become readable at once, unless they wait
        for replicas.
        """
        self._context = replace(self._context, config=config)
        self._appender.reconfigure(self._context)
        self.flush_messages = config.flush_messages
        if self.high_watermark_source is not _REPLICAS:
            self.stop_following_replicas()

    @property
    def failed(self) -> bool:
        """Whether the log has failed and rejects appends until its end is rebuilt."""
        return self._appender.writer.failure is not None

    @property
    def failure(self) -> str | None:
        """Why the log has failed; None if it has not."""
        return self._appender.writer.failure

    def fail(self, reason: object) -> None:
        """Reject appends until the log is rebuilt. A failed write does this by itself."""
        self._appender.writer.fail(reason)

    def _refusal(self) -> LogFailedError:
        name = f"{self.topic}-{self.partition}"
        return LogFailedError(f"{name} is closed" if self._closed else f"{name} has failed: {self.failure}")

    # -- offsets -------------------------------------------------------------------------------------------------------

    @property
    def shows_all(self) -> bool:
        """Whether the high watermark follows the log end."""
        return self.high_watermark_source is _END

    @property
    def shows_synced_only(self) -> bool:
        """Whether the high watermark follows the recovery point."""
        return self.high_watermark_source is _SYNCED

    def _own_source(self) -> HighWatermarkSource:
        return _SYNCED if self.flush_messages == 1 else _END

    def follow_replicas(self) -> None:
        """From now on, move the high watermark by `advance_high_watermark` only."""
        self.high_watermark_source = _REPLICAS

    def stop_following_replicas(self) -> None:
        """Let the high watermark follow the log end, or the recovery point if every append is synced."""
        self.high_watermark_source = self._own_source()
        if self.failed:
            return
        shown = self.log_end_offset if self.shows_all else self.recovery_point
        if shown > self.high_watermark:
            self._show(shown)

    def advance_high_watermark(self, offset: int) -> bool:
        """Move the high watermark up to an offset, but not past the log end; return False if it is there or past it."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self._show(offset)
        return True

    @property
    def recovery_point(self) -> int:
        """The offset below which everything has been synced."""
        return self._durability.recovery_point

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended since the last flush began."""
        return self._durability.unflushed_bytes

    @property
    def producers(self) -> Producers:
        """The producers that have records in the log."""
        return self._appender.producers

    def _show(self, high_watermark: int) -> None:
        """Set the high watermark, and the last stable offset that follows from it."""
        self.high_watermark = self.last_stable_offset = high_watermark
        producers = self._appender.producers
        if producers.open_transactions or producers.unstable.ended:
            first_unstable = producers.first_unstable_offset(high_watermark)
            if first_unstable is not None:
                self.last_stable_offset = min(high_watermark, max(first_unstable, self.log_start_offset))

    def _end_of_transactions(self) -> int:
        """Return where the oldest open transaction begins; the log end without any."""
        return next(iter(self._appender.producers.open_transactions.values()), self.log_end_offset)

    # -- leader epochs -------------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of new batches."""
        return self._epochs.current

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, or of the records that were removed from an empty log; -1 if unknown."""
        last = max(self.log_end_offset - 1, self.log_start_offset)
        return self._epochs.epoch_of(last)

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of its records, and `current`."""
        return self._epochs

    def assign_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the log end, unless it is the latest one already."""
        self._epochs.assign(epoch, self.log_end_offset)

    def drop_empty_epochs(self) -> None:
        """Forget leader epochs in which no record was written."""
        self._epochs.drop_empty(self.log_start_offset, self.log_end_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch in which an offset was or will be written; -1 if unknown."""
        return self._epochs.epoch_of(offset)

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch up to the requested one; (-1, -1) if unknown. KIP-279."""
        return self._epochs.end_offset(epoch, self.log_end_offset)

    def checkpoint_epochs(self) -> None:
        """Write the leader epochs if they have changed. For a worker. Raises OSError.

        A copy syncs them: it truncates by them, and recovery does not read the batches below the recovery point. Other
        logs do not, as no leader's log is truncated.
        """
        if self._epochs.changed:
            self._epochs.changed = False  # before the write, so that the next one covers changes made meanwhile
            try:
                path = f"{self._context.directory}/{LEADER_EPOCHS}"
                is_copy = self.high_watermark_source is _REPLICAS
                write_epochs(self._context.disk, path, self._epochs.entries, sync=is_copy)
                if is_copy:
                    self._context.disk.sync_directory(self._context.directory)
            except FileNotFoundError:
                pass  # the directory has been renamed for deletion
            except OSError:
                self._epochs.changed = True
                raise

    # -- views ---------------------------------------------------------------------------------------------------------

    def snapshot(self) -> LogSnapshot:
        """Return the log in its current state, to explain a fetch in a worker. Memory only."""
        return take_snapshot(
            self._segments, self.log_start_offset, self.log_end_offset, self._context.config.index_search
        )

    def has_changed(self, snapshot: LogSnapshot) -> bool:
        """Return whether segments have changed since a snapshot, so that files may have been removed or renamed."""
        return self.layout is not snapshot.segments

    def _view(self) -> LogView:
        """Return the log as retention and compaction see it.

        Compaction leaves the records of open transactions alone, and all that a power cut can lose or reopen.
        """
        cleanable_end = min(self.last_stable_offset, self._durability.stable_offset)
        bounds = LogBounds(self.log_start_offset, self.high_watermark, cleanable_end, self.log_end_offset)
        return LogView(bounds, self._segments, self._context, self._appender.contiguity)

    def describe(self) -> LogDescription:
        """Describe the log and its segments. For a worker, since it reads time indexes. Raises OSError."""
        end = self.log_end_offset
        return LogDescription(
            topic=self.topic,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=end,
            recovery_point=self.recovery_point,
            size=self.size,
            failure=self.failure,
            segments=self._indexes.run(
                lambda: tuple(describe_segment(segment, end) for segment in self._segments.snapshot),
                self._context.config,
            ),
        )
