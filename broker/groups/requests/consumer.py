"""Handle the requests of consumer groups (KIP-848): heartbeats and descriptions.

A heartbeat changes its group in one synchronous call, and then waits for its response until the changes are in the log;
without changes it does not wait.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (consumerGroupHeartbeat, consumerGroupDescribe),
GroupMetadataManager (getOrMaybeCreateConsumerGroup).
"""

from collections.abc import Callable, Sequence

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.requests import check_request
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.holdings import GROUP_BYTES
from warmlog.broker.groups.modern.member_memory import MEMBER_BYTES, NAME_BYTES
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.broker.groups.registry import Checkpoint, GroupRegistry
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)


class ConsumerGroupCoordinator:
    """Checks members' requests, and passes them to their groups. Call all methods on the event loop."""

    def __init__(self, groups: GroupRegistry, new_id: Callable[[], str]) -> None:
        """Serve these groups. `new_id` returns a unique id for a member that has none."""
        self._groups = groups
        self._new_id = new_id

    async def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        *,
        client_id: str,
        host: str,
        holder: str,
        sees: Callable[[str], bool] | None,
    ) -> ConsumerGroupHeartbeatResponse:
        """Join a group, keep a membership, or leave.

        `holder`: the holder whose share is charged for the member's memory. `sees`: whether the client may see a topic,
        for regular expressions; None if it may see all.
        """
        error, message = check_request(request, version, self._groups.limits.assignors)
        if error is ErrorCode.NONE:
            error = self._groups.available_to_members(request.group)
        if error is ErrorCode.NONE and self._groups.get(request.group) is None:
            error = await self._groups.runtime.ensure() or self._groups.available(request.group)
        if error is not ErrorCode.NONE:
            return ConsumerGroupHeartbeatResponse(error=error, message=message)
        growth = _size_of(request.topics, request.regex, request.instance_id, request.rack_id)
        if growth - NAME_BYTES * len(request.topics or ()) > self._groups.max_record_bytes(request.group):
            return ConsumerGroupHeartbeatResponse(
                error=ErrorCode.INVALID_REQUEST, message="the subscription is too large for a record of the group"
            )
        former = self._groups.get(request.group)
        try:
            group = self._group_for(request, holder, growth)
        except RefusedError as refused:
            return ConsumerGroupHeartbeatResponse(error=refused.error, message=refused.message)
        group.limits, group.sees = self._groups.limits.consumer(request.group), sees
        pending: PendingAnswer[ConsumerGroupHeartbeatResponse | None] = PendingAnswer(None)
        new_id = "" if request.member_id else self._new_id()
        client = Client(client_id=client_id, host=host, holder=holder, new_id=new_id)
        group.heartbeat(request, client, pending, self._groups.topics, self._groups.now())
        if isinstance(former, ClassicGroup) and self._groups.get(request.group) is former and group.is_stored:
            self._groups.migrations.begin(self._groups.shard_for(request.group), former, group)
        response = await self._groups.answer(group, pending)
        assert response is not None
        return response

    def _group_for(self, request: ConsumerGroupHeartbeatRequest, holder: str, growth: int) -> ConsumerGroup:
        """Return the group of a request; one that replaces a classic group is not served yet.

        Raises RefusedError.
        """
        name, group = request.group, self._groups.get(request.group)
        joins = request.member_epoch == 0
        if isinstance(group, ConsumerGroup):
            known = group.members.get(request.member_id)
            if known is None:
                growth = growth + MEMBER_BYTES if joins else 0
            else:
                growth -= _size_of(known.topics, known.regex, known.instance_id, known.rack_id)
        else:
            if group is None and not joins:
                raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {name} not found.")
            if group is not None and (not joins or not isinstance(group, ClassicGroup)):
                raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group.")
            growth += MEMBER_BYTES + (GROUP_BYTES if group is None else 0)
        if not self._groups.holdings.admit(holder, growth):
            message = "members of groups hold as much memory as this client may have"
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None or group.is_empty:
            return self._groups.create_consumer_group(name, holder)
        assert isinstance(group, ClassicGroup), "a group of another kind was refused"
        may_upgrade = self._groups.settings.group_consumer_migration_policy in {"bidirectional", "upgrade"}
        return self._groups.migrations.upgraded(group, self._groups.limits.consumer(name), may_upgrade=may_upgrade)

    async def describe(self, name: str, checkpoint: Checkpoint) -> DescribedConsumerGroup:
        """Describe a group and its members, in steps."""
        error = self._groups.available_to_members(name)
        if error is not ErrorCode.NONE:
            return DescribedConsumerGroup(group=name, error=error)
        group = self._groups.get(name)
        if isinstance(group, ConsumerGroup):
            steps = group.described(self._groups.topics)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    description: DescribedConsumerGroup = end.value
                    return description
                await checkpoint()
        message = f"Group {name} not found." if group is None else f"Group {name} is not a consumer group."
        return DescribedConsumerGroup(group=name, error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)


def _size_of(topics: Sequence[str] | None, *texts: str | None) -> int:
    """Estimate the bytes that a member's declaration holds."""
    return sum([len(topic) + NAME_BYTES for topic in topics or ()]) + sum([len(text or "") for text in texts])
