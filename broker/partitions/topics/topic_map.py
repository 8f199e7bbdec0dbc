"""The served topics by name and by id, with their partitions, including offline ones. Memory only."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import trio

from warmlog.broker.metadata.topic import Topic, folded
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.partitions import TopicPartition

MAX_DELETED: Final = 50_000  # ids of deleted topics that are kept: 6 MB


class TopicMap:
    """The topics, and the partitions of one broker. Belongs to the event loop, except for iteration."""

    def __init__(self, *, leads_all: bool = True) -> None:
        """`leads_all`: whether this broker leads every partition that it has."""
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[TopicPartition, Partition] = {}  # led by this broker, and visible to clients
        self.local = self.partitions if leads_all else dict[TopicPartition, Partition]()  # all with a log here
        self.offline: dict[TopicPartition, str] = {}  # partitions that cannot be served, and the reason
        self.changes = 0  # number of changes of the partitions led by this broker
        self.pending: dict[str, trio.Event] = {}  # topics whose directories are being created
        self.watchers: list[Callable[[str], None]] = []  # each is called with the name of a topic that has changed
        self._names: dict[bytes, str] = {}  # by id
        self._folded: dict[str, str] = {}  # by folded name
        self._deleted: dict[bytes, None] = {}  # ids, the latest deletion last

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self.local.values()))  # a copy: metrics are collected in a worker thread

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id (16 bytes), or None."""
        return self._names.get(topic_id)

    def colliding(self, name: str) -> str | None:
        """Return the topic with the same folded name, possibly itself, or None."""
        return self._folded.get(folded(name))

    def announce(self, topic: Topic) -> None:
        """Make a topic visible before its partitions exist; `publish` or `lose` follows."""
        self.enter(topic)
        self.pending[topic.name] = trio.Event()

    def publish(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Make a new or extended topic available with these additional partitions."""
        for partition in partitions:
            self.local[topic.name, partition.index] = partition
        self.changes += 1
        self.enter(topic)
        self._settle(topic)

    def lose(self, topic: Topic, reason: str) -> None:
        """Mark an announced topic, which could not be created, as offline."""
        self.offline |= {(topic.name, index): reason for index in range(topic.partitions)}
        self._settle(topic)

    def lead(self, partition: Partition) -> None:
        """Make a partition visible to clients, because this broker leads it."""
        self.changes += 1
        self.partitions[partition.topic, partition.index] = partition

    def resign(self, partition: Partition) -> bool:
        """Hide a partition from clients; return False if it was not visible."""
        self.changes += 1
        return self.partitions.pop((partition.topic, partition.index), None) is not None

    def enter(self, topic: Topic) -> None:
        """Add a topic, or its changed state."""
        self._deleted.pop(topic.id.bytes, None)  # an unanswered creation may be repeated after a deletion
        self.topics[topic.name] = topic
        self._names[topic.id.bytes] = topic.name
        self._folded[folded(topic.name)] = topic.name
        for changed in self.watchers:
            changed(topic.name)

    def _settle(self, topic: Topic) -> None:
        event = self.pending.pop(topic.name, None)
        if event is not None:
            event.set()

    def note_deleted(self, topic_id: bytes) -> None:
        """Record the id of a deleted topic."""
        self._deleted[topic_id] = None
        if len(self._deleted) > MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]

    def was_deleted(self, topic_id: bytes) -> bool:
        """Return whether the topic with this id is known to have been deleted."""
        return topic_id in self._deleted

    def forget(self, topic: Topic) -> None:
        """Remove a deleted topic; its partitions stay until they are removed."""
        self.note_deleted(topic.id.bytes)
        self.topics.pop(topic.name, None)
        self._names.pop(topic.id.bytes, None)
        self._folded.pop(folded(topic.name), None)
        for changed in self.watchers:
            changed(topic.name)

    def take_out(self, topic: Topic) -> tuple[list[Partition], bool]:
        """Remove a topic; return its partitions, and whether some are offline."""
        self.forget(topic)
        self.changes += 1
        name, served, is_offline = topic.name, [], False
        for index in range(topic.partitions):
            partition = self.local.pop((name, index), None)
            self.partitions.pop((name, index), None)
            if partition is not None:
                served.append(partition)
            if self.offline and self.offline.pop((name, index), None) is not None:
                is_offline = True
        return served, is_offline

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic that have a log here, and are not offline."""
        keys = ((topic.name, index) for index in range(topic.partitions))
        return [self.local[key] for key in keys if key in self.local]
