"""A group's generation: number, members and protocol, and the responses and records made from them.

Decisions that depend only on the members are made here: who is fenced, which protocol is chosen, which topics are
subscribed to. They do not depend on the group's state.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from warmlog.broker.groups.classic.members import Member, Members
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER,
    GroupProtocol,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import StoredGroup, StoredMember, subscribed_topics


class Generation:
    """The current generation. During the join phase its members already include those of the next one."""

    __slots__ = ("members", "number", "protocol_name", "protocol_type", "subscribed_topics")

    def __init__(self) -> None:
        """Create generation 0, without members."""
        self.number = 0
        self.members = Members()
        self.protocol_type: str | None = None  # None: the group has never had members
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None  # None: unknown

    @classmethod
    def restore(cls, stored: StoredGroup) -> Self:
        """Return a stored generation. Raises MalformedError if two members share an id or an instance id."""
        ids = [member.member_id for member in stored.members]
        instances = [member.instance_id for member in stored.members if member.instance_id is not None]
        if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
            raise MalformedError("a stored group has two members with the same member id or instance id")
        generation = cls()
        generation.number = stored.generation
        generation.protocol_type = stored.protocol_type or None
        generation.protocol_name = stored.protocol
        for member in stored.members:
            generation.members.add(_restored(member, stored.protocol or ""))
        if stored.leader is not None and stored.leader in generation.members:
            generation.members.leader = stored.leader
        generation.subscribed_topics = generation._topics()
        return generation

    def begin_next(self) -> None:
        """Begin the next generation with the current members, and choose its protocol."""
        self.number += 1
        self.choose_protocol()

    def choose_protocol(self) -> None:
        """Choose the protocol of the current members."""
        self.protocol_name = self.members.choose_protocol() if self.members else None
        self.subscribed_topics = self._topics()

    # -- queries --

    @property
    def is_consumer_group(self) -> bool:
        """Whether the members speak Kafka's consumer protocol, whose metadata names the subscribed topics."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic, or may do so because its topics are unknown."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics

    def supports(self, request: JoinGroupRequest) -> bool:
        """Return whether a joining member has the group's protocol type, and a protocol that all members support."""
        return request.protocol_type == self.protocol_type and self.members.supports_any(request.protocols)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id now has another member id."""
        if instance_id is not None:
            known_id = self.members.static_id(instance_id)
            if known_id is not None and known_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_member_of(self, number: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error of `check_member`, or ILLEGAL_GENERATION if `number` is not the current generation."""
        error = self.check_member(member_id, instance_id)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.NONE and number != self.number else error

    def check_sync(self, request: SyncGroupRequest) -> ErrorCode:
        """Return the error of `check_member_of`, or INCONSISTENT_GROUP_PROTOCOL if the request has another protocol."""
        error = self.check_member_of(request.generation, request.member_id, request.instance_id)
        if error is ErrorCode.NONE and (
            _differs(request.protocol_type, self.protocol_type) or _differs(request.protocol_name, self.protocol_name)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return error

    # -- responses --

    def joined(
        self,
        member: Member,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
        members: Sequence[JoinedMember] | None = None,
    ) -> JoinGroupResponse:
        """Return the JoinGroup response for a member. The leader's lists all members.

        `leader` and `members` override those of the group.
        """
        if members is None:
            members = self._joined_members() if self.members.leader == member.member_id else ()
        return JoinGroupResponse(
            generation=self.number,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader or self.members.leader or NO_MEMBER,
            member_id=member.member_id,
            skip_assignment=skip_assignment,
            members=tuple(members),
        )

    def synced(self, member: Member) -> SyncGroupResponse:
        """Return the SyncGroup response with a member's assignment."""
        return SyncGroupResponse(
            assignment=member.assignment, protocol_type=self.protocol_type, protocol_name=self.protocol_name
        )

    # -- records --

    def snapshot(self, assignments: Mapping[str, bytes], state_since_ms: int) -> StoredGroup:
        """Return the record of this generation with these assignments, by member id."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.number,
            protocol=self.protocol_name,
            leader=self.members.leader,
            state_since_ms=state_since_ms,
            members=tuple(
                StoredMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members
            ),
        )

    # -- helpers --

    def _joined_members(self) -> list[JoinedMember]:
        return [
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members
        ]

    def _topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to; None if their metadata cannot be decoded."""
        if not self.is_consumer_group:
            return None
        try:
            topics = [subscribed_topics(member.metadata(self.protocol_name)) for member in self.members]
        except MalformedError:
            return None
        return frozenset().union(*topics)


def _restored(member: StoredMember, protocol: str) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        holder=member.client_host.removeprefix("/"),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=(GroupProtocol(name=protocol, metadata=member.subscription),),
        assignment=member.assignment,
    )


def _differs(requested: str | None, current: str | None) -> bool:
    return requested is not None and current is not None and requested != current
