"""Consumer groups on the native protocol: the broker assigns the partitions.

A native join of a classic group is a JoinGroup followed by a SyncGroup with Kafka's consumer protocol and `range`
assignor; a native heartbeat of a consumer group is a ConsumerGroupHeartbeat. These requests are passed to the handlers
of Kafka's requests, so that native and Kafka clients can share a group under the same rules.

Invariants:
1. A new member whose client disconnects before the response leaves the group, since the client does not know its id.
2. The broker computes the assignment only if the leader is a native member.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER,
    GroupProtocol,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    PartitionEntry,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_protocol import (
    RANGE,
    Assignment,
    Subscription,
    assign_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from warmlog.protocol.kafka.messages.groups import consumer as modern
from warmlog.protocol.native.groups import (
    DEFAULT_REBALANCE_TIMEOUT_MS,
    HeartbeatConsumerGroupRequest,
    HeartbeatConsumerGroupResponse,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
)
from warmlog.protocol.response import ErrorResponse

PROTOCOL_VERSION = 0  # of the consumer protocol: supported by every client and sufficient for `range`
JOIN_EPOCH = 0
UNCHANGED_TIMEOUT_MS = -1
LEAVE_TIMEOUT_S = 1  # time to remove a member whose client disconnected; otherwise its session times out

# Messages for errors that the coordinator returns without one.
EXPLANATIONS = {
    ErrorCode.INVALID_GROUP_ID: "the group name must not be empty",
    ErrorCode.UNKNOWN_MEMBER_ID: "the member is unknown to the group; its session may have timed out",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session timeout is outside the range from group.min.session.timeout.ms to"
    " group.max.session.timeout.ms",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "this is a consumer group (KIP-848), or its members do not support the"
    " 'range' assignor",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has reached group.max.size members",
    ErrorCode.FENCED_INSTANCE_ID: "another member has joined with the same instance id",
}


class NativeGroupsApi:
    """Answers the native protocol's requests about groups by calling the handlers of Kafka's."""

    def __init__(self, groups: Iterable[Family], partitions: Partitions) -> None:
        """Collect the handlers of `groups`, the families that answer Kafka's requests about groups."""
        self._groups: dict[str, Handler] = {}
        for family in groups:
            self._groups.update(family.handlers())
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            JoinConsumerGroupRequest.api: self.join,
            HeartbeatConsumerGroupRequest.api: self.heartbeat,
        }

    # -- joining --

    async def join(
        self, request: JoinConsumerGroupRequest, context: Context
    ) -> JoinConsumerGroupResponse | ErrorResponse:
        """Join a group and wait for the assigned partitions."""
        joining = _Joining(request)
        try:
            while (response := await self._try_join(joining, context)) is None:
                pass  # another rebalance began before this one ended
        except trio.Cancelled:
            if joining.is_unknown_to_client:
                await self._leave(joining, context)
            raise
        return response

    async def _try_join(
        self, joining: "_Joining", context: Context
    ) -> JoinConsumerGroupResponse | ErrorResponse | None:
        """Take part in one rebalance; return None if the member has to rejoin."""
        joined: JoinGroupResponse = await self._ask(joining.join_request(), context)
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            joining.member_id = joined.member_id
            return None
        if joined.error is not ErrorCode.NONE:
            return _failed(joined)
        joining.member_id = joined.member_id
        assignments = () if joined.skip_assignment else self._assign(joined)
        synced: SyncGroupResponse = await self._ask(joining.sync_request(joined, assignments), context)
        if synced.error is ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if synced.error is not ErrorCode.NONE:
            return _failed(synced)
        return JoinConsumerGroupResponse(
            generation=joined.generation,
            member_id=joined.member_id,
            is_leader=joined.leader == joined.member_id,
            partitions=partitions_of(synced.assignment),
        )

    def _assign(self, joined: JoinGroupResponse) -> tuple[MemberAssignment, ...]:
        """Assign partitions to all members by `range`; empty for a follower, whose response lists no members."""
        wanted = {member.member_id: topics_of(member.metadata) for member in sorted(joined.members, key=_range_order)}
        topics = {name: self._partitions.topic(name) for names in wanted.values() for name in names}
        counts = {name: topic.partitions for name, topic in topics.items() if topic is not None}
        return tuple(
            MemberAssignment(
                member_id=member_id,
                assignment=encode_assignment(Assignment(partitions=partitions), PROTOCOL_VERSION),
            )
            for member_id, partitions in assign_range(wanted, counts).items()
        )

    async def _leave(self, joining: "_Joining", context: Context) -> None:
        with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
            await self._ask(joining.leave_request(), context)

    # -- consumer groups --

    async def heartbeat(
        self, request: HeartbeatConsumerGroupRequest, context: Context
    ) -> HeartbeatConsumerGroupResponse | ErrorResponse:
        """Join a consumer group, keep a membership, or leave (ConsumerGroupHeartbeat with topic names)."""
        response: modern.ConsumerGroupHeartbeatResponse = await self._ask(self._by_id(request), context)
        if response.error is not ErrorCode.NONE:
            return ErrorResponse(error=response.error, message=response.message)
        assignment = response.assignment
        return HeartbeatConsumerGroupResponse(
            member_epoch=response.member_epoch,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            partitions=None if assignment is None else self._by_name(assignment.partitions),
        )

    def _by_id(self, request: HeartbeatConsumerGroupRequest) -> modern.ConsumerGroupHeartbeatRequest:
        """Return Kafka's request, without partitions of topics that no longer exist."""
        joins = request.member_epoch == JOIN_EPOCH
        owned: tuple[modern.TopicPartitions, ...] | None = None
        if request.partitions is not None or joins:
            by_topic: dict[bytes, list[int]] = {}
            for entry in request.partitions or ():
                topic = self._partitions.topic(entry.topic)
                if topic is not None:
                    by_topic.setdefault(topic.id.bytes, []).append(entry.partition)
            owned = tuple(
                [
                    modern.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
                    for topic_id, indexes in by_topic.items()
                ]
            )
        timeout_ms = request.rebalance_timeout_ms
        if timeout_ms is None:
            timeout_ms = DEFAULT_REBALANCE_TIMEOUT_MS if joins else UNCHANGED_TIMEOUT_MS
        return modern.ConsumerGroupHeartbeatRequest(
            group=request.group,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack,
            rebalance_timeout_ms=timeout_ms,
            topics=request.topics,
            regex=request.pattern,
            assignor=request.assignor,
            owned=owned,
        )

    def _by_name(self, assigned: Iterable[modern.TopicPartitions]) -> tuple[PartitionEntry, ...]:
        """Return partitions by name, without those of topics deleted in the meantime."""
        named = [(self._partitions.topic_name(each.topic_id), each.partitions) for each in assigned]
        return tuple(
            [
                PartitionEntry(topic=topic, partition=index)
                for topic, indexes in named
                if topic is not None
                for index in indexes
            ]
        )

    async def _ask(self, request: Any, context: Context) -> Any:
        return await self._groups[request.api](request, context)


class _Joining:
    """A joining member and its requests to the coordinator."""

    def __init__(self, request: JoinConsumerGroupRequest) -> None:
        self._request = request
        self.member_id = request.member_id

    @property
    def is_unknown_to_client(self) -> bool:
        """Whether the member has an id that its client does not know and therefore cannot use."""
        has_new_id = self.member_id != NO_MEMBER and self._request.member_id == NO_MEMBER
        return has_new_id and self._request.instance_id is None

    def join_request(self) -> JoinGroupRequest:
        """Return the JoinGroup request. The first response to a new dynamic member has only its id (KIP-394)."""
        request = self._request
        metadata = encode_subscription(Subscription(topics=request.topics), PROTOCOL_VERSION)
        return JoinGroupRequest(
            group=request.group,
            member_id=self.member_id,
            instance_id=request.instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=(GroupProtocol(name=RANGE, metadata=metadata),),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )

    def sync_request(self, joined: JoinGroupResponse, assignments: tuple[MemberAssignment, ...]) -> SyncGroupRequest:
        """Return the SyncGroup request, with all members' assignments if this member leads."""
        return SyncGroupRequest(
            group=self._request.group,
            generation=joined.generation,
            member_id=joined.member_id,
            instance_id=self._request.instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )

    def leave_request(self) -> LeaveGroupRequest:
        """Return the LeaveGroup request."""
        leaving = LeavingMember(member_id=self.member_id, reason="the client disconnected before it was a member")
        return LeaveGroupRequest(group=self._request.group, members=(leaving,))


def _failed(response: JoinGroupResponse | SyncGroupResponse) -> ErrorResponse:
    return ErrorResponse(error=response.error, message=response.message or EXPLANATIONS.get(response.error))


def _range_order(member: JoinedMember) -> tuple[bool, str]:
    """Sort static members first, by instance id (Kafka's AbstractPartitionAssignor.MemberInfo)."""
    return (member.instance_id is None, member.instance_id or member.member_id)


def topics_of(metadata: bytes) -> tuple[str, ...]:
    """Return the topics of a member's subscription; none if its metadata is malformed."""
    try:
        return decode_subscription(metadata).topics
    except MalformedError:
        return ()


def partitions_of(assignment: bytes) -> tuple[PartitionEntry, ...]:
    """Return the partitions of a member's assignment; none if it is malformed."""
    try:
        return decode_assignment(assignment).partitions
    except MalformedError:
        return ()
