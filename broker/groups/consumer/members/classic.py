"""The requests that members of the classic protocol send to a consumer group.

They join, sync, send heartbeats and leave as in a classic group, but none of them assigns partitions: the generation is
the member's epoch, JoinGroup moves the member to it, and SyncGroup returns the member's assignment. A heartbeat tells
the member to join again whenever a step towards its target is due.

Source: Kafka's GroupMetadataManager (4.4: classicGroupJoinToConsumerGroup, classicGroupSyncToConsumerGroup,
classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup).
"""

import struct
from collections.abc import Iterable

from warmlog.broker.groups.automaton import Client, Instant, Waiter
from warmlog.broker.groups.consumer.members.declarations import joined, joined_as_classic
from warmlog.broker.groups.consumer.members.sessions import Sessions
from warmlog.broker.groups.consumer.requests import Declaration, check_size
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import Current, Holding, MemberState
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.refusals import RefusedError, unknown_member
from warmlog.broker.groups.modern.static_members import check_instance
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER,
    JoinGroupRequest,
    LeavingMember,
    PartitionEntry,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_group_records import ClassicMember
from warmlog.protocol.kafka.consumer_protocol import (
    LAST_VERSION,
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from warmlog.protocol.kafka.messages.groups.consumer import TopicPartitions

_VERSION = struct.Struct(">h")


def declared(
    group: StoredGroup, request: JoinGroupRequest, client: Client, waiter: Waiter, *, topics: Topics, max_size: int
) -> Declaration:
    """Check a JoinGroup, and return its declaration. Raises RefusedError."""
    member_id = request.member_id or client.new_id
    check_size(group, request, max_size)
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.subscriptions.supports_any(names):
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")
    is_new, instance_id = request.member_id == NO_MEMBER, request.instance_id
    if is_new and instance_id is None and request.requires_known_member:
        message = "A new member has to join again with the id that it gets."
        raise RefusedError(ErrorCode.MEMBER_ID_REQUIRED, message, member_id)
    if instance_id is not None and not is_new:
        check_instance(group.static, instance_id, member_id)
    replaced = group.static.get(instance_id or "") if is_new else None
    try:
        subscription = decode_subscription(request.protocols[0].metadata)
    except MalformedError as error:
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    known = group.metadata.get(replaced or member_id) or joined(client)
    metadata = joined_as_classic(known, request, subscription, client)
    return Declaration(waiter, request, member_id, replaced, metadata, _owned(subscription, topics))


def _owned(subscription: Subscription, topics: Topics) -> list[TopicPartitions]:
    """Return the partitions that a member reports, of topics that exist."""
    owned: dict[bytes, list[int]] = {}
    for entry in subscription.owned:
        topic = topics.named(entry.topic)
        if topic is not None:
            owned.setdefault(topic.id, []).append(entry.partition)
    return [TopicPartitions(topic_id=topic_id, partitions=tuple(numbers)) for topic_id, numbers in owned.items()]


def sync(
    group: StoredGroup, sessions: Sessions, request: SyncGroupRequest, topics: Topics, now: Instant
) -> SyncGroupResponse:
    """Return a member's assignment. Raises RefusedError."""
    member_id = request.member_id
    classic, current = _member(group, member_id, request.instance_id, request.generation)
    name = classic.protocols[0].name
    if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol_name not in {None, name}:
        raise RefusedError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {member_id} has joined with protocol {name} of type {CONSUMER_PROTOCOL_TYPE}.",
        )
    if group.epoch.epoch > current.epoch and current.value.state != MemberState.UNREVOKED_PARTITIONS:
        sessions.limit_join(member_id, now)
        raise RefusedError(
            ErrorCode.REBALANCE_IN_PROGRESS,
            f"A new rebalance is triggered in group {group.group_id} and member {member_id} should rejoin to catch up.",
        )
    sessions.synced(member_id, now)
    return SyncGroupResponse(
        assignment=serialized(current.assigned, classic.protocols[0].metadata, topics),
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
    )


def serialized(holding: Holding, metadata: bytes, topics: Topics) -> bytes:
    """Return an assignment in the version of a subscription. Partitions of topics that do not exist are omitted."""
    named = [(topic.name, numbers) for each, numbers in holding.items() if (topic := topics.identified(each))]
    entries = [PartitionEntry(topic=name, partition=number) for name, numbers in named for number in numbers]
    version = min(_VERSION.unpack_from(metadata)[0], LAST_VERSION)
    return encode_assignment(Assignment(partitions=tuple(entries)), version)


def heartbeat(
    group: StoredGroup, sessions: Sessions, member_id: str, instance_id: str | None, generation: int, *, now: Instant
) -> ErrorCode:
    """Extend a member's session. REBALANCE_IN_PROGRESS tells it to join again. Raises RefusedError."""
    _, current = _member(group, member_id, instance_id, generation)
    sessions.extend(member_id, 0, now)
    state = current.value.state
    if (
        current.epoch < group.epoch.epoch
        or state == MemberState.UNREVOKED_PARTITIONS
        or (state == MemberState.UNRELEASED_PARTITIONS and not _waits(group, member_id, current))
    ):
        sessions.limit_join(member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _waits(group: StoredGroup, member_id: str, current: Current) -> bool:
    """Return whether other members still have partitions of a member's target."""
    return any(
        number not in current.assigned.get(topic_id, {}) and group.owner(topic_id, number) is not None
        for topic_id, numbers in group.target(member_id).partitions.items()
        for number in numbers
    )


def _member(
    group: StoredGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ClassicMember, Current]:
    """Return a member of the classic protocol in its epoch. Raises RefusedError."""
    if instance_id is not None:
        check_instance(group.static, instance_id, member_id)
    metadata = group.metadata.get(member_id)
    if metadata is None:
        raise unknown_member(group.group_id, member_id)
    if metadata.classic is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    current = group.current(member_id)
    if current.epoch != generation:
        raise RefusedError(
            ErrorCode.ILLEGAL_GENERATION,
            f"Generation {generation} is not the epoch {current.epoch} of member {member_id}.",
        )
    return metadata.classic, current


def leaving(group: StoredGroup, members: Iterable[LeavingMember]) -> tuple[list[str], list[ErrorCode]]:
    """Return the members that leave, and an error code for each requested one."""
    leave: dict[str, None] = {}
    errors = []
    for each in members:
        try:
            leave[_leaving(group, each)] = None
            errors.append(ErrorCode.NONE)
        except RefusedError as refused:
            errors.append(refused.error)
    return list(leave), errors


def _leaving(group: StoredGroup, each: LeavingMember) -> str:
    if each.instance_id is None:
        if each.member_id not in group.metadata:
            raise unknown_member(group.group_id, each.member_id)
        return each.member_id
    owner = group.static.get(each.instance_id, each.member_id)
    check_instance(group.static, each.instance_id, each.member_id or owner)  # administrators send only the instance id
    return owner
