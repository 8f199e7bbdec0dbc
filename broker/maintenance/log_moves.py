"""Moves of logs between data directories while they serve requests (AlterReplicaLogDirs).

This module schedules the moves and throttles the copying. How a log is copied and switched over is in
`broker.log.moving`.

    API      `begin`         start a move in a task of its own; a move of the same partition to another directory ends,
                             and its copy is removed
    task     create the copy's directory, which records the move, and wait for its turn
    task     copy in pieces, in threads of the target directory, at `replica.alter.log.dirs.io.max.bytes.per.second` at
             most; when little is left, switch over to the copy
    startup  `resume`        restart the moves whose copies were left behind when the broker stopped or was killed

Invariants:
1. A partition has at most one move, and a data directory receives one log at a time; other moves wait.
2. A failure ends that move only: its copy is removed, and the log stays where it is.
3. A stopping broker leaves the copies: they record which moves to restart.

Source: kafka.server.ReplicaManager.alterReplicaLogDirs, ReplicaAlterLogDirsThread.
"""

import logging
import math
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import LogError, NoSpaceError
from warmlog.broker.log.moving import LogMove
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

LITTLE_BYTES = 1 << 20  # bytes left to copy while writes wait
MUCH_BYTES = 64 << 20  # the same, if a producer writes as fast as the log is copied
MAX_ROUNDS = 20  # of catching up before MUCH_BYTES applies
RETRY_S = 1.0  # pause after an impossible switch-over
MIN_SLEEP_S = 0.001
MAX_SLEEP_S = 1.0  # longest sleep, so that a higher rate takes effect soon


class MoveStatus(NamedTuple):
    """A move in progress: bytes copied, and the number of records not copied yet."""

    partition: Partition
    copied_bytes: int
    lag: int


@dataclass(slots=True, eq=False)
class _Move:
    """A move. `is_recorded`: the directory of `log_move` exists, so that the next startup resumes the move."""

    partition: Partition
    target: DataDirectory
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    log_move: LogMove | None = None
    is_recorded: bool = False


class LogMoves:
    """The moves of one broker; `run` it in a nursery that ends with the broker. Belongs to the event loop."""

    def __init__(self, partitions: Partitions, directories: DataDirectories, writer: Writer, metrics: Metrics) -> None:
        self._partitions = partitions
        self._directories = directories
        self._writer = writer
        self._moves: dict[Partition, _Move] = {}
        self._waiting: list[_Move] = []  # begun before `run`
        self._turns: dict[DataDirectory, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None
        self.copied_bytes = 0  # since startup
        self.outcomes = {"moved": 0, "failed": 0, "cancelled": 0}
        _declare(metrics, self)

    def begin(self, partition: Partition, target: DataDirectory) -> None:
        """Move a partition to a live data directory. Never waits.

        Cancels a move of the partition to another directory. Does nothing else if the partition is already there.
        Raises NoSpaceError.
        """
        current = self._moves.get(partition)
        if current is not None and current.target is target:
            return
        holder = self._directories.holder(partition.topic, partition.index)
        if holder is not target and target.space_status.is_short:
            raise NoSpaceError(f"data directory {target.path} is full")
        if current is not None:
            current.scope.cancel()
            del self._moves[partition]
        if holder is not target:
            move = self._moves[partition] = _Move(partition, target)
            if self._nursery is None:
                self._waiting.append(move)
            else:
                self._nursery.start_soon(self._run, move)

    def to(self, target: DataDirectory) -> list[MoveStatus]:
        """Return the moves to a data directory that are in progress or wait for their turn."""
        return [
            _status(move.partition, move.log_move)
            for move in self._moves.values()
            if move.target is target and move.log_move is not None and move.is_recorded
        ]

    async def run(self) -> None:
        """Restart moves that the last broker left, then run moves until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._resume()
            for move in self._waiting:
                nursery.start_soon(self._run, move)
            self._waiting.clear()
            await trio.sleep_forever()

    async def _resume(self) -> None:
        """Restart the moves whose copies were left behind. The copies are removed, as they may be out of date."""
        for directory in list(self._directories.live):
            for name, topic_partition in directory.future_directories():
                path = directory.partition_path(name)
                await trio.to_thread.run_sync(partial(shutil.rmtree, path, ignore_errors=True))
                partition = self._partitions.local(topic_partition.topic, topic_partition.partition)
                if partition is not None and partition not in self._moves:
                    self._restart(partition, directory)

    def _restart(self, partition: Partition, target: DataDirectory) -> None:
        name = f"{partition.topic}-{partition.index}"
        logger.info("%s: restarting its move to %s", name, target.path)
        try:
            self.begin(partition, target)
        except LogError as error:  # such as a full disk
            self.outcomes["failed"] += 1
            logger.error("%s: abandoned its move to %s: %s", name, target.path, error)  # noqa: TRY400

    def __len__(self) -> int:
        return len(self._moves)

    # -- one move --

    async def _run(self, move: _Move) -> None:
        partition, target = move.partition, move.target
        name = f"{partition.topic}-{partition.index}"
        outcome = "cancelled"
        try:
            with move.scope:
                move.log_move = partition.log.begin_move(target.path)
                await self._record(move, move.log_move)
                async with self._turns.setdefault(target, trio.Lock()):
                    if await self._move(move, move.log_move):
                        outcome = "moved"
                        logger.info("%s: moved to %s", name, target.path)
        except (OSError, LogError, ProtocolError) as error:
            outcome = "failed"
            logger.error("%s: move to %s failed: %s", name, target.path, error)  # noqa: TRY400  # the message is enough
        except Exception:  # a defect ends this move only
            outcome = "failed"
            logger.exception("%s: move to %s failed", name, target.path)
        finally:
            if self._moves.get(partition) is move:
                del self._moves[partition]
        self.outcomes[outcome] += 1
        if outcome != "moved" and move.log_move is not None:
            await self._discard(move, move.log_move)

    async def _record(self, move: _Move, log_move: LogMove) -> None:
        """Create the directory of the copy. Raises OSError."""
        holder = self._directories.holder(move.partition.topic, move.partition.index)
        if holder is not None and self._is_here(move.partition):
            await self._workers(move.target).keep_up(partial(log_move.prepare, holder.directory_id))
            move.is_recorded = True

    async def _move(self, move: _Move, log_move: LogMove) -> bool:
        """Copy and switch over; return whether the log has moved. Raises OSError, LogError."""
        partition, target = move.partition, move.target
        if not move.is_recorded or not self._is_here(partition):
            return False
        usable = (await trio.to_thread.run_sync(target.space)).usable_bytes
        if usable < partition.log.size:
            raise NoSpaceError(f"the log has {partition.log.size:,} bytes, and {usable:,} are free")
        while self._is_here(partition) and target in self._directories.live:
            await self._catch_up(move, log_move)
            is_close = log_move.has_sealed and log_move.remaining_bytes <= MUCH_BYTES
            if is_close and await self._partitions.relocation.relocate(partition, log_move, target):
                return True
            await trio.sleep(RETRY_S)
        return False

    async def _catch_up(self, move: _Move, log_move: LogMove) -> None:
        """Copy until little is left, or until the remainder stops shrinking. Raises OSError."""
        workers = self._workers(move.target)
        for _ in range(MAX_ROUNDS):
            while log_move.remaining_bytes > LITTLE_BYTES or not log_move.has_sealed:
                copied = await workers.keep_up(log_move.copy)
                self.copied_bytes += copied
                await self._keep_pace(move, copied)
                if not self._is_here(move.partition):
                    return
            await workers.keep_up(log_move.sync_active)
            if log_move.remaining_bytes <= LITTLE_BYTES:
                return

    async def _keep_pace(self, move: _Move, copied: int) -> None:
        """Sleep to keep the copying within its rate, which may change in the meantime."""
        while copied > 0 and self._is_here(move.partition):
            rate = self._partitions.settings.replica_alter_log_dirs_io_max_bytes_per_second
            seconds = min(copied / rate, MAX_SLEEP_S) if rate else MAX_SLEEP_S
            copied -= math.ceil(seconds * rate)
            if seconds >= MIN_SLEEP_S:
                await trio.sleep(seconds)

    async def _discard(self, move: _Move, log_move: LogMove) -> None:
        try:
            await self._workers(move.target).keep_up(log_move.discard)
        except OSError as error:
            logger.warning("%s: cannot remove the unfinished copy: %s", log_move.directory, error)

    def _workers(self, directory: DataDirectory) -> DiskWorkers:
        return self._writer.workers(str(Path(directory.path)))

    def _is_here(self, partition: Partition) -> bool:
        return self._partitions.local(partition.topic, partition.index) is partition


def _status(partition: Partition, log_move: LogMove) -> MoveStatus:
    log = partition.log
    lag = max(0, log.offsets.log_end_offset - max(log_move.end_offset, log.offsets.log_start_offset))
    return MoveStatus(partition, log_move.copied_bytes, lag)


def _declare(metrics: Metrics, moves: LogMoves) -> None:
    metrics.gauge("warmlog_log_moves", "Logs being moved to another data directory.", lambda: [((), len(moves))])
    metrics.counter(
        "warmlog_log_moves_total",
        "Completed moves of logs to another data directory, by outcome.",
        lambda: [((outcome,), count) for outcome, count in moves.outcomes.items()],
        ("outcome",),
    )
    metrics.counter(
        "warmlog_log_move_bytes_total",
        "Bytes copied by moves of logs to another data directory.",
        lambda: [((), moves.copied_bytes)],
    )
