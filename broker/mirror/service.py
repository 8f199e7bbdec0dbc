"""Mirror topics of another cluster: align them with it, follow their partitions, copy offsets of groups.

    run    connect to the source -> repeatedly: topics and settings, then new partitions, then committed offsets
                concurrently, the `Follower` copies records

Invariants:
1. Whatever the source does, a topic that cannot be mirrored is left unchanged here, and the others continue.
2. A partition is followed exactly while its topic can be mirrored; promotion ends that first.

In a cluster, each broker with the settings does its part of this; see `own_cluster`.
"""

import logging
from collections.abc import Callable
from random import Random

import trio

from warmlog.broker.groups.service import GroupService
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import RefusedError, Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.mirror.copies import Copies
from warmlog.broker.mirror.offsets import OffsetCopies
from warmlog.broker.mirror.options import MirrorOptions
from warmlog.broker.mirror.own_cluster import OwnCluster
from warmlog.broker.mirror.plan import Action, Configure, Create, Delete, Grow, RefusedTopic, plan
from warmlog.broker.mirror.source import SourceCluster
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.peers.connection import PeerSettings
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.broker.replication.throttle import Throttle
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.errors import ErrorCode

# Errors that affect one topic.
_TOPIC_ERRORS = (
    LogError,
    MetadataError,
    OSError,
    RefusedError,
    SettingError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)

logger = logging.getLogger(__name__)


class MirrorService:
    """Mirrors the topics of one source while `run` runs. Belongs to the event loop."""

    def __init__(
        self,
        options: MirrorOptions,
        partitions: Partitions,
        groups: GroupService,
        own: OwnCluster | None = None,
    ) -> None:
        """`own` is None for a standalone broker."""
        self.problem: str | None = "not connected yet"  # a problem of the whole source
        self.refused: dict[str, str] = {}  # topics that are not mirrored, with the reason
        self.throttle = Throttle(options.bytes_per_s)
        self.copies = Copies(partitions, own)
        self._options = options
        self._partitions = partitions
        self._groups = groups
        self._own = own
        self._random = Random()  # noqa: S311  # jitter
        self._is_comparing = trio.Lock()  # held during changes of topics and of followed partitions
        self._has_led = trio.Event()  # set when this broker leads another mirrored partition
        if own is not None:
            partitions.availability.on_lead.append(self._note_led)

    def _note_led(self, partition: Partition) -> None:
        if partition.mirror_of is not None:
            self._has_led.set()

    async def run(self) -> None:
        """Mirror until cancelled; connections to an unreachable source are retried with growing pauses."""
        delays = delays_s(self._random)
        while True:
            try:
                peers = await self._peer_settings()
                async with open_cluster(self._options.bootstrap, settings=peers, random=self._random) as cluster:
                    delays = delays_s(self._random)
                    await self._mirror(cluster)
            except PeerError as error:
                self._note(f"cannot reach the source: {error}")
                await self._resign()
            await trio.sleep(next(delays))

    async def _peer_settings(self) -> PeerSettings:
        """Return the settings of connections, with the current certificates."""
        tls = self._options.tls
        context = None if tls is None else await tls.context()
        return PeerSettings(tls=None if context is None else lambda: context, login=self._options.login)

    async def _mirror(self, cluster: PeerCluster) -> None:
        source = SourceCluster(cluster, settings=self._partitions.settings)
        try:
            async with trio.open_nursery() as nursery:
                follower = Follower(cluster, throttle=self.throttle, random=self._random)
                self.copies.begin(cluster, follower)
                nursery.start_soon(follower.run)
                while True:
                    await self._compare(source, cluster)
                    await self._pause(source)
        finally:
            self.copies.end()

    async def _pause(self, source: SourceCluster) -> None:
        """Wait until the next comparison; in the meantime begin to follow newly led partitions."""
        with trio.move_on_after(self._options.interval_s):
            while True:
                await self._has_led.wait()
                await self._follow(source)

    async def _compare(self, source: SourceCluster, cluster: PeerCluster) -> None:
        """Align topics, follow their partitions, copy offsets."""
        try:
            if self._own is None or await self._own.keeps():
                await self._change_topics(source)
            else:
                self.refused = {}
                await cluster.refresh()
            await self._follow(source)
            if self._options.groups is not None:
                await self._copy_offsets(source, self._options.groups)
        except PeerError as error:
            self._note(str(error))
            await self._resign()
        else:
            self._note(None)

    async def _resign(self) -> None:
        if self._own is not None:
            await self._own.resign()

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _change_topics(self, source: SourceCluster) -> None:
        topics = await source.topics(self._options.topics)
        async with self._is_comparing:
            here = {topic.name: topic for topic in self._partitions.topics()}
            refused = {}
            for action in plan(topics, here, cluster_id=source.cluster_id, deletes=self._options.deletes):
                problem = await self._carried_out(action)
                if problem is not None:
                    refused[_name_of(action)] = problem
            self._note_refused(refused)

    async def _carried_out(self, action: Action) -> str | None:
        """Carry out the plan for a topic; return why that failed, or None."""
        changes = self._partitions.changes
        try:
            match action:
                case RefusedTopic(_, problem):
                    return problem
                case Create(topic):
                    failures = await self._partitions.create_all([topic])
                    if topic.name in failures:
                        raise failures[topic.name]
                    logger.info("topic %s: created as a mirror", topic.name)
                case Grow(name, count):
                    await changes.alter(name, None, count, for_mirror=True)
                case Configure(name, configs):
                    await changes.alter(name, lambda _: configs, for_mirror=True)
                case Delete(name):
                    self.copies.unfollow(name)
                    await self._partitions.delete(name)
                    logger.info("topic %s: deleted, because the source has deleted it", name)
        except _TOPIC_ERRORS as error:
            return str(error)
        return None

    def _note_refused(self, refused: dict[str, str]) -> None:
        for name, problem in refused.items():
            if self.refused.get(name) != problem:
                logger.warning("topic %s: not mirrored: %s", name, problem)
        self.refused = refused

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def _follow(self, source: SourceCluster) -> None:
        """Follow the partitions of the topics that can be mirrored."""

        def is_mirrored(topic: Topic) -> bool:
            is_chosen = topic.name not in self.refused and self._options.topics(topic.name)
            return is_chosen and topic.mirror_of == source.cluster_id

        self._has_led = trio.Event()
        async with self._is_comparing:  # a topic that is being promoted is no longer followed
            await self.copies.follow(is_mirrored)

    async def promote(self, name: str) -> Topic:
        """Stop following a topic, and make it writable. Raises what `Topics.promote` raises."""
        if self._own is not None:  # each leader stops when its image has the promotion
            return await self._partitions.changes.promote(name, {})
        async with self._is_comparing:
            return await self._partitions.changes.promote(name, await self.copies.stop(name))

    # -- status --------------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The bootstrap brokers of the source."""
        return ",".join(
            [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._options.bootstrap]
        )

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of the mirror."""
        metrics.gauge(
            "warmlog_mirror_in_step",
            "1 while topics and settings are as at the source, 0 while there is a problem with it.",
            lambda: [((), self.problem is None)],
        )
        metrics.gauge(
            "warmlog_mirror_refused_topics",
            "Topics of the source that are not mirrored because something speaks against it.",
            lambda: [((), len(self.refused))],
        )
        metrics.counter(
            "warmlog_mirror_fetched_bytes_total",
            "Bytes of records fetched from the source.",
            lambda: [((), self.throttle.bytes)],
        )
        self.copies.declare(metrics)

    # -- groups --------------------------------------------------------------------------------------------------------

    async def _copy_offsets(self, source: SourceCluster, is_chosen: Callable[[str], bool]) -> None:
        copies = OffsetCopies(self._groups, self._partitions, source.cluster_id, self._own)
        groups = await source.groups(is_chosen)
        if self._own is not None and groups:
            await self._groups.registry.runtime.ensure()
            groups = [group for group in groups if self._groups.registry.available(group) is ErrorCode.NONE]
        for group_offsets in await source.committed(groups):
            errors = await copies.copy(group_offsets)
            for (topic, partition), code in errors.items():
                logger.warning(
                    "group %s: cannot copy its committed offset of %s-%d: %s",
                    group_offsets.group,
                    topic,
                    partition,
                    code.name,
                )

    def _note(self, problem: str | None) -> None:
        """Remember a problem with the source, and log it once."""
        if problem is not None and problem != self.problem:
            logger.warning("mirror: cannot follow the source, retrying: %s", problem)
        elif problem is None and self.problem is not None:
            logger.info("mirror: resumed; the last round succeeded")
        self.problem = problem


def _name_of(action: Action) -> str:
    return action.topic.name if isinstance(action, Create) else action.topic
