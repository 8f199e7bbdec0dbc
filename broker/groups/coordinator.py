"""Handle the requests of group members and administrators: join, sync, heartbeat, leave, list, describe.

Invariants:
1. A request changes its group in one synchronous call, and only then waits for its response.
2. When a waiting client disconnects, its waiter is dropped immediately; the member stays until its session timeout.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService, GroupMetadataManager.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.classic.members import MEMBER_BYTES, size_of
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES as CONSUMER_BYTES
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.topic import TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_MEMBER,
    DescribedGroup,
    DescribedMember,
    GroupState,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeavingMember,
    ListedGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

MAX_PROTOCOLS = 100  # protocols of a member: each is compared with those of all others, and clients have two or three


class GroupCoordinator:
    """Checks members' requests, and passes them to their groups. Call all methods on the event loop."""

    def __init__(self, groups: GroupRegistry, new_id: Callable[[], str]) -> None:
        """Serve these groups. `new_id` returns a unique suffix for a new member's id."""
        self._groups = groups
        self._new_id = new_id

    # -- members --

    async def join(self, request: JoinGroupRequest, *, client_id: str, host: str, holder: str) -> JoinGroupResponse:
        """Join a group. Returns at the end of the rebalance's join phase, or immediately with an error.

        `holder`: the holder whose share is charged for the member's memory.
        """
        error = await self._check_join(request)
        known = self._groups.get(request.group)
        if isinstance(known, ConsumerGroup) and not known.is_empty and error is ErrorCode.NONE:
            return await self._join_consumer_group(known, request, client_id=client_id, host=host, holder=holder)
        if isinstance(known, ShareGroup | StreamsGroup) and not _may_replace(known) and error is ErrorCode.NONE:
            return JoinGroupResponse(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self._classic(request.group)
        if error is ErrorCode.NONE:
            error = self._check_size(group, request, holder)
        if error is ErrorCode.NONE and group is None:
            if request.member_id != NO_MEMBER:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                group = self._groups.create_classic_group(request.group, holder)
        if error is not ErrorCode.NONE or group is None:
            return JoinGroupResponse(member_id=request.member_id, error=error)
        pending: PendingAnswer[JoinGroupResponse | None] = PendingAnswer(None)
        client = Client(client_id=client_id, host=host, holder=holder, new_id=self._new_id())
        group.join(request, client, pending, self._groups.now())
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response

    async def _join_consumer_group(
        self, group: ConsumerGroup, request: JoinGroupRequest, *, client_id: str, host: str, holder: str
    ) -> JoinGroupResponse:
        """Join a group whose members use, or used, the consumer protocol."""
        size = size_of(request.protocols)
        if size > self._groups.max_record_bytes(request.group):
            return JoinGroupResponse(error=ErrorCode.MESSAGE_TOO_LARGE)
        known = group.members.get(request.member_id)
        declared = known.classic.protocols if known is not None and known.classic is not None else ()
        growth = size - size_of(declared) + (CONSUMER_BYTES if known is None else 0)
        if not self._groups.holdings.admit(holder, growth):
            return JoinGroupResponse(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
        group.limits = self._groups.limits.consumer(request.group)
        pending: PendingAnswer[JoinGroupResponse | None] = PendingAnswer(None)
        client = Client(client_id=client_id, host=host, holder=holder, new_id=self._new_id())
        group.join(request, client, pending, self._groups.topics, self._groups.now())
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Return a member's assignment once the leader has sent it, or immediately with an error."""
        error = self._groups.available_to_members(request.group)
        known = self._groups.get(request.group)
        if isinstance(known, ConsumerGroup) and error is ErrorCode.NONE:
            answer: PendingAnswer[SyncGroupResponse | None] = PendingAnswer(None)
            known.sync(request, answer, self._groups.topics, self._groups.now())
            response = await self._groups.answer(known, answer)
            assert response is not None
            return response
        group = self._classic(request.group)
        if error is not ErrorCode.NONE or group is None:
            return SyncGroupResponse(error=error or ErrorCode.UNKNOWN_MEMBER_ID)
        size = sum([len(assignment.assignment) for assignment in request.assignments])
        max_bytes = self._groups.max_record_bytes(request.group)
        if size > max_bytes:
            logger.warning(
                "group %.200r: refused an assignment of %s bytes, more than its record in %s may have (%s bytes):"
                " the group needs fewer members or partitions",
                request.group,
                f"{size:,}",
                TOPIC,
                f"{max_bytes:,}",
            )
            return SyncGroupResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka
        if not all(self._groups.holdings.admit(*grown) for grown in _growth(group, request)):
            return SyncGroupResponse(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
        pending: PendingAnswer[SyncGroupResponse | None] = PendingAnswer(None)
        group.sync(request, pending, self._groups.now())
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Extend a member's session. While its group is being loaded, every heartbeat succeeds."""
        error = self._groups.available_to_members(name)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE
        group = self._groups.get(name)
        if error is not ErrorCode.NONE or group is None or isinstance(group, ShareGroup | StreamsGroup):
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            error = group.heartbeat_as_classic(member_id, instance_id, generation, self._groups.now())
        else:
            error = group.heartbeat(member_id, instance_id, generation, self._groups.now())
        self._groups.schedule(group)
        return error

    async def leave(self, name: str, members: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Remove members; return the error of the request, and an error code per member."""
        error = self._groups.available_to_members(name)
        if error is not ErrorCode.NONE:
            return error, [error] * len(members)
        group = self._groups.get(name)
        if group is None or isinstance(group, ShareGroup | StreamsGroup):
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        if isinstance(group, ConsumerGroup):
            pending: PendingAnswer[LeaveGroupResponse | None] = PendingAnswer(None)
            group.leave(members, pending, self._groups.now())
            response = await self._groups.answer(group, pending)
            assert response is not None
            return response.error, [each.error for each in response.members]
        errors = group.leave(members, self._groups.now())
        self._groups.apply_effects(group)
        return ErrorCode.NONE, errors

    def _classic(self, name: str) -> ClassicGroup | None:
        """Return a group of the classic protocol; None if there is none of this name."""
        group = self._groups.get(name)
        return group if isinstance(group, ClassicGroup) else None

    async def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        error = self._groups.available_to_members(request.group)
        if error is not ErrorCode.NONE:
            return error
        if len(request.protocols) > MAX_PROTOCOLS:
            return ErrorCode.INVALID_REQUEST
        settings = self._groups.settings
        min_ms, max_ms = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not min_ms <= request.session_timeout_ms <= max_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return await self._groups.runtime.ensure() or self._groups.available(request.group)

    def _check_size(self, group: ClassicGroup | None, request: JoinGroupRequest, holder: str) -> ErrorCode:
        """Check that there is memory for a member's declaration, and that a record can hold it."""
        size = size_of(request.protocols)
        max_bytes = self._groups.max_record_bytes(request.group)
        if size > max_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        member = None if group is None else group.members.get(request.member_id)
        if member is not None and member.holder == holder:
            growth = size - size_of(member.protocols)
        else:
            growth = size + MEMBER_BYTES + (0 if member is None else len(member.assignment))
        growth += GROUP_BYTES if group is None else 0
        is_admitted = self._groups.holdings.admit(holder, growth)
        return ErrorCode.NONE if is_admitted else ErrorCode.GROUP_MAX_SIZE_REACHED

    # -- administration --

    def list_groups(self) -> Iterator[ListedGroup]:
        """Yield the groups in no order, as Kafka does; a group's state is that at the time it is yielded."""
        for group in self._groups.all():
            if group.is_dead:
                continue  # its log partition has another leader now
            kind = group.protocol_type or ""
            yield ListedGroup(group=group.group_id, protocol_type=kind, state=group.state, type=group.type)

    def describe(self, name: str) -> DescribedGroup:
        """Describe a group and its members; metadata and assignments only while the group is stable, as in Kafka."""
        error = self._groups.available(name)
        if error is not ErrorCode.NONE:
            return DescribedGroup(group=name, state="", error=error)
        group = self._groups.get(name)
        if not isinstance(group, ClassicGroup):
            message = f"Group {name} not found." if group is None else f"Group {name} is not a classic group."
            return DescribedGroup(group=name, error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)
        generation, is_stable = group.generation, group.state is GroupState.STABLE
        protocol = (generation.protocol_name or "") if is_stable else ""
        members = [
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(protocol) if is_stable else b"",
                assignment=member.assignment,  # during a rebalance, the previous one
            )
            for member in group.members
        ]
        return DescribedGroup(
            group=name,
            state=group.state,
            protocol_type=generation.protocol_type or "",
            protocol=protocol,
            members=tuple(members),
        )


def _may_replace(group: ShareGroup | StreamsGroup) -> bool:
    """Return whether a classic group may replace a group, keeping its offsets."""
    return isinstance(group, StreamsGroup) and group.is_empty


def _growth(group: ClassicGroup, request: SyncGroupRequest) -> Iterable[tuple[str, int]]:
    """Return by how many bytes each holder grows with a leader's assignments."""
    growth: Counter[str] = Counter()
    for assignment in request.assignments:
        member = group.members.get(assignment.member_id)
        if member is not None:
            growth[member.holder] += len(assignment.assignment) - len(member.assignment)
    return growth.items()
