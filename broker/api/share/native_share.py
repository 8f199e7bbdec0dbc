"""Share groups on the native protocol: the handlers of Kafka's requests, with names of topics instead of ids.

Topics that do not exist are answered here. A topic that is deleted between two requests of a session has an unknown id
in Kafka's answer: the topic is omitted, since the member loses the partition with its next heartbeat.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.cluster.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ConfigAlteration,
    ConfigChange,
    ConfigOperation,
    ConfigResourceType,
)
from warmlog.protocol.kafka.messages.share import fetch as kafka
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from warmlog.protocol.kafka.messages.share.offsets import (
    AlteredTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    NewStartOffset,
)
from warmlog.protocol.native.share import (
    AcknowledgedPartition,
    Acknowledgement,
    AcknowledgeShareGroupRequest,
    AcknowledgeShareGroupResponse,
    AcquiredOffsets,
    AlterGroupsRequest,
    AlterGroupsResponse,
    FetchShareGroupRequest,
    FetchShareGroupResponse,
    HeartbeatShareGroupRequest,
    HeartbeatShareGroupResponse,
    ResetShareGroupRequest,
    ResetShareGroupResponse,
    SharedPartition,
    ShareOutcome,
)
from warmlog.protocol.response import ErrorResponse, TopicResult

#: Kafka's acknowledgement types (org.apache.kafka.clients.consumer.AcknowledgeType).
_TYPES = {
    Acknowledgement.ACCEPT: 1,
    Acknowledgement.RELEASE: 2,
    Acknowledgement.REJECT: 3,
    Acknowledgement.RENEW: 4,
}


class NativeShareApi:
    """Answers the native protocol's requests about share groups by calling the handlers of Kafka's."""

    def __init__(self, families: Iterable[Family], partitions: Partitions) -> None:
        """Collect the handlers of `families`, which serve Kafka's requests for share groups and settings."""
        self._kafka: dict[str, Handler] = {}
        for family in families:
            self._kafka.update(family.handlers())
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            HeartbeatShareGroupRequest.api: self.heartbeat,
            FetchShareGroupRequest.api: self.fetch,
            AcknowledgeShareGroupRequest.api: self.acknowledge,
            ResetShareGroupRequest.api: self.reset,
            AlterGroupsRequest.api: self.alter,
        }

    async def _ask(self, request: Any, context: Context) -> Any:
        return await self._kafka[request.api](request, context)

    # -- members --

    async def heartbeat(
        self, request: HeartbeatShareGroupRequest, context: Context
    ) -> HeartbeatShareGroupResponse | ErrorResponse:
        """Join a share group, keep a membership, or leave."""
        kafka_request = ShareGroupHeartbeatRequest(
            group=request.group,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack,
            topics=request.topics,
        )
        response: ShareGroupHeartbeatResponse = await self._ask(kafka_request, context)
        if response.error is not ErrorCode.NONE:
            return ErrorResponse(error=response.error, message=response.message)
        assigned = response.assignment
        return HeartbeatShareGroupResponse(
            member_epoch=response.member_epoch,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            partitions=None
            if assigned is None
            else tuple(
                [
                    PartitionEntry(topic=topic, partition=index)
                    for each in assigned.partitions
                    if (topic := self._partitions.topic_name(each.topic_id)) is not None
                    for index in each.partitions
                ]
            ),
        )

    # -- records --

    async def fetch(self, request: FetchShareGroupRequest, context: Context) -> FetchShareGroupResponse | ErrorResponse:
        """Acquire records, and acknowledge those acquired before."""
        if any(_renews(partition) for partition in request.partitions):
            message = f"renew records with {AcknowledgeShareGroupRequest.api}: a fetch may wait for other records"
            return ErrorResponse(error=ErrorCode.INVALID_REQUEST, message=message)
        known, unknown = self._known(request.partitions)
        kafka_request = kafka.ShareFetchRequest(
            group=request.group,
            member_id=request.member_id,
            epoch=request.session_epoch,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
            batch_size=request.max_records,
            acquire_mode=kafka.RECORD_LIMIT if request.is_strict else kafka.BATCH_OPTIMIZED,
            partitions=known,
            forgotten=self._forgotten(request.forgotten),
        )
        response: kafka.ShareFetchResponse = await self._ask(kafka_request, context)
        if response.error is not ErrorCode.NONE:
            return ErrorResponse(error=response.error, message=response.message)
        shared = [
            SharedPartition(
                topic=topic,
                partition=each.partition,
                error=each.error,
                message=each.message,
                acknowledge_error=each.acknowledge_error,
                acknowledge_message=each.acknowledge_message,
                acquired=tuple(
                    [
                        AcquiredOffsets(
                            first_offset=held.first_offset, last_offset=held.last_offset, deliveries=held.deliveries
                        )
                        for held in each.acquired
                    ]
                ),
                records=each.records,
            )
            for each in response.partitions
            if (topic := self._partitions.topic_name(each.topic_id)) is not None
        ]
        missing = [
            SharedPartition(
                topic=each.topic,
                partition=each.partition,
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                acknowledge_error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if each.acknowledgements else ErrorCode.NONE,
            )
            for each in unknown
        ]
        return FetchShareGroupResponse(lock_duration_ms=response.lock_timeout_ms, partitions=(*shared, *missing))

    async def acknowledge(
        self, request: AcknowledgeShareGroupRequest, context: Context
    ) -> AcknowledgeShareGroupResponse | ErrorResponse:
        """Acknowledge records."""
        known, unknown = self._known(request.partitions)
        kafka_request = kafka.ShareAcknowledgeRequest(
            group=request.group,
            member_id=request.member_id,
            epoch=request.session_epoch,
            is_renewal=any(_renews(partition) for partition in request.partitions),
            partitions=known,
        )
        response: kafka.ShareAcknowledgeResponse = await self._ask(kafka_request, context)
        if response.error is not ErrorCode.NONE:
            return ErrorResponse(error=response.error, message=response.message)
        results = [
            ShareOutcome(topic=topic, partition=each.partition, error=each.error, message=each.message)
            for each in response.partitions
            if (topic := self._partitions.topic_name(each.topic_id)) is not None
        ]
        missing = [
            ShareOutcome(topic=each.topic, partition=each.partition, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for each in unknown
        ]
        return AcknowledgeShareGroupResponse(lock_duration_ms=response.lock_timeout_ms, partitions=(*results, *missing))

    def _known(
        self, partitions: Iterable[AcknowledgedPartition]
    ) -> tuple[tuple[kafka.AcknowledgedPartition, ...], list[AcknowledgedPartition]]:
        """Convert partitions to the form of Kafka's requests; also return those of topics that do not exist."""
        known, unknown = list[kafka.AcknowledgedPartition](), list[AcknowledgedPartition]()
        for each in partitions:
            topic = self._partitions.topic(each.topic)
            if topic is None:
                unknown.append(each)
                continue
            ranges = [
                kafka.AcknowledgedRange(
                    first_offset=given.first_offset,
                    last_offset=given.last_offset,
                    types=(_TYPES[given.acknowledgement],),
                )
                for given in each.acknowledgements
            ]
            known.append(
                kafka.AcknowledgedPartition(
                    topic_id=topic.id.bytes, partition=each.partition, acknowledgements=tuple(ranges)
                )
            )
        return tuple(known), unknown

    def _forgotten(self, partitions: Iterable[PartitionEntry]) -> tuple[kafka.ForgottenSharePartitions, ...]:
        """Return the partitions to remove from a session; the broker itself removes deleted topics."""
        by_topic: dict[bytes, list[int]] = {}
        for entry in partitions:
            topic = self._partitions.topic(entry.topic)
            if topic is not None:
                by_topic.setdefault(topic.id.bytes, []).append(entry.partition)
        return tuple(
            [
                kafka.ForgottenSharePartitions(topic_id=topic_id, partitions=tuple(indexes))
                for topic_id, indexes in by_topic.items()
            ]
        )

    # -- administration --

    async def reset(self, request: ResetShareGroupRequest, context: Context) -> ResetShareGroupResponse | ErrorResponse:
        """Set the start offsets of a group without members."""
        by_topic: dict[str, list[NewStartOffset]] = {}
        for start in request.starts:
            offset = NewStartOffset(partition=start.partition, start_offset=start.offset)
            by_topic.setdefault(start.topic, []).append(offset)
        topics = [AlteredTopic(topic=topic, partitions=tuple(offsets)) for topic, offsets in by_topic.items()]
        kafka_request = AlterShareGroupOffsetsRequest(group=request.group, topics=tuple(topics))
        response: AlterShareGroupOffsetsResponse = await self._ask(kafka_request, context)
        if response.error is not ErrorCode.NONE:
            return ErrorResponse(error=response.error, message=response.message)
        outcomes = [
            ShareOutcome(topic=topic.topic, partition=each.partition, error=each.error, message=each.message)
            for topic in response.topics
            for each in topic.partitions
        ]
        return ResetShareGroupResponse(partitions=tuple(outcomes))

    async def alter(self, request: AlterGroupsRequest, context: Context) -> AlterGroupsResponse:
        """Change settings of groups."""
        alterations = [
            ConfigAlteration(
                resource_type=ConfigResourceType.GROUP,
                name=group.name,
                changes=tuple(
                    [
                        ConfigChange(
                            name=name,
                            value=value,
                            operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
                        )
                        for name, value in group.configs.items()
                    ]
                ),
            )
            for group in request.groups
        ]
        kafka_request = AlterConfigsRequest(resources=tuple(alterations), incremental=True)
        response: AlterConfigsResponse = await self._ask(kafka_request, context)
        results = [TopicResult(name=each.name, error=each.error, message=each.message) for each in response.resources]
        return AlterGroupsResponse(groups=tuple(results))


def _renews(partition: AcknowledgedPartition) -> bool:
    return any(given.acknowledgement is Acknowledgement.RENEW for given in partition.acknowledgements)
