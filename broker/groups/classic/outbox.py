"""Effects that a group has produced and its owner has not yet carried out."""

from warmlog.broker.groups.automaton import Answer, Waiter
from warmlog.broker.groups.classic.effects import Effect, Purpose, Store
from warmlog.broker.groups.classic.members import DISCONNECTED, Member
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import JoinGroupResponse, SyncGroupResponse
from warmlog.protocol.kafka.group_records import StoredGroup


class Outbox:
    """Effects in the order in which they were produced. A member's waiter is cleared when it is answered."""

    __slots__ = ("_effects",)

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Remove and return the effects produced since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def store(self, value: StoredGroup, purpose: Purpose) -> None:
        """Request that a group be written to the log."""
        self._effects.append(Store(value, purpose))

    def answer(self, waiter: Waiter, response: JoinGroupResponse | SyncGroupResponse) -> None:
        """Answer a request that does not belong to a member."""
        self._effects.append(Answer(waiter, response))

    def refuse_join(self, waiter: Waiter, member_id: str, error: ErrorCode) -> None:
        """Answer a JoinGroup that does not belong to a member with an error."""
        self.answer(waiter, JoinGroupResponse(member_id=member_id, error=error))

    def answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        """Answer a member's pending JoinGroup, if there is one."""
        waiter, member.join_waiter = member.join_waiter, None
        if waiter is not None and waiter is not DISCONNECTED:
            self.answer(waiter, response)

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> None:
        """Answer a member's pending SyncGroup, if there is one."""
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self.answer(waiter, response)

    def fail(self, member: Member, error: ErrorCode, *, member_id: str) -> None:
        """Answer a member's pending requests with an error; the JoinGroup response carries `member_id`."""
        self.answer_join(member, JoinGroupResponse(member_id=member_id, error=error))
        self.answer_sync(member, SyncGroupResponse(error=error))
