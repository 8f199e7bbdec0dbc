"""Making a log durable: up to where it has been synced, what a sync covers, the order of its steps.

Owns: the recovery point. Must not know who asks for a sync, or when.

Indexes of sealed segments are synced with their log, before the recovery point moves past them. Those of the active one
are so once in a while only: recovery keeps what is sound of them below the recovery point, and makes the rest from the
log. They would cost two waits of their own in most rounds.

A sync has three steps, as an append has: `begin` on the loop, `FlushPlan.sync` in a worker, `finish` on the loop.

Invariant: nothing counts as synced by a sync that ended after another one of the same log had failed (`SyncTurns`).
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from broker.log.active_writer import ActiveWriter
from broker.log.io.disk import Disk
from broker.log.segment import Segment
from broker.log.segments import Segments


class SyncTurns:
    """The syncs of one log, one at a time, and none after one that failed.

    Linux tells one of them of a failure and the next ones nothing. A failure has to be known at once: the loop hears of
    it when a whole round is over, and the end of a roll may have been synced in vain meanwhile.
    """

    __slots__ = ("_lock", "_writer")

    def __init__(self, writer: ActiveWriter) -> None:
        """`writer` knows whether the log has failed."""
        self._writer = writer
        self._lock = Lock()

    def take(self, sync: Callable[[], None]) -> None:
        """Sync, in a worker. Raises OSError: then the log has failed."""
        with self._lock:
            failure = self._writer.failure
            if failure is not None:
                raise OSError(errno.EIO, f"not synced, for the log had failed: {failure}")
            try:
                sync()
            except OSError as error:
                self._writer.fail(error)
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What is to be synced: everything below `offset`.

    `stable_offset`: transactions that begin below it have ended. `generation` is the log's count of truncations: what
    is appended after one is not covered. `names` is its count of directory changes: later ones are not covered either.
    """

    offset: int
    stable_offset: int
    appended_bytes: int
    generation: int
    names: int
    sealed: Sequence[Segment]
    active: Segment
    directory: str | None  # to be synced too, for it has new names
    disk: Disk
    turns: SyncTurns

    def sync(self) -> None:
        """Wait for the disk. For a worker. Raises OSError: then the log has failed, and no file may be synced again."""
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
    """Sync a segment, if it is still the log's: retention or compaction may be quicker, and nobody will ask for it."""
    try:
        sync()
    except FileNotFoundError:
        if not segment.removed:
            raise


class Durability:
    """What of one log is on the disk. Belongs to the loop.

    `recovery_point`: everything below it was synced. `stable_offset`: the last stable offset as of the last sync. A
    power cut may reopen a transaction that begins at or past it, by taking its marker.
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
        """`new_names`: files were made whose names are not synced yet."""
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
        """Note that files were made or removed: the directory has to be synced, too."""
        self._names += 1

    def begin(
        self, segments: Segments, log_end_offset: int, stable_offset: int, directory: str, disk: Disk
    ) -> FlushPlan:
        """Plan to sync all that is committed now. `stable_offset`: where the oldest open transaction begins."""
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
        """A plan was synced; `active` is the active segment now.

        One that was overtaken by a roll moves nothing: the indexes of what was sealed are synced by the end of the
        roll, and the plan of that comes next.
        """
        if plan.generation != self._generation or not (plan.active is active or plan.active.synced):
            return
        self.recovery_point = max(self.recovery_point, plan.offset)
        self.stable_offset = max(self.stable_offset, plan.stable_offset)
        self._flushed_bytes = max(self._flushed_bytes, plan.appended_bytes)
        self._synced_names = max(self._synced_names, plan.names)

    def reopened(self, log_end_offset: int, stable_offset: int) -> None:
        """Note that the end of the log was rebuilt and synced: syncs of the old files cover nothing any more."""
        self._generation += 1
        self.recovery_point = log_end_offset
        self.stable_offset = stable_offset
        self._flushed_bytes = self.appended_bytes
        self._synced_names = self._names

    def truncated(self, log_end_offset: int, stable_offset: int) -> None:
        """Note that the log was truncated: syncs under way cover nothing that is appended from now on."""
        self._generation += 1
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self.stable_offset = min(self.stable_offset, stable_offset)
