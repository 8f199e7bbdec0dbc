"""Mirror topics of another cluster: keep them in step with it, follow their partitions, copy offsets of groups.

    run    connect to the source -> again and again: topics and settings, then new partitions, then committed offsets
           meanwhile the `Follower` copies records

Invariants:
1. Whatever the source does, a topic that cannot be mirrored is left as it is here, and the others go on.
2. A partition is followed exactly while its topic is mirrored and nothing speaks against it; promotion ends that first.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import trio

from warmlog.broker.groups.service import GroupService
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.mirror.offsets import OffsetCopies
from warmlog.broker.mirror.plan import Action, Configure, Create, Delete, Grow, Refusal, plan
from warmlog.broker.mirror.source import Source
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.following.replica import PartitionReplica
from warmlog.broker.replication.peers.connection import PeerSettings
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.login import PeerLogin
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.broker.replication.throttle import Throttle
from warmlog.broker.security.client_tls import ClientTls, TlsFiles
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.mirrors import chosen_by, source_addresses
from warmlog.broker.settings.types import SettingError
from warmlog.protocol.backoff import delays_s
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.native.mirrors import MirroredPartition
from warmlog.protocol.oauthbearer import OAUTHBEARER
from warmlog.protocol.partitions import TopicPartition

# What may go wrong with one topic.
_TOPIC_ERRORS = (LogError, MetadataError, OSError, SettingError, StorageError, TopicExistsError, UnknownTopicError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """The source to mirror, and the topics to take from it.

    `bootstrap`: (host, port) of brokers of the source. `topics` and `groups` choose by name; `groups` is None if no
    offsets are copied. `deletes`: whether topics are deleted here after they were deleted at the source.
    `interval_s`: how often topics and offsets are compared. `bytes_per_s`: returns the limit of what is copied, 0 for
    none. `tls`: if connections are encrypted; `login`: the user, with SASL.
    """

    bootstrap: Sequence[tuple[str, int]]
    topics: Callable[[str], bool]
    groups: Callable[[str], bool] | None = None
    deletes: bool = False
    interval_s: float = 5.0
    bytes_per_s: Callable[[], int] = lambda: 0
    tls: ClientTls | None = None
    login: PeerLogin | None = None


def mirror_options(live: LiveSettings) -> MirrorOptions:
    """Return what the settings ask to mirror. Raises SettingError, TlsFileError, PasswordFileError."""
    settings = live.current
    protocol = settings.warmlog_mirror_security_protocol
    tls = login = None
    if protocol.endswith("SSL"):
        tls = ClientTls(
            TlsFiles(
                prefix="warmlog.mirror",
                ca=settings.warmlog_mirror_ca_file,
                certificate=settings.warmlog_mirror_certificate_file,
                key=settings.warmlog_mirror_key_file,
            )
        )
    if protocol.startswith("SASL"):
        has_token = settings.warmlog_mirror_sasl_mechanism == OAUTHBEARER
        login = PeerLogin(
            settings.warmlog_mirror_user,
            settings.warmlog_mirror_token_file if has_token else settings.warmlog_mirror_password_file,
            settings.warmlog_mirror_sasl_mechanism,
            setting="warmlog.mirror.token.file" if has_token else "warmlog.mirror.password.file",
        )
        login.password()
    topics, groups = settings.warmlog_mirror_topics, settings.warmlog_mirror_groups
    return MirrorOptions(
        bootstrap=source_addresses(settings.warmlog_mirror_from),
        topics=chosen_by("warmlog.mirror.topics", topics),
        groups=chosen_by("warmlog.mirror.groups", groups) if groups else None,
        deletes=settings.warmlog_mirror_delete_topics,
        interval_s=settings.warmlog_mirror_interval_ms / 1000,
        bytes_per_s=lambda: live.current.warmlog_mirror_max_bytes_per_second,
        tls=tls,
        login=login,
    )


class Mirror:
    """Mirrors the topics of one source while `run` runs. Belongs to the event loop."""

    def __init__(self, options: MirrorOptions, partitions: Partitions, groups: GroupService) -> None:
        self.problem: str | None = "not connected yet"  # with the source as a whole
        self.refused: dict[str, str] = {}  # topics that are not mirrored, and why
        self.throttle = Throttle(options.bytes_per_s)
        self._options = options
        self._partitions = partitions
        self._groups = groups
        self._random = Random()  # noqa: S311  # jitter
        self._clock: Callable[[], float] = lambda: 0.0  # trio's, which worker threads may read, while this runs
        self._follower: Follower | None = None
        self._cluster: PeerCluster | None = None
        self._replicas: dict[TopicPartition, tuple[Partition, PartitionReplica]] = {}
        self._is_comparing = trio.Lock()  # around changes of topics and of what is followed

    async def run(self) -> None:
        """Mirror until cancelled; a source that cannot be reached is tried again with growing pauses."""
        self._clock = trio.lowlevel.current_clock().current_time
        delays = delays_s(self._random)
        while True:
            try:
                peers = await self._peer_settings()
                async with open_cluster(self._options.bootstrap, settings=peers, random=self._random) as cluster:
                    delays = delays_s(self._random)
                    await self._mirror(cluster)
            except PeerError as error:
                self._note(f"cannot reach the source: {error}")
            await trio.sleep(next(delays))

    async def _peer_settings(self) -> PeerSettings:
        """Return how to connect, with certificates as they are now."""
        tls = self._options.tls
        context = None if tls is None else await tls.context()
        return PeerSettings(tls=None if context is None else lambda: context, login=self._options.login)

    async def _mirror(self, cluster: PeerCluster) -> None:
        source = Source(cluster, settings=self._partitions.settings)
        async with trio.open_nursery() as nursery:
            self._follower = Follower(cluster, throttle=self.throttle, random=self._random)
            self._cluster = cluster
            nursery.start_soon(self._follower.run)
            try:
                while True:
                    await self._compare(source, cluster)
                    await trio.sleep(self._options.interval_s)
            finally:
                self._follower = self._cluster = None
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
                    logger.info("topic %s: created as a mirror", topic.name)
                case Grow(name, count):
                    await changes.alter(name, None, count, for_mirror=True)
                case Configure(name, configs):
                    await changes.alter(name, lambda _: configs, for_mirror=True)
                case Delete(name):
                    self._unfollow(name)
                    await self._partitions.delete(name)
                    logger.info("topic %s: deleted, since the source has deleted it", name)
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
        wanted: dict[TopicPartition, tuple[Topic, Partition]] = {}
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
        """Stop following a topic, and make it writable. Raises what `Topics.promote` raises."""
        async with self._is_comparing:
            keys = [key for key in self._replicas if key[0] == name]
            epochs = {}
            if self._follower is not None and self._cluster is not None:
                for key in keys:
                    await self._follower.stop(*key)
                    leader = self._cluster.view.leader_of(*key)
                    epochs[key[1]] = -1 if leader is None else leader.epoch
            for key in keys:
                self._replicas.pop(key, None)
            return await self._partitions.changes.promote(name, epochs)

    # -- status --------------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The brokers that are asked first."""
        return ",".join(
            [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._options.bootstrap]
        )

    def follows(self, topic: Topic) -> bool:
        """Whether the records of a topic are being fetched."""
        return (topic.name, 0) in self._replicas

    def describe(self, partition: Partition) -> MirroredPartition:
        """Return how far the copy of a partition is."""
        end = partition.log.offsets.log_end_offset
        _, replica = self._replicas.get((partition.topic, partition.index), (None, None))
        if replica is None or self._follower is None:
            return MirroredPartition(partition=partition.index, end=end)
        source_end = replica.leader_end
        lag = max(0, source_end - end) if source_end >= 0 else -1
        now = self._clock()
        heard_at = self._follower.heard_at(partition.topic, partition.index, now)
        if lag > 0:
            heard_at = replica.behind_since
        size = replica.bytes_per_offset
        return MirroredPartition(
            partition=partition.index,
            end=end,
            source_end=source_end,
            lag_records=lag,
            lag_bytes=0 if lag == 0 else -1 if lag < 0 or size is None else round(lag * size),
            lag_ms=-1 if lag < 0 or heard_at is None else round((now - heard_at) * 1000),
            problem=replica.problem,
        )

    def declare(self, metrics: Metrics) -> None:
        """Register the metrics of the mirror."""
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
        labels = ("topic", "partition")
        metrics.gauge(
            "warmlog_mirror_lag_records",
            "Records of the source that the copy does not have yet.",
            lambda: self._lags(lambda copy: copy.lag_records),
            labels,
        )
        metrics.gauge(
            "warmlog_mirror_lag_bytes",
            "Bytes that the copy does not have yet, estimated from the records copied last.",
            lambda: self._lags(lambda copy: copy.lag_bytes),
            labels,
        )
        metrics.gauge(
            "warmlog_mirror_lag_seconds",
            "Time since the copy was last known to have all records of the source.",
            lambda: self._lags(lambda copy: copy.lag_ms / 1000),
            labels,
        )

    def _lags(self, of: Callable[[MirroredPartition], float]) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield the known lags. Called in a worker thread."""
        for (topic, index), (partition, _) in list(self._replicas.items()):
            lag = of(self.describe(partition))
            if lag >= 0:
                yield (topic, str(index)), lag

    # -- groups --------------------------------------------------------------------------------------------------------

    async def _copy_offsets(self, source: Source, is_chosen: Callable[[str], bool]) -> None:
        copies = OffsetCopies(self._groups, self._partitions, source.cluster_id)
        for found in await source.committed(await source.groups(is_chosen)):
            errors = await copies.copy(found)
            for (topic, partition), code in errors.items():
                logger.warning(
                    "group %s: cannot copy its committed offset of %s-%d: %s", found.group, topic, partition, code.name
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
