"""All topics and partitions of this broker: lookup, topic changes, replicas, checkpoints.

`opening` opens and closes them, `availability` tracks which can be used, `topics.topics` changes topics. Blocking
work runs in worker threads; the maps change on the event loop only.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.log.errors import LogError, NotReadyError, OfflineError
from warmlog.broker.log.producers.idle import ProducerBudget
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.availability import Availability
from warmlog.broker.partitions.disks.checkpoints import Checkpoints
from warmlog.broker.partitions.disks.startup import StartProgress
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.opening import Opening
from warmlog.broker.partitions.partition import NOT_READABLE, Partition
from warmlog.broker.partitions.relocation import Relocation
from warmlog.broker.partitions.topics.catalog import Catalog, LoneCatalog
from warmlog.broker.partitions.topics.errors import TopicExistsError, UnknownTopicError
from warmlog.broker.partitions.topics.executor import Executor
from warmlog.broker.partitions.topics.own_topics import OwnTopics
from warmlog.broker.partitions.topics.partition_directories import Checkpoint, Failures, PartitionDirectories
from warmlog.broker.partitions.topics.replica_logs import ReplicaLogs
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.partitions.topics.topics import Change, Topics
from warmlog.broker.settings.live import LiveSettings, Overrides
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import LogConfigs
from warmlog.protocol.partitions import TopicPartition

__all__ = ["LogStatistics", "Partitions", "TopicExistsError", "UnknownTopicError"]


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
        node: StoreNode,
    ) -> None:
        self.live_settings = settings
        self.node_id = settings.static.node_id
        self._storage = storage
        self._map = TopicMap(leads_all=node.is_alone)
        # Used directly in loops over many partitions, where calls of `get` would cost more than the lookups.
        self.served: dict[TopicPartition, Partition] = self._map.partitions  # read-only for others
        self._configs = LogConfigs(settings)
        self._checkpoints = Checkpoints(storage.directories, lambda: [partition.log for partition in self])
        self.directories = PartitionDirectories(storage, self._configs, self._checkpoints, writer)
        self.relocation = Relocation(storage.directories, self._checkpoints, self.directories)
        self.availability = Availability(self._map, storage, self._configs, writer, metrics)
        self._node = node
        self.catalog = (LoneCatalog if node.is_alone else Catalog)(node, self._map)
        self.changes = Topics(node, self._map, settings, self._configs, self._executor(node, writer))
        self._replica_logs = ReplicaLogs(
            self._map,
            storage,
            self._configs,
            self.directories,
            writer,
            find_topic=self.catalog.find_topic,
            opened=self.availability.count_recovery,
        )
        self._opening = Opening(
            self._map,
            storage,
            self._configs,
            catalog=self.catalog,
            availability=self.availability,
            checkpoints=self._checkpoints,
            settings=settings,
            node=node,
            topics=self.changes,
        )

    def _executor(self, node: StoreNode, writer: Writer) -> Executor:
        if isinstance(node, LoneNode):
            return OwnTopics(
                node,
                self._map,
                self._storage,
                configs=self._configs,
                directories=self.directories,
                writer=writer,
                publish=self.availability.publish,
            )
        from warmlog.broker.cluster.node import ClusterNode  # only for members of a cluster
        from warmlog.broker.partitions.topics.shared_topics import SharedTopics

        assert isinstance(node, ClusterNode)
        return SharedTopics(node, self._map, self.live_settings)

    @property
    def progress(self) -> StartProgress:
        """Return the progress of startup."""
        return self._storage.progress

    @property
    def settings(self) -> Settings:
        """Return the broker's current settings, which callers must not keep."""
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
        return 1 if self._node.is_alone else self.settings.default_replication_factor

    def clock(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return self._storage.clock()

    # -- lookup --

    def get(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that this broker leads, or None."""
        return self._map.partitions.get((topic, partition))

    def local(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that has a log here, whichever broker leads it, or None."""
        return self._map.local.get((topic, partition))

    def readable(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that consumers can read here (this broker leads it or is in sync, KIP-392), or None."""
        partition_or_none = self._map.partitions.get((topic, partition))
        if partition_or_none is None:
            local = self.local(topic, partition)
            if local is not None and local.readable_epoch != NOT_READABLE:
                return local
        return partition_or_none

    def will_lead(self, topic: str, partition: int) -> bool:
        """Return whether this broker was elected to lead a partition, and is still preparing its log for `get`."""
        known = self._map.topics.get(topic)
        if known is None or self._node.is_fenced or (topic, partition) in self._map.offline:
            return False
        return self.get(topic, partition) is None and self.catalog.partition(known, partition).leader == self.node_id

    def require(self, topic: str, partition: int) -> Partition:
        """Return a partition. Raises OfflineError, NotReadyError, UnknownTopicError."""
        served = self.get(topic, partition)
        if served is None:
            raise self.missing(topic, partition)
        return served

    def is_pending(self, topic: str) -> bool:
        """Return whether a topic is being created and its partitions are not available yet."""
        return topic in self._map.pending

    def missing(self, topic: str, partition: int) -> LogError | UnknownTopicError | NotLeaderError:
        """Return the error for a partition that `get` does not find: offline, led elsewhere, not ready, or unknown."""
        if topic in self._map.pending and partition < self._map.topics[topic].partitions:
            return NotReadyError(f"{topic}-{partition} is being created")
        reason = self._map.offline.get((topic, partition))
        if reason is not None:
            return OfflineError(f"{topic}-{partition} is offline: {reason}")
        known = self._map.topics.get(topic)
        if not self._node.is_alone and known is not None and 0 <= partition < known.partitions:
            return NotLeaderError(f"broker {self.node_id} does not lead {topic}-{partition}")
        return UnknownTopicError(f"no partition {topic}-{partition}")

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists in a data directory that is offline."""
        return (topic, partition) in self._map.offline

    @property
    def offline_count(self) -> int:
        """Return the number of partitions in offline data directories."""
        return len(self._map.offline)

    @property
    def is_clustered(self) -> bool:
        """Whether other brokers may lead partitions."""
        return not self._node.is_alone

    def exists(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists, on any broker, online or not."""
        known = self._map.topics.get(topic)
        return known is not None and 0 <= partition < known.partitions

    @property
    def by_name(self) -> Mapping[str, Topic]:
        """All topics, by name."""
        return self._map.topics

    def has(self, topic: str) -> bool:
        """Return whether a topic exists."""
        return topic in self._map.topics

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._map.topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id (16 bytes), or None."""
        return self._map.name_of(topic_id)

    def was_deleted(self, topic_id: bytes) -> bool:
        """Return whether a topic is known to have been deleted: since startup, or before it if data of it was left."""
        return self._map.was_deleted(topic_id)

    def watch_topics(self, changed: Callable[[str], None]) -> None:
        """Register a function to call with the name of each topic that is created, extended, configured or deleted."""
        self._map.watchers.append(changed)

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
            unflushed_bytes=sum(log.durability.unflushed_bytes for log in logs),
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

        Raises what `Topics.plan` does.
        """
        count = self.settings.num_partitions if partitions == -1 else partitions
        return self.changes.plan(
            name, count, configs or {}, replication_factor=replication_factor, assignment=assignment
        )

    async def create_all(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create planned topics, and return the failures by name. See `Topics.create`."""
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

        Raises what `create` does, except TopicExistsError. Outside of a cluster also raises UnknownTopicError if there
        is data of such a topic, which would become the new topic's, and which the default retention could delete.
        """
        if not self.has(name):
            if not self._storage.is_in_cluster and self._storage.directories.has_unserved(name):
                raise UnknownTopicError(f"{name}: no such topic, but there is data of one; create it with its settings")
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
        """Change a topic's settings, and increase its partition count. See `Topics.alter`."""
        return await self.changes.alter(name, change, partitions, validate_only=validate_only, assignment=assignment)

    async def alter_broker(
        self,
        change: Callable[[Overrides], Overrides],
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of the broker. See `Topics.alter_broker`."""
        await self.changes.alter_broker(change, checkpoint, validate_only=validate_only)

    async def delete_all(
        self,
        names: Sequence[str],
        checkpoint: Checkpoint = trio.lowlevel.checkpoint,
        *,
        answers_early: bool = False,
        ids: Mapping[str, bytes] | None = None,
    ) -> Failures:
        """Delete topics of distinct names, and return the failures by name. See `Topics.delete`."""
        return await self.changes.delete(names, checkpoint, answers_early=answers_early, ids=ids)

    async def delete(self, name: str) -> None:
        """Delete one topic. Raises UnknownTopicError, MetadataError."""
        failures = await self.delete_all([name])
        if failures:
            raise failures[name]

    # -- replicas of a cluster --

    async def make_replica(self, topic: str, index: int) -> Partition:
        """Create or open the log of a replica. Raises OSError, LogError."""
        return await self._replica_logs.make(topic, index)

    async def drop_replica(self, partition: Partition) -> None:
        """Remove the log of a partition that this broker does not lead; its files are deleted later. Raises OSError."""
        await self._replica_logs.drop(partition)

    def may_be_offline(self, topic: str, index: int) -> bool:
        """Return whether a partition without a log here may have one in an offline data directory."""
        return self._storage.directories.is_offline(topic, index)

    def was_cut(self, topic: str, index: int) -> bool:
        """Return whether a log is shorter than at the last clean stop."""
        return (topic, index) in self._storage.cut

    @property
    def has_offline_directories(self) -> bool:
        """Whether any data directory is offline."""
        return bool(self._storage.directories.offline)

    # -- startup and shutdown --

    async def open_all(self) -> None:
        """Open every topic, and finish interrupted deletions. See `Opening.open_all`."""
        await self._opening.open_all()

    async def close_all(self) -> None:
        """Finish queued work, flush and close every log. See `Opening.close_all`."""
        await self.changes.finished()
        await self._opening.close_all()

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
