"""Descriptions of groups of any type on the native protocol: members, offsets, and ends of partitions.

Kafka has a request for each type of group; a group is looked up under one type after the other until it is found.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.groups.native_groups import EXPLANATIONS, partitions_of, topics_of
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_OFFSET,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchedOffsets,
    OffsetFetchGroup,
    OffsetFetchRequest,
    PartitionEntry,
)
from warmlog.protocol.kafka.messages.groups import consumer as modern
from warmlog.protocol.kafka.messages.groups import streams_descriptions as streams
from warmlog.protocol.kafka.messages.share import groups as share
from warmlog.protocol.kafka.messages.share.offsets import (
    DescribedShareOffsets,
    DescribeShareGroupOffsetsRequest,
    ShareOffsetsGroup,
)
from warmlog.protocol.native.groups import (
    ConsumerGroupMember,
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    DescribedConsumerGroup,
    GroupPosition,
)
from warmlog.protocol.native.messages import FIRST_WITH_SHARE_GROUPS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.response import ErrorResponse

SHARE_PROTOCOL_TYPE = "share"
STREAMS_PROTOCOL_TYPE = "streams"


class NativeDescriptionsApi:
    """Describes groups by calling the handlers of Kafka's requests."""

    def __init__(self, groups: Iterable[Family], partitions: Partitions) -> None:
        """Collect the handlers of `groups`, the families that answer Kafka's requests about groups."""
        self._groups: dict[str, Handler] = {}
        for family in groups:
            self._groups.update(family.handlers())
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {DescribeConsumerGroupsRequest.api: self.describe}

    async def describe(
        self, request: DescribeConsumerGroupsRequest, context: Context
    ) -> DescribeConsumerGroupsResponse | ErrorResponse:
        """Describe groups with decoded assignments, committed offsets and the logs' start and high watermark."""
        classic: DescribeGroupsResponse = await self._ask(DescribeGroupsRequest(groups=request.groups), context)
        others = tuple([each.group for each in classic.groups if each.error is ErrorCode.GROUP_ID_NOT_FOUND])
        consumers = await self._consumer_groups(others, context)
        others = tuple([name for name in others if name not in consumers])
        shares = await self._share_groups(others, context)
        applications = await self._streams_groups(tuple([name for name in others if name not in shares]), context)
        requested = tuple(OffsetFetchGroup(group=group) for group in request.groups)
        fetched = await self._ask(OffsetFetchRequest(groups=requested), context)
        groups = []
        for group, offsets in zip(classic.groups, fetched.groups, strict=True):
            if (consumer := consumers.get(group.group)) is not None:
                groups.append(self._modern(consumer, offsets))
            elif (shared := shares.get(group.group)) is not None:
                groups.append(self._share(*shared, has_unfinished=context.version >= FIRST_WITH_SHARE_GROUPS))
            elif (application := applications.get(group.group)) is not None:
                groups.append(self._streams(application, offsets))
            else:
                groups.append(self._described(group, offsets))
            await context.checkpoint()
        return DescribeConsumerGroupsResponse(groups=tuple(groups))

    async def _consumer_groups(
        self, names: tuple[str, ...], context: Context
    ) -> Mapping[str, modern.DescribedConsumerGroup]:
        """Describe the consumer groups among these; none while they are disabled."""
        try:
            response = await self._ask(modern.ConsumerGroupDescribeRequest(groups=names), context)
        except RequestError:
            return {}
        return {each.group: each for each in response.groups if each.error is ErrorCode.NONE}

    async def _share_groups(
        self, names: tuple[str, ...], context: Context
    ) -> Mapping[str, tuple[share.DescribedShareGroup, DescribedShareOffsets]]:
        """Describe the share groups among these; none while they are disabled."""
        try:
            response = await self._ask(share.ShareGroupDescribeRequest(groups=names), context)
        except RequestError:
            return {}
        groups = [each for each in response.groups if each.error is ErrorCode.NONE]
        request = DescribeShareGroupOffsetsRequest(
            groups=tuple([ShareOffsetsGroup(group=each.group) for each in groups])
        )
        offsets = await self._ask(request, context)
        return {group.group: (group, described) for group, described in zip(groups, offsets.groups, strict=True)}

    async def _streams_groups(
        self, names: tuple[str, ...], context: Context
    ) -> Mapping[str, streams.DescribedStreamsGroup]:
        """Describe the streams groups among these; none while they are disabled."""
        try:
            response = await self._ask(streams.StreamsGroupDescribeRequest(groups=names), context)
        except RequestError:
            return {}
        return {each.group: each for each in response.groups if each.error is ErrorCode.NONE}

    def _streams(self, group: streams.DescribedStreamsGroup, offsets: FetchedOffsets) -> DescribedConsumerGroup:
        """Describe a streams group (KIP-1071). A member has the partitions that its active tasks read."""
        sources: dict[str, tuple[str, ...]] = {}
        for each in () if group.topology is None else group.topology.subtopologies or ():
            sources[each.subtopology_id] = (*each.sources, *[topic.topic for topic in each.repartition_sources])
        members = tuple([self._streams_member(member, sources) for member in group.members])
        return DescribedConsumerGroup(
            group=group.group,
            state=group.state,
            protocol_type=STREAMS_PROTOCOL_TYPE,
            protocol=group.assignor or "",
            members=members,
            positions=self._positions(members, offsets.partitions),
            error=offsets.error,
        )

    def _streams_member(
        self, member: streams.DescribedStreamsMember, sources: Mapping[str, tuple[str, ...]]
    ) -> ConsumerGroupMember:
        partitions = [
            PartitionEntry(topic=topic, partition=number)
            for tasks in member.assignment.active
            for topic in sources.get(tasks.subtopology_id, ())
            for number in tasks.partitions
            if self._partitions.exists(topic, number)
        ]
        return ConsumerGroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=tuple(dict.fromkeys([topic for topics in sources.values() for topic in topics])),
            partitions=tuple(partitions),
        )

    def _share(
        self, group: share.DescribedShareGroup, offsets: DescribedShareOffsets, *, has_unfinished: bool
    ) -> DescribedConsumerGroup:
        """Describe a share group (KIP-932). A partition with several members is listed without one."""
        members = tuple([_share_member(member) for member in group.members])
        known = {
            (topic.topic, each.partition): each
            for topic in offsets.topics
            for each in topic.partitions
            if each.error is ErrorCode.NONE
        }
        starts = [
            FetchedOffset(topic=topic, partition=index, offset=each.start_offset, leader_epoch=each.leader_epoch)
            for (topic, index), each in known.items()
        ]
        positions = self._positions(members, starts)
        if has_unfinished:
            unfinished = {key: each.lag for key, each in known.items()}
            positions = tuple(
                [replace(each, unfinished=unfinished.get((each.topic, each.partition), -1)) for each in positions]
            )
        return DescribedConsumerGroup(
            group=group.group,
            state=group.state,
            protocol_type=SHARE_PROTOCOL_TYPE,
            protocol=group.assignor,
            members=members,
            positions=positions,
            error=offsets.error,
            message=offsets.message,
        )

    def _modern(self, group: modern.DescribedConsumerGroup, offsets: FetchedOffsets) -> DescribedConsumerGroup:
        """Describe a group of the consumer protocol (KIP-848)."""
        members = tuple([_modern_member(member) for member in group.members])
        return DescribedConsumerGroup(
            group=group.group,
            state=group.state,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol=group.assignor,
            members=members,
            positions=self._positions(members, offsets.partitions),
            error=offsets.error,
        )

    def _described(self, group: DescribedGroup, offsets: FetchedOffsets) -> DescribedConsumerGroup:
        members = tuple(
            _consumer(member) if group.protocol_type == CONSUMER_PROTOCOL_TYPE else _member(member)
            for member in group.members
        )
        return DescribedConsumerGroup(
            group=group.group,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            members=members,
            positions=self._positions(members, offsets.partitions),
            error=group.error or offsets.error,
            message=group.message or EXPLANATIONS.get(group.error),
        )

    def _positions(
        self, members: Iterable[ConsumerGroupMember], offsets: Iterable[FetchedOffset]
    ) -> tuple[GroupPosition, ...]:
        owners: dict[TopicPartition, str | None] = {}
        for member in members:
            for entry in member.partitions:
                key = entry.topic, entry.partition
                owners[key] = None if key in owners else member.member_id
        committed = {(entry.topic, entry.partition): entry for entry in offsets}
        return tuple(
            self._position(*topic_partition, owners.get(topic_partition), committed.get(topic_partition))
            for topic_partition in sorted(owners.keys() | committed.keys())
        )

    def _position(
        self, topic: str, index: int, member_id: str | None, committed: FetchedOffset | None
    ) -> GroupPosition:
        partition = self._partitions.get(topic, index)
        position = GroupPosition(
            topic=topic,
            partition=index,
            log_start_offset=NO_OFFSET if partition is None else partition.log.offsets.log_start_offset,
            high_watermark=NO_OFFSET if partition is None else partition.log.offsets.high_watermark,
            member_id=member_id,
        )
        if committed is None:
            return position
        return replace(
            position, offset=committed.offset, leader_epoch=committed.leader_epoch, metadata=committed.metadata
        )

    async def _ask(self, request: Any, context: Context) -> Any:
        return await self._groups[request.api](request, context)


def _consumer(member: DescribedMember) -> ConsumerGroupMember:
    return replace(_member(member), topics=topics_of(member.metadata), partitions=partitions_of(member.assignment))


def _partitions(assignment: modern.DescribedAssignment) -> tuple[PartitionEntry, ...]:
    return tuple(
        [
            PartitionEntry(topic=each.topic, partition=index)
            for each in assignment.partitions
            for index in each.partitions
        ]
    )


def _modern_member(member: modern.DescribedConsumer) -> ConsumerGroupMember:
    topics = (*member.topics, member.regex) if member.regex else member.topics
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=topics,
        partitions=_partitions(member.assignment),
    )


def _share_member(member: share.DescribedShareMember) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=member.topics,
        partitions=_partitions(member.assignment),
    )


def _member(member: DescribedMember) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
    )
