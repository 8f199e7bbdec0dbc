"""Flush a log to disk and track its recovery point.

Indexes of sealed segments are synced together with the log file, before the recovery point moves past them. Those of
the active segment are synced only after every mebibyte of log, since each would add a wait for the disk to most
flushes: recovery keeps their valid entries below the recovery point and rebuilds the rest from the log.

A flush has three steps: `Durability.begin` on the event loop, `FlushPlan.sync` in a worker, `Durability.finish` on the
event loop.

Invariant: a sync that ends after another sync of the same log has failed makes nothing count as durable (`SyncTurns`).
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from warmlog.broker.log.active_writer import ActiveWriter
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments


class SyncTurns:
    """Serializes the syncs of one log, and refuses any after one that failed.

    Linux reports a write-back failure to one sync and nothing to the next. The failure is recorded here at once: the
    event loop learns of it only at the end of a whole flush round, and a roll could sync the same file before that.
    """

    __slots__ = ("_lock", "_writer")

    def __init__(self, writer: ActiveWriter) -> None:
        """Share the failure state of `writer`."""
        self._writer = writer
        self._lock = Lock()

    def take(self, sync: Callable[[], None]) -> None:
        """Call `sync` in a worker. Raises OSError, and then the log has failed."""
        with self._lock:
            failure = self._writer.failure
            if failure is not None:
                raise OSError(errno.EIO, f"not synced: the log has already failed: {failure}")
            try:
                sync()
            except OSError as error:
                self._writer.fail(error)
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
    directory: str | None  # synced, too, if files were created or removed in it
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
        _unless_removed(self.active, self.active.sync_end)  # it may have been sealed since
        if self.directory is not None:
            self.disk.sync_directory(self.directory)


def _unless_removed(segment: Segment, sync: Callable[[], None]) -> None:
    """Sync a segment, unless retention or compaction has removed it meanwhile."""
    try:
        sync()
    except FileNotFoundError:
        if not segment.removed:
            raise


class Durability:
    """Track how much of one log is durable: everything below `recovery_point`. For the event loop.

    `stable_offset` is the last stable offset as of the last sync. A power cut may reopen a transaction that begins at
    or past it, by taking its marker.
    """

    __slots__ = (
        "_flushed_bytes",
        "_generation",
        "_names",
        "_synced_names",
        "appended_bytes",
        "recovery_point",
        "stable_offset",
        "turns",
    )

    def __init__(self, recovery_point: int, stable_offset: int, *, new_names: bool, turns: SyncTurns) -> None:
        """Begin at a recovery point. `new_names`: files were created and the directory is not synced yet."""
        self.recovery_point = recovery_point
        self.stable_offset = stable_offset
        self.turns = turns
        self._names = int(new_names)
        self._synced_names = 0
        self.appended_bytes = 0  # since the log was opened
        self._flushed_bytes = 0
        self._generation = 0

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended since the last sync began."""
        return self.appended_bytes - self._flushed_bytes

    def names_made(self) -> None:
        """Note that files were created or removed, so that the next flush syncs the directory."""
        self._names += 1

    def begin(
        self, segments: Segments, log_end_offset: int, stable_offset: int, directory: str, disk: Disk
    ) -> FlushPlan:
        """Return what must be synced to make everything committed so far durable.

        `stable_offset`: where the oldest open transaction begins.
        """
        return FlushPlan(
            offset=log_end_offset,
            stable_offset=stable_offset,
            appended_bytes=self.appended_bytes,
            generation=self._generation,
            names=self._names,
            sealed=segments.from_offset(self.recovery_point)[:-1],
            active=segments.active,
            directory=directory if self._names > self._synced_names else None,
            disk=disk,
            turns=self.turns,
        )

    def finish(self, plan: FlushPlan, active: Segment) -> None:
        """Move the recovery point after a plan was synced; `active` is the active segment now.

        It does not move if the log has rolled since and the sealed segment's indexes are not synced yet: the end of
        the roll syncs them, and the next flush moves it.
        """
        if plan.generation != self._generation or not (plan.active is active or plan.active.synced):
            return
        self.recovery_point = max(self.recovery_point, plan.offset)
        self.stable_offset = max(self.stable_offset, plan.stable_offset)
        self._flushed_bytes = max(self._flushed_bytes, plan.appended_bytes)
        self._synced_names = max(self._synced_names, plan.names)

    def reopened(self, log_end_offset: int, stable_offset: int) -> None:
        """Count all as durable after the end of the log was rebuilt and synced; ignore syncs of the old files."""
        self._generation += 1
        self.recovery_point = log_end_offset
        self.stable_offset = stable_offset
        self._flushed_bytes = self.appended_bytes
        self._synced_names = self._names

    def truncated(self, log_end_offset: int, stable_offset: int) -> None:
        """Lower the recovery point to the end of a truncated log; ignore syncs that began before."""
        self._generation += 1
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self.stable_offset = min(self.stable_offset, stable_offset)
