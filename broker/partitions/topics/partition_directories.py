"""Create and remove the directories of partitions, in the workers of their disks.

Before a partition is created, the checkpoints have no entry of its name (`Checkpoints.forget_stale`); once its name is
synced, they have one. So a startup without the directory can distinguish an interrupted creation from a loss.
"""

import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import trio

from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.checkpoints import Checkpoints
from warmlog.broker.partitions.disks.disk_workers import DiskWorkers
from warmlog.broker.partitions.disks.storage import NewLog, Storage, move_away
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.settings.topics import LogConfigs
from warmlog.protocol.partitions import TopicPartition

logger = logging.getLogger(__name__)

# One worker creates the directories in a data directory. The work is system calls that do not wait for the disk, with
# Python between them: for 2,000 partitions two workers took 1.0 s and one took 0.5 s, because they compete for the GIL.
LOGS_PER_TURN = 16  # partitions per step of a worker: some milliseconds
LOGS_PER_STEP = 500  # directories scheduled for removal between two checkpoints: about 1 ms

Checkpoint: TypeAlias = Callable[[], Awaitable[None]]  # a checkpoint for other tasks
Failures: TypeAlias = dict[str, Exception]  # by topic


class _Deleted(NamedTuple):
    """The directory of a deleted or moved partition, and the time to remove it, by trio's clock."""

    due: float
    path: str


@dataclass(slots=True)
class Made:
    """The created logs, and the failures, by topic and partition."""

    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    failures: dict[TopicPartition, Exception] = field(default_factory=dict)


@dataclass(slots=True)
class MadeTopics:
    """The created logs, and the failures, by topic."""

    logs: dict[str, list[PartitionLog]] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)


class PartitionDirectories:
    """Creates and removes the directories of partitions. Belongs to the event loop."""

    def __init__(self, storage: Storage, configs: LogConfigs, checkpoints: Checkpoints, writer: Writer) -> None:
        self._storage = storage
        self._configs = configs
        self._checkpoints = checkpoints
        self._writer = writer
        self._deleted: dict[str, list[_Deleted]] = {}  # by data directory

    async def forget_stale(self, topic: str, indexes: Iterable[int]) -> None:
        """Remove entries of partitions from the checkpoints, before the metadata gets new ones. Raises OSError."""
        keys = {(topic, index) for index in indexes}
        await self._checkpoints.forget_stale(self._storage.directories.live, keys)

    async def make(self, new: Sequence[NewLog]) -> Made:
        """Create the directories of partitions, on all disks in parallel.

        A failure affects only its own partition or, if a data directory fails, all partitions placed there.
        """
        made = Made()
        placed, made.failures = await trio.to_thread.run_sync(self._storage.place, new)
        async with trio.open_nursery() as nursery:
            for directory, there in placed.items():
                nursery.start_soon(self._make_in, directory, there, made)
        await self._give_up(made.failures, made)
        return made

    async def make_topics(self, new: Sequence[NewLog]) -> MadeTopics:
        """Create the directories of partitions as `make` does, but for each topic either all or none."""
        made, whole = await self.make(new), MadeTopics()
        for (name, _), error in made.failures.items():
            whole.failures[name] = error
        await self._give_up([key for key in made.logs if key[0] in whole.failures], made)
        for (name, _), log in made.logs.items():
            whole.logs.setdefault(name, []).append(log)
        return whole

    async def _give_up(self, keys: Collection[TopicPartition], made: Made) -> None:
        """Close the created logs of these partitions, and drop their placement."""
        logs = [made.logs.pop(key) for key in keys if key in made.logs]
        if logs:
            await trio.to_thread.run_sync(_close_all, logs)
        for key in keys:
            self._storage.directories.release(*key)

    async def _make_in(self, directory: DataDirectory, new: Sequence[NewLog], made: Made) -> None:
        """Create the directories of partitions in one data directory, and fsync their names."""
        workers, left = self._workers(directory), iter(new)
        try:
            if self._storage.is_in_cluster:
                directory.forget_unserved(await workers.write(partial(self._storage.rename_strays, directory, new)))
            await self._checkpoints.forget_stale([directory], {(topic.name, index) for topic, index, _ in new})
            while turn := list(islice(left, LOGS_PER_TURN)):
                outcomes = await workers.write(partial(self._storage.make_logs, turn))
                for (topic, index, _), outcome in zip(turn, outcomes, strict=True):
                    if isinstance(outcome, Exception):
                        made.failures[topic.name, index] = outcome
                    else:
                        made.logs[topic.name, index] = outcome
            await workers.write(directory.sync_names)
        except OSError as error:
            made.failures |= {(topic.name, index): error for topic, index, _ in new}
            return
        created = [key for key in made.logs if self._storage.directories.holder(*key) is directory]
        try:
            await self._checkpoints.add_new(directory, created)
        except OSError as error:  # until the next checkpoint, a startup would not detect their loss
            logger.warning("%s: cannot add new partitions to the checkpoint: %s", directory.path, error)

    def _workers(self, directory: DataDirectory) -> DiskWorkers:
        return self._writer.workers(str(Path(directory.path)))

    async def move_away(
        self, doomed: Sequence[Partition], topics: Mapping[str, Topic], checkpoint: Checkpoint
    ) -> set[str]:
        """Rename directories, on all disks in parallel; return the topics for which some could not be renamed."""
        left: set[str] = set()

        async def move(directory: DataDirectory, logs: Sequence[PartitionLog]) -> None:
            moved, others = await self._workers(directory).write(partial(move_away, directory, logs))
            left.update(others)
            delays: dict[str, int] = {}
            for number, (name, path) in enumerate(moved, 1):
                delay_ms = delays.get(name)
                if delay_ms is None:
                    delay_ms = delays[name] = self._configs.of(topics[name].configs).file_delete_delay_ms
                self.remove_later(path, delay_ms)
                if number % LOGS_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()

        held = await self._by_directory(doomed, checkpoint)
        async with trio.open_nursery() as nursery:
            for directory, there in held.items():
                if there:
                    nursery.start_soon(move, directory, there)
        reached: set[PartitionLog] = set()
        for there in held.values():
            reached.update(there)
        for partition in doomed:
            if partition.log not in reached:  # its data directory went offline
                left.add(partition.log.topic)
            await checkpoint()
        return left

    async def _by_directory(
        self, partitions: Sequence[Partition], checkpoint: Checkpoint
    ) -> dict[DataDirectory, list[PartitionLog]]:
        directories = self._storage.directories
        held: dict[DataDirectory, list[PartitionLog]] = {directory: [] for directory in directories.live}
        for partition in partitions:
            holder = directories.holder(partition.log.topic, partition.log.partition)
            if holder in held:
                held[holder].append(partition.log)
            await checkpoint()
        return held

    async def forget(self, topics: Iterable[Topic], left: Collection[str], checkpoint: Checkpoint) -> None:
        """Drop the placement of deleted topics; record each topic whose data could not be removed."""
        directories = self._storage.directories
        for topic in topics:
            for index in range(topic.partitions):
                directories.forget(topic.name, index)
                await checkpoint()
            if topic.name in left:
                directories.note_deleted(topic.id)

    def remove_later(self, path: str, delay_ms: int) -> None:
        """Schedule the removal of a directory after a delay."""
        entry = _Deleted(trio.current_time() + delay_ms / 1000, path)
        self._deleted.setdefault(os.path.dirname(path), []).append(entry)

    async def remove_due(self, data_directory: str) -> None:
        """Remove the due directories of one data directory, in a worker thread."""
        now = trio.current_time()
        deleted = self._deleted.pop(data_directory, [])
        self._deleted[data_directory] = [entry for entry in deleted if entry.due > now]
        for entry in deleted:
            if entry.due <= now:
                await trio.to_thread.run_sync(partial(shutil.rmtree, entry.path, ignore_errors=True))


def _close_all(logs: Iterable[PartitionLog]) -> None:
    for log in logs:
        log.close(clean=False)
