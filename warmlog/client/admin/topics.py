"""Create, alter, describe and delete topics; explain reads of their partitions; mirrored topics."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import itemgetter

from msgspec import UNSET
from msgspec.structs import replace

from warmlog.client.admin.mirrors import merged_mirrors
from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import broker_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.native.explain import ExplainRequest
from warmlog.protocol.native.messages import FIRST_WITH_REPLICATION_FACTOR
from warmlog.protocol.native.mirrors import (
    DescribeMirrorRequest,
    DescribeMirrorResponse,
    PromoteTopicsRequest,
    PromoteTopicsResponse,
)
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    NewTopic,
    TopicAlteration,
)
from warmlog.protocol.response import (
    AlterTopicsResponse,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    PartitionDescription,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)


class TopicAdmin:
    """Administrative requests about topics. All methods raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int | None,
        configs: Mapping[str, str],
        validate_only: bool,
        if_not_exists: bool,
    ) -> CreatedTopic | None:
        """Create a topic; return None if `if_not_exists` is set and it exists. Raises TopicExistsError."""
        factor = UNSET if replication_factor is None else replication_factor
        topic = NewTopic(name=name, partitions=partitions, replication_factor=factor, configs=dict(configs))
        request = CreateTopicsRequest(topics=(topic,), validate_only=validate_only)
        since = 1 if factor is UNSET else FIRST_WITH_REPLICATION_FACTOR
        reply = await self._cluster.ask(request, CreateTopicsResponse, repeatable=validate_only, since=since)
        (made,) = reply.topics
        if made.error is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            return None
        if made.error:
            raise broker_error(made.error, made.message)
        return made

    async def delete(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopicError."""
        request = DeleteTopicsRequest(topics=(name,))
        _raise_first_error((await self._cluster.ask(request, DeleteTopicsResponse, repeatable=False)).topics)
        self._cluster.forget(name)

    async def alter(self, name: str, *, configs: Mapping[str, str | None], partitions: int | None) -> None:
        """Change settings (None resets to the default) or add partitions."""
        topic = TopicAlteration(name=name, configs=dict(configs), partitions=partitions)
        request = AlterTopicsRequest(topics=(topic,))
        _raise_first_error((await self._cluster.ask(request, AlterTopicsResponse, repeatable=False)).topics)
        self._cluster.forget(name)

    async def describe(self, names: tuple[str, ...]) -> tuple[TopicDescription, ...]:
        """Return settings, offsets and segments; leaders describe their partitions. Raises UnknownTopicError."""
        return await self._cluster.retry(lambda: self._describe(names))

    async def _describe(self, names: tuple[str, ...]) -> tuple[TopicDescription, ...]:
        topics = (await self._cluster.metadata(dict.fromkeys(names))).topics
        _raise_first_error(topics)
        led: dict[int, dict[str, None]] = defaultdict(dict)  # names by leader, in the given order
        for topic in topics:
            for partition in topic.partitions:
                led[partition.leader].setdefault(topic.name)
        by_leader: dict[int, dict[str, TopicDescription]] = {}
        for leader, names_there in led.items():  # if there is no leader, any broker reports the error
            request = DescribeTopicsRequest(topics=tuple(names_there))
            reply = await self._cluster.ask_broker(leader, request, DescribeTopicsResponse)
            _raise_first_error(reply.topics)
            by_leader[leader] = {topic.name: topic for topic in reply.topics}
        return tuple(_merged(topic, by_leader) for topic in topics)

    async def explain(
        self, topic: str, partition: int, *, offset: int | None, timestamp: int | None, plain: bool
    ) -> Explanation:
        """Let the leader explain how a fetch from an offset or a time (ms) would be served."""
        request = ExplainRequest(topic=topic, partition=partition, offset=offset, timestamp=timestamp, plain=plain)
        return await self._cluster.ask_leader(topic, partition, request, Explanation)

    # -- mirrors --

    async def describe_mirror(self) -> DescribeMirrorResponse:
        """Return the mirrored topics and their copying progress, each partition as described by its leader."""
        return merged_mirrors(await self._cluster.ask_each(DescribeMirrorRequest(), DescribeMirrorResponse))

    async def promote(self, name: str) -> dict[int, int]:
        """Make a mirrored topic writable; return by partition the offset at which its own records begin."""
        request = PromoteTopicsRequest(topics=(name,))
        (promoted,) = (await self._cluster.ask(request, PromoteTopicsResponse, repeatable=False)).topics
        if promoted.error:
            raise broker_error(promoted.error, promoted.message)
        return dict(enumerate(promoted.offsets))


def _merged(topic: TopicMetadata, by_leader: Mapping[int, Mapping[str, TopicDescription]]) -> TopicDescription:
    """Return a topic with each partition as described by its leader."""
    indexed: dict[int, dict[int, PartitionDescription]] = {}
    for leader in {partition.leader for partition in topic.partitions}:
        indexed[leader] = {each.partition: each for each in by_leader[leader][topic.name].partitions}
    parts = [(part.partition, indexed[part.leader].get(part.partition)) for part in topic.partitions]
    # A description is missing if the topic was deleted and recreated between the two requests.
    partitions = [description for _, description in sorted(parts, key=itemgetter(0)) if description is not None]
    return replace(by_leader[topic.partitions[0].leader][topic.name], partitions=tuple(partitions))


def _raise_first_error(results: Iterable[TopicResult | TopicDescription | TopicMetadata]) -> None:
    for result in results:
        if result.error:
            error = broker_error(result.error, result.message)
            error.is_final = result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise error
