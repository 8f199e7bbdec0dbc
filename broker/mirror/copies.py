"""The copies of mirrored partitions: which are followed, and their progress.

A standalone broker follows all of them. In a cluster, each broker follows the partitions that it leads, in one leader
epoch: the replica ends the following with its role (`LocalReplica.stop_source`), before the log is used otherwise.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import trio

from warmlog.broker.metadata.topic import Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.mirror.own_cluster import OwnCluster
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.replication.following.fetcher import Following
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.following.replica import PartitionReplica
from warmlog.broker.replication.following.source_copy import SourceCopy
from warmlog.broker.replication.local_replica import LocalReplica, Renewal
from warmlog.broker.replication.peers.peer import PeerCluster
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.native.mirrors import MirroredPartition
from warmlog.protocol.partitions import TopicPartition

PARTITIONS_PER_TURN = 100  # partitions examined in one step: less than a millisecond


class _Wanted(NamedTuple):
    """A partition to follow; in a cluster, with this broker's role and leader epoch."""

    partition: Partition
    local: LocalReplica | None
    leader_epoch: int


class _Copy(NamedTuple):
    """A followed partition."""

    wanted: _Wanted
    replica: PartitionReplica


class Copies:
    """The copies of one source. Belongs to the event loop."""

    def __init__(self, partitions: Partitions, own: OwnCluster | None) -> None:
        """`own` is None for a standalone broker."""
        self._partitions = partitions
        self._own = own
        self._clock: Callable[[], float] = lambda: 0.0  # trio's, which worker threads may read, while this runs
        self._source: PeerCluster | None = None
        self._follower: Follower | None = None
        self._copies: dict[TopicPartition, _Copy] = {}

    def begin(self, source: PeerCluster, follower: Follower) -> None:
        """Begin to use the connections to a source."""
        self._clock = trio.lowlevel.current_clock().current_time
        self._source, self._follower = source, follower

    def end(self) -> None:
        """Drop the source after its follower has ended, so that none of its tasks uses a log."""
        self._source = self._follower = None
        for copy in self._copies.values():
            if copy.wanted.local is not None:
                copy.wanted.local.stop_source = None
        self._copies.clear()

    async def follow(self, is_mirrored: Callable[[Topic], bool]) -> None:
        """Follow exactly the partitions of mirrored topics."""
        wanted: set[TopicPartition] = set()
        for topic in list(self._partitions.topics()):
            if topic.mirror_of is None or not is_mirrored(topic):
                continue
            for index in range(topic.partitions):
                if self._follow(topic, index):
                    wanted.add((topic.name, index))
                if index % PARTITIONS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        for key in [key for key in self._copies if key not in wanted]:
            self._stop(key)

    def _follow(self, topic: Topic, index: int) -> bool:
        """Follow a partition in this broker's current role; return False if it should not be followed."""
        source, follower, key = self._source, self._follower, (topic.name, index)
        wanted, copy = self._wanted(topic, index), self._copies.get(key)
        if copy is not None and copy.wanted != wanted:
            self._stop(key)
        if wanted is None or source is None or follower is None:
            return False
        if key not in self._copies:
            self._copies[key] = _Copy(wanted, self._replica(source, topic, wanted))
            if wanted.local is not None:
                wanted.local.stop_source = partial(self._stop, key)
        if not follower.follows(*key):  # also an abandoned one: its problem may be solved
            follower.follow(self._copies[key].replica)
        return True

    def _wanted(self, topic: Topic, index: int) -> _Wanted | None:
        if self._own is None:
            partition = self._partitions.get(topic.name, index)
            return None if partition is None else _Wanted(partition, None, -1)
        local = self._own.copied(topic, index)
        return None if local is None else _Wanted(local.partition, local, local.leader_epoch)

    def _replica(self, source: PeerCluster, topic: Topic, wanted: _Wanted) -> PartitionReplica:
        assert topic.mirror is not None
        topic_id = topic.id.bytes if topic.mirror.has_source_id else NO_TOPIC_ID
        if wanted.local is None:
            return PartitionReplica(wanted.partition, topic_id, source, self._partitions.checkpoint)
        local = wanted.local
        return SourceCopy(
            wanted.partition,
            topic_id,
            source,
            self._partitions.checkpoint,
            renew=lambda at_least, cut: local.renew(Renewal(at_least, cut)),
        )

    def _stop(self, key: TopicPartition) -> Following | None:
        """Stop following a partition; return the replica, which may be processing a last result."""
        copy = self._copies.pop(key, None)
        if copy is None or self._follower is None:
            return None
        local, replica = copy.wanted.local, copy.replica
        if local is not None:
            local.stop_source = None
            if isinstance(replica, SourceCopy):
                local.source_epoch = max(local.source_epoch, replica.source_epoch)
        return self._follower.unfollow(*key)

    def unfollow(self, topic: str) -> None:
        """Stop following the partitions of a topic."""
        for key in [key for key in self._copies if key[0] == topic]:
            local = self._copies[key].wanted.local
            if local is None:
                self._stop(key)
            else:
                local.end_source()

    async def stop(self, topic: str) -> dict[int, int]:
        """Stop following the partitions of a topic, and wait until nothing uses their logs.

        Return the latest known leader epochs of the source by partition.
        """
        epochs: dict[int, int] = {}
        for key in [key for key in self._copies if key[0] == topic]:
            following = self._stop(key)
            if following is not None:
                await following.ended()
            leader = None if self._source is None else self._source.view.leader_of(*key)
            epochs[key[1]] = -1 if leader is None else leader.epoch
        return epochs

    # -- status --------------------------------------------------------------------------------------------------------

    def follows(self, topic: Topic) -> bool:
        """Return whether the records of a topic are being fetched: those of all partitions that this broker leads."""
        if self._own is None:
            return (topic.name, 0) in self._copies
        led = [index for index in range(topic.partitions) if self._partitions.get(topic.name, index) is not None]
        return all((topic.name, index) in self._copies for index in led)

    def describe(self, partition: Partition) -> MirroredPartition:
        """Return the progress of a partition's copy."""
        end = partition.log.offsets.log_end_offset
        copy = self._copies.get((partition.topic, partition.index))
        if copy is None or self._follower is None:
            return MirroredPartition(partition=partition.index, end=end)
        replica = copy.replica
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
        """Declare the metrics of the copies."""
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
        for (topic, index), copy in list(self._copies.items()):
            lag = of(self.describe(copy.wanted.partition))
            if lag >= 0:
                yield (topic, str(index)), lag
