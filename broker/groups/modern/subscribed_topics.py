"""The topics that a group's members subscribe to, and the hash of their metadata.

Source: Kafka's ModernGroup (subscribedTopicNames, computeMetadataHash).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.topic_hash import group_hash


class SubscribedTopics:
    """Counts of the members of one group that subscribe to a topic, by its name."""

    __slots__ = ("_hash", "_names", "_topic_hashes")

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._topic_hashes: dict[str, int | None] = {}  # of subscribed topics; None for one that does not exist
        self._hash: int | None = None  # hash of all topics, if known

    def __contains__(self, topic: object) -> bool:
        return topic in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubscribedTopics) and self._names == other._names

    __hash__ = None  # type: ignore[assignment]

    def count(self, names: Iterable[str], change: int) -> None:
        """Add a subscriber to (1), or remove it from (-1), each of these topics."""
        for name in set(names):
            before = self._names[name]
            if before + change:
                self._names[name] = before + change
            else:
                del self._names[name]
                self._topic_hashes.pop(name, None)
            if not before or not before + change:
                self._hash = None

    def forget(self, names: Iterable[str]) -> bool:
        """Invalidate the hashes of these topics. Returns whether the group subscribes to any of them."""
        is_subscribed = False
        for name in names:
            self._topic_hashes.pop(name, None)
            if name in self._names:
                is_subscribed, self._hash = True, None
        return is_subscribed

    def hash(self, topics: Topics) -> int:
        """Return the hash of all topics that the group subscribes to and that exist."""
        if self._hash is None:
            hashes = self._topic_hashes
            for name in self._names:
                if name not in hashes:
                    hashes[name] = topics.hash_of(name)
            self._hash = group_hash({name: value for name, value in hashes.items() if value is not None})
        return self._hash
