"""Validate heartbeats, and refuse those of unknown or fenced members. Changes nothing.

Source: Kafka's GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid and the first checks of
GroupMetadataManager.consumerGroupHeartbeat and consumerGroupLeave (4.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from warmlog.broker.groups.automaton import Answer, Waiter
from warmlog.broker.groups.consumer import regexes
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import KNOWN_STATES, Current, assigned_partitions, owns_only
from warmlog.broker.groups.modern.refusals import JOIN, LEAVE, RefusedError, is_empty, unknown_member
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART, check_instance, unreleased
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CONSUMER_PROTOCOL_TYPE, JoinGroupRequest, JoinGroupResponse
from warmlog.protocol.kafka.consumer_group_records import MemberMetadata
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

UNCHANGED_TIMEOUT = -1
OWN_MEMBER_ID_VERSION = 1  # since this version clients choose their member ids


Request: TypeAlias = ConsumerGroupHeartbeatRequest | JoinGroupRequest  # epochs of a member that joins or stays


@dataclass(frozen=True, slots=True)
class Declaration:
    """An accepted request and its declaration. `replaced`: the former id of a restarted static member.

    `owned`: the partitions that the member reports; None without a report.
    """

    waiter: Waiter
    request: Request
    member_id: str
    replaced: str | None
    metadata: MemberMetadata
    owned: Sequence[TopicPartitions] | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A request whose member is to be reconciled. `before`: its assignment; `owned`: its report, if that counts."""

    waiter: Waiter
    request: Request
    member_id: str
    owned: Sequence[TopicPartitions] | None
    before: Current
    subscription_changed: bool


def refusal(waiter: Waiter, request: Request, refused: RefusedError) -> Answer:
    """Return the response that refuses a request."""
    if isinstance(request, JoinGroupRequest):
        return Answer(waiter, JoinGroupResponse(error=refused.error, member_id=refused.member_id))
    return Answer(waiter, ConsumerGroupHeartbeatResponse(error=refused.error, message=refused.message))


def answer(heartbeat: Heartbeat, current: Current, interval_ms: int) -> Answer:
    """Return the response for a reconciled member. `interval_ms`: between its heartbeats."""
    request = heartbeat.request
    if isinstance(request, JoinGroupRequest):
        joined = JoinGroupResponse(
            generation=current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
            member_id=heartbeat.member_id,
        )
        return Answer(heartbeat.waiter, joined)
    shows = request.member_epoch == JOIN or is_full(request) or current.assigned != heartbeat.before.assigned
    response = ConsumerGroupHeartbeatResponse(
        member_id=heartbeat.member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assigned_partitions(current.assigned) if shows else None,
    )
    return Answer(heartbeat.waiter, response)


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> tuple[ErrorCode, str | None]:
    """Return NONE, or why a heartbeat is invalid regardless of the group's state. `assignors`: names, as configured."""
    message = _invalid(request, version)
    if message is not None:
        return ErrorCode.INVALID_REQUEST, message
    if request.assignor is not None and request.assignor not in assignors:
        supported = ", ".join(assignors)
        return ErrorCode.UNSUPPORTED_ASSIGNOR, (
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {supported}."
        )
    return ErrorCode.NONE, None


def _invalid(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return the message of the first rule that a request violates."""
    epoch = request.member_epoch
    joins, has_subscription = epoch == JOIN, request.topics is not None or request.regex is not None
    rules = (
        (is_empty(request.member_id) and _needs_member_id(epoch, version), "MemberId can't be empty."),
        (is_empty(request.group), "GroupId can't be empty."),
        (is_empty(request.instance_id), "InstanceId can't be empty."),
        (is_empty(request.rack_id), "RackId can't be empty."),
        (
            joins and request.rebalance_timeout_ms == UNCHANGED_TIMEOUT,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (joins and request.owned != (), "TopicPartitions must be empty when (re-)joining."),
        (
            joins and not has_subscription,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (epoch == LEAVE_FOR_RESTART and request.instance_id is None, "InstanceId can't be null."),
        (epoch < LEAVE_FOR_RESTART, "MemberEpoch is invalid."),
    )
    return next((message for is_broken, message in rules if is_broken), None)


def _needs_member_id(epoch: int, version: int) -> bool:
    return version >= OWN_MEMBER_ID_VERSION or epoch > JOIN or epoch == LEAVE


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a heartbeat is full, as after an error; then its response has the assignment."""
    has_subscription = request.topics is not None or request.regex is not None
    return has_subscription and request.rebalance_timeout_ms != UNCHANGED_TIMEOUT and request.owned is not None


def check_size(group: StoredGroup, request: Request, max_size: int) -> None:
    """Refuse a new member of a full group. Raises RefusedError."""
    if len(group.metadata) < max_size or request.member_id in group.metadata or request.instance_id in group.static:
        return
    raise RefusedError(
        ErrorCode.GROUP_MAX_SIZE_REACHED, f"The consumer group has reached its maximum capacity of {max_size} members."
    )


def check_member(group: StoredGroup, request: ConsumerGroupHeartbeatRequest, member_id: str) -> None:
    """Refuse a heartbeat of an unknown or fenced member, or with a wrong epoch. Raises RefusedError."""
    if request.instance_id is None:
        if request.member_epoch != JOIN and member_id not in group.metadata:
            raise unknown_member(group.group_id, member_id)
    elif request.member_epoch != JOIN:
        check_instance(group.static, request.instance_id, member_id)
    else:
        _check_released(group, request.instance_id, member_id)
    if member_id in group.metadata:
        _check_epoch(group, request, member_id)


def _check_released(group: StoredGroup, instance_id: str, member_id: str) -> None:
    """Refuse a static member while another process of the consumer protocol uses its instance id."""
    owner = group.static.get(instance_id)
    if owner is None or group.metadata[owner].classic or group.current(owner).epoch == LEAVE_FOR_RESTART:
        return
    raise unreleased(instance_id, member_id, owner)


def _check_epoch(group: StoredGroup, request: ConsumerGroupHeartbeatRequest, member_id: str) -> None:
    """Refuse a wrong epoch.

    The previous epoch is accepted if the member reports only what it was assigned: its last response may be lost.
    """
    current = group.current(member_id)
    received, known = request.member_epoch, current.epoch
    abandon = "The member must abandon all its partitions and rejoin."
    if current.value.state not in KNOWN_STATES and request.owned != ():
        raise RefusedError(ErrorCode.FENCED_MEMBER_EPOCH, f"The consumer group member is in a unknown state. {abandon}")
    if received in {JOIN, known}:
        return
    if received == current.value.previous_epoch and received < known and owns_only(request.owned, current.assigned):
        return
    comparison = "greater" if received > known else "smaller"
    raise RefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {comparison} member epoch ({received}) than the one known by the group "
        f"coordinator ({known}). {abandon}",
    )


def check_regex(group: StoredGroup, pattern: str | None) -> None:
    """Refuse an invalid expression, unless a member already subscribes to it. Raises RefusedError."""
    if pattern and not group.subscriptions.subscribers(pattern):
        message = regexes.check(pattern)
        if message is not None:
            raise RefusedError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
