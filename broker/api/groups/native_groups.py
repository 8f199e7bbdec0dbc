"""Consumer groups on the native protocol: the broker assigns the partitions and describes groups with their lag.

A native join is a JoinGroup followed by a SyncGroup with Kafka's consumer protocol and `range` assignor. They go to the
handlers of Kafka's requests, so that native and Kafka clients can share a group under the same rules.

Invariants:
1. A new member whose client disconnects before the response leaves the group, since the client does not know its id.
2. The broker computes the assignment only if the leader is a native member.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import trio
from msgspec.structs import replace

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER,
    NO_OFFSET,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    FetchedOffset,
    FetchedOffsets,
    GroupProtocol,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetFetchGroup,
    OffsetFetchRequest,
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
from warmlog.protocol.native.groups import (
    ConsumerGroupMember,
    DescribeConsumerGroupsRequest,
    DescribeConsumerGroupsResponse,
    DescribedConsumerGroup,
    GroupPosition,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
)
from warmlog.protocol.response import ErrorResponse

PROTOCOL_VERSION = 0  # of the consumer protocol: supported by every client and sufficient for `range`
LEAVE_TIMEOUT_S = 1  # for a member whose client disconnected; otherwise its session times out

# Messages for errors that the coordinator returns without one.
EXPLANATIONS = {
    ErrorCode.INVALID_GROUP_ID: "the group name must not be empty",
    ErrorCode.UNKNOWN_MEMBER_ID: "the member is unknown to the group; its session may have timed out",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session timeout is outside the range from group.min.session.timeout.ms to"
    " group.max.session.timeout.ms",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the members of this group do not support the 'range' assignor",
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
            DescribeConsumerGroupsRequest.api: self.describe,
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
        """Take part in one rebalance; return None if the member has to join again."""
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
            partitions=_partitions_of(synced.assignment),
        )

    def _assign(self, joined: JoinGroupResponse) -> tuple[MemberAssignment, ...]:
        """Assign partitions to all members by `range`; empty for a follower, whose response lists no members."""
        wanted = {member.member_id: _topics_of(member.metadata) for member in sorted(joined.members, key=_range_order)}
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

    # -- describing --

    async def describe(
        self, request: DescribeConsumerGroupsRequest, context: Context
    ) -> DescribeConsumerGroupsResponse | ErrorResponse:
        """Describe groups with decoded assignments, committed offsets and the logs' start and high watermark."""
        described = await self._ask(DescribeGroupsRequest(groups=request.groups), context)
        requested = tuple(OffsetFetchGroup(group=group) for group in request.groups)
        fetched = await self._ask(OffsetFetchRequest(groups=requested), context)
        pairs = zip(described.groups, fetched.groups, strict=True)
        return DescribeConsumerGroupsResponse(groups=tuple(self._described(*pair) for pair in pairs))

    def _described(self, group: DescribedGroup, offsets: FetchedOffsets) -> DescribedConsumerGroup:
        members = tuple(
            _consumer(member) if group.protocol_type == CONSUMER_PROTOCOL_TYPE else _member(member)
            for member in group.members
        )
        return DescribedConsumerGroup(
            group=group.group,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            members=members,
            positions=self._positions(members, offsets.partitions),
            error=group.error or offsets.error,
            message=group.message or EXPLANATIONS.get(group.error),
        )

    def _positions(
        self, members: Iterable[ConsumerGroupMember], offsets: Iterable[FetchedOffset]
    ) -> tuple[GroupPosition, ...]:
        owners = {(entry.topic, entry.partition): member.member_id for member in members for entry in member.partitions}
        committed = {(entry.topic, entry.partition): entry for entry in offsets}
        return tuple(
            self._position(*topic_partition, owners.get(topic_partition), committed.get(topic_partition))
            for topic_partition in sorted(owners.keys() | committed.keys())
        )

    def _position(
        self, topic: str, index: int, member_id: str | None, committed: FetchedOffset | None
    ) -> GroupPosition:
        partition = self._partitions.get(topic, index)
        position = GroupPosition(
            topic=topic,
            partition=index,
            log_start_offset=NO_OFFSET if partition is None else partition.log.offsets.log_start_offset,
            high_watermark=NO_OFFSET if partition is None else partition.log.offsets.high_watermark,
            member_id=member_id,
        )
        if committed is None:
            return position
        return replace(
            position, offset=committed.offset, leader_epoch=committed.leader_epoch, metadata=committed.metadata
        )

    async def _ask(self, request: Any, context: Context) -> Any:
        return await self._groups[request.api](request, context)


class _Joining:
    """A member that is joining, and its requests to the coordinator."""

    def __init__(self, request: JoinConsumerGroupRequest) -> None:
        self._request = request
        self.member_id = request.member_id

    @property
    def is_unknown_to_client(self) -> bool:
        """Whether the member has an id that its client does not know, so that nobody can use it again."""
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


def _topics_of(metadata: bytes) -> tuple[str, ...]:
    """Return the topics of a member's subscription; none if its metadata is malformed."""
    try:
        return decode_subscription(metadata).topics
    except MalformedError:
        return ()


def _partitions_of(assignment: bytes) -> tuple[PartitionEntry, ...]:
    try:
        return decode_assignment(assignment).partitions
    except MalformedError:
        return ()


def _consumer(member: DescribedMember) -> ConsumerGroupMember:
    return replace(_member(member), topics=_topics_of(member.metadata), partitions=_partitions_of(member.assignment))


def _member(member: DescribedMember) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
    )
