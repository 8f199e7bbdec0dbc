"""The partitions as Metadata describes them: leaders, replicas and in-sync replicas, of one broker or a cluster."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.topics.topic_map import TopicMap

NO_LEADER = -1
UNKNOWN_EPOCH = -1


class PartitionInfo(NamedTuple):
    """The brokers of a partition.

    `eligible`: those that have all committed records although they are not in sync. `adding` and `removing` are not
    empty while a reassignment is in progress.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class BrokerInfo(NamedTuple):
    """A broker, and its address on each listener. Without any, it is this one, which knows where clients reach it."""

    node_id: int
    rack: str | None = None
    addresses: Mapping[str, tuple[str, int]] = {}


class Catalog(Protocol):
    """The brokers, and the states of partitions."""

    @property
    def controller(self) -> int:
        """The broker that is the controller, or NO_LEADER."""

    @property
    def controller_epoch(self) -> int:
        """A number that grows whenever another broker becomes the controller."""

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the brokers that are alive, by id."""

    def fenced(self) -> Sequence[BrokerInfo]:
        """Return the registered brokers that are not alive, by id."""

    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when finding out takes too long."""

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic, even one that is not visible yet because its partitions are still being added."""

    def replication_factor(self, topic: Topic) -> int:
        """Return the number of replicas of a topic's first partition."""

    def state_of(self, topic: Topic, index: int) -> int:
        """Return a number that is another one whenever `partition` would return something else. Costs nothing."""

    def partition(self, topic: Topic, index: int) -> PartitionInfo:
        """Return the brokers of a partition that exists."""


def registered(catalog: Catalog) -> set[int]:
    """Return the ids of the brokers that are registered, alive or not."""
    return {broker.node_id for broker in (*catalog.brokers(), *catalog.fenced())}


class LocalCatalog:
    """The catalog of a broker by itself: it has the only replica of each partition, and leads those that are online."""

    def __init__(self, node_id: int, topics: TopicMap) -> None:
        self.controller = node_id
        self.controller_epoch = 1
        self._me = (node_id,)
        self._map = topics

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return this broker."""
        return (BrokerInfo(self.controller),)

    def fenced(self) -> Sequence[BrokerInfo]:
        """Return no broker."""
        return ()

    async def settled(self) -> None:
        """Return at once."""

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._map.topics.get(name)

    def replication_factor(self, topic: Topic) -> int:
        """Return 1."""
        del topic
        return 1

    def state_of(self, topic: Topic, index: int) -> int:
        """Return the leader epoch, or UNKNOWN_EPOCH if the partition is offline."""
        found = self._map.partitions.get((topic.name, index))
        return UNKNOWN_EPOCH if found is None else found.log.leader_epoch

    def partition(self, topic: Topic, index: int) -> PartitionInfo:
        """Return this broker as the only replica."""
        epoch = self.state_of(topic, index)
        if epoch == UNKNOWN_EPOCH:
            return PartitionInfo(NO_LEADER, epoch, self._me, ())
        return PartitionInfo(self.controller, epoch, self._me, self._me)
