"""The coordinator for members: who joins and waits, who is there, who leaves.

Owns: what a member's request needs before it reaches its group, and how groups are described. Must not know: wire
formats, sockets; it is asked with values and answers with values.

Invariants:
1. Nothing of a group is changed across an await: a request is carried out in one go, then waits for its answer.
2. A client that goes away while it waits is forgotten at once; the member stays until its session is over.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService, GroupMetadataManager.
"""

from collections.abc import Callable, Iterator, Sequence

from broker.groups.effects import Client
from broker.groups.registry import GroupRegistry, Waiting
from protocol.errors import ErrorCode
from protocol.groups import (
    NO_MEMBER,
    DescribedGroup,
    DescribedMember,
    GroupState,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    ListedGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)


class GroupCoordinator:
    """Members' requests. All methods belong to the loop."""

    def __init__(self, groups: GroupRegistry, new_id: Callable[[], str]) -> None:
        """`new_id` gives what makes a member's id unlike any other."""
        self._groups = groups
        self._new_id = new_id

    # -- members --

    async def join(self, request: JoinGroupRequest, *, client_id: str, host: str) -> JoinGroupResponse:
        """Join a group; returns when the rebalance that this makes is over, or at once with an error."""
        error = await self._check_join(request)
        group = self._groups.get(request.group)
        if error is ErrorCode.NONE and group is None:
            if request.member_id != NO_MEMBER:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                group = self._groups.create(request.group)
        if error is not ErrorCode.NONE or group is None:
            return JoinGroupResponse(member_id=request.member_id, error=error)
        waiting = Waiting()
        client = Client(client_id=client_id, host=host, new_id=self._new_id())
        group.join(request, client, waiting, self._groups.now())
        response = await self._groups.answer(group, waiting)
        assert isinstance(response, JoinGroupResponse)
        return response

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """A member's assignment; returns when the leader has brought it, or at once with an error."""
        error = self._groups.available_to_members(request.group)
        group = self._groups.get(request.group)
        if error is not ErrorCode.NONE or group is None:
            return SyncGroupResponse(error=error or ErrorCode.UNKNOWN_MEMBER_ID)
        waiting = Waiting()
        group.sync(request, waiting, self._groups.now())
        response = await self._groups.answer(group, waiting)
        assert isinstance(response, SyncGroupResponse)
        return response

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member is there. While groups are read that is all that can be said."""
        error = self._groups.available_to_members(name)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE
        group = self._groups.get(name)
        if error is not ErrorCode.NONE or group is None:
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        error = group.heartbeat(member_id, instance_id, generation, self._groups.now())
        self._groups.schedule(group)
        return error

    def leave(self, name: str, members: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Members leave: the error of the whole, and what became of each."""
        error = self._groups.available_to_members(name)
        if error is not ErrorCode.NONE:
            return error, [error] * len(members)
        group = self._groups.get(name)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        errors = group.leave(members, self._groups.now())
        self._groups.carry_out(group)
        return ErrorCode.NONE, errors

    async def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        error = self._groups.available_to_members(request.group)
        if error is not ErrorCode.NONE:
            return error
        settings = self._groups.settings
        shortest_ms, longest_ms = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return await self._groups.log.ensure() or self._groups.available(request.group)

    # -- for administrators --

    def list_groups(self) -> Iterator[ListedGroup]:
        """Yield the groups that there are at the first step, by name, each as it is when its turn comes."""
        for group in self._groups.all():
            kind = group.generation.protocol_type or ""
            yield ListedGroup(group=group.group_id, protocol_type=kind, state=group.state)

    def describe(self, name: str) -> DescribedGroup:
        """A group and its members; what the members have, once they have it."""
        error = self._groups.available(name)
        if error is not ErrorCode.NONE:
            return DescribedGroup(group=name, state="", error=error)
        group = self._groups.get(name)
        if group is None:
            message = f"Group {name} not found."
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
                assignment=member.assignment if is_stable else b"",
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
