"""Create the internal topics that streams groups need: repartition topics and changelogs.

Source: kafka.server.AutoTopicCreationManager (createStreamsInternalTopics, getStreamsInternalTopicCreationErrors).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio

from warmlog.broker.api.context import Context
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import CreateTopicsRequest, NewTopic
from warmlog.protocol.response import CreateTopicsResponse

MAX_FAILURES = 1_000  # failures kept, as in Kafka

Create: TypeAlias = Callable[[CreateTopicsRequest, Context], Awaitable[CreateTopicsResponse]]


class InternalTopics:
    """Creates topics with the rights and quota of the requester; retries a failed creation after a while."""

    def __init__(self, create: Create) -> None:
        """Create topics with `create`, the handler of CreateTopics."""
        self._create = create
        self._failures: dict[str, tuple[float, str]] = {}  # by name: time of the next attempt, reason
        self._creating: set[str] = set()

    async def create(self, topics: Sequence[NewTopic], context: Context, retry_ms: int) -> str:
        """Create topics; return why some could not be created, an empty text if all could.

        A failed creation is retried after `retry_ms`. Topics that another request is creating are skipped.
        """
        now_s = trio.current_time()
        to_create = [topic for topic in topics if self._is_due(topic.name, now_s) and topic.name not in self._creating]
        if to_create:
            await self._create_now(to_create, context, retry_ms)
        failures = [(topic.name, self._failures[topic.name][1]) for topic in topics if topic.name in self._failures]
        return ", ".join([f"{name} ({reason})" for name, reason in failures])

    def _is_due(self, name: str, now_s: float) -> bool:
        if name in self._failures and self._failures[name][0] > now_s:
            return False
        self._failures.pop(name, None)
        return True

    async def _create_now(self, topics: Sequence[NewTopic], context: Context, retry_ms: int) -> None:
        names = {topic.name for topic in topics}
        self._creating |= names
        try:
            response = await self._create(CreateTopicsRequest(topics=tuple(topics)), context)
        finally:
            self._creating -= names
        retry_s = trio.current_time() + retry_ms / 1000
        for created in response.topics:
            if created.error not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                self._failures[created.name] = (retry_s, created.message or created.error.name)
        while len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
