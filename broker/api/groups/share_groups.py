"""Answer Kafka's requests about share groups (KIP-932).

Source: kafka.server.KafkaApis (handleShareGroupHeartbeat, handleShareGroupDescribe, handleDescribeShareGroupOffsets,
handleAlterShareGroupOffsets, handleDeleteShareGroupOffsets).
"""

from collections.abc import Callable, Mapping

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.groups.requests.share import ShareGroupCoordinator
from warmlog.broker.groups.requests.share_offsets import ShareOffsetsCoordinator
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from warmlog.protocol.kafka.messages.share.offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareOffsets,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)


class ShareGroupsApi:
    """Answers the requests of share groups' members, and describes and changes the groups."""

    def __init__(
        self, coordinator: ShareGroupCoordinator, offsets: ShareOffsetsCoordinator, is_enabled: Callable[[], bool]
    ) -> None:
        """Pass requests to these coordinators. `is_enabled`: whether the feature `share.version` enables them."""
        self._coordinator = coordinator
        self._offsets = offsets
        self._is_enabled = is_enabled

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            ShareGroupHeartbeatRequest.api: self.heartbeat,
            ShareGroupDescribeRequest.api: self.describe,
            DescribeShareGroupOffsetsRequest.api: self.describe_offsets,
            AlterShareGroupOffsetsRequest.api: self.alter_offsets,
            DeleteShareGroupOffsetsRequest.api: self.delete_offsets,
        }

    def _check_enabled(self) -> None:
        """Refuse as Kafka does; clients then fail immediately, whereas they would retry if the API were missing."""
        if not self._is_enabled():
            message = "share groups (KIP-932) need the feature share.version at level 1"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, message)

    async def heartbeat(self, request: ShareGroupHeartbeatRequest, context: Context) -> ShareGroupHeartbeatResponse:
        """Join a group, keep a membership, or leave."""
        self._check_enabled()
        session = context.session
        return await self._coordinator.heartbeat(
            request, client_id=session.client_id, host=f"/{session.peer[0]}", holder=session.holder
        )

    async def describe(self, request: ShareGroupDescribeRequest, context: Context) -> ShareGroupDescribeResponse:
        """Describe each group once, in the order of the request; Kafka repeats a group as often as it is named."""
        self._check_enabled()
        groups = []
        for name in dict.fromkeys(request.groups):
            groups.append(await self._coordinator.describe(name, context.checkpoint))
            await context.checkpoint()
        return ShareGroupDescribeResponse(groups=tuple(groups))

    async def describe_offsets(
        self, request: DescribeShareGroupOffsetsRequest, context: Context
    ) -> DescribeShareGroupOffsetsResponse:
        """Describe the start offsets of each group, in the order of the request."""
        self._check_enabled()
        groups = []
        for requested in request.groups:
            if requested.topics == ():
                groups.append(DescribedShareOffsets(group=requested.group))
            else:
                groups.append(await self._offsets.describe(requested, context.checkpoint))
            await context.checkpoint()
        return DescribeShareGroupOffsetsResponse(groups=tuple(groups))

    async def alter_offsets(
        self, request: AlterShareGroupOffsetsRequest, context: Context
    ) -> AlterShareGroupOffsetsResponse:
        """Set start offsets of a group without members."""
        self._check_enabled()
        return await context.wait(self._offsets.alter(request, context.session.holder))

    async def delete_offsets(
        self, request: DeleteShareGroupOffsetsRequest, context: Context
    ) -> DeleteShareGroupOffsetsResponse:
        """Delete the state of topics in a group without members."""
        self._check_enabled()
        return await context.wait(self._offsets.delete(request))
