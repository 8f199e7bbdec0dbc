"""Pass requests for share group state, which other brokers send, to the share coordinator.

Source: kafka.server.KafkaApis (handleInitializeShareGroupStateRequest to handleReadShareGroupStateSummaryRequest).
"""

from collections.abc import Mapping

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.broker.share.state.coordinator import ShareCoordinator
from warmlog.protocol.kafka.messages.share.state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)


class ShareStateApi:
    """Answers the five requests for share group state."""

    def __init__(self, coordinator: ShareCoordinator) -> None:
        self._coordinator = coordinator

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            InitializeShareGroupStateRequest.api: self.initialize,
            ReadShareGroupStateRequest.api: self.read,
            WriteShareGroupStateRequest.api: self.write,
            DeleteShareGroupStateRequest.api: self.delete,
            ReadShareGroupStateSummaryRequest.api: self.summarize,
        }

    async def initialize(
        self, request: InitializeShareGroupStateRequest, context: Context
    ) -> InitializeShareGroupStateResponse:
        """Set the first state of share-partitions."""
        return await self._coordinator.initialize(request, context.checkpoint)

    async def read(self, request: ReadShareGroupStateRequest, context: Context) -> ReadShareGroupStateResponse:
        """Return states, and fence earlier leaders of their partitions."""
        return await self._coordinator.read(request, context.checkpoint)

    async def write(self, request: WriteShareGroupStateRequest, context: Context) -> WriteShareGroupStateResponse:
        """Change states."""
        return await self._coordinator.write(request, context.checkpoint)

    async def delete(self, request: DeleteShareGroupStateRequest, context: Context) -> DeleteShareGroupStateResponse:
        """Delete states."""
        return await self._coordinator.delete(request, context.checkpoint)

    async def summarize(
        self, request: ReadShareGroupStateSummaryRequest, context: Context
    ) -> ReadShareGroupStateSummaryResponse:
        """Return states without their batches."""
        return await self._coordinator.summarize(request, context.checkpoint)
