"""Metadata and DescribeTopicPartitions: topics and their leaders. Metadata also creates missing topics.

The description of a topic is cached until the topic or a leader epoch changes, with its bytes for the versions that
clients use, since every client requests all of its topics every few minutes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice

from msgspec import UNSET, structs

from warmlog.broker.api.addresses import Advertised, described_brokers
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.broker.metadata.topic import MAX_PARTITIONS_PER_REQUEST, Topic, check_name, is_internal
from warmlog.broker.partitions.partitions import Partitions, UnknownTopicError
from warmlog.broker.partitions.topics.catalog import NO_LEADER, PartitionInfo
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.codec.kept import KeptArray
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME, topic_id_text
from warmlog.protocol.kafka.messages.topics.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    KafkaPartitionMetadata,
    requested_topics,
)
from warmlog.protocol.native.messages import FIRST_WITH_RACKS
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.response import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata

NAMES_PER_PIECE = 1000  # names sorted in one step
STATES_PER_PIECE = 256  # partitions between two readings of the clock: about 50 us of work
MAX_PARTITIONS_PER_PAGE = 2000  # Kafka's max.request.partition.size.limit


class _Cached:
    """The description of a topic, and the states of its partitions for which it is valid.

    checked_at: the state of the catalog in which it was last known to be valid.
    """

    __slots__ = ("checked_at", "description", "states", "topic")

    def __init__(self, topic: Topic, states: list[int], description: TopicMetadata) -> None:
        self.topic = topic
        self.states = states
        self.description = description
        self.checked_at: object = None


class MetadataApi:
    """Answers Metadata and DescribeTopicPartitions."""

    def __init__(self, partitions: Partitions, cluster_id: str, advertised: Advertised, quotas: ClientQuotas) -> None:
        self._quotas = quotas
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._advertised = advertised
        self._cache: dict[str, _Cached] = {}  # by topic name
        partitions.watch_topics(self._drop)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            MetadataRequest.api: self.metadata,
            DescribeTopicPartitionsRequest.api: self.describe_partitions,
        }

    async def metadata(self, request: MetadataRequest, context: Context) -> MetadataResponse:
        """Return this broker and the requested topics without duplicates.

        Creates missing topics if the client and `auto.create.topics.enable` allow it. While a broker is suspected of
        having died, waits briefly for the result of the checks.
        """
        await self._partitions.catalog.settled()
        if request.topics is None:
            topics = [await self._describe(topic, context) for topic in self._partitions.topics()]
        else:
            names = await _once(request, context)
            create = request.auto_create and await self._may_create(names, context)
            topics = []
            for name in names:
                topics.append(await self._find(name, context, create=create))
                await context.checkpoint()
        catalog = self._partitions.catalog
        brokers: Sequence[BrokerMetadata] = described_brokers(
            catalog, self._partitions.node_id, self._advertised, context.session
        )
        version = context.session.protocol_version
        if version is not None:
            brokers = [_native_broker(broker, version) for broker in brokers]
            topics = [await _for_natives(topic, context, version) for topic in topics]
        return MetadataResponse(
            cluster_id=self._cluster_id, controller=catalog.controller, brokers=tuple(brokers), topics=tuple(topics)
        )

    async def _may_create(self, names: Sequence[str | bytes], context: Context) -> bool:
        """Return whether missing topics may be created: not if a request has too many of them."""
        settings = self._partitions.settings
        if not settings.auto_create_topics_enable:
            return False
        left = MAX_PARTITIONS_PER_REQUEST // settings.num_partitions
        for name in names:
            left -= isinstance(name, str) and not self._partitions.has(name)
            if left < 0:
                return False
            await context.checkpoint()
        return True

    async def describe_partitions(
        self, request: DescribeTopicPartitionsRequest, context: Context
    ) -> DescribeTopicPartitionsResponse:
        """Describe a page of partitions, topics by name, beginning at the cursor."""
        names = await self._names_from(request, context)
        left = max(1, min(request.limit, MAX_PARTITIONS_PER_PAGE))
        start = 0 if request.cursor is None else request.cursor[1]
        described: list[TopicMetadata] = []
        for name in names:
            await context.checkpoint()
            if not left:
                return DescribeTopicPartitionsResponse(topics=tuple(described), next_cursor=(name, 0))
            first = start if request.cursor is not None and name == request.cursor[0] else 0
            topic = await self._find(name, context, create=False)
            end = first + left
            described.append(structs.replace(topic, partitions=topic.partitions[first:end]))
            if end < len(topic.partitions):
                return DescribeTopicPartitionsResponse(topics=tuple(described), next_cursor=(name, end))
            left -= len(described[-1].partitions)
        return DescribeTopicPartitionsResponse(topics=tuple(described))

    async def _names_from(self, request: DescribeTopicPartitionsRequest, context: Context) -> Iterable[str]:
        """Return the requested topic names, sorted, starting with the cursor's. Raises RequestError.

        Sorts in pieces that are merged on iteration, so that 100,000 names do not block the event loop.
        """
        if request.cursor is None:
            first = ""
        else:
            first, index = request.cursor
            if index < 0:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is negative: {index}")
            if request.topics and first not in request.topics:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, f"the topics asked for do not name the cursor's, {first!r}"
                )
        names: dict[str, None] = {}
        for name in request.topics or [topic.name for topic in self._partitions.topics()]:
            if name >= first:
                names[name] = None
            await context.checkpoint()
        left, pieces = iter(names), []
        while piece := list(islice(left, NAMES_PER_PIECE)):
            pieces.append(sorted(piece))
            await context.checkpoint()
        return merge(*pieces)

    async def _find(self, name: str | bytes, context: Context, *, create: bool) -> TopicMetadata:
        if isinstance(name, bytes):
            topic_id = topic_id_text(name)
            return TopicMetadata(name=UNKNOWN_TOPIC_NAME, topic_id=topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            if create and not is_internal(name):
                if not self._partitions.has(name) and self._partitions.settings.auto_create_topics_enable:
                    self._quotas.mutate(context.session, self._partitions.settings.num_partitions, is_strict=False)
                await context.wait(self._partitions.ensure(name))
            topic = self._partitions.topic(name)
            if topic is None:
                check_name(name)
                raise UnknownTopicError(f"no topic {name!r}")
            return await self._describe(topic, context)
        except EXPECTED as error:
            code, message = describe(error)
            return TopicMetadata(name=name, error=code, message=message)

    async def _describe(self, topic: Topic, context: Context) -> TopicMetadata:
        """Return a topic's description from the cache, or build it in pieces."""
        name, state = topic.name, self._partitions.catalog.state
        cached = self._cache.get(name)
        if cached is not None and cached.topic is topic and cached.checked_at == state:
            return cached.description
        states = await self._states(topic, context)
        if cached is None or cached.topic is not topic or cached.states != states:
            cached = _Cached(topic, states, await self._build(topic, context))
        cached.checked_at = state
        if self._partitions.topic(name) is topic:
            self._cache[name] = cached
        return cached.description

    def _drop(self, name: str) -> None:
        self._cache.pop(name, None)

    async def _states(self, topic: Topic, context: Context) -> list[int]:
        """Return numbers that change with the description of the topic's partitions; computed in pieces."""
        states_of = self._partitions.catalog.states_of
        states: list[int] = []
        for start in range(0, topic.partitions, STATES_PER_PIECE):
            states += states_of(topic, range(start, min(start + STATES_PER_PIECE, topic.partitions)))
            if context.is_piece_over:
                await context.pause()
        return states

    async def _build(self, topic: Topic, context: Context) -> TopicMetadata:
        find = partial(self._partitions.catalog.partition, topic)
        return TopicMetadata(
            name=topic.name,
            topic_id=encode_topic_id(topic.id),
            partitions=KeptArray(
                await context.map(lambda index: _partition_metadata(index, find(index)), range(topic.partitions))
            ),
        )


def _partition_metadata(index: int, info: PartitionInfo) -> KafkaPartitionMetadata:
    """Describe a partition; one without a leader has an error (KRaftMetadataCache.getPartitionMetadata)."""
    has_leader = info.leader != NO_LEADER
    return KafkaPartitionMetadata(
        partition=index,
        leader=info.leader,
        leader_epoch=info.leader_epoch,
        replicas=info.replicas,
        in_sync=info.in_sync,
        offline=info.offline,
        eligible=info.eligible,
        error=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
    )


def _native_broker(broker: BrokerMetadata, version: int) -> BrokerMetadata:
    """Leave out fields that a version of the native protocol does not have."""
    rack = broker.rack if version >= FIRST_WITH_RACKS else UNSET
    return BrokerMetadata(node_id=broker.node_id, host=broker.host, port=broker.port, rack=rack)


async def _for_natives(topic: TopicMetadata, context: Context, version: int) -> TopicMetadata:
    """Leave out fields that a version of the native protocol does not have."""

    def plain(partition: PartitionMetadata) -> PartitionMetadata:
        return PartitionMetadata(
            partition=partition.partition,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            replicas=partition.replicas,
            in_sync=partition.in_sync,
            eligible=partition.eligible if version >= FIRST_WITH_RACKS else UNSET,
            error=partition.error,
            message=partition.message,
        )

    return structs.replace(topic, partitions=await context.map(plain, topic.partitions))


async def _once(request: MetadataRequest, context: Context) -> list[str | bytes]:
    """Yield the names without duplicates, then all unknown topic ids."""
    known: dict[str, None] = {}
    unknown: list[bytes] = []
    for name, topic_id in requested_topics(request):
        if name == UNKNOWN_TOPIC_NAME and topic_id != NO_TOPIC_ID:
            unknown.append(topic_id)
        else:
            known[name] = None
        await context.checkpoint()
    return [*known, *unknown]
