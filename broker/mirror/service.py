"""Mirror topics of another cluster: keep them in step with it, follow their partitions, copy offsets of groups.

    run    connect to the source -> again and again: topics and settings, then new partitions, then committed offsets
           meanwhile the `Follower` copies records

Invariants:
1. Whatever the source does, a topic that cannot be mirrored is left as it is here, and the others go on.
2. A partition is followed exactly while its topic is mirrored and nothing speaks against it; promotion ends that first.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import trio

from broker.groups.service import GroupService
from broker.log.errors import LogError
from broker.metadata.store import MetadataError
from broker.metadata.topic import Topic
from broker.mirror.offsets import OffsetCopies
from broker.mirror.plan import Action, Configure, Create, Delete, Grow, Refusal, plan
from broker.mirror.source import Source
from broker.partitions.partition import Partition, StorageError
from broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from broker.replication.errors import PeerError
from broker.replication.follower import Follower
from broker.replication.peer import PeerCluster, open_cluster
from broker.replication.replica import PartitionReplica
from broker.settings.mirrors import chosen_by, source_addresses
from broker.settings.settings import Settings
from broker.settings.types import SettingError
from protocol.backoff import delays_s
from protocol.kafka.codec.bounds import NO_TOPIC_ID

Key: TypeAlias = tuple[str, int]  # topic, partition

# What may go wrong with one topic.
_TOPIC_ERRORS = (LogError, MetadataError, OSError, SettingError, StorageError, TopicExistsError, UnknownTopicError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """What is mirrored, and from where.

    `bootstrap`: (host, port) of brokers of the source. `topics` and `groups` choose by name; `groups` is None if no
    offsets are copied. `deletes`: whether topics are deleted here after they were deleted at the source.
    `interval_s`: how often topics and offsets are compared.
    """

    bootstrap: Sequence[tuple[str, int]]
    topics: Callable[[str], bool]
    groups: Callable[[str], bool] | None = None
    deletes: bool = False
    interval_s: float = 5.0


def mirror_options(settings: Settings) -> MirrorOptions:
    """Return what the settings ask to mirror. Raises SettingError."""
    topics, groups = settings.warmlog_mirror_topics, settings.warmlog_mirror_groups
    return MirrorOptions(
        bootstrap=source_addresses(settings.warmlog_mirror_from),
        topics=chosen_by("warmlog.mirror.topics", topics),
        groups=chosen_by("warmlog.mirror.groups", groups) if groups else None,
        deletes=settings.warmlog_mirror_delete_topics,
        interval_s=settings.warmlog_mirror_interval_ms / 1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredPartition:
    """How far a partition's copy is. `source_end` is -1 until it is known; `problem` is None while nothing is wrong."""

    topic: str
    partition: int
    end: int
    source_end: int
    problem: str | None


class Mirror:
    """Mirrors the topics of one source while `run` runs. Belongs to the event loop."""

    def __init__(self, options: MirrorOptions, partitions: Partitions, groups: GroupService) -> None:
        self.problem: str | None = "not connected yet"  # with the source as a whole
        self.refused: dict[str, str] = {}  # topics that are not mirrored, and why
        self._options = options
        self._partitions = partitions
        self._groups = groups
        self._random = Random()  # noqa: S311  # jitter
        self._follower: Follower | None = None
        self._replicas: dict[Key, tuple[Partition, PartitionReplica]] = {}
        self._is_comparing = trio.Lock()  # around changes of topics and of what is followed

    async def run(self) -> None:
        """Mirror until cancelled; a source that cannot be reached is tried again with growing pauses."""
        delays = delays_s(self._random)
        while True:
            try:
                async with open_cluster(self._options.bootstrap, random=self._random) as cluster:
                    delays = delays_s(self._random)
                    await self._mirror(cluster)
            except PeerError as error:
                self._note(f"cannot reach the source: {error}")
            await trio.sleep(next(delays))

    async def _mirror(self, cluster: PeerCluster) -> None:
        source = Source(cluster, settings=self._partitions.settings)
        async with trio.open_nursery() as nursery:
            self._follower = Follower(cluster, random=self._random)
            nursery.start_soon(self._follower.run)
            try:
                while True:
                    await self._compare(source, cluster)
                    await trio.sleep(self._options.interval_s)
            finally:
                self._follower = None
                self._replicas.clear()

    async def _compare(self, source: Source, cluster: PeerCluster) -> None:
        """Bring topics in step, follow their partitions, copy offsets."""
        try:
            topics = await source.topics(self._options.topics)
            async with self._is_comparing:
                here = {topic.name: topic for topic in self._partitions.topics()}
                refused = {}
                for action in plan(topics, here, cluster_id=source.cluster_id, deletes=self._options.deletes):
                    problem = await self._carried_out(action)
                    if problem is not None:
                        refused[_name_of(action)] = problem
                self._note_refused(refused)
                self._follow(source.cluster_id, cluster)
            if self._options.groups is not None:
                await self._copy_offsets(source, self._options.groups)
        except PeerError as error:
            self._note(str(error))
        else:
            self._note(None)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _carried_out(self, action: Action) -> str | None:
        """Do what was planned for a topic; return why it could not be done, or None."""
        changes = self._partitions.changes
        try:
            match action:
                case Refusal(_, problem):
                    return problem
                case Create(topic):
                    failures = await self._partitions.create_all([topic])
                    if topic.name in failures:
                        raise failures[topic.name]
                    logger.info("topic %s: mirrored from now on", topic.name)
                case Grow(name, count):
                    await changes.alter(name, None, count, for_mirror=True)
                case Configure(name, configs):
                    await changes.alter(name, lambda _: configs, for_mirror=True)
                case Delete(name):
                    self._unfollow(name)
                    await self._partitions.delete(name)
                    logger.info("topic %s: deleted, as at the source", name)
        except _TOPIC_ERRORS as error:
            return str(error)
        return None

    def _note_refused(self, refused: dict[str, str]) -> None:
        for name, problem in refused.items():
            if self.refused.get(name) != problem:
                logger.warning("topic %s: not mirrored: %s", name, problem)
        self.refused = refused

    # -- partitions ----------------------------------------------------------------------------------------------------

    def _follow(self, cluster_id: str, cluster: PeerCluster) -> None:
        """Follow what is mirrored, and nothing else."""
        wanted: dict[Key, tuple[Topic, Partition]] = {}
        for topic in self._partitions.topics():
            if topic.mirror_of != cluster_id or topic.name in self.refused:
                continue
            for index in range(topic.partitions):
                partition = self._partitions.get(topic.name, index)
                if partition is not None:
                    wanted[topic.name, index] = topic, partition
        follower = self._follower
        assert follower is not None
        for key, (partition, _) in list(self._replicas.items()):
            if key not in wanted or wanted[key][1] is not partition:
                follower.unfollow(*key)
                del self._replicas[key]
        for key, (topic, partition) in wanted.items():
            if key not in self._replicas:
                assert topic.mirror is not None
                topic_id = topic.id.bytes if topic.mirror.has_source_id else NO_TOPIC_ID
                self._replicas[key] = partition, PartitionReplica(partition, topic_id, cluster, self._checkpoint)
            if not follower.follows(*key):  # also one that was given up: its problem may be solved
                follower.follow(self._replicas[key][1])

    @property
    def _checkpoint(self) -> Callable[[str], Awaitable[None]]:
        return self._partitions.checkpoint

    def _unfollow(self, topic: str) -> None:
        for key in [key for key in self._replicas if key[0] == topic]:
            if self._follower is not None:
                self._follower.unfollow(*key)
            del self._replicas[key]

    async def promote(self, name: str) -> Topic:
        """Stop following a topic, and make it writable. Raises what `TopicChanges.promote` raises."""
        async with self._is_comparing:
            keys = [key for key in self._replicas if key[0] == name]
            if self._follower is not None:
                for key in keys:
                    await self._follower.stop(*key)
            for key in keys:
                self._replicas.pop(key, None)
            return await self._partitions.changes.promote(name)

    def partitions(self) -> list[MirroredPartition]:
        """Return how far each copy is."""
        return [
            MirroredPartition(
                topic=topic,
                partition=index,
                end=partition.log.log_end_offset,
                source_end=replica.leader_end,
                problem=replica.problem,
            )
            for (topic, index), (partition, replica) in sorted(self._replicas.items(), key=lambda item: item[0])
        ]

    # -- groups --------------------------------------------------------------------------------------------------------

    async def _copy_offsets(self, source: Source, is_chosen: Callable[[str], bool]) -> None:
        copies = OffsetCopies(self._groups, self._partitions, source.cluster_id)
        for found in await source.committed(await source.groups(is_chosen)):
            errors = await copies.copy(found)
            for (topic, partition), code in errors.items():
                logger.warning(
                    "group %s: cannot copy its offset of %s-%d: %s", found.group, topic, partition, code.name
                )

    def _note(self, problem: str | None) -> None:
        """Remember a problem with the source, and log it once."""
        if problem is not None and problem != self.problem:
            logger.warning("mirror: %s", problem)
        elif problem is None and self.problem is not None:
            logger.info("mirror: in step with the source")
        self.problem = problem


def _name_of(action: Action) -> str:
    return action.topic.name if isinstance(action, Create) else action.topic
