"""A group of the classic protocol as a state machine without a clock, an event loop or a disk.

`ClassicGroup` checks requests and applies them; `rebalance.py` holds the states, phases and deadlines. Time is passed
in with every call (`Instant`). Responses, and records to write, come out as effects, which the caller gets from
`take_effects` and carries out; after each `Store` it calls `stored` with the outcome. It also calls `expire` no later
than `wake_at_s`, which is never after the next deadline and sometimes earlier.

Invariants:
1. The generation only grows, by one at the end of each rebalance, and an assignment belongs to the generation in which
   it was requested.
2. Every JoinGroup and SyncGroup is answered once, unless its client has disconnected.
3. A request of an unknown or fenced member changes nothing.
4. One leader per generation assigns partitions, in one SyncGroup, and its assignment reaches all members or none.
5. A member is removed when its session timeout passes without a request, unless it waits for a response.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup and the classic part of GroupMetadataManager; KIP-345
and KIP-814 (static members), KIP-389 (maximum size), KIP-394 (member id before joining).
"""

from collections.abc import Iterable, Mapping
from typing import Self

from warmlog.broker.groups.automaton import Client, Instant, Waiter
from warmlog.broker.groups.classic.effects import Assigned, Effect, Limits, Purpose, Restarted, SavedParameters
from warmlog.broker.groups.classic.generation import Generation
from warmlog.broker.groups.classic.members import DISCONNECTED, Member, Members, new_member_id
from warmlog.broker.groups.classic.outbox import Outbox
from warmlog.broker.groups.classic.rebalance import Rebalance, State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    NO_MEMBER,
    GroupType,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.group_records import NO_TIME, StoredGroup, encode_group_key

MAX_LOGGED = 200  # characters of a group's name


class ClassicGroup:
    """One group. Not thread-safe: all calls come from the event loop."""

    def __init__(self, group_id: str, limits: Limits, now: Instant) -> None:
        """Create a group without members."""
        self.group_id = group_id
        self.owner = ""  # the holder that its memory counts for (`Holdings`)
        self.counted: Mapping[str, int] = {}  # bytes counted by `Holdings`, by holder
        self.replaced: list[tuple[bytes, None]] = []  # tombstones of another kind of group, for the next record
        self._limits = limits
        self._outbox = Outbox()
        self._rebalance = Rebalance(limits, self._outbox, now)

    def __str__(self) -> str:
        return f"group {self.group_id[:MAX_LOGGED]!r}"

    @classmethod
    def restore(cls, group_id: str, stored: StoredGroup, limits: Limits, now: Instant) -> Self:
        """Return a stored group; its members have one session timeout to send a heartbeat. Raises MalformedError."""
        group = cls(group_id, limits, now)
        group._rebalance = Rebalance.restore(stored, limits, group._outbox, now)
        return group

    @classmethod
    def resume(cls, group_id: str, generation: Generation, limits: Limits, now: Instant, *, rebalances: bool) -> Self:
        """Return a group whose members have the generation's assignments, and a new session each."""
        group = cls(group_id, limits, now)
        group._rebalance = Rebalance.resume(generation, limits, group._outbox, now, rebalances=rebalances)
        return group

    def interrupt(self, error: ErrorCode, now: Instant) -> None:
        """Answer all pending requests with `error`; the members have to join again."""
        self._rebalance.interrupt(error, now)

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in the order in which to carry them out."""
        return self._outbox.take()

    @property
    def state(self) -> State:
        """The state, as Kafka's tools report it."""
        return self._rebalance.state

    @property
    def state_since_ms(self) -> int:
        """When the state was entered, in ms since the epoch; NO_TIME if an old record lacks it."""
        return self._rebalance.state_since_ms

    @property
    def protocol_type(self) -> str | None:
        """The type of its members' protocols; None until it has had members."""
        return self.generation.protocol_type

    @property
    def generation(self) -> Generation:
        """The current generation; during the join phase, the one being replaced."""
        return self._rebalance.generation

    @property
    def members(self) -> Members:
        """The members, including those that have joined only for the next generation."""
        return self._rebalance.members

    @property
    def type(self) -> GroupType:
        """The type of the group, as ListGroups reports it."""
        return GroupType.CLASSIC

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return self.state is State.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether the group is no longer served."""
        return self.state is State.DEAD

    @property
    def held(self) -> Mapping[str, int]:
        """The bytes that members hold, by holder (`Holdings`)."""
        return self.members.held

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic, or might."""
        return self.generation.is_subscribed(topic)

    @property
    def may_lose_offsets(self) -> bool:
        """Whether offsets of topics without a subscription may be deleted."""
        return self.is_empty or self.generation.is_consumer_group

    @property
    def offsets_expire_since_ms(self) -> int | None:
        """The start of the offsets' retention in ms since the epoch; NO_TIME: the time of each commit; None: never."""
        if self.generation.protocol_type is None:
            return NO_TIME
        if self.is_empty:
            return self.state_since_ms
        knows_topics = self.generation.is_consumer_group and self.generation.subscribed_topics is not None
        return NO_TIME if self.state is State.STABLE and knows_topics else None

    def tombstones(self) -> list[tuple[bytes, None]]:
        """Return the rows that delete the group's records."""
        return [(encode_group_key(self.group_id), None)]

    @property
    def completed_rebalances(self) -> int:
        """The number of rebalances that ended with an assignment since the group was loaded."""
        return self._rebalance.completed

    @property
    def pending_count(self) -> int:
        """The number of assigned member ids that were not used to join yet."""
        return len(self._rebalance.pending_ids)

    @property
    def has_pending_members(self) -> bool:
        """Whether a member id was assigned and not used to join yet."""
        return bool(self._rebalance.pending_ids)

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`, on the event loop's clock."""
        return self._rebalance.wake_at_s

    # -- join --

    def join(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        """Handle a JoinGroup. `waiter` is answered by an effect, now or at the end of the join phase."""
        if not self._may_join(request.member_id):
            self._outbox.refuse_join(waiter, NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._remove_for_size(request.member_id, now)
        elif self.state is State.DEAD:
            self._outbox.refuse_join(waiter, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self._outbox.refuse_join(waiter, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == NO_MEMBER:
            self._join_without_id(request, client, waiter, now)
        else:
            self._join_with_id(request, client, waiter, now)

    def _may_join(self, member_id: str) -> bool:
        """Return whether `group.max.size` lets this member in.

        In the join phase only members that have joined count, so if a group is too large (restored, or after the limit
        was lowered) the last ones to join are refused.
        """
        if self.state in {State.EMPTY, State.DEAD} or len(self.members) < self._limits.max_size:
            return True
        member = self.members.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            has_joined = member is not None and member.awaits_join
            return has_joined or self.members.joined_count < self._limits.max_size
        return member is not None

    def _remove_for_size(self, member_id: str, now: Instant) -> None:
        """Remove a member or pending id that was refused for size, so that the rebalance does not wait for it."""
        if member_id in self.members or member_id in self._rebalance.pending_ids:
            self._rebalance.remove(member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            if self.state is State.PREPARING_REBALANCE:
                self._rebalance.membership_changed(now)

    def _supports(self, request: JoinGroupRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.generation.supports(request)

    def _join_without_id(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        """Add a new member, assign an id to it, or replace a restarted static member."""
        new_id = new_member_id(request.instance_id or client.client_id, client.new_id)
        if request.instance_id is not None:
            old_id = self.members.static_id(request.instance_id)
            if old_id is not None:
                self._replace_static(request, client, old_id, waiter, now)
                return
        elif request.requires_known_member:
            self._rebalance.add_pending_id(new_id, request.session_timeout_ms, now)
            self._outbox.refuse_join(waiter, new_id, ErrorCode.MEMBER_ID_REQUIRED)
            return
        self._add(request, client, new_id, waiter, now)

    def _join_with_id(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        member_id = request.member_id
        if member_id in self._rebalance.pending_ids and request.instance_id is None:
            self._add(request, client, member_id, waiter, now)
            return
        error = self.generation.check_member(member_id, request.instance_id)
        member = self.members.get(member_id)
        if error is not ErrorCode.NONE or member is None:
            self._outbox.refuse_join(waiter, member_id, error)
        elif self._must_rebalance(member, request):
            self._set_join_waiter(member, waiter)
            self.members.update(member, request, client.holder)
            self._rebalance.membership_changed(now)
        else:
            self._outbox.answer(waiter, self.generation.joined(member))

    def _must_rebalance(self, member: Member, request: JoinGroupRequest) -> bool:
        """Return whether a rejoin starts a rebalance; otherwise it repeats a response that may have been lost."""
        if self.state is State.PREPARING_REBALANCE or member.protocols != request.protocols:
            return True
        # A leader rejoins to rebalance for reasons outside its metadata, such as new partitions.
        return self.state is State.STABLE and self.members.leader == member.member_id

    def _add(self, request: JoinGroupRequest, client: Client, member_id: str, waiter: Waiter, now: Instant) -> None:
        if not self.members:
            self.generation.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=client.client_id,
            client_host=client.host,
            holder=client.holder,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_waiter=waiter,
        )
        self._rebalance.add(member, now)

    def _set_join_waiter(self, member: Member, waiter: Waiter) -> None:
        """Replace a member's pending JoinGroup; an earlier one came on an abandoned connection."""
        self._outbox.answer_join(
            member, JoinGroupResponse(member_id=member.member_id, error=ErrorCode.REBALANCE_IN_PROGRESS)
        )
        member.join_waiter = waiter

    # -- restarted static members --

    def _replace_static(
        self, request: JoinGroupRequest, client: Client, old_id: str, waiter: Waiter, now: Instant
    ) -> None:
        """Assign a new id to a restarted static member, and fence the old one; position and assignment stay.

        If the group is stable and the protocol would not change, no rebalance is needed: the new id is stored, and
        `stored` answers the member.
        """
        old_leader = self.members.leader
        member = self.members.get(old_id)
        assert member is not None, "an instance id maps to a member"
        self._outbox.fail(member, ErrorCode.FENCED_INSTANCE_ID, member_id=old_id)
        self._rebalance.rename(member, new_member_id(request.instance_id or client.client_id, client.new_id), now)
        before = SavedParameters.of(member)
        self._set_join_waiter(member, waiter)
        self.members.update(member, request, client.holder)
        if self.state is not State.STABLE:
            # The leader may only know the member's old id, and would assign nothing to the new one.
            self._rebalance.membership_changed(now)
        elif self.members.choose_protocol() != self.generation.protocol_name:
            self._rebalance.prepare(now)
        else:
            assignments = {each.member_id: each.assignment for each in self.members}
            self._rebalance.store(assignments, Restarted(request, member, old_id, member.member_id, old_leader, before))

    def _restart_stored(self, restarted: Restarted, error: ErrorCode, now: Instant) -> None:
        """Answer a restarted static member without a rebalance, or undo its restart if it was not stored.

        Ignored if the member has left or restarted again since.
        """
        member = restarted.member
        if self.members.get(restarted.new_id) is not member:
            return
        if error is not ErrorCode.NONE:
            self._outbox.answer_join(member, JoinGroupResponse(member_id=NO_MEMBER, error=error))
            self._rebalance.extend_session(member, now)
            if self.state is State.STABLE:
                self.members.update(member, restarted.before)
                self.members.rename(member, restarted.old_id)
        elif self.state is State.STABLE:
            self._outbox.answer_join(member, self._restarted_response(member, restarted))
            self._rebalance.extend_session(member, now)

    def _restarted_response(self, member: Member, restarted: Restarted) -> JoinGroupResponse:
        """Return the response to a restarted member.

        A leader must not assign again. No response makes clients before KIP-814 skip that; they get the old id as the
        leader's, and so consider themselves followers.
        """
        if not restarted.request.can_skip_assignment:
            return self.generation.joined(member, leader=restarted.old_leader, members=())
        return self.generation.joined(member, skip_assignment=self.members.leader == member.member_id)

    # -- sync --

    def sync(self, request: SyncGroupRequest, waiter: Waiter, now: Instant) -> None:
        """Handle a SyncGroup. `waiter` is answered by an effect, now or when the leader's assignment is stored."""
        error = self._check_sync(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            self._outbox.answer(waiter, SyncGroupResponse(error=error))
            return
        self._rebalance.extend_session(member, now)
        self._rebalance.sync_received(member)
        if self.state is State.STABLE:
            self._outbox.answer(waiter, self.generation.synced(member))
            return
        # A repeated request replaces the earlier one.
        self._outbox.answer_sync(member, SyncGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_waiter = waiter
        if self.members.leader == member.member_id:
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._rebalance.store(assignments, Assigned(self.generation.number, assignments))

    def _check_sync(self, request: SyncGroupRequest) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.generation.check_sync(request)
        is_preparing = self.state is State.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if error is ErrorCode.NONE and is_preparing else error

    def stored(self, purpose: Purpose, error: ErrorCode, now: Instant) -> None:
        """Continue after a `Store` effect: it was written, or failed with `error`."""
        if isinstance(purpose, Assigned):
            self._rebalance.assignment_stored(purpose, error, now)
        elif isinstance(purpose, Restarted):
            self._restart_stored(purpose, error, now)

    # -- heartbeats and commits --

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Instant) -> ErrorCode:
        """Extend a member's session. REBALANCE_IN_PROGRESS tells it to join again."""
        error = self._check_member_of(generation, member_id, instance_id)
        member = self.members.get(member_id)
        if error is not ErrorCode.NONE or member is None:
            return error
        self._rebalance.extend_session(member, now)
        is_preparing = self.state is State.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: Instant) -> ErrorCode:
        """Return whether offsets may be committed now, and extend the member's session.

        A generation below 0 without ids is a client outside the group; it may commit only while the group is empty.
        """
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_member_of(generation, member_id, instance_id)
        if error is ErrorCode.NONE and self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self.members.get(member_id)
        if error is ErrorCode.NONE and member is not None:
            self._rebalance.extend_session(member, now)
        return error

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return whether a transaction may commit offsets now.

        Unlike a plain commit it may come without member and generation (clients before KIP-447), also during a
        rebalance, and does not extend the member's session.
        """
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and (self.state is State.EMPTY or (member_id == NO_MEMBER and instance_id is None)):
            return ErrorCode.NONE
        return self._check_member_of(generation, member_id, instance_id)

    def _check_member_of(self, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.generation.check_member_of(generation, member_id, instance_id)

    def forget_waiter(self, waiter: Waiter, now: Instant) -> None:
        """Drop a pending request whose client has disconnected; the member stays until its session timeout."""
        for member in self.members:
            if member.join_waiter is waiter:
                member.join_waiter = DISCONNECTED
                self._rebalance.extend_session(member, now)
            if member.sync_waiter is waiter:
                member.sync_waiter = None
                self._rebalance.extend_session(member, now)

    # -- leave, expire, close --

    def leave(self, leaving: Iterable[LeavingMember], now: Instant) -> list[ErrorCode]:
        """Remove members, and rebalance the others once. Return an error code per member, in order."""
        count = len(self.members)
        errors = [self._leave(each) for each in leaving]
        has_changed = ErrorCode.NONE in errors
        if len(self.members) < count or (has_changed and self.state is State.PREPARING_REBALANCE):
            self._rebalance.membership_changed(now)
        return errors

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == NO_MEMBER:  # administrators identify static members by their instance ids
            member_id = self.members.static_id(leaving.instance_id or "") or NO_MEMBER
        elif member_id in self._rebalance.pending_ids:
            del self._rebalance.pending_ids[member_id]
            return ErrorCode.NONE
        error = self.generation.check_member(member_id, leaving.instance_id)
        if error is ErrorCode.NONE:
            self._rebalance.remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    def expire(self, now: Instant) -> None:
        """Act on every deadline that has passed, and set `wake_at_s` to the next one."""
        self._rebalance.expire(now)

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Enter Dead (the group is deleted, or the coordinator stops), and answer pending requests with `error`."""
        self._rebalance.close(error, now)
