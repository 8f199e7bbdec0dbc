"""The requests of a member of a consumer group (KIP-848): heartbeats that report changes.

    join (epoch 0) -> heartbeats at the broker's interval, each with the current epoch
    reply with fewer partitions -> the reader gives them up -> heartbeat without them
    reply with more partitions  -> the reader opens them    -> heartbeat with them
    fenced                      -> it gives all up          -> join again with the same member id

After an error, the next heartbeat has all fields: the broker may not have received the last one.
"""

from uuid import uuid4

from warmlog.client.connection.cluster import Cluster
from warmlog.client.errors import WarmlogError, broker_error
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.subscribed_topics import SubscribedTopics
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_GENERATION, ConsumerGroupState, CoordinatorType, PartitionEntry
from warmlog.protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    HeartbeatConsumerGroupRequest,
    HeartbeatConsumerGroupResponse,
)
from warmlog.protocol.native.messages import FIRST_WITH_CONSUMER_GROUPS
from warmlog.protocol.partitions import TopicPartition

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_RESTART_EPOCH = -2  # sent by a static member
FIRST_INTERVAL_S = 5.0  # until the broker has sent its interval


async def settled_partitions(cluster: Cluster, group: str, member_id: str) -> frozenset[TopicPartition] | None:
    """Return the partitions of a member of a group, None until every member has its target assignment.

    The member itself may learn of them later, by the reply to a heartbeat. Raises WarmlogError.
    """
    request = DescribeConsumerGroupsRequest(groups=(group,))
    reply = await cluster.ask_coordinator(CoordinatorType.GROUP, group, request, DescribeConsumerGroupsResponse)
    (described,) = reply.groups
    if described.state == ConsumerGroupState.STABLE:
        for member in described.members:
            if member.member_id == member_id:
                return frozenset([(entry.topic, entry.partition) for entry in member.partitions])
    return None


class ConsumerMember:
    """A member of a consumer group. See `GroupMember`."""

    def __init__(self, coordinator: CoordinatorLink, options: MemberOptions, topics: SubscribedTopics) -> None:
        self._coordinator = coordinator
        self._options = options
        self._topics = topics
        self._interval_s = FIRST_INTERVAL_S
        self._has_joined = False
        self._reported: frozenset[TopicPartition] | None = None  # None if unknown
        self._subscribed: tuple[str, ...] | None = None
        self.member_id = str(uuid4())
        self.generation = NO_GENERATION
        self.target: frozenset[TopicPartition] = frozenset()
        self.held: frozenset[TopicPartition] = frozenset()

    @property
    def heartbeat_interval_s(self) -> float:
        """The broker's interval."""
        return self._interval_s

    @property
    def may_be_member(self) -> bool:
        """Whether a join was sent: the broker may have received it without a reply."""
        return self._has_joined

    @property
    def is_heartbeat_due(self) -> bool:
        """Whether partitions were given up or opened since the last heartbeat."""
        return self.generation != NO_GENERATION and self._reported is not None and self._reported != self.held

    async def join(self) -> None:
        """Join with epoch 0; other members may still have to give up partitions. Raises WarmlogError."""
        self.target = self.held = self._reported = frozenset()
        self._subscribed = None
        self._has_joined = True
        try:
            await self._send(JOIN_EPOCH)
        except WarmlogError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                message = "the group is a classic group that has members: a member must join with their protocol"
                raise broker_error(error.code, message, about=f"group {self._options.group!r}") from error
            raise

    async def heartbeat(self) -> bool:
        """Report the changes, and update `target`. Raises WarmlogError."""
        if self._options.pattern is not None:
            await self._topics.have_changed(is_leader=False)
        try:
            await self._send(self.generation)
        except WarmlogError:
            self._reported = self._subscribed = None
            raise
        return False

    async def _send(self, epoch: int) -> None:
        options = self._options
        names, held = self._topics.names, self.held
        is_full = self._subscribed is None
        request = HeartbeatConsumerGroupRequest(
            group=options.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=options.instance_id,
            rebalance_timeout_ms=round(options.rebalance_timeout_s * 1000) if is_full else None,
            topics=names if names != self._subscribed else None,
            partitions=tuple([PartitionEntry(topic=topic, partition=index) for topic, index in sorted(held)])
            if is_full or held != self._reported
            else None,
        )
        reply = await self._coordinator.request(
            request, HeartbeatConsumerGroupResponse, since=FIRST_WITH_CONSUMER_GROUPS
        )
        self._reported, self._subscribed = held, names
        self.generation = reply.member_epoch
        self._interval_s = reply.heartbeat_interval_ms / 1000
        if reply.partitions is not None:
            self.target = frozenset([(entry.topic, entry.partition) for entry in reply.partitions])

    def end(self, error: WarmlogError) -> None:
        """Drop everything after the member was fenced or removed."""
        del error
        self.generation = NO_GENERATION
        self.target = self.held = frozenset()

    async def leave(self) -> None:
        """Leave; a static member leaves only temporarily, until it returns. Raises WarmlogError."""
        is_static = self._options.instance_id is not None
        request = HeartbeatConsumerGroupRequest(
            group=self._options.group,
            member_id=self.member_id,
            member_epoch=LEAVE_FOR_RESTART_EPOCH if is_static else LEAVE_EPOCH,
            instance_id=self._options.instance_id,
        )
        await self._coordinator.request(request, HeartbeatConsumerGroupResponse, since=FIRST_WITH_CONSUMER_GROUPS)
