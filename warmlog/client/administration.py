"""The administrative methods of the async client: topics, mirrors, groups and their settings."""

from collections.abc import Iterable, Mapping

from warmlog.client.admin.topics import TopicAdmin
from warmlog.client.connection.cluster import Cluster, Topic
from warmlog.client.groups.admin import GroupAdmin
from warmlog.client.share.admin import ShareAdmin
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.groups import ListedGroup
from warmlog.protocol.native.groups import DescribedConsumerGroup
from warmlog.protocol.native.mirrors import DescribeMirrorResponse
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import CreatedTopic, MetadataResponse, TopicDescription, TopicMetadata


class Administration:
    """The methods of `AsyncClient` other than producing and consuming. All of them raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics = TopicAdmin(cluster)
        self._groups = GroupAdmin(cluster)
        self._shares = ShareAdmin(cluster)

    # -- topics --

    async def topic(self, name: str, *, auto_create: bool = True) -> Topic:
        """Return the topic's id and leaders, creating the topic if allowed. Raises UnknownTopicError."""
        return await self._cluster.topic(name, auto_create=auto_create)

    async def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Return brokers and topics (None: all) as the broker reports them; a topic's error is in its entry."""
        return await self._cluster.metadata(topics)

    async def list_topics(self) -> tuple[TopicMetadata, ...]:
        """Return all topics by name."""
        return (await self._cluster.metadata()).topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> CreatedTopic | None:
        """Create a topic. Return None if `if_not_exists` is set and it exists.

        `partitions` -1 and `replication_factor` None mean the broker's default. Raises TopicExistsError and other
        BrokerErrors. After ConnectionLostError the topic may or may not exist.
        """
        return await self._topics.create(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            validate_only=validate_only,
            if_not_exists=if_not_exists,
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopicError and other BrokerErrors."""
        await self._topics.delete(name)

    async def alter_topic(
        self, name: str, *, configs: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        """Change settings (None resets to the default) or add partitions. Raises BrokerError."""
        await self._topics.alter(name, configs=configs or {}, partitions=partitions)

    async def describe_topics(self, *names: str) -> tuple[TopicDescription, ...]:
        """Return settings, offsets and segments, each partition as described by its leader.

        Raises UnknownTopicError and other BrokerErrors.
        """
        return await self._topics.describe(names)

    async def explain(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        plain: bool = False,
    ) -> Explanation:
        """Explain how the leader would serve a fetch from an offset or a time (ms), and which pages are resident there.

        `plain`: also explain a plain binary search. Raises UnknownTopicError and other BrokerErrors.
        """
        return await self._topics.explain(topic, partition, offset=offset, timestamp=timestamp, plain=plain)

    # -- mirrors --

    async def describe_mirror(self) -> DescribeMirrorResponse:
        """Return the mirrored topics and the progress of their copies. Raises WarmlogError."""
        return await self._topics.describe_mirror()

    async def promote_topic(self, name: str) -> dict[int, int]:
        """Stop mirroring a topic and make it writable; return by partition the offset at which its own records begin.

        Transactions that are open in it are aborted. Raises UnknownTopicError and other BrokerErrors.
        """
        return await self._topics.promote(name)

    # -- groups --

    async def list_groups(self, *, states: Iterable[str] = ()) -> tuple[ListedGroup, ...]:
        """Return groups sorted by name: all, or those in the given states ("Stable", "Empty" ...)."""
        return await self._groups.list(states)

    async def describe_groups(self, *names: str) -> tuple[DescribedConsumerGroup, ...]:
        """Return members, assignments, committed offsets and log end offsets. Raises UnknownGroupError."""
        return await self._groups.describe(names)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, and its offsets. Raises UnknownGroupError, GroupNotEmptyError."""
        await self._groups.delete(name)

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group without members, by (topic, partition). Raises WarmlogError."""
        await self._groups.commit(group, offsets)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's committed offsets, in topics that no member is subscribed to. Raises WarmlogError."""
        await self._groups.delete_offsets(group, partitions)

    async def alter_group(self, name: str, *, configs: Mapping[str, str | None]) -> None:
        """Change settings of a group, such as `share.record.lock.duration.ms`; None resets one to the default.

        The group need not exist yet. Raises BrokerError.
        """
        await self._shares.alter_group(name, configs)

    async def reset_share_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Deliver records again, starting at these offsets by (topic, partition), as if for the first time.

        The group must not have members. Raises BrokerError.
        """
        await self._shares.reset(group, offsets)
