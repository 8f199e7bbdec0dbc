"""Describe settings, offsets and segments of topics, for `warmlog topic describe` (native protocol)."""

from collections.abc import Mapping

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe, describe_in
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.broker.partitions.partitions import Partitions, UnknownTopicError
from warmlog.broker.partitions.topics.catalog import NO_LEADER
from warmlog.broker.settings.topics import effective_settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import DescribeTopicsRequest
from warmlog.protocol.response import (
    ConfigDescription,
    DescribeTopicsResponse,
    PartitionDescription,
    SegmentDescription,
    TopicDescription,
)

# The source of a value for native clients: set on the topic, on the broker, or nowhere.
_SOURCES = {"topic": "topic", "broker": "broker", "cluster": "broker", "static": "broker", "default": "default"}


class DescribeTopicsApi:
    """Answers DescribeTopics."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {DescribeTopicsRequest.api: self.describe}

    async def describe(self, request: DescribeTopicsRequest, _: Context) -> DescribeTopicsResponse:
        """Return settings, offsets and segments of each topic; a repeated topic is described once.

        Runs in worker threads, since the timestamps of segments are read from their indexes.
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
                ConfigDescription(name=setting.name, value=setting.value or "", source=_SOURCES[setting.source])
                for setting in effective_settings(
                    topic.configs,
                    self._partitions.live_settings,
                    replicas=self._partitions.catalog.replication_factor(topic),
                )
            ),
            partitions=tuple([await self._describe_partition(name, index) for index in range(topic.partitions)]),
        )

    async def _describe_partition(self, topic: str, index: int) -> PartitionDescription:
        partition = self._partitions.local(topic, index)
        known = self._partitions.topic(topic)
        leader = NO_LEADER if known is None else self._partitions.catalog.partition(known, index).leader
        try:
            if partition is None:  # offline, or deleted in the meantime
                raise self._partitions.missing(topic, index)
            description = await trio.to_thread.run_sync(partition.log.reads.describe)
        except EXPECTED as error:
            code, message = describe_in(partition, self._partitions, error)
            return PartitionDescription(
                partition=index, leader=leader, leader_epoch=-1, log_start_offset=-1, high_watermark=-1,
                log_end_offset=-1, flushed_offset=-1, size=0, segments=(), error=code, message=message,
            )  # fmt: skip
        return PartitionDescription(
            partition=index,
            leader=leader,
            leader_epoch=description.leader_epoch,
            log_start_offset=description.log_start_offset,
            high_watermark=description.high_watermark,
            log_end_offset=description.log_end_offset,
            flushed_offset=description.recovery_point,
            size=description.size,
            error=ErrorCode.NONE if description.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
            message=None if description.failure is None else f"the log rejects appends: {description.failure}",
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
                for segment in description.segments
            ),
        )
