"""All topics and partitions of this broker: lookup, topic changes, startup and shutdown.

Topic changes are implemented in `topic_changes`, lookup in `topic_map`. Blocking work runs in worker threads; the maps
change on the event loop only.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from broker.log.directory.data_directory import DataDirectory
from broker.log.errors import DataDirectoryError, DirectoryFailedError, LogError, NotReadyError, OfflineError
from broker.log.moving import LogMove
from broker.log.partition_log import PartitionLog
from broker.log.producers.table import ProducerBudget
from broker.metadata.topic import Topic
from broker.metrics.registry import Metrics
from broker.partitions.appends.errors import NotLeaderError
from broker.partitions.appends.writer import Writer
from broker.partitions.disks.checkpoints import Checkpoints
from broker.partitions.disks.startup import Start, StartProgress
from broker.partitions.disks.storage import Storage
from broker.partitions.partition import Destination, Partition
from broker.partitions.topics.catalog import Catalog, LocalCatalog
from broker.partitions.topics.partition_directories import Checkpoint, Failures, PartitionDirectories
from broker.partitions.topics.replica_logs import ReplicaLogs
from broker.partitions.topics.topic_changes import (
    Change,
    TopicChanges,
    TopicExistsError,
    UnknownTopicError,
)
from broker.partitions.topics.topic_map import TopicMap
from broker.settings.live import LiveSettings, Overrides
from broker.settings.settings import Settings
from broker.settings.topics import LogConfigs

if TYPE_CHECKING:
    from broker.cluster.node import ClusterNode
    from broker.partitions.topics.cluster_topics import ClusterTopics as _ClusterTopics

__all__ = ["LogStatistics", "Partitions", "TopicExistsError", "UnknownTopicError"]

logger = logging.getLogger(__name__)

PARTITIONS_PER_TURN = 64  # published per turn of the event loop: about 1 ms
OUT_OF_SERVICE = "its data directory is offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Totals over all logs; sizes in bytes."""

    segments: int
    log_bytes: int
    unflushed_bytes: int


class Partitions:
    """The topics and partitions of one broker. Belongs to the event loop."""

    def __init__(
        self,
        storage: Storage,
        settings: LiveSettings,
        writer: Writer,
        metrics: Metrics,
        node: "ClusterNode | None" = None,
    ) -> None:
        """`node`: this broker's part in a cluster; without one, it has topics of its own."""
        self.live_settings = settings
        self.node_id = settings.static.node_id
        self._storage = storage
        self._writer = writer
        self._metrics = metrics
        self._map = TopicMap(leads_all=node is None)
        # Looked up directly in loops over many partitions, where calls of `get` would cost more than the lookups.
        self.served: Mapping[tuple[str, int], Partition] = self._map.partitions
        self._configs = LogConfigs(settings)
        self._checkpoints = Checkpoints(storage.directories, lambda: [partition.log for partition in self])
        self.directories = PartitionDirectories(storage, self._configs, self._checkpoints, writer)
        self._replica_logs = ReplicaLogs(
            self._map,
            storage,
            self._configs,
            self.directories,
            writer,
            described=self._described,
            opened=self._count_recovery,
        )
        self.catalog: Catalog
        self.changes: TopicChanges | _ClusterTopics
        self._node = node
        if node is None:
            self.catalog = LocalCatalog(self.node_id, self._map)
            self.changes = TopicChanges(
                self._map,
                storage,
                settings=settings,
                configs=self._configs,
                directories=self.directories,
                writer=writer,
                publish=self._publish,
            )
        else:
            from broker.partitions.topics.cluster_catalog import ClusterCatalog  # a broker by itself needs neither
            from broker.partitions.topics.cluster_topics import ClusterTopics

            self.catalog = ClusterCatalog(node)
            self.changes = ClusterTopics(node, self._map, settings, self._configs)
        self._all_open = False
        self.on_offline: list[Callable[[str, int], None]] = []  # each is called with a lost partition
        self.on_lead: list[Callable[[Partition], None]] = []  # each is called with one that this broker leads now
        self.on_resign: list[Callable[[Partition], None]] = []  # and one that it leads no more, unless it is `offline`

    @property
    def progress(self) -> StartProgress:
        """Return the progress of startup."""
        return self._storage.progress

    @property
    def settings(self) -> Settings:
        """Return the broker's settings in force. Callers must not keep them."""
        return self.live_settings.current

    @property
    def data_directories(self) -> list[str]:
        """Return the paths of the live data directories, in the form of `Partition.data_directory`."""
        return [str(Path(directory.path)) for directory in self._storage.directories.live]

    @property
    def producer_budget(self) -> ProducerBudget:
        """Return the limit on idempotent producers over all logs."""
        return self._storage.budget

    @property
    def default_replication_factor(self) -> int:
        """Return the number of replicas of a topic that is created without one."""
        return 1 if self._node is None else self.settings.default_replication_factor

    def clock(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return self._storage.clock()

    # -- finding --

    def get(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that this broker leads, or None."""
        return self._map.partitions.get((topic, partition))

    def local(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that has a log here, whoever leads it, or None."""
        return self._map.local.get((topic, partition))

    def require(self, topic: str, partition: int) -> Partition:
        """Return a partition. Raises OfflineError, NotReadyError, UnknownTopicError."""
        found = self.get(topic, partition)
        if found is None:
            raise self.missing(topic, partition)
        return found

    def is_pending(self, topic: str) -> bool:
        """Whether a topic is being created and its partitions are not available yet."""
        return topic in self._map.pending

    def missing(self, topic: str, partition: int) -> LogError | UnknownTopicError | NotLeaderError:
        """Return the error for a partition that `get` does not find: offline, led elsewhere, not ready, or unknown."""
        if topic in self._map.pending and partition < self._map.topics[topic].partitions:
            return NotReadyError(f"{topic}-{partition} is being created")
        reason = self._map.offline.get((topic, partition))
        if reason is not None:
            return OfflineError(f"{topic}-{partition} is offline: {reason}")
        known = self._map.topics.get(topic)
        if self._node is not None and known is not None and 0 <= partition < known.partitions:
            return NotLeaderError(f"broker {self.node_id} does not lead {topic}-{partition}")
        return UnknownTopicError(f"no partition {topic}-{partition}")

    def is_offline(self, topic: str, partition: int) -> bool:
        """Whether a partition exists in a data directory that is offline."""
        return (topic, partition) in self._map.offline

    @property
    def offline_count(self) -> int:
        """Return the number of partitions in offline data directories."""
        return len(self._map.offline)

    @property
    def is_clustered(self) -> bool:
        """Whether other brokers may lead partitions."""
        return self._node is not None

    def exists(self, topic: str, partition: int) -> bool:
        """Whether a partition exists, wherever it is, and online or not."""
        known = self._map.topics.get(topic)
        return known is not None and 0 <= partition < known.partitions

    def has(self, topic: str) -> bool:
        """Whether a topic exists."""
        return topic in self._map.topics

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._map.topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id (16 bytes), or None."""
        return self._map.name_of(topic_id)

    @property
    def topic_count(self) -> int:
        """Return the number of topics."""
        return len(self._map.topics)

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return [self._map.topics[name] for name in sorted(self._map.topics)]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._map)

    def statistics(self) -> LogStatistics:
        """Return totals over all logs."""
        logs = [partition.log for partition in self]
        return LogStatistics(
            segments=sum(log.segment_count for log in logs),
            log_bytes=sum(log.size for log in logs),
            unflushed_bytes=sum(log.unflushed_bytes for log in logs),
        )

    def __len__(self) -> int:
        return len(self._map.partitions)

    # -- changing --

    def plan_topic(
        self,
        name: str,
        partitions: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Return the topic that `create_all` would create; a count of -1 means `num.partitions`.

        Raises what `TopicChanges.plan` does, or `ClusterTopics.plan`.
        """
        count = self.settings.num_partitions if partitions == -1 else partitions
        return self.changes.plan(
            name, count, configs or {}, replication_factor=replication_factor, assignment=assignment
        )

    async def create_all(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create planned topics, and return the failures by name. See `TopicChanges.create`."""
        return await self.changes.create(topics, answer_after_s=answer_after_s)

    async def create(
        self,
        name: str,
        partitions: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
    ) -> Topic:
        """Create one topic. Raises what `plan_topic` does, MetadataError, OSError, LogError."""
        topic = self.plan_topic(name, partitions, configs, replication_factor=replication_factor)
        failures = await self.create_all([topic])
        if failures:
            raise failures[name]
        return topic

    async def ensure(self, name: str) -> None:
        """Create a topic on first use, unless it exists.

        Raises what `create` does, except TopicExistsError, and UnknownTopicError if data of such a topic was found: the
        default retention could delete it.
        """
        if not self.has(name):
            if self._storage.directories.has_unserved(name):
                raise UnknownTopicError(f"{name}: no such topic, but data of one; create it with its settings")
            with suppress(TopicExistsError):
                await self.create(name)

    async def alter(
        self,
        name: str,
        change: Change | None = None,
        partitions: int | None = None,
        *,
        validate_only: bool = False,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Change a topic's settings, and increase its partition count. See `TopicChanges.alter`."""
        return await self.changes.alter(name, change, partitions, validate_only=validate_only, assignment=assignment)

    async def alter_broker(
        self,
        change: Callable[[Overrides], Overrides],
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of the broker. See `TopicChanges.alter_broker`."""
        await self.changes.alter_broker(change, checkpoint, validate_only=validate_only)

    async def delete_all(
        self, names: Sequence[str], checkpoint: Checkpoint = trio.lowlevel.checkpoint, *, answers_early: bool = False
    ) -> Failures:
        """Delete topics of distinct names, and return the failures by name. See `TopicChanges.delete`."""
        return await self.changes.delete(names, checkpoint, answers_early=answers_early)

    async def delete(self, name: str) -> None:
        """Delete one topic. Raises UnknownTopicError, MetadataError."""
        failures = await self.delete_all([name])
        if failures:
            raise failures[name]

    # -- replicas of a cluster --

    def lead(self, partition: Partition) -> None:
        """Let clients reach a partition, which this broker leads from now on."""
        self._map.partitions[partition.topic, partition.index] = partition
        self._report_led(partition)

    def _report_led(self, partition: Partition) -> None:
        for led in self.on_lead:
            led(partition)

    def resign(self, partition: Partition) -> None:
        """Hide a partition from clients: another broker leads it, or none."""
        if self._map.partitions.pop((partition.topic, partition.index), None) is not None:
            for resigned in self.on_resign:
                resigned(partition)

    async def make_replica(self, topic: str, index: int) -> Partition:
        """Create a log for a partition of a topic, or open what is there of it. Raises OSError, LogError."""
        return await self._replica_logs.make(topic, index)

    async def drop_replica(self, partition: Partition) -> None:
        """Remove the log of a partition that this broker does not lead; its files are deleted later. Raises OSError."""
        await self._replica_logs.drop(partition)

    def may_be_offline(self, topic: str, index: int) -> bool:
        """Whether a partition that has no log here may have one in a data directory that is offline."""
        return self._storage.directories.is_offline(topic, index)

    def was_cut(self, topic: str, index: int) -> bool:
        """Whether a log was found shorter than the last clean stop has left it."""
        return (topic, index) in self._storage.cut

    @property
    def has_offline_directories(self) -> bool:
        """Whether a data directory is offline."""
        return bool(self._storage.directories.offline)

    def _described(self, name: str) -> Topic | None:
        """Return a topic, even one that is not visible yet because its partitions are still being added."""
        known = self._map.topics.get(name)
        if known is not None or self._node is None:
            return known
        found = self._node.image.topics.get(name)
        if found is None:
            return None
        return Topic(name=name, partitions=found.partitions, configs=dict(found.configs), id=found.id)

    # -- startup and shutdown --

    async def open_all(self) -> None:
        """Open every topic of the metadata store, and finish interrupted deletions.

        After a clean shutdown logs are opened from the checkpoints; otherwise they are recovered, and a receipt is
        written. To stop early, call `progress.cancel` and cancel. Raises DataDirectoryError for logs that cannot be
        opened, MetadataError.
        """
        started_ms = self._storage.clock()
        try:
            await trio.to_thread.run_sync(self._storage.directories.unmark_clean)
            await trio.to_thread.run_sync(self._storage.finish_deletions)
            await self._open_topics(await self._held_topics())
            is_here = self._map.local.__contains__
            await trio.to_thread.run_sync(self._storage.warn_of_unserved, lambda *place: is_here(place), self.has)
            self._all_open = True
            was_unclean = any(partition.log.recovery is not None for partition in self)
            if self._storage.directories.forget_unknown() or was_unclean:
                await self._renew_checkpoints()  # before the first append: the old ones may exceed truncated logs
        except OSError as error:
            path = error.filename or self._storage.directories.first.path
            raise DataDirectoryError(f"{path}: {error.strerror}") from error
        finally:
            with trio.CancelScope(shield=True):
                await self._end_opening(started_ms)

    async def _held_topics(self) -> list[tuple[Topic, Sequence[int]]]:
        """Return the topics of the metadata, and their partitions that are to be opened here. Raises MetadataError.

        In a cluster these are the replicas that have a log here; those that have none are created later.
        """
        if self._node is None:
            return [
                (topic, range(topic.partitions)) for topic in await trio.to_thread.run_sync(self._storage.store.load)
            ]
        image, directories = self._node.image, self._storage.directories
        held: dict[str, list[int]] = {}
        for key in sorted(image.held.get(self._node.id, ()), key=lambda key: key.partition):
            name = image.names.get(key.topic)
            if name is not None and directories.holder(name, key.partition) is not None:
                held.setdefault(name, []).append(key.partition)
        described = [(self._described(name), indexes) for name, indexes in sorted(held.items())]
        return [(topic, indexes) for topic, indexes in described if topic is not None]

    async def _open_topics(self, held: Sequence[tuple[Topic, Sequence[int]]]) -> None:
        self.progress.begin(sum(len(indexes) for _, indexes in held))
        configured = [(topic, indexes, self._configs.of(topic.configs)) for topic, indexes in held]
        threads = self.settings.num_recovery_threads_per_data_dir
        await trio.to_thread.run_sync(partial(self._storage.recover_logs, configured, threads_each=threads))
        for topic, indexes in held:
            await self._open_known(topic, indexes)
        await trio.to_thread.run_sync(self._storage.sync_names)

    async def _renew_checkpoints(self) -> None:
        try:
            await self.checkpoint()
        except OSError as error:
            logger.warning("cannot write checkpoints, the old ones are out of date: %s", error)

    async def _end_opening(self, started_ms: int) -> None:
        logs = [partition.log for partition in self]
        threads = self.settings.num_recovery_threads_per_data_dir
        start = Start(started_ms, threads, complete=self._all_open)
        await trio.to_thread.run_sync(self._storage.end_opening, logs, start)

    async def close_all(self) -> None:
        """Finish queued work, flush and close every log, and write the checkpoints and the clean shutdown marker.

        The marker is not written if a log could not be closed cleanly or a checkpoint could not be written; the next
        startup then recovers. After a failed startup neither is written: those of the previous run stay valid.
        """
        await self.changes.finished()
        for partition in self:
            await partition.retire()
        logs = [partition.log for partition in self]
        await trio.to_thread.run_sync(partial(self._storage.close_logs, logs, all_open=self._all_open))

    # -- checkpoints --

    async def checkpoint(self, data_directory: str | None = None) -> None:
        """Write the checkpoints of all logs, or of those of one data directory. Raises OSError."""
        live = self._storage.directories.live
        chosen = None if data_directory is None else [each for each in live if str(Path(each.path)) == data_directory]
        await self._checkpoints.write(chosen)

    async def checkpoint_log_starts(self, partitions: Iterable[Partition]) -> None:
        """Write the log start offsets of these partitions, so that deleted records stay deleted. Raises OSError."""
        held = self._storage.directories.by_directory(partition.log for partition in partitions)
        await self._checkpoints.write_log_starts([directory for directory, logs in held.items() if logs])

    def cleaned_up_to(self, partition: Partition) -> int | None:
        """Return the offset up to which a log was compacted, or None if unknown."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        return directory.cleaner_points.get((partition.topic, partition.index))

    def note_cleaned(self, partition: Partition, offset: int) -> None:
        """Record the offset up to which a log was compacted, for the next checkpoint."""
        directory = self._storage.directories.place(partition.topic, partition.index)
        directory.cleaner_points[partition.topic, partition.index] = offset

    # -- moves between data directories --

    async def relocate(self, partition: Partition, move: LogMove, directory: DataDirectory) -> bool:
        """Switch a log over to its copy in another data directory; return False if that is not possible yet.

        Raises OSError, and leaves the log where it was.
        """
        topic, index, directories = partition.topic, partition.index, self._storage.directories
        async with self._checkpoints.hold(directory):
            source = directories.holder(topic, index)
            assert source is not None, "a served log has a directory"
            to = Destination(
                data_directory=str(Path(directory.path)),
                space_status=directory.space_status,
                write_checkpoints=partial(_checkpoint_arrival, partition.log, source, directory),
                moved=partial(directories.relocate, topic, index, directory),
            )
            moved = await partition.relocate(move, to)
        if moved is None:
            return False
        self.directories.remove_later(moved.old_directory, partition.log.config.file_delete_delay_ms)
        try:
            await trio.to_thread.run_sync(directories.settle_arrival, topic, index, directory)
            await self._checkpoints.write([each for each in (source, directory) if each in directories.live])
        except OSError as error:
            logger.warning("%s-%d: moved, but its old location is still recorded: %s", topic, index, error)
        return True

    # -- internals --

    async def _publish(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Make a new or extended topic available, with all of these logs at once; other tasks run before."""
        partitions = []
        for number, log in enumerate(logs, 1):
            self._count_recovery(log)
            partitions.append(Partition(log, self._writer))
            partitions[-1].mirror_of = topic.mirror_of
            if number % PARTITIONS_PER_TURN == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        config = self._configs.of(topic.configs)
        for log in logs:
            if log.config is not config and log.config != config:  # the broker's settings have changed
                log.reconfigure(config)
        self._map.publish(topic, partitions)
        for log in logs:
            if self._storage.directories.is_offline(log.topic, log.partition):  # its disk failed while it was opened
                self._lose(self._map.local[log.topic, log.partition], OUT_OF_SERVICE)
        for partition in partitions:
            partition.appends.flushes.flush_recovered()
            if self.get(partition.topic, partition.index) is partition:  # else only the cluster knows who leads it
                self._report_led(partition)

    async def _open_known(self, topic: Topic, held: Sequence[int]) -> None:
        """Open logs of a topic; those in offline directories are marked offline. Raises OSError, LogError."""
        directories, config = self._storage.directories, self._configs.of(topic.configs)
        while True:
            offline = {index for index in held if directories.is_offline(topic.name, index)}
            indexes = [index for index in held if index not in offline]
            try:
                logs = await trio.to_thread.run_sync(self._storage.open_logs, topic, indexes, config)
            except DirectoryFailedError as error:
                self.take_offline(error.path, error.reason)
                continue
            await self._publish(topic, logs)
            self._map.offline |= {(topic.name, index): OUT_OF_SERVICE for index in offline}
            return

    def take_offline(self, path: str, reason: str) -> None:
        """Take a data directory offline, with its partitions.

        Raises DirectoryFailedError if the broker cannot run without it.
        """
        directories = self._storage.directories
        failed = next((directory for directory in directories.live if directory.path == path), None)
        if failed is None:
            return
        if failed is directories.first:
            raise DirectoryFailedError(path, f"{reason}; it holds the metadata, without which nothing can be served")
        directories.take_offline(failed, reason)
        lost = [partition for partition in self if directories.holder(partition.topic, partition.index) is failed]
        logger.error("data directory %s is offline until the next startup: %s", path, reason)
        for partition in lost:
            self._lose(partition, f"data directory {path}: {reason}")

    def _lose(self, partition: Partition, reason: str) -> None:
        """Mark a partition offline, and close its log in the background."""
        self._map.local.pop((partition.topic, partition.index), None)
        self._map.partitions.pop((partition.topic, partition.index), None)
        self._map.offline[partition.topic, partition.index] = reason
        partition.log.fail(reason)
        partition.wake_all()
        for lost in self.on_offline:
            lost(partition.topic, partition.index)
        self._writer.spawn(partial(_abandon, partition))

    def _count_recovery(self, log: PartitionLog) -> None:
        report = log.recovery
        if report is not None:
            self._metrics.truncated_bytes.add(report.truncated_bytes)
            level = logging.INFO if report.repairs else logging.DEBUG  # there may be thousands; the receipt lists all
            logger.log(level, "%s-%d: recovered: %s", log.topic, log.partition, report.summary())


def _checkpoint_arrival(log: PartitionLog, source: DataDirectory, target: DataDirectory) -> None:
    """Write the checkpoints of a data directory, including a log that moves there. Raises OSError."""
    target.add_to_checkpoints(log, source.cleaner_points.get((log.topic, log.partition)))


async def _abandon(partition: Partition) -> None:
    """Close a log whose disk has failed, once no task uses it."""
    await partition.retire()
    try:
        await trio.to_thread.run_sync(partial(partition.log.close, clean=False))
    except OSError as error:
        logger.debug("%s-%d: %s", partition.topic, partition.index, error)
