"""Handle the requests of share groups (KIP-932): heartbeats and descriptions.

A heartbeat changes its group in one synchronous call, and then waits for its response until the changes are in the log;
without changes it does not wait.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (shareGroupHeartbeat, shareGroupDescribe),
GroupMetadataManager (getOrMaybeCreateShareGroup).
"""

from collections.abc import Sequence

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES, TOPIC_BYTES
from warmlog.broker.groups.modern.refusals import JOIN, RefusedError
from warmlog.broker.groups.registry import Checkpoint, GroupRegistry
from warmlog.broker.groups.share.requests import check_request
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.groups import (
    DescribedShareGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


class ShareGroupCoordinator:
    """Checks members' requests, and passes them to their groups. Call all methods on the event loop."""

    def __init__(self, groups: GroupRegistry) -> None:
        """Serve these groups."""
        self._groups = groups

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, *, client_id: str, host: str, holder: str
    ) -> ShareGroupHeartbeatResponse:
        """Join a group, keep a membership, or leave. `holder`: whose share is charged for the member's memory."""
        message = check_request(request)
        if message is not None:
            return ShareGroupHeartbeatResponse(error=ErrorCode.INVALID_REQUEST, message=message)
        error = self._groups.available_to_members(request.group)
        if error is ErrorCode.NONE and self._groups.get(request.group) is None:
            error = await self._groups.runtime.ensure() or self._groups.available(request.group)
        if error is not ErrorCode.NONE:
            return ShareGroupHeartbeatResponse(error=error)
        if _text_size(request.topics, request.rack_id) > self._groups.max_record_bytes(request.group):
            message = "the subscription is too large for a record of the group"
            return ShareGroupHeartbeatResponse(error=ErrorCode.INVALID_REQUEST, message=message)
        try:
            group = self._group_for(request, holder)
        except RefusedError as refused:
            return ShareGroupHeartbeatResponse(error=refused.error, message=refused.message)
        group.limits = self._groups.limits.share(request.group)
        pending: PendingAnswer[ShareGroupHeartbeatResponse | None] = PendingAnswer(None)
        client = Client(client_id=client_id, host=host, holder=holder, new_id="")
        group.heartbeat(request, client, pending, self._groups.topics, self._groups.now())
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response

    def _group_for(self, request: ShareGroupHeartbeatRequest, holder: str) -> ShareGroup:
        """Return the group of a request, a new one for its first member. Raises RefusedError."""
        name, group = request.group, self._groups.get(request.group)
        if group is None and request.member_epoch != JOIN:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {name} not found.")
        if group is not None and not isinstance(group, ShareGroup):
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a share group.")
        if not self._groups.holdings.admit(holder, self._growth(group, request)):
            message = "members of groups hold as much memory as this client may have"
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        return self._groups.create_share_group(name, holder) if group is None else group

    def _growth(self, group: ShareGroup | None, request: ShareGroupHeartbeatRequest) -> int:
        """Estimate by how many bytes a group grows with a heartbeat."""
        known = None if group is None else group.members.get(request.member_id)
        growth = GROUP_BYTES if group is None else 0
        if known is None and request.member_epoch == JOIN:
            growth += MEMBER_BYTES
        if request.topics is None or (known is not None and request.topics == known.topics):
            return growth
        for name in request.topics:
            topic = None if group is not None and group.is_subscribed(name) else self._groups.topics.named(name)
            growth += len(name) + NAME_BYTES
            growth += 0 if topic is None else TOPIC_BYTES + PARTITION_BYTES * topic.partitions
        return growth - _text_size(None if known is None else known.topics)

    async def describe(self, name: str, checkpoint: Checkpoint) -> DescribedShareGroup:
        """Describe a group and its members, in steps."""
        error = self._groups.available_to_members(name)
        if error is not ErrorCode.NONE:
            return DescribedShareGroup(group=name, error=error)
        group = self._groups.get(name)
        if isinstance(group, ShareGroup):
            steps = group.described(self._groups.topics)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    description: DescribedShareGroup = end.value
                    return description
                await checkpoint()
        message = f"Group {name} not found." if group is None else f"Group {name} is not a share group."
        return DescribedShareGroup(group=name, error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)


def _text_size(topics: Sequence[str] | None, *texts: str | None) -> int:
    """Estimate the bytes of a declaration's texts."""
    return sum([len(text or "") for text in (*(topics or ()), *texts)])
