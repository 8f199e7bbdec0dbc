"""List, describe, delete and alter consumer groups."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from warmlog.client.connection.cluster import NO_LEADER, Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import WarmlogError, broker_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_OFFSET,
    CommittedPartition,
    CoordinatorType,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetToCommit,
    PartitionEntry,
)
from warmlog.protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    DescribedConsumerGroup,
    GroupPosition,
)
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsRequest, OffsetQuery, Value
from warmlog.protocol.response import ListOffsetsResponse

R = TypeVar("R", bound=Value)
_ENDS = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)


class GroupAdmin:
    """Administrative requests about groups. All methods raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self, states: Iterable[str]) -> tuple[ListedGroup, ...]:
        """Return groups in these states, sorted by name; without states, return all groups."""
        replies = await self._cluster.ask_each(ListGroupsRequest(states=tuple(states)), ListGroupsResponse)
        return tuple(sorted((group for reply in replies for group in reply.groups), key=attrgetter("group")))

    async def describe(self, names: tuple[str, ...]) -> tuple[DescribedConsumerGroup, ...]:
        """Return members, assignments, committed offsets and log end offsets. Raises UnknownGroupError."""
        return tuple([await self._with_ends(await self._describe(name)) for name in names])

    async def _with_ends(self, group: DescribedConsumerGroup) -> DescribedConsumerGroup:
        """Query the leaders for the ends of partitions that the coordinator does not lead.

        The ends of deleted partitions, and of partitions whose leader does not answer, remain unknown.
        """
        unknown = [position for position in group.positions if position.high_watermark == NO_OFFSET]
        if not unknown:
            return group
        await self._cluster.metadata({position.topic for position in unknown})
        by_leader: dict[int, list[GroupPosition]] = defaultdict(list)
        for position in unknown:
            by_leader[self._cluster.leader(position.topic, position.partition)].append(position)
        by_leader.pop(NO_LEADER, None)
        positions: dict[TopicPartition, GroupPosition] = {}
        for leader, led in by_leader.items():
            with suppress(WarmlogError):
                positions |= {(each.topic, each.partition): each for each in await self._ends_at(leader, led)}
        known = [positions.get((position.topic, position.partition), position) for position in group.positions]
        return replace(group, positions=tuple(known))

    async def _ends_at(self, leader: int, led: Sequence[GroupPosition]) -> Sequence[GroupPosition]:
        """Return the positions with the ends of partitions that this broker knows."""
        ended: list[GroupPosition] = []
        for part in parts(led, attrgetter("topic"), times=len(_ENDS)):
            queries = tuple(
                OffsetQuery(topic=entry.topic, partition=entry.partition, timestamp=end)
                for entry in part
                for end in _ENDS
            )
            reply = await self._cluster.ask_broker(leader, ListOffsetsRequest(partitions=queries), ListOffsetsResponse)
            for entry, first, last in zip(part, reply.partitions[::2], reply.partitions[1::2], strict=True):
                if not first.error and not last.error:
                    ended.append(replace(entry, log_start_offset=first.offset, high_watermark=last.offset))
        return ended

    async def _describe(self, name: str) -> DescribedConsumerGroup:
        def check(reply: DescribeConsumerGroupsResponse) -> None:
            if reply.groups[0].error:
                raise broker_error(reply.groups[0].error, reply.groups[0].message, about=f"group {name!r}")

        request = DescribeConsumerGroupsRequest(groups=(name,))
        reply = await self._ask(name, request, DescribeConsumerGroupsResponse, check)
        return reply.groups[0]

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets. Raises UnknownGroupError, GroupNotEmptyError."""

        def check(reply: DeleteGroupsResponse) -> None:
            (deleted,) = reply.groups
            if deleted.error:
                raise broker_error(deleted.error, deleted.message, about=f"group {name!r}")

        await self._ask(name, DeleteGroupsRequest(groups=(name,)), DeleteGroupsResponse, check, repeatable=False)

    async def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's committed offsets. Raises GroupNotEmptyError if it has members."""
        partitions = tuple(
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in offsets.items()
        )
        for part in parts(partitions, attrgetter("topic")):
            request = OffsetCommitRequest(group=name, partitions=part)
            await self._ask(name, request, OffsetCommitResponse, partial(_check_committed, name))

    async def delete_offsets(self, name: str, keys: Iterable[TopicPartition]) -> None:
        """Delete committed offsets. Raises UnknownGroupError; BrokerError if members read the topic."""
        partitions = tuple(PartitionEntry(topic=topic, partition=partition) for topic, partition in keys)
        for part in parts(partitions, attrgetter("topic")):
            request = OffsetDeleteRequest(group=name, partitions=part)
            await self._ask(name, request, OffsetDeleteResponse, partial(_check_deleted, name))

    async def _ask(
        self,
        name: str,
        request: NativeRequest,
        response_type: type[R],
        check: Callable[[R], None],
        *,
        repeatable: bool = True,
    ) -> R:
        kind = CoordinatorType.GROUP
        return await self._cluster.ask_coordinator(
            kind, name, request, response_type, check=check, repeatable=repeatable
        )


def _check_committed(name: str, reply: OffsetCommitResponse) -> None:
    for result in reply.partitions:
        error = result.error
        if error is ErrorCode.UNKNOWN_MEMBER_ID:  # the error for a non-member if the group has members
            error = ErrorCode.NON_EMPTY_GROUP
        if error:
            raise broker_error(error, result.message, about=_about(name, result))


def _check_deleted(name: str, reply: OffsetDeleteResponse) -> None:
    for result in reply.partitions:
        if result.error:
            raise broker_error(result.error, result.message, about=_about(name, result))


def _about(group: str, result: CommittedPartition) -> str:
    return f"group {group!r}, {result.topic}-{result.partition}"
