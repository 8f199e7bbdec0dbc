"""The topics in service, by name and by id, with their partitions and those that are offline. Memory only."""

from collections.abc import Callable, Iterable, Iterator

import trio

from broker.metadata.topic import Topic, folded
from broker.partitions.partition import Partition

Replicas = tuple[tuple[int, ...], ...]


class TopicMap:
    """The topics and partitions of one broker. Belongs to the event loop, except for iteration."""

    def __init__(self, assign: Callable[[Topic], Replicas]) -> None:
        """`assign` returns the replicas of a topic's partitions."""
        self._assign = assign
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.offline: dict[tuple[str, int], str] = {}  # partitions that cannot be served, and the reason
        self.replicas: dict[str, Replicas] = {}  # of each partition of a topic, leader first
        self.pending: dict[str, trio.Event] = {}  # topics whose directories are being created; set afterwards
        self._names: dict[bytes, str] = {}  # by id
        self._folded: dict[str, str] = {}  # topics by folded name

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self.partitions.values()))  # a copy: metrics are collected in a worker thread

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id (16 bytes), or None."""
        return self._names.get(topic_id)

    def colliding(self, name: str) -> str | None:
        """Return the topic with the same folded name, possibly itself, or None."""
        return self._folded.get(folded(name))

    def announce(self, topic: Topic) -> None:
        """Make a topic visible whose partitions do not exist yet; `publish` or `lose` follows."""
        self._enter(topic)
        self.pending[topic.name] = trio.Event()

    def publish(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Make a new or extended topic available with these additional partitions."""
        for partition in partitions:
            self.partitions[topic.name, partition.index] = partition
        self._enter(topic)
        self._settle(topic)

    def lose(self, topic: Topic, reason: str) -> None:
        """Mark an announced topic offline, as it could not be created."""
        self.offline |= {(topic.name, index): reason for index in range(topic.partitions)}
        self._settle(topic)

    def _enter(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.replicas[topic.name] = self._assign(topic)
        self._names[topic.id.bytes] = topic.name
        self._folded[folded(topic.name)] = topic.name

    def _settle(self, topic: Topic) -> None:
        event = self.pending.pop(topic.name, None)
        if event is not None:
            event.set()

    def take_out(self, topic: Topic) -> tuple[list[Partition], bool]:
        """Remove a topic; return its partitions, and whether others of it are offline."""
        del self.topics[topic.name], self.replicas[topic.name]
        self._names.pop(topic.id.bytes, None)
        self._folded.pop(folded(topic.name), None)
        name, served, is_offline = topic.name, [], False
        for index in range(topic.partitions):
            partition = self.partitions.pop((name, index), None)
            if partition is not None:
                served.append(partition)
            if self.offline and self.offline.pop((name, index), None) is not None:
                is_offline = True
        return served, is_offline

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic that are served."""
        keys = ((topic.name, index) for index in range(topic.partitions))
        return [self.partitions[key] for key in keys if key in self.partitions]
