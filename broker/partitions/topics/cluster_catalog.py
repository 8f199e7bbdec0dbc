"""The catalog of a cluster: the image that a node has of it."""

from collections.abc import Sequence

from warmlog.broker.cluster.image import ClusterImage, ImageDelta, PartitionKey
from warmlog.broker.cluster.keys import CONTROLLER_KEY
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.values import PartitionState, Registration
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.topics.catalog import NO_LEADER, UNKNOWN_EPOCH, BrokerInfo, PartitionInfo
from warmlog.broker.partitions.topics.topic_map import TopicMap


class ClusterCatalog:
    """Tells clients what the image says."""

    def __init__(self, node: ClusterNode, topics: TopicMap) -> None:
        self._node = node
        self._map = topics
        self._broker_changes = 0  # how often registrations have changed
        node.on_change.append(self._follow)

    def _follow(self, _: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers:
            self._broker_changes += 1

    @property
    def _image(self) -> ClusterImage:
        return self._node.image

    @property
    def controller(self) -> int:
        """Return the broker that holds elections; any other one answers its requests as well."""
        found = self._image.controller
        return NO_LEADER if found is None else found.broker

    @property
    def controller_epoch(self) -> int:
        """Return the revision at which the controller was elected."""
        return self._image.revision_of(CONTROLLER_KEY)

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the brokers that are alive."""
        return [_described(each) for _, each in sorted(self._image.brokers.items())]

    def fenced(self) -> Sequence[BrokerInfo]:
        """Return the brokers that were alive and are not, unless they were unregistered."""
        image = self._image
        return [_described(each) for broker, each in sorted(image.known.items()) if broker not in image.brokers]

    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when finding out takes too long."""
        await self._node.failover.settled()

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic, even one that is not visible yet because its partitions are still being added."""
        known, found = self._map.topics.get(name), self._image.topics.get(name)
        if known is not None or found is None:
            return known
        return Topic(name=name, partitions=found.partitions, configs=dict(found.configs), id=found.id)

    def replication_factor(self, topic: Topic) -> int:
        """Return the number of replicas of a topic's first partition, 0 for a topic that is gone."""
        found = self._image.partitions.get(PartitionKey(topic.id, 0))
        return 0 if found is None else len(found.replicas) - len(found.adding)

    def state_of(self, topic: Topic, index: int) -> int:
        """Return the sum of two numbers that only grow: one with the partition's state, one with the brokers."""
        found = self._image.partitions.get(PartitionKey(topic.id, index))
        return UNKNOWN_EPOCH if found is None else found.revision + self._broker_changes

    def partition(self, topic: Topic, index: int) -> PartitionInfo:
        """Return the partition's state. A leader whose registration has ended is none, until another is elected."""
        found = self._image.partitions.get(PartitionKey(topic.id, index))
        if found is None:
            return PartitionInfo(NO_LEADER, UNKNOWN_EPOCH, (), ())
        return _info(self._image, found)


def _described(registration: Registration) -> BrokerInfo:
    addresses = {endpoint.listener: (endpoint.host, endpoint.port) for endpoint in registration.endpoints}
    return BrokerInfo(registration.broker, registration.rack, addresses)


def _info(image: ClusterImage, state: PartitionState) -> PartitionInfo:
    return PartitionInfo(
        _leader(image, state),
        state.leader_epoch,
        state.replicas,
        tuple([member.broker for member in state.isr]),
        tuple([member.broker for member in state.elr]),
        tuple([broker for broker in state.replicas if broker not in image.brokers]),
        state.adding,
        state.removing,
    )


def _leader(image: ClusterImage, state: PartitionState) -> int:
    """Return the leader, or NO_LEADER if its registration, or its history, has ended."""
    return NO_LEADER if state.leader is None or not image.is_good(state.leader) else state.leader_id
