"""Pass Kafka's requests of consumer groups (KIP-848) to the group coordinator.

Source: kafka.server.KafkaApis (handleConsumerGroupHeartbeat, handleConsumerGroupDescribe).
"""

from collections.abc import Callable, Mapping
from functools import partial

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.groups.requests.consumer import ConsumerGroupCoordinator
from warmlog.broker.security.acls import Operation
from warmlog.broker.security.authorizer import Authorizer
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


class ConsumerGroupsApi:
    """Answers the requests of consumer groups' members, and describes the groups."""

    def __init__(
        self, coordinator: ConsumerGroupCoordinator, authorizer: Authorizer | None, is_enabled: Callable[[], bool]
    ) -> None:
        """Pass requests to a coordinator.

        `authorizer`: None if every client may see every topic. `is_enabled`: whether the feature `group.version`
        enables these groups.
        """
        self._is_enabled = is_enabled
        self._coordinator = coordinator
        self._authorizer = authorizer

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            ConsumerGroupHeartbeatRequest.api: self.heartbeat,
            ConsumerGroupDescribeRequest.api: self.describe,
        }

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: Context
    ) -> ConsumerGroupHeartbeatResponse:
        """Join a group, keep a membership, or leave."""
        self._check_enabled()
        session = context.session
        return await self._coordinator.heartbeat(
            request,
            context.version,
            client_id=session.client_id,
            host=f"/{session.peer[0]}",
            holder=session.holder,
            sees=self._sees(context),
        )

    def _check_enabled(self) -> None:
        """Refuse as Kafka does; clients then fail immediately, whereas they would retry if the API were missing."""
        if not self._is_enabled():
            message = "groups of the consumer protocol (KIP-848) need the feature group.version at level 1"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, message)

    def _sees(self, context: Context) -> Callable[[str], bool] | None:
        """Return whether the sender may see a topic; None if it may see all."""
        if self._authorizer is None:
            return None
        return partial(Access(self._authorizer, context.session).topic, Operation.DESCRIBE)

    async def describe(self, request: ConsumerGroupDescribeRequest, context: Context) -> ConsumerGroupDescribeResponse:
        """Describe each group once, in the order of the request; Kafka repeats a group as often as it is named."""
        self._check_enabled()
        groups = []
        for name in dict.fromkeys(request.groups):
            groups.append(await self._coordinator.describe(name, context.checkpoint))
            await context.checkpoint()
        return ConsumerGroupDescribeResponse(groups=tuple(groups))
