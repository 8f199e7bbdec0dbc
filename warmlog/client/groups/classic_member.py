"""The requests of a member of a classic group, which gives up all partitions in a rebalance and rejoins."""

from typing import Protocol

from warmlog.client.errors import WarmlogError
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.subscribed_topics import SubscribedTopics
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
)
from warmlog.protocol.native.groups import JoinConsumerGroupRequest, JoinConsumerGroupResponse
from warmlog.protocol.partitions import TopicPartition

MAX_HEARTBEAT_INTERVAL_S = 3.0  # Kafka's heartbeat.interval.ms
HEARTBEATS_PER_SESSION = 3  # tolerates two lost heartbeats


class GroupMember(Protocol):
    """The requests of a member, independent of the type of its group.

    `generation`: the member's generation or epoch, NO_GENERATION while it is not a member. `target`: the partitions
    that it may read. `held`: the partitions that it reads. `heartbeat_interval_s`: time between two heartbeats.
    """

    member_id: str
    generation: int
    target: frozenset[TopicPartition]
    held: frozenset[TopicPartition]

    @property
    def heartbeat_interval_s(self) -> float:
        """Time between two heartbeats."""

    @property
    def may_be_member(self) -> bool:
        """Whether the group may still list this member."""

    @property
    def is_heartbeat_due(self) -> bool:
        """Whether the broker should be informed before the next interval is over."""

    async def join(self) -> None:
        """Join, and set `target`. Raises WarmlogError."""

    async def heartbeat(self) -> bool:
        """Keep the membership alive, and return whether the member has to join again. Raises WarmlogError."""

    def end(self, error: WarmlogError) -> None:
        """Handle an error that ends this generation or this membership."""

    async def leave(self) -> None:
        """Leave the group, if members of this kind leave. Raises WarmlogError."""


class ClassicMember:
    """A member of a classic group. See `GroupMember`."""

    def __init__(self, coordinator: CoordinatorLink, options: MemberOptions, topics: SubscribedTopics) -> None:
        self._coordinator = coordinator
        self._options = options
        self._topics = topics
        self._is_leader = False
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.target: frozenset[TopicPartition] = frozenset()
        self.held: frozenset[TopicPartition] = frozenset()

    @property
    def heartbeat_interval_s(self) -> float:
        """A third of the session timeout, at most three seconds."""
        return min(MAX_HEARTBEAT_INTERVAL_S, self._options.session_timeout_s / HEARTBEATS_PER_SESSION)

    @property
    def may_be_member(self) -> bool:
        """Whether the member has an id. The broker drops a first join if its connection closes."""
        return self.member_id != NO_MEMBER

    @property
    def is_heartbeat_due(self) -> bool:
        """Always False: joining informs the broker."""
        return False

    async def join(self) -> None:
        """Join, and wait until all members have joined. Raises WarmlogError."""
        options = self._options
        request = JoinConsumerGroupRequest(
            group=options.group,
            topics=self._topics.names,
            member_id=self.member_id,
            instance_id=options.instance_id,
            session_timeout_ms=round(options.session_timeout_s * 1000),
            rebalance_timeout_ms=round(options.rebalance_timeout_s * 1000),
        )
        joined = await self._coordinator.request(
            request, JoinConsumerGroupResponse, extra_s=options.rebalance_timeout_s
        )
        self.member_id, self.generation, self._is_leader = joined.member_id, joined.generation, joined.is_leader
        self.target = frozenset([(entry.topic, entry.partition) for entry in joined.partitions])

    async def heartbeat(self) -> bool:
        """Send a heartbeat; return whether a topic has changed. Raises WarmlogError."""
        request = HeartbeatRequest(
            group=self._options.group,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self._options.instance_id,
        )
        await self._coordinator.request(request, HeartbeatResponse)
        return await self._topics.have_changed(is_leader=self._is_leader)

    def end(self, error: WarmlogError) -> None:
        """Drop the member id if the group has no such member, and the generation unless it can still commit."""
        if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = NO_MEMBER
        if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = NO_GENERATION

    async def leave(self) -> None:
        """Leave, unless this is a static member, which may return. Raises WarmlogError."""
        if self._options.instance_id is None:
            leaving = LeavingMember(member_id=self.member_id, reason="the consumer was closed")
            await self._coordinator.request(
                LeaveGroupRequest(group=self._options.group, members=(leaving,)), LeaveGroupResponse
            )
