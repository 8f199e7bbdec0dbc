"""The interface of what carries out changes of topics.

`OwnTopics` does so on a broker by itself, which makes and removes all logs; `SharedTopics` in a cluster, where each
broker makes those of its replicas when its image has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple, TypeAlias

import trio

from warmlog.broker.cluster.values import TopicState
from warmlog.broker.metadata.topic import InvalidTopicError, Topic
from warmlog.broker.partitions.topics.partition_directories import Failures

Assignment: TypeAlias = Sequence[Sequence[int]]  # the replicas of each partition, preferred leader first


class Placement(NamedTuple):
    """What is asked for of a new topic's replicas; -1: `default.replication.factor`."""

    topic: str
    partitions: int
    replication_factor: int
    assignment: Assignment | None


class Executor(ABC):
    """Carries out changes that were validated, as far as memory tells. Belongs to the event loop."""

    def __init__(self) -> None:
        self.before_forgetting: list[Callable[[], Awaitable[None]]] = []  # awaited before a deletion is forgotten

    @abstractmethod
    def place(self, wanted: Placement, /) -> Assignment | None:
        """Return the replicas of a new topic; None if there is no choice. Raises RefusedError, NoSpaceError."""

    @abstractmethod
    async def create(self, topics: Sequence[Topic], answer_after_s: float, /) -> Failures:
        """Create planned topics; return the failures. They may be answered before all is done, after that time."""

    @abstractmethod
    async def grow(self, topic: Topic, count: int, added: Assignment, /) -> None:
        """Add partitions to a topic. Raises MetadataError, RefusedError, OSError, LogError."""

    @abstractmethod
    async def delete(self, names: Sequence[str], answers_early: bool, /) -> Failures:
        """Delete topics; return the failures."""

    @abstractmethod
    def seen(self, name: str, state: TopicState, known: Topic | None, /) -> Topic | None:
        """Return what users see of a topic that the image has; None for nothing new."""

    @abstractmethod
    def deleted(self, topic: Topic) -> None:
        """Take a topic out of the map that the image does not have any more, or not for long."""

    def is_taken(self, _: str, /) -> bool:
        """Return whether a topic of this name exists that users do not see, and that `create` does not wait for."""
        return False

    def place_more(self, _topic: Topic, _count: int, _assignment: Assignment | None, /) -> Assignment:
        """Return the replicas of the partitions by which a topic grows to a count. Raises RefusedError."""
        return ()

    def check_settings(self, changed: Mapping[str, str]) -> None:  # noqa: B027  # a broker by itself needs no agreement
        """Raise SettingError if a setting cannot be changed for this broker only."""

    def changing(self, _: str, /) -> AbstractAsyncContextManager[None]:
        """Wait until no other change of a topic is in progress, as far as they exclude each other."""
        return nullcontext()

    async def promote(self, topic: Topic, _: Mapping[int, int], /) -> None:
        """Make a mirrored topic writable. Raises InvalidTopicError, MetadataError, OSError."""
        raise InvalidTopicError(f"topic {topic.name!r} is not a mirror")

    async def finish_interrupted(self) -> None:  # noqa: B027  # the controller of a cluster does it
        """Finish deletions that the end of the process has interrupted. Raises MetadataError, OSError."""

    async def finished(self) -> None:
        """Wait until no change is in progress."""
        await trio.lowlevel.checkpoint()
