"""All partitions of this broker: topics and their logs, created, found, changed and deleted together.

Owns: the map from (topic, partition) to its Partition, and the order of steps by which metadata and directories stay in
agreement. Must not know: requests and sockets.

Invariants:
1. Metadata first: a topic is in the store before its directories are made, and marked as being deleted before they are
   moved away. A crash in between is finished at the next start (missing directories are made, marked ones removed).
2. One change at a time (`_changes`): a topic cannot be created while its old data is still being moved away.
3. What blocks runs in a worker; the maps change on the loop only.
"""

import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import trio

from broker.config import Settings
from broker.dynamic_config import LiveSettings, Overrides
from broker.log.errors import DataDirectoryError, DirectoryFailedError, LogError, OfflineError
from broker.log.facts import RecoveryReport
from broker.log.partition_log import PartitionLog
from broker.metadata.assignment import assign_replicas
from broker.metadata.store import MetadataError
from broker.metadata.topic import (
    InvalidPartitionsError,
    Topic,
    check_collision,
    check_name,
    check_partitions,
    is_internal,
)
from broker.metrics import Metrics
from broker.opening import Start, StartProgress
from broker.partition import Partition
from broker.storage import Storage, move_away
from broker.topic_config import check_topic_configs, log_config
from broker.writer import Writer

logger = logging.getLogger(__name__)

Change: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]  # of settings


class TopicExistsError(Exception):
    """A topic of this name is there already."""


class UnknownTopicError(Exception):
    """No such topic, or no such partition of it."""


class _DeletedDirectory(NamedTuple):
    """A deleted partition's directory, and when to remove it, by trio's clock."""

    due: float
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Sums over all logs; sizes in bytes."""

    segments: int
    log_bytes: int
    unflushed_bytes: int


class Partitions:
    """The topics and partitions of one broker. All methods belong to the loop."""

    def __init__(self, storage: Storage, settings: LiveSettings, writer: Writer, metrics: Metrics) -> None:
        self.live_settings = settings
        self.node_id = settings.static.node_id
        self._storage = storage
        self._writer = writer
        self._metrics = metrics
        self._topics: dict[str, Topic] = {}
        self._names: dict[bytes, str] = {}  # by id
        self._replicas: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._changes = trio.Lock()
        self._checkpoints = trio.Lock()
        self._deleted: dict[str, list[_DeletedDirectory]] = {}  # by data directory
        self._remembered: dict[str, bool] = {}  # topics that are gone, but not from the store; whether data are left
        self._offline: dict[tuple[str, int], str] = {}  # partitions that cannot be served, and why
        self._all_open = False
        self.on_deleted: Callable[[str], None] = lambda _: None  # told a topic's name once nobody finds it any more
        self.on_offline: Callable[[str, int], None] = lambda _topic, _partition: None  # told a partition, the same way

    @property
    def progress(self) -> StartProgress:
        """How far the start has come."""
        return self._storage.progress

    @property
    def settings(self) -> Settings:
        """The broker's settings as they are in force now: not to be kept."""
        return self.live_settings.current

    @property
    def data_directories(self) -> list[str]:
        """The paths of the data directories in service, as `Partition.data_directory` gives them."""
        return [str(Path(directory.path)) for directory in self._storage.directories.live]

    # -- finding --

    def get(self, topic: str, partition: int) -> Partition | None:
        """The partition, or None."""
        return self._partitions.get((topic, partition))

    def require(self, topic: str, partition: int) -> Partition:
        """The partition. Raises OfflineError, UnknownTopicError."""
        found = self.get(topic, partition)
        if found is None:
            raise self.missing(topic, partition)
        return found

    def missing(self, topic: str, partition: int) -> OfflineError | UnknownTopicError:
        """The error for a partition that `get` does not give: it is out of service, or there is none."""
        reason = self._offline.get((topic, partition))
        if reason is not None:
            return OfflineError(f"{topic}-{partition} is offline: {reason}")
        return UnknownTopicError(f"no partition {topic}-{partition}")

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition, in a data directory that is out of service."""
        return (topic, partition) in self._offline

    @property
    def offline_count(self) -> int:
        """How many partitions lie in data directories that are out of service."""
        return len(self._offline)

    def _is_served(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._partitions

    def has(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return topic in self._topics

    def topic(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        """What the topic with this id (16 bytes) is called, or None."""
        return self._names.get(topic_id)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def replicas(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The replicas of each partition of a topic, leader first."""
        return self._replicas[name]

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))  # a copy: metrics are collected in a worker

    def statistics(self) -> LogStatistics:
        """Sums over all logs."""
        logs = [partition.log for partition in self]
        return LogStatistics(
            segments=sum(log.segment_count for log in logs),
            log_bytes=sum(log.size for log in logs),
            unflushed_bytes=sum(log.unflushed_bytes for log in logs),
        )

    def __len__(self) -> int:
        return len(self._partitions)

    # -- changing --

    async def create(
        self, name: str, partitions: int = -1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Create a topic; a count of -1 takes `num.partitions`.

        Raises TopicExistsError, InvalidTopicError, SettingError, MetadataError, or OSError if its directories cannot be
        made.
        """
        async with self._change():
            count = self.settings.num_partitions if partitions == -1 else partitions
            topic = Topic(name=name, partitions=count, configs=self._check_new(name, count, configs or {}))
            if not is_internal(name):
                self._storage.directories.check_room()
            if not validate_only:
                if name in self._remembered:
                    await self._forget(name, leaves_data=self._remembered[name])
                await trio.to_thread.run_sync(self._storage.store.create_topic, topic)
                try:
                    await self._open(topic, range(count))
                except (OSError, LogError):
                    await self._forget(name, leaves_data=False)
                    raise
            return topic

    async def ensure(self, name: str) -> None:
        """Create a topic on first use, unless it is there: whoever comes second finds it.

        Raises what `create` raises but TopicExistsError.
        """
        if name not in self._topics:
            with suppress(TopicExistsError):
                await self.create(name)

    async def alter(
        self, name: str, change: Change | None = None, partitions: int | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Change a topic's settings, and grow its partition count. `change` makes new settings of those it has.

        Everything is checked before anything is changed.

        Raises UnknownTopicError, InvalidPartitionsError, SettingError, MetadataError, OSError, and what `change` does.
        """
        async with self._change():
            topic = self._known(name)
            configs = topic.configs if change is None else check_topic_configs(change(topic.configs), self.settings)
            count = _grown(topic, partitions)
            if validate_only:
                return topic
            if configs != topic.configs:
                await trio.to_thread.run_sync(self._storage.store.set_configs, name, configs)
                self._topics[name] = replace(topic, configs=configs)
                self._reconfigure(self._topics[name])
            if count != topic.partitions:
                await self._grow(self._topics[name], count)
            return self._topics[name]

    async def alter_broker(self, change: Callable[[Overrides], Overrides], *, validate_only: bool = False) -> None:
        """Change settings of the broker, for every topic that has not its own. They hold after a restart, too.

        `change` makes new overrides of those there are. Raises SettingError, MetadataError, and what `change` does.
        """
        async with self._change():
            overrides = change(self.live_settings.overrides)
            self.live_settings.combined(overrides)
            if validate_only:
                return
            kept = overrides.kept(self.node_id)
            await trio.to_thread.run_sync(self._storage.store.set_broker_configs, kept)
            self.live_settings.take(overrides)
            for topic in self._topics.values():
                self._reconfigure(topic)

    def _reconfigure(self, topic: Topic) -> None:
        """Let the logs of a topic know their settings."""
        config = log_config(topic.configs, self.settings)
        for index in range(topic.partitions):
            partition = self._partitions.get((topic.name, index))
            if partition is not None:
                partition.reconfigure(config)

    async def delete(self, name: str) -> None:
        """Delete a topic.

        At once for users, its files after `file.delete.delay.ms`. Raises UnknownTopicError, MetadataError, OSError.
        """
        async with self._change():
            topic = self._known(name)
            await trio.to_thread.run_sync(self._storage.store.begin_delete, name)
            doomed, is_offline = self._take_out(topic)
            del self._topics[name], self._names[topic.id.bytes], self._replicas[name]
            self.on_deleted(name)
            for partition in doomed:
                await partition.retire()
            logs = [partition.log for partition in doomed]
            moved, leaves_data = await trio.to_thread.run_sync(move_away, logs, self._storage.directories)
            delay_ms = log_config(topic.configs, self.settings).file_delete_delay_ms
            for path in moved:
                entry = _DeletedDirectory(trio.current_time() + delay_ms / 1000, path)
                self._deleted.setdefault(os.path.dirname(path), []).append(entry)
            self._storage.forget_hints(topic)
            leaves_data = leaves_data or is_offline
            if leaves_data:
                self._storage.directories.bury(topic.id)
            await self._forget_checkpoints()
            await self._forget(name, leaves_data=leaves_data)

    def _take_out(self, topic: Topic) -> tuple[list[Partition], bool]:
        """Let nobody find the partitions of a topic any more; those in service, and whether others are offline."""
        keys = [(topic.name, index) for index in range(topic.partitions)]
        offline = [key for key in keys if self._offline.pop(key, None) is not None]
        return [self._partitions.pop(key) for key in keys if key in self._partitions], bool(offline)

    async def _forget_checkpoints(self) -> None:
        """Write what is true of the logs that there are: of those that are gone, nothing is to be believed of others.

        A topic of the same name would begin where the deleted one did, and lose what lies before.
        """
        try:
            await self.checkpoint()
        except OSError as error:
            logger.warning("checkpoints are out of date until they can be written: %s", error)

    async def _forget(self, name: str, *, leaves_data: bool) -> None:
        """Take a topic whose data is out of the way out of the store.

        If that fails (the disk is full), it is done before the name is used again, or at the next start.
        """
        try:
            forget = partial(self._storage.store.finish_delete, name, leaves_data=leaves_data)
            await trio.to_thread.run_sync(forget)
            self._remembered.pop(name, None)
        except MetadataError as error:
            self._remembered[name] = leaves_data
            logger.warning("topic %s is deleted, but not yet forgotten: %s", name, error)

    async def remove_deleted(self, data_directory: str) -> None:
        """Remove the directories of deleted topics whose delay is over from one data directory, in a worker."""
        now = trio.current_time()
        deleted = self._deleted.pop(data_directory, [])
        self._deleted[data_directory] = [entry for entry in deleted if entry.due > now]
        for entry in deleted:
            if entry.due <= now:
                await trio.to_thread.run_sync(partial(shutil.rmtree, entry.path, ignore_errors=True))

    # -- start and stop --

    async def open_all(self) -> None:
        """Open every topic of the store.

        With the checkpoints after a clean stop, else with recovery, which leaves a receipt. Finishes interrupted
        deletions. To end it early, `progress.give_up` and cancel. Raises DataDirectoryError for what cannot be opened,
        MetadataError.
        """
        started_ms = self._storage.clock()
        try:
            await trio.to_thread.run_sync(self._storage.finish_deletions)
            await self._open_topics(await trio.to_thread.run_sync(self._storage.store.load))
            await trio.to_thread.run_sync(self._storage.warn_of_strangers, self._is_served)
            self._all_open = True
            was_unclean = any(partition.log.recovery is not None for partition in self)
            if self._storage.directories.forget_strangers() or was_unclean:
                await self._forget_checkpoints()  # before anything is written: what was cut may lie below them
        except OSError as error:
            path = error.filename or self._storage.directories.first.path
            raise DataDirectoryError(f"{path}: {error.strerror}") from error
        finally:
            with trio.CancelScope(shield=True):
                await self._end_opening(started_ms)

    async def _open_topics(self, topics: Sequence[Topic]) -> None:
        self.progress.begin(sum(topic.partitions for topic in topics))
        configured = [(topic, log_config(topic.configs, self.settings)) for topic in topics]
        threads = self.settings.num_recovery_threads_per_data_dir
        await trio.to_thread.run_sync(partial(self._storage.open_ahead, configured, threads_each=threads))
        for topic in topics:
            await self._open_known(topic)

    async def _end_opening(self, started_ms: int) -> None:
        logs = [partition.log for partition in self]
        threads = self.settings.num_recovery_threads_per_data_dir
        start = Start(started_ms, threads, complete=self._all_open)
        await trio.to_thread.run_sync(self._storage.end_opening, logs, start)

    async def close_all(self) -> None:
        """Finish what is queued, sync and close every log, and leave the checkpoints of a clean stop, and its marker.

        Where a log cannot be closed in order, or a checkpoint be written, the marker is not left: the next start looks
        at everything. After a start that failed neither is: what the broker before left still holds.
        """
        for partition in self:
            await partition.retire()
        logs = [partition.log for partition in self]
        await trio.to_thread.run_sync(partial(self._storage.close_logs, logs, all_open=self._all_open))

    async def checkpoint(self) -> None:
        """Write the recovery points and log starts of all logs. Raises OSError."""
        await self._write(self._storage.directories.write_checkpoints)

    async def checkpoint_log_starts(self) -> None:
        """Write the log starts of all logs: what was deleted from a log must not come back. Raises OSError."""
        await self._write(self._storage.directories.write_log_starts)

    def cleaned_up_to(self, partition: Partition) -> int | None:
        """Up to where a log was compacted, as far as is known."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        return directory.cleaner_points.get((partition.topic, partition.index))

    async def note_cleaned(self, partition: Partition, offset: int) -> None:
        """A log was compacted up to an offset; written down. Raises OSError."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        directory.cleaner_points[partition.topic, partition.index] = offset
        async with self._checkpoints:
            await trio.to_thread.run_sync(directory.write_cleaner_points, dict(directory.cleaner_points))

    async def _write(self, write: Callable[[Iterable[PartitionLog]], None]) -> None:
        """One writer of checkpoints at a time: they are replaced as a whole."""
        async with self._checkpoints:
            await trio.to_thread.run_sync(write, [partition.log for partition in self])

    # -- inside --

    async def _grow(self, topic: Topic, count: int) -> None:
        """Add partitions; if their directories cannot be made, the topic is as it was."""
        store = self._storage.store
        await trio.to_thread.run_sync(store.set_partitions, topic.name, count)
        try:
            await self._open(replace(topic, partitions=count), range(topic.partitions, count))
        except (OSError, LogError):
            await trio.to_thread.run_sync(store.set_partitions, topic.name, topic.partitions)
            raise

    def _check_new(self, name: str, count: int, configs: Mapping[str, str]) -> dict[str, str]:
        """The settings as they are to be kept; raises for whatever cannot be."""
        check_name(name)
        if name in self._topics:
            raise TopicExistsError(f"topic {name!r} exists already")
        check_collision(name, self._topics)
        checked = check_topic_configs(configs, self.settings)
        check_partitions(count)
        return checked

    def _known(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"no topic {name!r}")
        return topic

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time, and once begun it is finished, even if whoever asked for it has gone."""
        async with self._changes:
            with trio.CancelScope(shield=True):
                yield

    async def _open(self, topic: Topic, indexes: Iterable[int]) -> None:
        """Open logs in a worker and let users see the topic."""
        config = log_config(topic.configs, self.settings)
        logs = await trio.to_thread.run_sync(self._storage.open_logs, topic, list(indexes), config)
        for log in logs:
            self._partitions[topic.name, log.partition] = Partition(log, self._writer)
            self._count_recovery(log)
        self._topics[topic.name] = topic
        self._names[topic.id.bytes] = topic.name
        self._replicas[topic.name] = assign_replicas([self.node_id], topic.partitions, 1, self._storage.random)
        for log in logs:
            if self._storage.directories.is_offline(log.topic, log.partition):  # its disk failed while it was opened
                self._lose(self._partitions[log.topic, log.partition], "its data directory is out of service")

    async def _open_known(self, topic: Topic) -> None:
        """Open what can be served of a topic; the rest is offline. Raises OSError, LogError."""
        directories = self._storage.directories
        while True:
            offline = {index for index in range(topic.partitions) if directories.is_offline(topic.name, index)}
            try:
                await self._open(topic, [index for index in range(topic.partitions) if index not in offline])
            except DirectoryFailedError as error:
                self.take_offline(error.path, error.reason)
                continue
            self._offline |= {(topic.name, index): "its data directory is out of service" for index in offline}
            return

    def take_offline(self, path: str, reason: str) -> None:
        """Take a data directory out of service: its partitions are offline, the others go on.

        Raises DirectoryFailedError if the broker cannot go on without it.
        """
        directories = self._storage.directories
        failed = next((directory for directory in directories.live if directory.path == path), None)
        if failed is None:
            return
        if failed is directories.first:
            raise DirectoryFailedError(path, f"{reason}; it has the metadata, nothing can be served without")
        directories.take_offline(failed, reason)
        lost = [partition for partition in self if directories.holder(partition.topic, partition.index) is failed]
        logger.error("data directory %s is out of service until the next start: %s", path, reason)
        for partition in lost:
            self._lose(partition, f"data directory {path}: {reason}")

    def _lose(self, partition: Partition, reason: str) -> None:
        """A partition in a directory that is out of service is offline."""
        del self._partitions[partition.topic, partition.index]
        self._offline[partition.topic, partition.index] = reason
        partition.log.fail(reason)
        partition.wake_all()
        self.on_offline(partition.topic, partition.index)
        self._writer.spawn(partial(_abandon, partition))

    def _count_recovery(self, log: PartitionLog) -> None:
        report = log.recovery
        if report is not None:
            self._metrics.truncated_bytes.add(report.truncated_bytes)
            level = logging.INFO if report.repairs else logging.DEBUG  # logs come by the thousand; the receipt has all
            logger.log(level, "%s-%d: recovered: %s", log.topic, log.partition, _in_words(report))


def _in_words(report: RecoveryReport) -> str:
    """What recovery did to a log, for people."""
    did = [f"{report.scanned_bytes:,} bytes of {report.scanned_segments} segments checked in {report.seconds:.3f} s"]
    if report.truncated_bytes:
        did.append(f"{report.truncated_bytes:,} bytes cut at offset {report.truncated_at} ({report.truncation_reason})")
    if report.removed_segments:
        did.append(f"segments removed: {', '.join(map(str, report.removed_segments))}")
    rebuilt = {*report.rebuilt_indexes, *report.rebuilt_time_indexes, *report.rebuilt_transaction_indexes}
    if rebuilt:
        did.append(f"indexes of {len(rebuilt)} segments rebuilt")
    if report.removed_snapshots:
        did.append(f"snapshots of producers removed: {', '.join(map(str, report.removed_snapshots))}")
    if report.rebuilt_epochs:
        did.append("leader epochs made anew")
    if report.leftovers:
        did.append(f"{len(report.leftovers)} files that were left over resolved")
    return "; ".join(did)


def _grown(topic: Topic, partitions: int | None) -> int:
    """The new partition count, which may only grow. Raises InvalidPartitionsError."""
    if partitions is None:
        return topic.partitions
    if partitions <= topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {topic.partitions} partitions and can only get more, not {partitions}"
        )
    check_partitions(partitions)
    return partitions


async def _abandon(partition: Partition) -> None:
    """Let go of a log whose disk has failed, as soon as nobody is inside."""
    await partition.retire()
    try:
        await trio.to_thread.run_sync(partial(partition.log.close, clean=False))
    except OSError as error:
        logger.debug("%s-%d: %s", partition.topic, partition.index, error)
