"""Administrative requests about share groups, and settings of groups of any type."""

from collections.abc import Mapping
from operator import attrgetter

from warmlog.client.connection.cluster import Cluster
from warmlog.client.connection.request_parts import parts
from warmlog.client.errors import broker_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType
from warmlog.protocol.native.messages import FIRST_WITH_SHARE_GROUPS
from warmlog.protocol.native.share import (
    AlterGroupsRequest,
    AlterGroupsResponse,
    GroupAlteration,
    ResetShareGroupRequest,
    ResetShareGroupResponse,
    ShareStart,
)
from warmlog.protocol.partitions import TopicPartition


class ShareAdmin:
    """Changes of share groups. All methods raise WarmlogError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def alter_group(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Change settings of a group."""
        request = AlterGroupsRequest(groups=(GroupAlteration(name=name, configs=dict(configs)),))
        reply = await self._cluster.ask(request, AlterGroupsResponse, since=FIRST_WITH_SHARE_GROUPS)
        (result,) = reply.groups
        if result.error is not ErrorCode.NONE:
            raise broker_error(result.error, result.message, about=f"group {name!r}")

    async def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group without members."""

        def check(reply: ResetShareGroupResponse) -> None:
            for each in reply.partitions:
                if each.error is not ErrorCode.NONE:
                    about = f"group {group!r}, {each.topic}-{each.partition}"
                    raise broker_error(each.error, each.message, about=about)

        starts = tuple(
            [ShareStart(topic=topic, partition=index, offset=offset) for (topic, index), offset in offsets.items()]
        )
        for part in parts(starts, attrgetter("topic")):
            request = ResetShareGroupRequest(group=group, starts=part)
            await self._cluster.ask_coordinator(
                CoordinatorType.GROUP, group, request, ResetShareGroupResponse, check=check
            )
