"""Answer Kafka's requests about streams groups (KIP-1071).

Source: kafka.server.KafkaApis (handleStreamsGroupHeartbeat, handleStreamsGroupDescribe,
handleStreamsGroupTopologyDescriptionUpdate).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from warmlog.broker.api.access import Access
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.groups.internal_topics import InternalTopics
from warmlog.broker.api.handler import Handler
from warmlog.broker.groups.requests.streams import StreamsGroupCoordinator
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.metadata.topic import COORDINATOR_TOPICS, InvalidTopicError, check_name
from warmlog.broker.security.acls import Operation
from warmlog.broker.security.authorizer import Authorizer
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    Topology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from warmlog.protocol.request import NewTopic


class StreamsGroupsApi:
    """Answers the requests of streams groups' members, creates their internal topics, and describes the groups."""

    def __init__(
        self,
        coordinator: StreamsGroupCoordinator,
        topics: InternalTopics,
        authorizer: Authorizer | None,
        is_enabled: Callable[[], bool],
    ) -> None:
        """Pass requests to this coordinator.

        `authorizer`: None if every client may create topics. `is_enabled`: whether the feature `streams.version`
        enables these groups.
        """
        self._coordinator = coordinator
        self._topics = topics
        self._authorizer = authorizer
        self._is_enabled = is_enabled

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            StreamsGroupHeartbeatRequest.api: self.heartbeat,
            StreamsGroupDescribeRequest.api: self.describe,
            StreamsGroupTopologyDescriptionUpdateRequest.api: self.update_description,
        }

    def _check_enabled(self) -> None:
        """Refuse as Kafka does; clients then fail immediately, whereas they would retry if the API were missing."""
        if not self._is_enabled():
            message = "streams groups (KIP-1071) need the feature streams.version at level 1"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, message)

    async def heartbeat(self, request: StreamsGroupHeartbeatRequest, context: Context) -> StreamsGroupHeartbeatResponse:
        """Join a group, keep a membership, or leave."""
        self._check_enabled()
        if request.topology is not None:
            await check_topics(request.topology, context)
        session = context.session
        result = await self._coordinator.heartbeat(
            request,
            context.version,
            client_id=session.client_id,
            host=f"/{session.peer[0]}",
            holder=session.holder,
            checkpoint=context.checkpoint,
        )
        if not result.missing:
            return result.response
        forbidden = await self._forbidden(result.missing, context)
        if forbidden:
            return _with_detail(result.response, f"Unauthorized to CREATE on topics {', '.join(forbidden)}.")
        failures = await self._topics.create(result.missing, context, result.retry_ms)
        return _with_detail(result.response, f"Creation failed: {failures}.") if failures else result.response

    async def _forbidden(self, topics: Sequence[NewTopic], context: Context) -> list[str]:
        """Return the topics that the sender may not create."""
        if self._authorizer is None:
            return []
        access = Access(self._authorizer, context.session)
        if access.cluster(Operation.CREATE):
            return []
        forbidden = []
        for topic in topics:
            if not access.topic(Operation.CREATE, topic.name):
                forbidden.append(topic.name)
            await context.checkpoint()
        return forbidden

    async def describe(self, request: StreamsGroupDescribeRequest, context: Context) -> StreamsGroupDescribeResponse:
        """Describe each group once, in the order of the request; Kafka repeats a group as often as it is named."""
        self._check_enabled()
        groups = []
        for name in dict.fromkeys(request.groups):
            groups.append(await self._coordinator.describe(name, context.checkpoint))
            await context.checkpoint()
        return StreamsGroupDescribeResponse(groups=tuple(groups))

    async def update_description(
        self, _: StreamsGroupTopologyDescriptionUpdateRequest, __: Context
    ) -> StreamsGroupTopologyDescriptionUpdateResponse:
        """Refuse as a Kafka without a plugin does. Members send none: responses to heartbeats do not request it."""
        self._check_enabled()
        message = "The broker has no streams group topology description plugin configured."
        return StreamsGroupTopologyDescriptionUpdateResponse(error=ErrorCode.UNSUPPORTED_VERSION, message=message)


def topology_topics(topology: Topology) -> Iterable[str]:
    """Return the topics of a topology without duplicates, in its order."""
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names.update(dict.fromkeys((*each.sources, *each.repartition_sinks)))
        names.update(dict.fromkeys([topic.topic for topic in (*each.repartition_sources, *each.changelogs)]))
    return names


async def check_topics(topology: Topology, context: Context) -> None:
    """Raise RequestError for a topology with internal topics of the broker, or with invalid topic names."""
    internal, invalid = [], []
    for name in topology_topics(topology):
        if name in COORDINATOR_TOPICS:
            internal.append(name)
        try:
            check_name(name)
        except InvalidTopicError:
            invalid.append(name)
        await context.checkpoint()
    if internal:
        message = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise RequestError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
    if invalid:
        message = f"Topic names {','.join(invalid)} are not valid topic names."
        raise RequestError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def _with_detail(response: StreamsGroupHeartbeatResponse, detail: str) -> StreamsGroupHeartbeatResponse:
    """Return a response whose status says why missing topics are not created."""
    statuses = []
    is_known = False
    for status in response.status or ():
        known = status.code == Status.MISSING_INTERNAL_TOPICS
        is_known |= known
        statuses.append(replace(status, detail=f"{status.detail}; {detail}") if known else status)
    if not is_known:
        statuses.append(StreamsStatus(code=int(Status.MISSING_INTERNAL_TOPICS), detail=detail))
    return replace(response, status=tuple(statuses))
