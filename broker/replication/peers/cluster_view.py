"""A view of another cluster, without I/O: its brokers, its topics, and the leaders of their partitions.

Metadata may come from any broker, and some are out of date. Invariants:
1. The leader of a partition is replaced only by one with the same or a larger leader epoch, unless the topic was
   recreated, which its id shows (KIP-320). Brokers without epochs send -1; then the latest answer counts.
2. A partition that exists keeps its last known leader while its metadata has an error.
3. A topic becomes `stale` with the first report of an error that other metadata can cure. It stays stale until its
   metadata has a leader for every partition or an error that no other metadata can cure, or until a list of all topics
   lacks it: a missing topic may be about to be recreated.
"""

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.writer import topic_id_bytes
from warmlog.protocol.response import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata

NO_LEADER = -1


class Reaction(Enum):
    """The reaction to an error of a partition."""

    REFRESH = "refresh"  # the leader or the topic has changed: refresh metadata, then retry
    RETRY = "retry"  # the broker is not ready: retry after a pause
    REPORT = "report"  # retrying does not help


_REFRESH = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,  # a newer leader exists
        ErrorCode.UNKNOWN_LEADER_EPOCH,  # the queried broker does not know the leader yet
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LISTENER_NOT_FOUND,
    }
)
_RETRY = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


def reaction_to(error: ErrorCode) -> Reaction:
    """Return the reaction to an error that a broker reports for a partition, topic or group."""
    if error in _REFRESH:
        return Reaction.REFRESH
    return Reaction.RETRY if error in _RETRY else Reaction.REPORT


class Leader(NamedTuple):
    """The broker that leads a partition, NO_LEADER if none does, and its epoch."""

    node_id: int
    epoch: int


class KnownTopic:
    """A topic and the leaders of its partitions."""

    __slots__ = ("leaders", "name", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id  # NO_TOPIC_ID before Kafka 2.8
        self.leaders: dict[int, Leader] = {}


class ClusterView:
    """Brokers, topics and leaders, as of the metadata received so far."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, KnownTopic] = {}
        self.errors: dict[str, ErrorCode] = {}  # errors of topics in the latest metadata
        self.stale: set[str] = set()

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition, None if the partition is not known."""
        known = self.topics.get(topic)
        return None if known is None else known.leaders.get(partition)

    def report(self, topic: str, error: ErrorCode) -> Reaction:
        """Record an error that a broker reported for a partition of a topic; return the reaction."""
        reaction = reaction_to(error)
        if reaction is Reaction.REFRESH:
            self.stale.add(topic)
        return reaction

    def lost_broker(self, node_id: int) -> None:
        """Record that a broker is unreachable: other brokers may lead its partitions now."""
        for topic in self.topics.values():
            if any(leader.node_id == node_id for leader in topic.leaders.values()):
                self.stale.add(topic.name)

    def update(self, response: MetadataResponse, requested: Collection[str] | None = None) -> bool:
        """Apply metadata of the `requested` topics, or of all. Return whether anything has changed."""
        before = self._brokers_and_errors()
        if response.brokers:
            self.brokers = {broker.node_id: broker for broker in response.brokers}
        self.cluster_id = response.cluster_id or self.cluster_id
        changed = False
        topics = {topic.name: topic for topic in response.topics if topic.name}
        for name in set(self.topics) - set(topics) if requested is None else ():
            changed = True
            self._remove(name)
        if requested is None:
            self.stale &= set(topics)
        for topic in topics.values():
            changed = self._take(topic) or changed
        return changed or before != self._brokers_and_errors()

    def _brokers_and_errors(self) -> tuple[dict[int, BrokerMetadata], dict[str, ErrorCode]]:
        return self.brokers, dict(self.errors)

    def _remove(self, name: str) -> None:
        self.topics.pop(name, None)
        self.errors.pop(name, None)
        self.stale.discard(name)

    def _take(self, topic: TopicMetadata) -> bool:
        """Apply a topic's metadata; return whether its partitions or leaders have changed."""
        name = topic.name
        if reaction_to(topic.error) is Reaction.REPORT and all(each.leader != NO_LEADER for each in topic.partitions):
            self.stale.discard(name)
        if topic.error is not ErrorCode.NONE:
            self.errors[name] = topic.error
            return topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self.topics.pop(name, None) is not None
        self.errors.pop(name, None)
        topic_id = topic_id_bytes(topic.topic_id)
        known = self.topics.get(name)
        changed = known is None or known.topic_id != topic_id
        if known is None or known.topic_id not in {topic_id, NO_TOPIC_ID}:
            known = self.topics[name] = KnownTopic(name, topic_id)
        known.topic_id = topic_id
        for partition in topic.partitions:
            changed = _take_leader(known, partition) or changed
        return changed


def _take_leader(topic: KnownTopic, partition: PartitionMetadata) -> bool:
    """Apply a partition's leader unless a newer one is known; return whether it has changed."""
    index, known = partition.partition, topic.leaders.get(partition.partition)
    is_unknown = partition.error is not ErrorCode.NONE and partition.leader == NO_LEADER
    if known is not None and (is_unknown or -1 < partition.leader_epoch < known.epoch):
        return False
    leader = Leader(partition.leader, partition.leader_epoch)
    topic.leaders[index] = leader
    return leader != known
