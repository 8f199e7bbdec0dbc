"""Handle the requests of streams groups (KIP-1071): heartbeats and descriptions.

A heartbeat first fits the topology to the existing topics, if either has changed. Then it changes its group in one
synchronous call, and waits for its response until the changes are in the log; without changes it does not wait.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (streamsGroupHeartbeat, streamsGroupDescribe),
GroupMetadataManager (getOrCreateStreamsGroup, getStreamsGroupOrThrow).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import trio

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES
from warmlog.broker.groups.modern.refusals import JOIN, RefusedError
from warmlog.broker.groups.modern.topic_hash import group_hash
from warmlog.broker.groups.registry import Checkpoint, GroupRegistry
from warmlog.broker.groups.streams.requests import check_request
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.streams.stored import declared_size, subtopology_size
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology, configure, required_topics
from warmlog.broker.groups.streams.topology.problems import InvalidTopologyError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    DescribedStreamsGroup,
)
from warmlog.protocol.request import NewTopic

MAX_SUBTOPOLOGIES: Final = 1_000  # of a topology: a member with tasks of all holds the event loop for 5 ms
MAX_TOPICS: Final = 10_000  # of a topology
FEW_TOPICS: Final = 1_000  # topics of a topology, which is fitted to them on the event loop: about 2 ms


class HeartbeatResult(NamedTuple):
    """A response, and the missing internal topics of the group's topology."""

    response: StreamsGroupHeartbeatResponse
    missing: tuple[NewTopic, ...] = ()
    retry_ms: int = 0  # pause before retrying to create a topic


class StreamsGroupCoordinator:
    """Checks members' requests, and passes them to their groups. Call all methods on the event loop."""

    def __init__(self, groups: GroupRegistry) -> None:
        """Serve these groups."""
        self._groups = groups
        self._workers = trio.CapacityLimiter(1)

    async def heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,
        version: int,
        *,
        client_id: str,
        host: str,
        holder: str,
        checkpoint: Checkpoint,
    ) -> HeartbeatResult:
        """Join a group, keep a membership, or leave. `holder`: whose share is charged for the member's memory."""
        error, message = check_request(request)
        if error is ErrorCode.NONE:
            error = self._groups.available_to_members(request.group)
        if error is ErrorCode.NONE and self._groups.get(request.group) is None:
            error = await self._groups.runtime.ensure() or self._groups.available(request.group)
        if error is not ErrorCode.NONE:
            return HeartbeatResult(StreamsGroupHeartbeatResponse(error=error, message=message))
        try:
            growth = await self._topology_growth(request, checkpoint)
            self._check(request, holder, growth)
            configured = await self._configured(request, checkpoint)
            group = self._check(request, holder, growth) or self._groups.create_streams_group(request.group, holder)
        except RefusedError as refused:
            return HeartbeatResult(StreamsGroupHeartbeatResponse(error=refused.error, message=refused.message))
        group.limits = self._groups.limits.streams(request.group)
        pending: PendingAnswer[StreamsGroupHeartbeatResponse | None] = PendingAnswer(None)
        client = Client(client_id=client_id, host=host, holder=holder, new_id="")
        topics, now = self._groups.topics, self._groups.now()
        group.heartbeat(request, client, pending, topics, now, configured=configured, version=version)
        response = await self._groups.answer(group, pending)
        assert response is not None
        missing = () if configured is None or response.error is not ErrorCode.NONE else configured.missing
        return HeartbeatResult(response, missing, 2 * group.limits.heartbeat_interval_ms)

    async def _topology_growth(self, request: StreamsGroupHeartbeatRequest, checkpoint: Checkpoint) -> int:
        """Estimate the bytes that a topology will hold, 0 if the group already has one. Raises RefusedError."""
        topology, group = request.topology, self._groups.get(request.group)
        if topology is None or (isinstance(group, StreamsGroup) and group.topology_for(request) is not topology):
            return 0
        held = stored = topics = 0
        for each in topology.subtopologies:
            held += subtopology_size(each)
            stored += _record_size(each)
            topics += len(each.sources) + len(each.repartition_sinks)
            topics += len(each.repartition_sources) + len(each.changelogs)
            await checkpoint()
        if topics > MAX_TOPICS or len(topology.subtopologies) > MAX_SUBTOPOLOGIES:
            message = f"a topology may have {MAX_SUBTOPOLOGIES:,} subtopologies and {MAX_TOPICS:,} topics at most"
            raise RefusedError(ErrorCode.INVALID_REQUEST, message)
        if stored > self._groups.max_record_bytes(request.group):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the topology is too large for a record of the group")
        return held

    def _check(self, request: StreamsGroupHeartbeatRequest, holder: str, topology_growth: int) -> StreamsGroup | None:
        """Return the group of a request; None if it has to be created. Raises RefusedError."""
        error = self._groups.available(request.group)
        if error is not ErrorCode.NONE:
            raise RefusedError(error, "The group is not served here any more.")
        name, group = request.group, self._groups.get(request.group)
        joins = request.member_epoch == JOIN
        if _declared(request) > self._groups.max_record_bytes(name):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the member is too large for a record of the group")
        if group is None and not joins:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {name} not found.")
        may_replace = joins and isinstance(group, ClassicGroup) and group.is_empty
        if group is not None and not isinstance(group, StreamsGroup) and not may_replace:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a streams group.")
        streams = group if isinstance(group, StreamsGroup) else None
        if not self._groups.holdings.admit(holder, topology_growth + _growth(streams, request)):
            message = "members of groups hold as much memory as this client may have"
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        return streams

    async def _configured(
        self, request: StreamsGroupHeartbeatRequest, checkpoint: Checkpoint
    ) -> ConfiguredTopology | None:
        """Fit the topology to the topics; None for a leaving member or without a topology. Raises RefusedError."""
        if request.member_epoch < JOIN:
            return None
        group = self._groups.get(request.group)
        if isinstance(group, StreamsGroup):
            if group.configured is not None:
                return group.configured
            topology = group.topology_for(request)
        else:
            topology = request.topology
        if topology is None:
            return None
        infos: dict[str, TopicInfo] = {}
        hashes: dict[str, int] = {}
        for name in required_topics(topology):
            info, topic_hash = self._groups.topics.named(name), self._groups.topics.hash_of(name)
            if info is not None and topic_hash is not None:
                infos[name], hashes[name] = info, topic_hash
            await checkpoint()
        topics_hash = group_hash(hashes)
        if isinstance(group, StreamsGroup):
            last = group.last_configured
            if last is not None and last.epoch == topology.epoch and last.metadata_hash == topics_hash:
                return last
        fit = partial(configure, topology, _Snapshot(infos), topics_hash)
        try:
            return fit() if len(infos) <= FEW_TOPICS else await trio.to_thread.run_sync(fit, limiter=self._workers)
        except InvalidTopologyError as error:
            raise RefusedError(ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error)) from None

    async def describe(self, name: str, checkpoint: Checkpoint) -> DescribedStreamsGroup:
        """Describe a group and its members, in steps."""
        error = self._groups.available_to_members(name)
        if error is not ErrorCode.NONE:
            return DescribedStreamsGroup(group=name, error=error)
        group = self._groups.get(name)
        if isinstance(group, StreamsGroup):
            steps = group.described()
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    description: DescribedStreamsGroup = end.value
                    return description
                await checkpoint()
        message = f"Group {name} not found." if group is None else f"Group {name} is not a streams group."
        return DescribedStreamsGroup(group=name, error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)


def _record_size(subtopology: Subtopology) -> int:
    """Estimate the bytes of a subtopology in a record, with a low bias."""
    size = sum([len(name) for name in (*subtopology.sources, *subtopology.repartition_sinks)])
    for topic in (*subtopology.changelogs, *subtopology.repartition_sources):
        size += len(topic.topic) + sum([len(config.key) + len(config.value) for config in topic.configs])
    return size


class _Snapshot:
    """Topics at a point in time."""

    def __init__(self, topics: Mapping[str, TopicInfo]) -> None:
        self._topics = topics

    def named(self, name: str) -> TopicInfo | None:
        """Return a topic by its name."""
        return self._topics.get(name)


def _growth(group: StreamsGroup | None, request: StreamsGroupHeartbeatRequest) -> int:
    """Estimate by how many bytes a group grows with a heartbeat, without tasks assigned later."""
    known = None if group is None else group.members.get(request.member_id)
    growth = GROUP_BYTES if group is None else 0
    if known is None and request.member_epoch == JOIN:
        growth += MEMBER_BYTES
    offsets = len(request.task_offsets or ()) + len(request.task_end_offsets or ())
    growth += PARTITION_BYTES * offsets
    return growth + max(0, _declared(request) - (0 if known is None else declared_size(known)))


def _declared(request: StreamsGroupHeartbeatRequest) -> int:
    """Estimate the bytes of a member's declaration, without its topology."""
    texts = (request.instance_id, request.rack_id, request.process_id)
    size = sum([len(text or "") for text in texts])
    size += sum([NAME_BYTES + len(tag.key) + len(tag.value) for tag in request.client_tags or ()])
    return size if request.user_endpoint is None else size + NAME_BYTES + len(request.user_endpoint.host)
