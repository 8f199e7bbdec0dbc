"""The topics of a group member: named topics, or all whose names match a pattern."""

from math import inf

import anyio

from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import UnknownTopicError, WarmlogError
from warmlog.client.groups.member_options import MemberOptions
from warmlog.protocol.errors import ErrorCode

INTERNAL_PREFIX = "__"  # prefix of internal topics, which no pattern matches


class SubscribedTopics:
    """The topics with their partition counts, as of the last `update`."""

    def __init__(self, cluster: Cluster, options: MemberOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._partition_counts: dict[str, int] = {}
        self._due_at = -inf

    @property
    def names(self) -> tuple[str, ...]:
        """The topics to join with."""
        return self._options.topics if self._options.pattern is None else tuple(sorted(self._partition_counts))

    async def update(self) -> None:
        """Look up the topics. A named topic must exist at the first call; later it may have been deleted.

        Raises WarmlogError.
        """
        if self._options.pattern is None:
            await self._count_named()
        else:
            await self._find_matching()

    async def have_changed(self, *, is_leader: bool) -> bool:
        """Return whether the group must rebalance for a new topic or partition.

        The leader compares named topics, using the cache (see `Cluster.topic`); each member looks up a pattern's topics
        every `topics_interval_s`.
        """
        if not is_leader if self._options.pattern is None else anyio.current_time() < self._due_at:
            return False
        before = dict(self._partition_counts)
        try:
            await self.update()
        except WarmlogError:
            return False
        return self._partition_counts != before

    async def _count_named(self) -> None:
        for name in self._options.topics:
            try:
                topic = await self._cluster.topic(name, auto_create=self._options.auto_create)
            except UnknownTopicError:
                if name not in self._partition_counts:
                    raise
                self._partition_counts[name] = 0
            else:
                self._partition_counts[name] = topic.partitions

    async def _find_matching(self) -> None:
        pattern = self._options.pattern
        assert pattern is not None
        topics = (await self._cluster.metadata()).topics
        self._partition_counts = {
            topic.name: len(topic.partitions)
            for topic in topics
            if topic.error is ErrorCode.NONE
            and not topic.name.startswith(INTERNAL_PREFIX)
            and pattern.fullmatch(topic.name)
        }
        self._due_at = anyio.current_time() + self._options.topics_interval_s
