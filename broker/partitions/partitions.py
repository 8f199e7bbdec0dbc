"""All partitions of this broker: what is served, how it is opened at startup, and closed.

How topics change is in `topic_changes`, what is served in `topic_map`; this is the face of both. What blocks runs in a
worker; the maps change on the event loop only.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from broker.log.descriptions import RecoveryReport
from broker.log.directory.data_directory import DataDirectory
from broker.log.errors import DataDirectoryError, DirectoryFailedError, LogError, NotReadyError, OfflineError
from broker.log.moving import LogMove
from broker.log.partition_log import PartitionLog
from broker.log.producers.table import ProducerBudget
from broker.metadata.assignment import assign_replicas
from broker.metadata.topic import Topic
from broker.metrics.registry import Metrics
from broker.partitions.checkpoints import Checkpoints
from broker.partitions.partition import Destination, Partition
from broker.partitions.startup import Start, StartProgress
from broker.partitions.storage import Storage
from broker.partitions.topic_changes import (
    Change,
    Checkpoint,
    Failures,
    TopicChanges,
    TopicExistsError,
    UnknownTopicError,
)
from broker.partitions.topic_map import Replicas, TopicMap
from broker.partitions.writer import Writer
from broker.settings.live import LiveSettings, Overrides
from broker.settings.logs import LogConfigs
from broker.settings.settings import Settings

__all__ = ["LogStatistics", "Partitions", "TopicExistsError", "UnknownTopicError"]

logger = logging.getLogger(__name__)

PUBLISHED_A_TURN = 64  # partitions that are put into service before others have their turn: about 1 ms
OUT_OF_SERVICE = "its data directory is out of service"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Sums over all logs; sizes in bytes."""

    segments: int
    log_bytes: int
    unflushed_bytes: int


class Partitions:
    """The topics and partitions of one broker. All methods belong to the event loop."""

    def __init__(self, storage: Storage, settings: LiveSettings, writer: Writer, metrics: Metrics) -> None:
        self.live_settings = settings
        self.node_id = settings.static.node_id
        self._storage = storage
        self._writer = writer
        self._metrics = metrics
        self._map = TopicMap(lambda topic: assign_replicas([self.node_id], topic.partitions, 1, storage.random))
        self._configs = LogConfigs(settings)
        self._checkpoints = Checkpoints(storage.directories, lambda: [partition.log for partition in self])
        self.changes = TopicChanges(
            self._map,
            storage,
            settings=settings,
            configs=self._configs,
            checkpoints=self._checkpoints,
            writer=writer,
            publish=self._publish,
        )
        self._all_open = False
        self.on_offline: Callable[[str, int], None] = lambda _topic, _partition: None  # called with a lost partition

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

    @property
    def producer_budget(self) -> ProducerBudget:
        """How many idempotent producers all logs may know together."""
        return self._storage.budget

    def clock(self) -> int:
        """Return the time in ms since the epoch."""
        return self._storage.clock()

    # -- finding --

    def get(self, topic: str, partition: int) -> Partition | None:
        """The partition, or None."""
        return self._map.partitions.get((topic, partition))

    def require(self, topic: str, partition: int) -> Partition:
        """The partition. Raises OfflineError, UnknownTopicError."""
        found = self.get(topic, partition)
        if found is None:
            raise self.missing(topic, partition)
        return found

    def is_pending(self, topic: str) -> bool:
        """Tell whether a topic is just being created, and its partitions cannot be found yet."""
        return topic in self._map.pending

    def missing(self, topic: str, partition: int) -> LogError | UnknownTopicError:
        """Return the error for a partition that `get` does not find: it is offline, not made yet, or unknown."""
        if topic in self._map.pending and partition < self._map.topics[topic].partitions:
            return NotReadyError(f"{topic}-{partition} is just being created")
        reason = self._map.offline.get((topic, partition))
        if reason is not None:
            return OfflineError(f"{topic}-{partition} is offline: {reason}")
        return UnknownTopicError(f"no partition {topic}-{partition}")

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition, in a data directory that is out of service."""
        return (topic, partition) in self._map.offline

    @property
    def offline_count(self) -> int:
        """How many partitions lie in data directories that are out of service."""
        return len(self._map.offline)

    def _is_served(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._map.partitions

    def has(self, topic: str) -> bool:
        """Whether there is such a topic."""
        return topic in self._map.topics

    def topic(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._map.topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        """What the topic with this id (16 bytes) is called, or None."""
        return self._map.name_of(topic_id)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return [self._map.topics[name] for name in sorted(self._map.topics)]

    def replicas(self, name: str) -> Replicas:
        """The replicas of each partition of a topic, leader first."""
        return self._map.replicas[name]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._map)

    def statistics(self) -> LogStatistics:
        """Sums over all logs."""
        logs = [partition.log for partition in self]
        return LogStatistics(
            segments=sum(log.segment_count for log in logs),
            log_bytes=sum(log.size for log in logs),
            unflushed_bytes=sum(log.unflushed_bytes for log in logs),
        )

    def __len__(self) -> int:
        return len(self._map.partitions)

    # -- changing --

    def plan_topic(self, name: str, partitions: int = -1, configs: Mapping[str, str] | None = None) -> Topic:
        """Return the topic that `create_all` would make; a count of -1 takes `num.partitions`.

        Raises what `TopicChanges.plan` does.
        """
        return self.changes.plan(name, self.settings.num_partitions if partitions == -1 else partitions, configs or {})

    async def create_all(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create topics that were planned; return what went wrong, by name. See `TopicChanges.create`."""
        return await self.changes.create(topics, answer_after_s=answer_after_s)

    async def create(self, name: str, partitions: int = -1, configs: Mapping[str, str] | None = None) -> Topic:
        """Create one topic. Raises what `plan_topic` does, MetadataError, OSError, LogError."""
        topic = self.plan_topic(name, partitions, configs)
        failures = await self.create_all([topic])
        if failures:
            raise failures[name]
        return topic

    async def ensure(self, name: str) -> None:
        """Create a topic on first use, unless it exists: whoever comes second finds it.

        Raises what `create` raises but TopicExistsError. Raises UnknownTopicError if there is data of such a topic:
        the default retention could delete it.
        """
        if not self.has(name):
            if self._storage.directories.has_unserved(name):
                raise UnknownTopicError(f"{name}: no such topic, but data of one; create it with its settings")
            with suppress(TopicExistsError):
                await self.create(name)

    async def alter(
        self, name: str, change: Change | None = None, partitions: int | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Change a topic's settings, and grow its partition count. See `TopicChanges.alter`."""
        return await self.changes.alter(name, change, partitions, validate_only=validate_only)

    async def alter_broker(
        self,
        change: Callable[[Overrides], Overrides],
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of the broker. See `TopicChanges.alter_broker`."""
        await self.changes.alter_broker(change, checkpoint, validate_only=validate_only)

    async def delete_all(self, names: Sequence[str], checkpoint: Checkpoint = trio.lowlevel.checkpoint) -> Failures:
        """Delete topics of different names; return what went wrong, by name. See `TopicChanges.delete`."""
        return await self.changes.delete(names, checkpoint)

    async def delete(self, name: str) -> None:
        """Delete one topic. Raises UnknownTopicError, MetadataError."""
        failures = await self.delete_all([name])
        if failures:
            raise failures[name]

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
            await trio.to_thread.run_sync(self._storage.warn_of_strangers, self._is_served, self.has)
            self._all_open = True
            was_unclean = any(partition.log.recovery is not None for partition in self)
            if self._storage.directories.forget_strangers() or was_unclean:
                await self._renew_checkpoints()  # before anything is written: what was cut may lie below them
        except OSError as error:
            path = error.filename or self._storage.directories.first.path
            raise DataDirectoryError(f"{path}: {error.strerror}") from error
        finally:
            with trio.CancelScope(shield=True):
                await self._end_opening(started_ms)

    async def _open_topics(self, topics: Sequence[Topic]) -> None:
        self.progress.begin(sum(topic.partitions for topic in topics))
        configured = [(topic, self._configs.of(topic.configs)) for topic in topics]
        threads = self.settings.num_recovery_threads_per_data_dir
        await trio.to_thread.run_sync(partial(self._storage.open_ahead, configured, threads_each=threads))
        for topic in topics:
            await self._open_known(topic)
        await trio.to_thread.run_sync(self._storage.sync_names)

    async def _renew_checkpoints(self) -> None:
        try:
            await self.checkpoint()
        except OSError as error:
            logger.warning("checkpoints are out of date until they can be written: %s", error)

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
        await self.changes.finished()
        for partition in self:
            await partition.retire()
        logs = [partition.log for partition in self]
        await trio.to_thread.run_sync(partial(self._storage.close_logs, logs, all_open=self._all_open))

    # -- checkpoints --

    async def checkpoint(self, data_directory: str | None = None) -> None:
        """Write what the next startup goes by, for all logs or those of one data directory. Raises OSError."""
        live = self._storage.directories.live
        chosen = None if data_directory is None else [each for each in live if str(Path(each.path)) == data_directory]
        await self._checkpoints.write(chosen)

    async def checkpoint_log_starts(self, partitions: Iterable[Partition]) -> None:
        """Write the log starts where these partitions lie: what was deleted must not come back. Raises OSError."""
        held = self._storage.directories.by_directory(partition.log for partition in partitions)
        await self._checkpoints.write_log_starts([directory for directory, logs in held.items() if logs])

    def cleaned_up_to(self, partition: Partition) -> int | None:
        """Return up to where a log was compacted, as far as is known."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        return directory.cleaner_points.get((partition.topic, partition.index))

    def note_cleaned(self, partition: Partition, offset: int) -> None:
        """Remember up to where a log was compacted, for the next checkpoint."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        directory.cleaner_points[partition.topic, partition.index] = offset

    # -- moves between data directories --

    async def relocate(self, partition: Partition, move: LogMove, directory: DataDirectory) -> bool:
        """Let the copy that a move has made in a data directory take the place of a log; False if it cannot yet.

        Raises OSError: then the log is where it was.
        """
        topic, index, directories = partition.topic, partition.index, self._storage.directories
        async with self._checkpoints.hold(directory):
            source = directories.holder(topic, index)
            assert source is not None, "what is served lies somewhere"
            to = Destination(
                data_directory=str(Path(directory.path)),
                room=directory.room,
                write_checkpoints=partial(_checkpoint_arrival, partition.log, source, directory),
                moved=partial(directories.relocate, topic, index, directory),
            )
            moved = await partition.relocate(move, to)
        if moved is None:
            return False
        self.changes.remove_later(moved.old_directory, partition.log.config.file_delete_delay_ms)
        try:
            await trio.to_thread.run_sync(directories.settle_arrival, topic, index, directory)
            await self._checkpoints.write([each for each in (source, directory) if each in directories.live])
        except OSError as error:
            logger.warning("%s-%d: moved, but its old place is not forgotten yet: %s", topic, index, error)
        return True

    # -- inside --

    async def _publish(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Let users find a topic, new or grown, with these logs: all at once, after others had turns."""
        partitions = []
        for number, log in enumerate(logs, 1):
            self._count_recovery(log)
            partitions.append(Partition(log, self._writer))
            if number % PUBLISHED_A_TURN == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        config = self._configs.of(topic.configs)
        for log in logs:
            if log.config is not config and log.config != config:  # the broker's settings have changed meanwhile
                log.reconfigure(config)
        self._map.publish(topic, partitions)
        for log in logs:
            if self._storage.directories.is_offline(log.topic, log.partition):  # its disk failed while it was opened
                self._lose(self._map.partitions[log.topic, log.partition], OUT_OF_SERVICE)

    async def _open_known(self, topic: Topic) -> None:
        """Open what can be served of a topic; the rest is offline. Raises OSError, LogError."""
        directories, config = self._storage.directories, self._configs.of(topic.configs)
        while True:
            offline = {index for index in range(topic.partitions) if directories.is_offline(topic.name, index)}
            indexes = [index for index in range(topic.partitions) if index not in offline]
            try:
                logs = await trio.to_thread.run_sync(self._storage.open_logs, topic, indexes, config)
            except DirectoryFailedError as error:
                self.take_offline(error.path, error.reason)
                continue
            await self._publish(topic, logs)
            self._map.offline |= {(topic.name, index): OUT_OF_SERVICE for index in offline}
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
        del self._map.partitions[partition.topic, partition.index]
        self._map.offline[partition.topic, partition.index] = reason
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


def _checkpoint_arrival(log: PartitionLog, source: DataDirectory, target: DataDirectory) -> None:
    """Write the checkpoints of a data directory as they are with a log that moves there. Raises OSError."""
    target.add_to_checkpoints(log, source.cleaner_points.get((log.topic, log.partition)))


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


async def _abandon(partition: Partition) -> None:
    """Let go of a log whose disk has failed, as soon as nobody is inside."""
    await partition.retire()
    try:
        await trio.to_thread.run_sync(partial(partition.log.close, clean=False))
    except OSError as error:
        logger.debug("%s-%d: %s", partition.topic, partition.index, error)
