"""The values that assignors and groups exchange."""

from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]  # topic id to partitions; without empty sets


class TopicInfo(NamedTuple):
    """A topic in the cluster's metadata.

    `racks`: for each partition the racks of its replicas, with repetitions, without replicas on brokers without a rack;
    empty if no broker has a rack.
    """

    id: bytes
    name: str
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class NamedTopics(Protocol):
    """Topics by name."""

    def named(self, name: str) -> TopicInfo | None:
        """Return a topic by its name."""


class Topics(NamedTopics, Protocol):
    """The current topics of the cluster."""

    def identified(self, topic_id: bytes) -> TopicInfo | None:
        """Return a topic by its id."""

    def hash_of(self, name: str) -> int | None:
        """Return the hash of a topic (`topic_hash`)."""


class Subscriber(NamedTuple):
    """A member, as an assignor sees it. `topics`: ids of the existing topics that it subscribes to.

    `owned` is its part of the latest target assignment.
    """

    topics: frozenset[bytes]
    owned: Assignment
    rack_id: str | None = None
    instance_id: str | None = None


#: Takes members by id, and the topics that they subscribe to by id. Yields at least every millisecond, so that the
#: caller can let other tasks run, and returns each member's assignment.
Assignor: TypeAlias = Callable[
    [Mapping[str, Subscriber], Mapping[bytes, TopicInfo]], Generator[None, None, dict[str, Assignment]]
]
