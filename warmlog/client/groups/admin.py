"""List, describe, delete and alter consumer groups."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from protocol.errors import ErrorCode
from protocol.groups import (
    CommittedPartition,
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
    TopicPartition,
)
from protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    DescribedConsumerGroup,
)
from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import broker_error
from warmlog.client.groups.delivery_tracker import PartitionId


class GroupAdmin:
    """Administrative requests about groups. All methods raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self, states: Iterable[str]) -> tuple[ListedGroup, ...]:
        """Return groups in these states, by name; no state means all."""
        return (await self._cluster.ask(ListGroupsRequest(states=tuple(states)), ListGroupsResponse)).groups

    async def describe(self, names: tuple[str, ...]) -> tuple[DescribedConsumerGroup, ...]:
        """Return members, assignments, committed offsets and log end offsets. Raises UnknownGroupError."""
        request = DescribeConsumerGroupsRequest(groups=names)
        groups = (await self._cluster.ask(request, DescribeConsumerGroupsResponse)).groups
        for group in groups:
            if group.error:
                raise broker_error(group.error, group.message, about=f"group {group.group!r}")
        return groups

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets. Raises UnknownGroupError, GroupNotEmptyError."""
        request = DeleteGroupsRequest(groups=(name,))
        (deleted,) = (await self._cluster.ask(request, DeleteGroupsResponse, repeatable=False)).groups
        if deleted.error:
            raise broker_error(deleted.error, deleted.message, about=f"group {name!r}")

    async def commit(self, name: str, offsets: Mapping[PartitionId, int]) -> None:
        """Set the group's committed offsets. Raises GroupNotEmptyError if it has members."""
        partitions = tuple(
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in offsets.items()
        )
        for part in parts(partitions, attrgetter("topic")):
            request = OffsetCommitRequest(group=name, partitions=part)
            for result in (await self._cluster.ask(request, OffsetCommitResponse)).partitions:
                error = result.error
                if error is ErrorCode.UNKNOWN_MEMBER_ID:  # the answer to a non-member if the group has members
                    error = ErrorCode.NON_EMPTY_GROUP
                if error:
                    raise broker_error(error, result.message, about=_about(name, result))

    async def delete_offsets(self, name: str, keys: Iterable[PartitionId]) -> None:
        """Delete committed offsets. Raises UnknownGroupError; BrokerError if members read the topic."""
        partitions = tuple(TopicPartition(topic=topic, partition=partition) for topic, partition in keys)
        for part in parts(partitions, attrgetter("topic")):
            request = OffsetDeleteRequest(group=name, partitions=part)
            for result in (await self._cluster.ask(request, OffsetDeleteResponse)).partitions:
                if result.error:
                    raise broker_error(result.error, result.message, about=_about(name, result))


def _about(group: str, result: CommittedPartition) -> str:
    return f"group {group!r}, {result.topic}-{result.partition}"
