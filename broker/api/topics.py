"""Topics: create, delete, describe, alter, and the metadata by which clients find partitions."""

from collections.abc import Mapping

import trio

from broker.api.addresses import Advertised
from broker.api.errors import EXPECTED, describe, describe_in
from broker.api.handler import Handler
from broker.api.session import Session
from broker.log.directory_names import encode_topic_id
from broker.metadata.topic import Topic
from broker.partitions import Partitions, UnknownTopicError, unknown_partition
from broker.topic_config import effective_settings
from protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    MetadataRequest,
    NewTopic,
    TopicAlteration,
)
from protocol.response import (
    AlterTopicsResponse,
    BrokerMetadata,
    ConfigDescription,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    MetadataResponse,
    PartitionDescription,
    PartitionMetadata,
    SegmentDescription,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)


class TopicsApi:
    """Answers the requests about topics."""

    def __init__(self, partitions: Partitions, cluster_id: str, advertised: Advertised) -> None:
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._advertised = advertised

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {
            MetadataRequest.api: self.metadata,
            CreateTopicsRequest.api: self.create,
            DeleteTopicsRequest.api: self.delete,
            DescribeTopicsRequest.api: self.describe,
            AlterTopicsRequest.api: self.alter,
        }

    # -- metadata --

    async def metadata(self, request: MetadataRequest, session: Session) -> MetadataResponse:
        """Brokers and topics, each once however often it is asked for.

        A topic that is missing is created if the client and `auto.create.topics.enable` allow it.
        """
        if request.topics is None:
            topics = [self._topic_metadata(topic) for topic in self._partitions.topics()]
        else:
            create = request.auto_create and self._partitions.settings.auto_create_topics_enable
            topics = [await self._find(name, create=create) for name in dict.fromkeys(request.topics)]
        node_id = self._partitions.node_id
        host, port = self._advertised.of(session)
        return MetadataResponse(
            cluster_id=self._cluster_id,
            controller=node_id,
            brokers=(BrokerMetadata(node_id=node_id, host=host, port=port),),
            topics=tuple(topics),
        )

    async def _find(self, name: str, *, create: bool) -> TopicMetadata:
        try:
            if create:
                await self._partitions.ensure(name)
            topic = self._partitions.topic(name)
            if topic is None:
                raise UnknownTopicError(f"no topic {name!r}")
            return self._topic_metadata(topic)
        except EXPECTED as error:
            code, message = describe(error)
            return TopicMetadata(name=name, error=code, message=message)

    def _topic_metadata(self, topic: Topic) -> TopicMetadata:
        return TopicMetadata(
            name=topic.name,
            topic_id=encode_topic_id(topic.id),
            partitions=tuple(
                self._partition_metadata(topic.name, index, replicas)
                for index, replicas in enumerate(self._partitions.replicas(topic.name))
            ),
        )

    def _partition_metadata(self, topic: str, index: int, replicas: tuple[int, ...]) -> PartitionMetadata:
        partition = self._partitions.get(topic, index)
        assert partition is not None
        return PartitionMetadata(
            partition=index,
            leader=replicas[0],
            leader_epoch=partition.log.leader_epoch,
            replicas=replicas,
            in_sync=replicas,
        )

    # -- changes --

    async def create(self, request: CreateTopicsRequest, _: Session) -> CreateTopicsResponse:
        """Create each topic on its own."""
        made = [await self._create(topic, validate_only=request.validate_only) for topic in request.topics]
        return CreateTopicsResponse(topics=tuple(made))

    async def _create(self, asked: NewTopic, *, validate_only: bool) -> CreatedTopic:
        try:
            topic = await self._partitions.create(
                asked.name, asked.partitions, asked.configs, validate_only=validate_only
            )
        except EXPECTED as error:
            code, message = describe(error)
            return CreatedTopic(name=asked.name, error=code, message=message)
        return CreatedTopic(name=topic.name, topic_id=encode_topic_id(topic.id), partitions=topic.partitions)

    async def delete(self, request: DeleteTopicsRequest, _: Session) -> DeleteTopicsResponse:
        """Delete each topic on its own."""
        return DeleteTopicsResponse(topics=tuple([await self._delete(name) for name in request.topics]))

    async def _delete(self, name: str) -> TopicResult:
        try:
            await self._partitions.delete(name)
        except EXPECTED as error:
            code, message = describe(error)
            return TopicResult(name=name, error=code, message=message)
        return TopicResult(name=name)

    async def alter(self, request: AlterTopicsRequest, _: Session) -> AlterTopicsResponse:
        """Change each topic on its own."""
        return AlterTopicsResponse(topics=tuple([await self._alter(topic) for topic in request.topics]))

    async def _alter(self, asked: TopicAlteration) -> TopicResult:
        try:
            await self._partitions.alter(asked.name, asked.configs, asked.partitions)
        except EXPECTED as error:
            code, message = describe(error)
            return TopicResult(name=asked.name, error=code, message=message)
        return TopicResult(name=asked.name)

    # -- describe --

    async def describe(self, request: DescribeTopicsRequest, _: Session) -> DescribeTopicsResponse:
        """Settings, offsets and segments of each topic, once however often it is asked for.

        Runs in workers: it asks for the times of segments, which are read from their indexes.
        """
        return DescribeTopicsResponse(
            topics=tuple([await self._describe(name) for name in dict.fromkeys(request.topics)])
        )

    async def _describe(self, name: str) -> TopicDescription:
        topic = self._partitions.topic(name)
        if topic is None:
            code, message = describe(UnknownTopicError(f"no topic {name!r}"))
            return TopicDescription(name=name, error=code, message=message)
        return TopicDescription(
            name=name,
            topic_id=encode_topic_id(topic.id),
            configs=tuple(
                ConfigDescription(name=setting.name, value=setting.value, source=setting.source)
                for setting in effective_settings(topic.configs, self._partitions.settings)
            ),
            partitions=tuple([await self._describe_partition(name, index) for index in range(topic.partitions)]),
        )

    async def _describe_partition(self, topic: str, index: int) -> PartitionDescription:
        partition = self._partitions.get(topic, index)
        leader = self._partitions.node_id
        try:
            if partition is None:  # deleted while others were described
                raise unknown_partition(topic, index)
            found = await trio.to_thread.run_sync(partition.log.describe)
        except EXPECTED as error:
            code, message = describe_in(partition, self._partitions, error)
            return PartitionDescription(
                partition=index, leader=leader, leader_epoch=-1, log_start_offset=-1, high_watermark=-1,
                log_end_offset=-1, flushed_offset=-1, size=0, segments=(), error=code, message=message,
            )  # fmt: skip
        return PartitionDescription(
            partition=index,
            leader=leader,
            leader_epoch=found.leader_epoch,
            log_start_offset=found.log_start_offset,
            high_watermark=found.high_watermark,
            log_end_offset=found.log_end_offset,
            flushed_offset=found.recovery_point,
            size=found.size,
            segments=tuple(
                SegmentDescription(
                    base_offset=segment.base_offset,
                    next_offset=segment.next_offset,
                    size=segment.size,
                    offset_index_entries=segment.offset_index_entries,
                    time_index_entries=segment.time_index_entries,
                    max_timestamp=segment.max_timestamp,
                    modified_ms=segment.modified_ms,
                    active=segment.active,
                )
                for segment in found.segments
            ),
        )
