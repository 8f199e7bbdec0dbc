"""The interface of classes that carry out changes of topics.

`OwnTopics` does so on a standalone broker, which creates and removes all logs; `SharedTopics` in a cluster, where each
broker creates the logs of its replicas when they appear in its image.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NamedTuple, TypeAlias
from uuid import UUID

import trio

from warmlog.broker.cluster.values import TopicState
from warmlog.broker.metadata.topic import InvalidTopicError, Topic
from warmlog.broker.partitions.topics.partition_directories import Failures

Assignment: TypeAlias = Sequence[Sequence[int]]  # the replicas of each partition, preferred leader first


class Placement(NamedTuple):
    """The requested replicas of a new topic; -1: `default.replication.factor`."""

    topic: str
    partitions: int
    replication_factor: int
    assignment: Assignment | None


class Executor(ABC):
    """Carries out changes that were validated with data in memory. Belongs to the event loop."""

    def __init__(self) -> None:
        self.before_forgetting: list[Callable[[], Awaitable[None]]] = []  # awaited before a deletion is completed

    @abstractmethod
    def place(self, wanted: Placement, /) -> Assignment | None:
        """Return the replicas of a new topic; None on a standalone broker. Raises RefusedError, NoSpaceError."""

    @abstractmethod
    async def create(self, topics: Sequence[Topic], answer_after_s: float, /) -> Failures:
        """Create planned topics; return the failures, after `answer_after_s` even if some are not created yet."""

    @abstractmethod
    async def grow(self, topic: Topic, count: int, added: Assignment, /) -> None:
        """Add partitions to a topic. Raises MetadataError, RefusedError, OSError, LogError."""

    @abstractmethod
    async def delete(self, topics: Mapping[str, UUID], answers_early: bool, /) -> Failures:
        """Delete the topics with these names and ids; return the failures."""

    @abstractmethod
    def seen(self, name: str, state: TopicState, known: Topic | None, /) -> Topic | None:
        """Return the visible state of a topic in the image; None if nothing has changed."""

    @abstractmethod
    def deleted(self, topic: Topic) -> None:
        """Remove a topic from the map that the image no longer has, or is about to remove."""

    def is_taken(self, _: str, /) -> bool:
        """Return whether a name is taken by an invisible topic that `create` does not wait for."""
        return False

    def place_more(self, _topic: Topic, _count: int, _assignment: Assignment | None, /) -> Assignment:
        """Return the replicas of the partitions that a topic gains by growing to a count. Raises RefusedError."""
        return ()

    def check_settings(self, changed: Mapping[str, str]) -> None:  # noqa: B027  # a standalone broker need not agree
        """Raise SettingError if a setting cannot be changed for this broker only."""

    def changing(self, _: str, /) -> AbstractAsyncContextManager[None]:
        """Wait until no conflicting change of a topic is in progress."""
        return nullcontext()

    async def promote(self, topic: Topic, _: Mapping[int, int], /) -> None:
        """Make a mirrored topic writable. Raises InvalidTopicError, MetadataError, OSError."""
        raise InvalidTopicError(f"topic {topic.name!r} is not a mirror")

    async def finish_interrupted(self) -> None:  # noqa: B027  # the controller of a cluster does it
        """Finish deletions that were interrupted when the process ended. Raises MetadataError, OSError."""

    async def finished(self) -> None:
        """Wait until no change is in progress."""
        await trio.lowlevel.checkpoint()
