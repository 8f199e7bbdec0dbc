"""Flush a log to disk and track its recovery point.

Indexes of sealed segments are synced together with the log file, before the recovery point moves past them. Those of
the active segment are synced only after every mebibyte of log, since each would add a wait for the disk to most
flushes: recovery keeps their valid entries below the recovery point and rebuilds the rest from the log.

A flush has three steps: `begin_flush` on the event loop, `FlushPlan.sync` in a worker, `finish_flush` on the event
loop.

Invariant: after a sync of a log has failed, no other sync of that log makes anything count as durable (`SyncTurns`).
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from warmlog.broker.log.directory.checkpoint import LEADER_EPOCHS, write_epochs
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.log_state import LogOffsets, LogState
from warmlog.broker.log.segments.segment import Segment


class SyncTurns:
    """Serializes the syncs of one log, and refuses any after one that failed.

    Linux reports a write-back failure to one sync and nothing to the next. The failure is recorded here immediately:
    the event loop is informed only at the end of a whole flush round, and a roll could sync the same file before that.
    """

    __slots__ = ("_lock", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._lock = Lock()

    def take(self, sync: Callable[[], None]) -> None:
        """Call `sync` in a worker. Raises OSError, and then the log has failed."""
        with self._lock:
            failure = self._state.failure
            if failure is not None:
                raise OSError(errno.EIO, f"not synced: the log has already failed: {failure}")
            try:
                sync()
            except OSError as error:
                self._state.fail(error)
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """Everything below `offset`, to be synced.

    `stable_offset`: transactions that begin below it have ended. `generation` counts the log's truncations, and
    `names` the files created or removed in its directory: records and names that come after these counts are not
    covered.
    """

    offset: int
    stable_offset: int
    appended_bytes: int
    generation: int
    names: int
    sealed: Sequence[Segment]
    active: Segment
    directory: str | None  # also synced, if files were created or removed in it
    disk: Disk
    turns: SyncTurns

    def sync(self) -> None:
        """Wait for the disk. For a worker. Raises OSError; then the log has failed, and no file may be synced again."""
        self.turns.take(self._sync)

    def _sync(self) -> None:
        for segment in self.sealed:
            if not segment.synced:
                _unless_removed(segment, segment.sync)
                segment.synced = True
        _unless_removed(self.active, self.active.sync_end)  # it may have been sealed in the meantime
        if self.directory is not None:
            self.disk.sync_directory(self.directory)


def _unless_removed(segment: Segment, sync: Callable[[], None]) -> None:
    """Sync a segment, unless retention or compaction has removed it in the meantime."""
    try:
        sync()
    except FileNotFoundError:
        if not segment.removed:
            raise


class Durability:
    """Tracks how much of one log is durable: everything below `recovery_point`. For the event loop, unless marked.

    `stable_offset` is the last stable offset as of the last sync. A power cut may reopen a transaction that begins at
    or past it, by taking its marker. `flush_messages` is the setting: sync after this many records past the recovery
    point.
    """

    __slots__ = (
        "_flushed_bytes",
        "_generation",
        "_names",
        "_offsets",
        "_state",
        "_synced_names",
        "appended_bytes",
        "flush_messages",
        "recovery_point",
        "stable_offset",
        "turns",
    )

    def __init__(
        self, state: LogState, offsets: LogOffsets, recovery_point: int, stable_offset: int, *, new_names: bool
    ) -> None:
        """Begin at a recovery point. `new_names`: files were created and the directory is not synced yet."""
        self._state = state
        self._offsets = offsets
        self.flush_messages: int = state.context.config.flush_messages
        self.recovery_point = recovery_point
        self.stable_offset = stable_offset
        self.turns = SyncTurns(state)
        self._names = int(new_names)
        self._synced_names = 0
        self.appended_bytes = 0  # since the log was opened
        self._flushed_bytes = 0
        self._generation = 0

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended since the last flush began."""
        return self.appended_bytes - self._flushed_bytes

    def names_made(self) -> None:
        """Record that files were created or removed, so that the next flush syncs the directory."""
        self._names += 1

    def begin_flush(self) -> FlushPlan:
        """Return what must be synced to make everything committed so far durable; call its `sync` in a worker."""
        state = self._state
        return FlushPlan(
            offset=self._offsets.log_end_offset,
            stable_offset=self._offsets.end_of_transactions(),
            appended_bytes=self.appended_bytes,
            generation=self._generation,
            names=self._names,
            sealed=state.segments.from_offset(self.recovery_point)[:-1],
            active=state.segments.active,
            directory=state.context.directory if self._names > self._synced_names else None,
            disk=state.context.disk,
            turns=self.turns,
        )

    def finish_flush(self, plan: FlushPlan) -> None:
        """Move the recovery point after a plan was synced. If the sync failed, call `PartitionLog.fail` instead.

        It does not move if the log has rolled since and the sealed segment's indexes are not synced yet: the end of
        the roll syncs them, and the next flush moves it.
        """
        is_whole = plan.active is self._state.segments.active or plan.active.synced
        if plan.generation == self._generation and is_whole:
            self.recovery_point = max(self.recovery_point, plan.offset)
            self.stable_offset = max(self.stable_offset, plan.stable_offset)
            self._flushed_bytes = max(self._flushed_bytes, plan.appended_bytes)
            self._synced_names = max(self._synced_names, plan.names)
        if self._offsets.shows_synced_only and self.recovery_point > self._offsets.high_watermark:
            self._offsets.show(self.recovery_point)

    def flush(self) -> None:
        """Begin, sync and finish a flush in one call. Blocking; for tools and tests.

        Raises OSError, and then the log has failed.
        """
        plan = self.begin_flush()
        plan.sync()
        self.finish_flush(plan)

    def lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point to the segment that a truncation to this offset is about to cut.

        The log will end after that segment's last whole batch below the offset, which is not read here.
        """
        holder = self._state.segments.floor(offset)
        end = offset if holder is None else holder.base_offset
        self.truncated(end, end)

    def reopened(self, stable_offset: int) -> None:
        """Count everything as durable after the log's end was rebuilt and synced; ignore syncs of the old files."""
        self._generation += 1
        self.recovery_point = self._offsets.log_end_offset
        self.stable_offset = stable_offset
        self._flushed_bytes = self.appended_bytes
        self._synced_names = self._names

    def truncated(self, log_end_offset: int, stable_offset: int) -> None:
        """Lower the recovery point to the end of a truncated log; ignore syncs that began before."""
        self._generation += 1
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self.stable_offset = min(self.stable_offset, stable_offset)

    def checkpoint_epochs(self) -> None:
        """Write the leader epochs if they have changed. For a worker. Raises OSError.

        A copy syncs them: it truncates by them, and recovery does not read the batches below the recovery point. Other
        logs do not, as no leader's log is truncated.
        """
        epochs, context = self._state.epochs, self._state.context
        if epochs.changed:
            epochs.changed = False  # before the write, so that the next one covers later changes
            try:
                is_copy = self._offsets.shows_replicated
                write_epochs(context.disk, f"{context.directory}/{LEADER_EPOCHS}", epochs.entries, sync=is_copy)
                if is_copy:
                    context.disk.sync_directory(context.directory)
            except FileNotFoundError:
                pass  # the directory has been renamed for deletion
            except OSError:
                epochs.changed = True
                raise
