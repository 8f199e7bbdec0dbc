"""The partitions as in Metadata responses: leaders, replicas and in-sync replicas, of one broker or a cluster."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.keys import CONTROLLER_KEY
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import PartitionState, Registration, broker_client_id
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.protocol.partitions import TopicIdPartition

NO_LEADER = -1
UNKNOWN_EPOCH = -1


class PartitionInfo(NamedTuple):
    """The brokers of a partition.

    `eligible`: replicas that have all committed records although they are not in sync. `adding` and `removing` are
    not empty while a reassignment is in progress.
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
    """A broker, and its address on each listener. Without addresses it is this broker, which knows its own."""

    node_id: int
    rack: str | None = None
    addresses: Mapping[str, tuple[str, int]] = {}


class Catalog:
    """The brokers, and the states of partitions, according to the image."""

    def __init__(self, node: StoreNode, topics: TopicMap) -> None:
        self._node = node
        self._map = topics
        self.broker_changes = 0  # number of changes of registrations
        self._partition_changes = 0
        self._changes = Counter[UUID]()  # number of changes of the partitions of each topic
        node.on_change.append(self._follow)

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers:
            self.broker_changes += 1
        self._partition_changes += len(delta.partitions)
        for key in delta.partitions:
            self._changes[key.topic_id] += 1
        for topic_id in delta.deleted_topics:
            del self._changes[topic_id]
        if not delta.is_complete:  # topics may have been replaced
            self._changes = Counter(
                {topic_id: self._changes[topic_id] for topic_id in self._changes.keys() & image.names}
            )

    @property
    def _image(self) -> ClusterImage:
        return self._node.image

    @property
    def controller(self) -> int:
        """Return the controller; any other broker answers its requests as well."""
        controller = self._image.controller
        return NO_LEADER if controller is None else controller.broker

    @property
    def controller_epoch(self) -> int:
        """Return a number that grows whenever another broker becomes the controller: the revision of that change."""
        return self._image.revision_of(CONTROLLER_KEY) or 1

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the brokers that are alive."""
        return [_described(each) for _, each in sorted(self._image.brokers.items())]

    def fenced(self) -> Sequence[BrokerInfo]:
        """Return brokers that are registered but not alive."""
        image = self._image
        return [_described(each) for broker, each in sorted(image.known.items()) if broker not in image.brokers]

    def racks(self) -> Mapping[int, str]:
        """Return the racks of the brokers that are alive and have one, by broker."""
        return {broker: each.rack for broker, each in self._image.brokers.items() if each.rack is not None}

    def is_peer(self, client_id: str) -> bool:
        """Return whether a client id is that of another broker of the cluster."""
        return any(client_id == broker_client_id(each) for each in registered(self))

    async def settled(self) -> None:
        """Return when no broker is suspected of having died, or when the checks take too long."""
        await self._node.settled()

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic, even if it is not visible yet because its partitions are still being added."""
        known, topic = self._map.topics.get(name), self._image.topics.get(name)
        return known if known is not None or topic is None else topic.named(name)

    def replication_factor(self, topic: Topic) -> int:
        """Return the number of replicas of a topic's first partition, 0 for a topic that is gone."""
        state = self._image.partitions.get(TopicIdPartition(topic.id, 0))
        return 0 if state is None else len(state.replicas) - len(state.adding)

    @property
    def state(self) -> object:
        """Return a value that differs whenever `partition` would return another value for any partition."""
        return self._partition_changes + self.broker_changes

    def states_of(self, topic: Topic, indexes: range) -> list[int]:
        """Return numbers that differ whenever `partition` would return another value for one of these partitions.

        Here it is one, the sum of two increasing numbers: one for the states of the topic, one for the brokers.
        """
        del indexes
        return [self._changes[topic.id] + self.broker_changes]

    def partition(self, topic: Topic, index: int) -> PartitionInfo:
        """Return the brokers of a partition that exists.

        A leader whose registration has ended counts as none until another one is elected.
        """
        state = self._image.partitions.get(TopicIdPartition(topic.id, index))
        if state is None:
            return PartitionInfo(NO_LEADER, UNKNOWN_EPOCH, (), ())
        return _info(self._image, state)


class LoneCatalog(Catalog):
    """The partitions of a standalone broker, which has the only replica of each and leads those that are online."""

    def is_peer(self, _: str, /) -> bool:
        """Return False: there is no other broker."""
        return False

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic that is visible."""
        return self._map.topics.get(name)

    def replication_factor(self, _: Topic, /) -> int:
        """Return 1."""
        return 1

    @property
    def state(self) -> object:
        """Return the state of what is served, and of all leader epochs."""
        return self._map.changes, LeaderEpochs.changes

    def states_of(self, topic: Topic, indexes: range) -> list[int]:
        """Return the leader epochs of the logs, UNKNOWN_EPOCH for partitions that are offline."""
        name, served = topic.name, self._map.partitions
        states: list[int] = []
        for index in indexes:
            partition = served.get((name, index))
            states.append(UNKNOWN_EPOCH if partition is None else partition.log.epochs.current)
        return states

    def partition(self, topic: Topic, index: int) -> PartitionInfo:
        """Return this broker."""
        (epoch,), me = self.states_of(topic, range(index, index + 1)), (self._node.id,)
        if epoch == UNKNOWN_EPOCH:
            return PartitionInfo(NO_LEADER, UNKNOWN_EPOCH, me, ())
        return PartitionInfo(self._node.id, epoch, me, me)


def registered(catalog: Catalog) -> set[int]:
    """Return the ids of registered brokers, alive or not."""
    return {broker.node_id for broker in (*catalog.brokers(), *catalog.fenced())}


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
