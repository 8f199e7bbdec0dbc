"""Groups, looked at and looked after.

Owns: what is asked of a broker about groups, and their errors as exceptions. Must not know: members (`membership`).
"""

from collections.abc import Iterable, Mapping

from protocol.errors import ErrorCode
from protocol.groups import (
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
from warmlog.client.cluster import Cluster
from warmlog.client.errors import broker_error
from warmlog.client.handed import Place


class Groups:
    """The questions and orders about groups. All raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self, states: Iterable[str]) -> tuple[ListedGroup, ...]:
        """Groups by name, of these states; none given: all."""
        return (await self._cluster.ask(ListGroupsRequest(states=tuple(states)), ListGroupsResponse)).groups

    async def describe(self, names: tuple[str, ...]) -> tuple[DescribedConsumerGroup, ...]:
        """Members, assignments, offsets, ends. Raises UnknownGroupError."""
        request = DescribeConsumerGroupsRequest(groups=names)
        groups = (await self._cluster.ask(request, DescribeConsumerGroupsResponse)).groups
        for group in groups:
            if group.error:
                raise broker_error(group.error, group.message, about=f"group {group.group!r}")
        return groups

    async def delete(self, name: str) -> None:
        """Raises UnknownGroupError, GroupNotEmptyError."""
        request = DeleteGroupsRequest(groups=(name,))
        (deleted,) = (await self._cluster.ask(request, DeleteGroupsResponse, repeatable=False)).groups
        if deleted.error:
            raise broker_error(deleted.error, deleted.message, about=f"group {name!r}")

    async def commit(self, name: str, offsets: Mapping[Place, int]) -> None:
        """Commit from outside. Raises GroupNotEmptyError where the group has members."""
        partitions = tuple(
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in offsets.items()
        )
        request = OffsetCommitRequest(group=name, partitions=partitions)
        for told in (await self._cluster.ask(request, OffsetCommitResponse)).partitions:
            error = told.error
            if error is ErrorCode.UNKNOWN_MEMBER_ID:  # so somebody from outside is told that there are members
                error = ErrorCode.NON_EMPTY_GROUP
            if error:
                raise broker_error(error, told.message, about=f"group {name!r}, {told.topic}-{told.partition}")

    async def forget(self, name: str, places: Iterable[Place]) -> None:
        """Delete offsets. Raises UnknownGroupError, BrokerError where members read a topic."""
        partitions = tuple(TopicPartition(topic=topic, partition=partition) for topic, partition in places)
        request = OffsetDeleteRequest(group=name, partitions=partitions)
        for told in (await self._cluster.ask(request, OffsetDeleteResponse)).partitions:
            if told.error:
                raise broker_error(told.error, told.message, about=f"group {name!r}, {told.topic}-{told.partition}")
