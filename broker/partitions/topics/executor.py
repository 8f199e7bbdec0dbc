"""The interface of what carries out changes of topics.

`OwnTopics` does so on a broker by itself, which makes and removes all logs; `SharedTopics` in a cluster, where each
broker makes those of its replicas when its image has them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from warmlog.broker.cluster.values import TopicState
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.topics.partition_directories import Failures

Assignment: TypeAlias = Sequence[Sequence[int]]  # the replicas of each partition, preferred leader first


class Executor(Protocol):
    """Carries out changes that were validated, as far as memory tells. Belongs to the event loop."""

    before_forgetting: list[Callable[[], Awaitable[None]]]  # awaited before a deletion is forgotten

    def is_taken(self, name: str) -> bool:
        """Return whether a topic of this name exists that users do not see."""

    def place(
        self, name: str, partitions: int, replication_factor: int, assignment: Assignment | None
    ) -> Assignment | None:
        """Return the replicas of a new topic; None if there is no choice. Raises RefusedError, NoRoomError."""

    def place_more(self, topic: Topic, count: int, assignment: Assignment | None) -> Assignment:
        """Return the replicas of the partitions by which a topic grows. Raises RefusedError."""

    def check_settings(self, changed: Mapping[str, str]) -> None:
        """Raise SettingError if a setting cannot be changed for this broker only."""

    def changing(self, name: str) -> AbstractAsyncContextManager[None]:
        """Wait until no other change of a topic is in progress, as far as they exclude each other."""

    async def create(self, topics: Sequence[Topic], answer_after_s: float) -> Failures:
        """Create planned topics; return the failures. They may be answered before all is done, after that time."""

    async def grow(self, topic: Topic, count: int, added: Assignment) -> None:
        """Add partitions to a topic. Raises MetadataError, RefusedError, OSError, LogError."""

    async def delete(self, names: Sequence[str], *, answers_early: bool) -> Failures:
        """Delete topics; return the failures."""

    async def promote(self, topic: Topic, known_epochs: Mapping[int, int]) -> None:
        """Make a mirrored topic writable. Raises InvalidTopicError, MetadataError, OSError."""

    def seen(self, name: str, state: TopicState, known: Topic | None) -> Topic | None:
        """Return what users see of a topic that the image has; None for nothing new."""

    def deleted(self, topic: Topic) -> None:
        """Take a topic out of the map that the image does not have any more, or not for long."""

    async def finish_interrupted(self) -> None:
        """Finish deletions that the end of the process has interrupted. Raises MetadataError, OSError."""

    async def finished(self) -> None:
        """Wait until no change is in progress."""

    async def until_ready(self, name: str) -> None:
        """Wait until the partitions of a topic exist, if they are being created."""
