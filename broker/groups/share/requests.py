"""Validate heartbeats, and refuse those of unknown or fenced members. Changes nothing.

Source: Kafka's GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid, KafkaApis.isMemberIdValid and the
first checks of GroupMetadataManager.shareGroupHeartbeat (4.4).
"""

from dataclasses import dataclass

from warmlog.broker.groups.automaton import Answer, Client, Waiter
from warmlog.broker.groups.modern.refusals import JOIN, LEAVE, RefusedError, is_empty, unknown_member
from warmlog.broker.groups.modern.target import topic_partitions
from warmlog.broker.groups.share.stored import ShareCurrent, StoredShareGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.consumer import AssignedPartitions
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from warmlog.protocol.kafka.share_group_records import ShareMemberMetadata

MAX_MEMBER_ID = 36  # characters of a UUID as text


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A request whose member is to be reconciled.

    `before`: its assignment. `changed`: whether the request has raised the group's epoch.
    """

    waiter: Waiter
    request: ShareGroupHeartbeatRequest
    before: ShareCurrent
    changed: bool

    @property
    def member_id(self) -> str:
        """The id of the member."""
        return self.request.member_id

    def answer(self, current: ShareCurrent, interval_ms: int) -> Answer:
        """Return the response for the reconciled member. `interval_ms`: between its heartbeats."""
        request = self.request
        is_full = request.topics is not None
        shows = request.member_epoch == JOIN or is_full or current.assigned != self.before.assigned
        response = ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=interval_ms,
            assignment=AssignedPartitions(partitions=topic_partitions(current.assigned)) if shows else None,
        )
        return Answer(self.waiter, response)


def refusal(waiter: Waiter, refused: RefusedError) -> Answer:
    """Return the response that refuses a request."""
    return Answer(waiter, ShareGroupHeartbeatResponse(error=refused.error, message=refused.message))


def check_request(request: ShareGroupHeartbeatRequest) -> str | None:
    """Return why a heartbeat is invalid regardless of the group's state, None if it is valid."""
    rules = (
        (len(request.member_id) > MAX_MEMBER_ID, "Invalid member id in the request."),
        (is_empty(request.member_id), "MemberId can't be empty."),
        (is_empty(request.group), "GroupId can't be empty."),
        (is_empty(request.rack_id), "RackId can't be empty."),
        (request.member_epoch == JOIN and not request.topics, "SubscribedTopicNames must be set in first request."),
        (request.member_epoch < LEAVE, "MemberEpoch is invalid."),
    )
    return next((message for is_broken, message in rules if is_broken), None)


def check_member(group: StoredShareGroup, request: ShareGroupHeartbeatRequest, max_size: int) -> None:
    """Refuse a new member of a full group, an unknown member, and a wrong epoch. Raises RefusedError.

    The previous epoch is accepted, because the member's last response may be lost.
    """
    member_id, received = request.member_id, request.member_epoch
    if member_id not in group.metadata:
        if len(group.metadata) >= max_size:
            message = f"The share group has reached its maximum capacity of {max_size} members."
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if received != JOIN:
            raise unknown_member(group.group_id, member_id)
        return
    current = group.current(member_id)
    known, previous = current.epoch, current.value.previous_epoch
    abandon = "The member must abandon all its partitions and rejoin."
    if received > known:
        raise RefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a greater member epoch ({received}) than the one known by the group "
            f"coordinator ({known}). {abandon}",
        )
    if JOIN < received < known and received != previous:
        raise RefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a smaller member epoch ({received}) than the one known by the group "
            f"coordinator ({known}), and it does not match the previous member epoch ({previous}). {abandon}",
        )


def updated(
    known: ShareMemberMetadata | None, request: ShareGroupHeartbeatRequest, client: Client
) -> ShareMemberMetadata:
    """Return a member with a heartbeat's declaration, or `known` itself if nothing changes."""
    topics = () if known is None else known.topics
    if request.topics is not None and frozenset(request.topics) != frozenset(topics):
        topics = tuple(sorted(set(request.topics)))
    rack_id = None if known is None else known.rack_id
    after = ShareMemberMetadata(
        rack_id=rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=topics,
    )
    return known if known is not None and after == known else after
