"""The topics of the cluster for groups, and changes of them.

A group requests all of its topics whenever one of them has changed, so computed values are cached.
"""

import trio

from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.modern.topic_hash import topic_hash
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.partitions import Partitions


class GroupTopics:
    """Looks up topics. Belongs to the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._infos: dict[str, TopicInfo] = {}  # by name, those requested so far
        self._hashes: dict[str, int] = {}
        self._broker_changes = partitions.catalog.broker_changes
        self._changed: set[str] = set()
        self._has_changed = trio.Event()
        self.version = 0  # increases with each change
        partitions.watch_topics(self._note)

    def _note(self, name: str) -> None:
        self.version += 1
        self._infos.pop(name, None)
        self._hashes.pop(name, None)
        self._changed.add(name)
        self._has_changed.set()

    async def changed(self) -> set[str]:
        """Wait until topics are created, extended or deleted since the last call, and return their names."""
        await self._has_changed.wait()
        self._has_changed = trio.Event()
        changed, self._changed = self._changed, set()
        return changed

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._partitions.by_name)

    def named(self, name: str) -> TopicInfo | None:
        """Return a topic by its name; None if it does not exist."""
        if self._broker_changes != self._partitions.catalog.broker_changes:
            self._forget_racks()
        info = self._infos.get(name)
        if info is None and (topic := self._partitions.topic(name)) is not None:
            info = self._infos[name] = self._described(topic)
        return info

    def identified(self, topic_id: bytes) -> TopicInfo | None:
        """Return a topic by its id; None if it does not exist."""
        name = self._partitions.topic_name(topic_id)
        return None if name is None else self.named(name)

    def hash_of(self, name: str) -> int | None:
        """Return the hash of a topic; None if it does not exist."""
        info = self.named(name)
        if info is None:
            return None
        if name not in self._hashes:
            self._hashes[name] = topic_hash(info)
        return self._hashes[name]

    def _forget_racks(self) -> None:
        self._broker_changes = self._partitions.catalog.broker_changes
        self._infos.clear()
        self._hashes.clear()

    def _described(self, topic: Topic) -> TopicInfo:
        catalog = self._partitions.catalog
        racks = catalog.racks()
        if not racks:
            return TopicInfo(topic.id.bytes, topic.name, topic.partitions)
        replicas = [catalog.partition(topic, index).replicas for index in range(topic.partitions)]
        of_partitions = [tuple([racks[each] for each in brokers if each in racks]) for brokers in replicas]
        return TopicInfo(topic.id.bytes, topic.name, topic.partitions, tuple(of_partitions))
