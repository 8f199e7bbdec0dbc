"""One consumer group as an automaton: no clock, no loop, no disk.

Owns: the states and the ways between them, who is a member in which generation, whom to answer and when something is
due. Must not know: how time passes, who waits and how, where records are kept, wire formats.

    Empty ─────────────────► PreparingRebalance ◄──────────────┐
      ▲   a member joins      │       ▲    │                   │ a member joins, changes,
      │                       │       │    │ all joined, or     │ leaves, or is silent
      │ nobody joined         │       │    ▼ the time is over   │
      └───────────────────────┘   CompletingRebalance ───────► Stable
                                          the leader's assignment is stored
    any ──► Dead: deleted

Time comes in with every call (`Instant`). What follows from a call goes out by `take_effects`: answers for those who
wait, and what is to be stored; `stored` must follow each of the latter. `wake_at_s` is when `expire` wants to be called
next at the latest: never later than what is due, sometimes earlier.

Invariants:
1. A generation only rises, by one at each rebalance that ends; an assignment is of the generation it is asked for.
2. Whoever joins or syncs is answered once, or has gone away.
3. A request of an unknown or fenced member changes nothing.
4. Members are assigned by one leader per generation, from one SyncGroup: what it says is told to all of them or none.
5. Whoever is silent for its session time-out is expelled, unless it waits for us.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup, ClassicGroupState, and the classic part of
GroupMetadataManager; KIP-62 (rebalance time-out), KIP-134 (initial delay), KIP-345 and KIP-814 (static members),
KIP-389 (greatest size), KIP-394 (ids first).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, Self

from broker.groups.effects import (
    Answer,
    Assigned,
    Client,
    Effect,
    Emptied,
    Instant,
    Kept,
    Limits,
    Purpose,
    Restarted,
    Store,
)
from broker.groups.generation import Generation
from broker.groups.members import GONE, Member, Members, Waiter
from protocol.errors import ErrorCode
from protocol.groups import (
    NO_MEMBER,
    GroupState,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.kafka.group_records import StoredGroup

# How long a new member, which has no id yet to show signs of life with, may wait for its first rebalance (Kafka's
# CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS).
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
# How often at most static members are looked for that miss a rebalance. A time-out of 0, which a member may ask for,
# would have the loop look all the time.
MIN_STATIC_WAIT_MS = 1000
# Of a member's id, in characters: what a client calls itself may be as long as a string can be, and an id longer than
# that could be neither told nor stored, so that its group would rebalance for ever.
MAX_ID_PREFIX = 249
NEVER: Final = math.inf

State = GroupState

# What each state may be reached from.
PREVIOUS_STATES: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}


class Group:
    """One group. Methods are calls of the same loop, one at a time."""

    def __init__(self, group_id: str, limits: Limits, now: Instant) -> None:
        """A group without members and offsets."""
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_since_ms = now.wall_ms  # NO_TIME: an old record did not say
        self.generation = Generation()
        self.completed_rebalances = 0
        self.wake_at_s = NEVER
        self._limits = limits
        self._pending: dict[str, float] = {}  # ids given out that have not joined yet, with their deadlines
        self._pending_sync: set[str] = set()
        self._join_deadline_s = NEVER
        self._sync_deadline_s = NEVER
        self._is_initial = False  # the rebalance under way is the first one of an empty group, which waits for others
        self._delay_ms = self._delay_left_ms = 0  # of the initial delay: this step, and what further steps may take
        self._has_new_member = False
        self._effects: list[Effect] = []

    @classmethod
    def restore(cls, group_id: str, stored: StoredGroup, limits: Limits, now: Instant) -> Self:
        """A group as it was stored; its members have a session time-out to show up again. Raises MalformedError."""
        group = cls(group_id, limits, now)
        group.generation = Generation.restore(stored)
        group.state = State.STABLE if stored.members else State.EMPTY
        group.state_since_ms = stored.state_since_ms
        for member in group.members:
            group._extend_session(member, now)
        if len(group.members) > limits.max_size:
            group._prepare_rebalance(now)  # the last ones to join again are left out
        return group

    # -- what is true --

    def take_effects(self) -> list[Effect]:
        """What is to be done since this was asked last, in order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def pending_count(self) -> int:
        """Ids given out that have not joined yet."""
        return len(self._pending)

    @property
    def members(self) -> Members:
        """The members, those that gather for the next generation among them."""
        return self.generation.members

    # -- join --

    def join(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        """A member joins, for the first time or again. Answered by an effect, now or when the rebalance is over."""
        if not self._accepts(request.member_id):
            self._refuse_join(waiter, NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._turn_away(request.member_id, now)
        elif self.state is State.DEAD:
            self._refuse_join(waiter, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self._refuse_join(waiter, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == NO_MEMBER:
            self._join_unknown(request, client, waiter, now)
        else:
            self._join_known(request, client, waiter, now)

    def _accepts(self, member_id: str) -> bool:
        """Whether there is room.

        While members join again, those who have are counted: so the last ones of a group that is too large stay out.
        """
        if self.state in {State.EMPTY, State.DEAD} or len(self.members) < self._limits.max_size:
            return True
        member = self.members.get(member_id)
        if self.state is State.PREPARING_REBALANCE:
            has_place = member is not None and member.awaits_join
            return has_place or self.members.joined_count < self._limits.max_size
        return member is not None

    def _turn_away(self, member_id: str, now: Instant) -> None:
        """For lack of room a member, or an id that was given out, is none any more: the others need not wait for it."""
        if member_id in self.members or member_id in self._pending:
            self._remove(member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            if self.state is State.PREPARING_REBALANCE:
                self._rebalance_or_complete(now)

    def _supports(self, request: JoinGroupRequest) -> bool:
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return self.generation.supports(request)

    def _join_unknown(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        """One without an id: a new member, or a static one that was started anew."""
        new_id = f"{(request.instance_id or client.client_id)[:MAX_ID_PREFIX]}-{client.new_id}"
        if request.instance_id is not None:
            old_id = self.members.static_id(request.instance_id)
            if old_id is not None:
                self._restart_static(request, old_id, new_id, waiter, now)
                return
        elif request.requires_known_member:
            self._pending[new_id] = self._due(now.after_ms(request.session_timeout_ms))
            self._refuse_join(waiter, new_id, ErrorCode.MEMBER_ID_REQUIRED)
            return
        self._add(request, client, new_id, waiter, now)

    def _join_known(self, request: JoinGroupRequest, client: Client, waiter: Waiter, now: Instant) -> None:
        member_id = request.member_id
        if member_id in self._pending and request.instance_id is None:
            self._add(request, client, member_id, waiter, now)
            return
        error = self.generation.check_member(member_id, request.instance_id)
        member = self.members.get(member_id)
        if error is not ErrorCode.NONE or member is None:
            self._refuse_join(waiter, member_id, error)
        elif self._must_rebalance(member, request):
            self._rejoin(request, member, waiter, now)
        else:
            self._answer(waiter, self.generation.joined(member))

    def _must_rebalance(self, member: Member, request: JoinGroupRequest) -> bool:
        """Whether a member that joins again makes a rebalance, or is told again what it may have missed."""
        if self.state is State.PREPARING_REBALANCE or member.protocols != request.protocols:
            return True
        # The leader may know of changes that are not in its metadata, as new partitions.
        return self.state is State.STABLE and self.members.leader == member.member_id

    def _add(self, request: JoinGroupRequest, client: Client, member_id: str, waiter: Waiter, now: Instant) -> None:
        if not self.members:
            self.generation.protocol_type = request.protocol_type
        self._pending.pop(member_id, None)
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=client.client_id,
            client_host=client.host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_waiter=waiter,
            deadline_s=self._due(now.after_ms(NEW_MEMBER_JOIN_TIMEOUT_MS)),
        )
        self._has_new_member = True
        self.members.add(member)
        self._rebalance_or_complete(now)

    def _rejoin(self, request: JoinGroupRequest, member: Member, waiter: Waiter, now: Instant) -> None:
        self._set_join_waiter(member, waiter)
        self.members.update(member, request)
        self._rebalance_or_complete(now)

    def _restart_static(
        self, request: JoinGroupRequest, old_id: str, new_id: str, waiter: Waiter, now: Instant
    ) -> None:
        """A static member was started anew: its former life is fenced, and it takes over what that had."""
        member, old_leader = self._rename(old_id, new_id, now), self.members.leader
        if old_leader == new_id:
            old_leader = old_id
        before = Kept.of(member)
        self._set_join_waiter(member, waiter)
        self.members.update(member, request)
        if self.state is not State.STABLE:
            # The leader may have been told the former id already, so what it assigns would not reach the new one.
            self._rebalance_or_complete(now)
        elif self.members.choose_protocol() != self.generation.protocol_name:
            self._prepare_rebalance(now)
        else:
            assignments = {each.member_id: each.assignment for each in self.members}
            purpose = Restarted(request, member, old_id, new_id, old_leader, before)
            self._store(assignments, purpose)

    def _rename(self, old_id: str, new_id: str, now: Instant) -> Member:
        member = self.members.get(old_id)
        assert member is not None, "a static member's id is a member's"
        self._answer_join(member, _refused_join(old_id, ErrorCode.FENCED_INSTANCE_ID))
        self._answer_sync(member, SyncGroupResponse(error=ErrorCode.FENCED_INSTANCE_ID))
        self.members.rename(member, new_id)
        member.is_new = False  # it had an id before
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(new_id)
        self._extend_session(member, now)
        return member

    # -- rebalance --

    def _rebalance_or_complete(self, now: Instant) -> None:
        if self.state in PREVIOUS_STATES[State.PREPARING_REBALANCE]:
            self._prepare_rebalance(now)
        elif not self._is_initial:
            self._complete_if_all_joined(now)

    def _prepare_rebalance(self, now: Instant) -> None:
        """Have all members join again. The first ones of an empty group wait for others a while."""
        if self.state is State.COMPLETING_REBALANCE:
            self._propagate({}, ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._end_sync_phase()
        self._is_initial = self.state is State.EMPTY
        self._enter(State.PREPARING_REBALANCE, now)
        timeout_ms = self.members.rebalance_timeout_ms
        if self._is_initial:
            self._has_new_member = False
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._begin_delay(delay_ms, max(timeout_ms - delay_ms, 0), now)
        elif not self._complete_if_all_joined(now):
            self._join_deadline_s = self._due(now.after_ms(timeout_ms))

    def _begin_delay(self, delay_ms: int, left_ms: int, now: Instant) -> None:
        self._delay_ms, self._delay_left_ms = delay_ms, left_ms
        self._join_deadline_s = self._due(now.after_ms(delay_ms))

    def _complete_if_all_joined(self, now: Instant) -> bool:
        all_joined = not self._pending and self.members.all_joined
        if all_joined:
            self._complete_join(now)
        return all_joined

    def _complete_join(self, now: Instant) -> None:
        """End the phase in which members join: those who have are the next generation."""
        self._join_deadline_s = NEVER
        for member in self.members:
            if not member.awaits_join and member.instance_id is None:
                self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self.members.elect_joined():
            # Static members only, and none of them has come back: until one does, or all sessions are over.
            wait_ms = max(self.members.rebalance_timeout_ms, MIN_STATIC_WAIT_MS)
            self._join_deadline_s = self._due(now.after_ms(wait_ms))
            return
        self.generation.begin_next()
        self._is_initial = False
        self._pending_sync.clear()
        if self.members:
            self._enter(State.COMPLETING_REBALANCE, now)
            self._begin_sync_phase(now)
        else:
            self._enter(State.EMPTY, now)
            self._store({}, Emptied())

    def _begin_sync_phase(self, now: Instant) -> None:
        for member in self.members:
            self._answer_join(member, self.generation.joined(member))
            member.is_new = False
            member.assignment = b""
            self._extend_session(member, now)
            self._pending_sync.add(member.member_id)
        self._sync_deadline_s = self._due(now.after_ms(self.members.rebalance_timeout_ms))

    def _end_sync_phase(self) -> None:
        self._pending_sync.clear()
        self._sync_deadline_s = NEVER

    # -- sync --

    def sync(self, request: SyncGroupRequest, waiter: Waiter, now: Instant) -> None:
        """A member asks for its assignment; the leader brings everybody's. Answered by an effect, now or later."""
        error = self._check_sync(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            self._answer(waiter, SyncGroupResponse(error=error))
            return
        self._extend_session(member, now)
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._sync_deadline_s = NEVER
        if self.state is State.STABLE:
            self._answer(waiter, self.generation.synced(member))
            return
        self._answer_sync(member, SyncGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS))  # one who asks twice
        member.sync_waiter = waiter
        if self.members.leader == member.member_id:
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._store(assignments, Assigned(self.generation.number, assignments))

    def _check_sync(self, request: SyncGroupRequest) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.generation.check_sync(request)
        is_preparing = self.state is State.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if error is ErrorCode.NONE and is_preparing else error

    def _propagate(self, assignments: Mapping[str, bytes], error: ErrorCode, now: Instant) -> None:
        """Tell all who wait what they are assigned, or that there is nothing."""
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_waiter is not None:
                response = self.generation.synced(member) if error is ErrorCode.NONE else SyncGroupResponse(error=error)
                self._answer_sync(member, response)
                self._extend_session(member, now)  # its silence was excused until now

    # -- stored --

    def stored(self, purpose: Purpose, error: ErrorCode, now: Instant) -> None:
        """What a Store asked for is kept, or `error` says why not."""
        if isinstance(purpose, Assigned):
            self._assignment_stored(purpose, error, now)
        elif isinstance(purpose, Restarted):
            self._restart_stored(purpose, error, now)

    def _assignment_stored(self, purpose: Assigned, error: ErrorCode, now: Instant) -> None:
        if self.state is not State.COMPLETING_REBALANCE or self.generation.number != purpose.generation:
            return  # another rebalance began meanwhile
        self._propagate(purpose.assignments if error is ErrorCode.NONE else {}, error, now)
        if error is ErrorCode.NONE:
            self.completed_rebalances += 1
            self._enter(State.STABLE, now)
        else:
            self._prepare_rebalance(now)

    def _restart_stored(self, purpose: Restarted, error: ErrorCode, now: Instant) -> None:
        """The static member can go on where its former life ended, without a rebalance; or it never came."""
        member = purpose.member
        if self.members.get(purpose.new_id) is not member:
            return  # it has left, or was started yet again
        if error is not ErrorCode.NONE:
            self._answer_join(member, _refused_join(NO_MEMBER, error))
            self._extend_session(member, now)
            if self.state is State.STABLE:
                self.members.update(member, purpose.before)
                self.members.rename(member, purpose.old_id)
        elif self.state is State.STABLE:
            self._answer_join(member, self._restarted(member, purpose))
            self._extend_session(member, now)

    def _restarted(self, member: Member, purpose: Restarted) -> JoinGroupResponse:
        """A leader that is not told that it may skip the assignment is told that its former life leads (KIP-814)."""
        if not purpose.request.can_skip_assignment:
            return self.generation.joined(member, leader=purpose.old_leader, members=())
        return self.generation.joined(member, skip_assignment=self.members.leader == member.member_id)

    # -- signs of life --

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Instant) -> ErrorCode:
        """A member is there. What it is to do: nothing, join again, or something worse."""
        error = self._check_member_of(generation, member_id, instance_id)
        member = self.members.get(member_id)
        if error is not ErrorCode.NONE or member is None:
            return error
        self._extend_session(member, now)
        is_preparing = self.state is State.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: Instant) -> ErrorCode:
        """Whether this member, or somebody from outside (generation below 0, no ids), may commit offsets now."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and member_id == NO_MEMBER and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID  # from outside, while there are members
        error = self._check_member_of(generation, member_id, instance_id)
        if error is ErrorCode.NONE and self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self.members.get(member_id)
        if error is ErrorCode.NONE and member is not None:
            self._extend_session(member, now)
        return error

    def forget_waiter(self, waiter: Waiter, now: Instant) -> None:
        """The client of someone who waits went away. The member stays until its session time-out."""
        for member in self.members:
            if member.join_waiter is waiter:
                member.join_waiter = GONE
                self._extend_session(member, now)
            if member.sync_waiter is waiter:
                member.sync_waiter = None
                self._extend_session(member, now)

    # -- leave --

    def leave(self, leaving: Iterable[LeavingMember], now: Instant) -> list[ErrorCode]:
        """Members go; what became of each, in order. Those that stay are rebalanced once."""
        count = len(self.members)
        errors = [self._leave(each) for each in leaving]
        has_changed = ErrorCode.NONE in errors
        if len(self.members) < count or (has_changed and self.state is State.PREPARING_REBALANCE):
            self._rebalance_or_complete(now)
        return errors

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == NO_MEMBER:  # an administrator names a static member by its instance
            member_id = self.members.static_id(leaving.instance_id or "") or NO_MEMBER
        elif member_id in self._pending:
            del self._pending[member_id]
            return ErrorCode.NONE
        error = self.generation.check_member(member_id, leaving.instance_id)
        if error is ErrorCode.NONE:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    # -- time --

    def expire(self, now: Instant) -> None:
        """Do what is due, and set `wake_at_s` anew."""
        for member_id in [each for each, deadline_s in self._pending.items() if deadline_s <= now.loop_s]:
            self._expire_pending(member_id, now)
        for member in self.members:
            if member.deadline_s <= now.loop_s:
                self._expire_member(member, now)
        if self._join_deadline_s <= now.loop_s:
            self._join_phase_over(now)
        if self._sync_deadline_s <= now.loop_s:
            self._sync_phase_over(now)
        self.wake_at_s = min(
            self._join_deadline_s,
            self._sync_deadline_s,
            min(self._pending.values(), default=NEVER),
            min((member.deadline_s for member in self.members), default=NEVER),
        )

    def _expire_pending(self, member_id: str, now: Instant) -> None:
        self._pending.pop(member_id, None)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(now)

    def _expire_member(self, member: Member, now: Instant) -> None:
        if member.is_excused:
            member.deadline_s = NEVER  # it waits for us: its session goes on when it is answered
            return
        if self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID) is None:
            return
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(now)
        else:
            self._rebalance_or_complete(now)

    def _join_phase_over(self, now: Instant) -> None:
        if self._is_initial and self._has_new_member and self._delay_left_ms:
            self._has_new_member = False
            step_ms = min(self._limits.initial_rebalance_delay_ms, self._delay_left_ms)
            self._begin_delay(step_ms, max(self._delay_left_ms - self._delay_ms, 0), now)
        else:
            self._complete_join(now)

    def _sync_phase_over(self, now: Instant) -> None:
        """Whoever has not asked for its assignment until now is out."""
        late = list(self._pending_sync)
        self._end_sync_phase()
        for member_id in late:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if late and self.state in {State.COMPLETING_REBALANCE, State.STABLE}:
            self._prepare_rebalance(now)

    # -- end --

    def close(self, error: ErrorCode, now: Instant) -> None:
        """The group is deleted, or its coordinator stops: nobody waits any longer."""
        for member in self.members:
            self._answer_join(member, _refused_join(member.member_id, error))
            self._answer_sync(member, SyncGroupResponse(error=error))
        self._enter(State.DEAD, now)
        self.wake_at_s = NEVER

    # -- inside --

    def _check_member_of(self, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.generation.check_member_of(generation, member_id, instance_id)

    def _remove(self, member_id: str, error: ErrorCode) -> Member | None:
        """Take a member out; it is told, if it waits."""
        self._pending.pop(member_id, None)
        self._pending_sync.discard(member_id)
        member = self.members.remove(member_id)
        if member is not None:
            self._answer_join(member, _refused_join(NO_MEMBER, error))
            self._answer_sync(member, SyncGroupResponse(error=error))
        return member

    def _store(self, assignments: Mapping[str, bytes], purpose: Purpose) -> None:
        self._effects.append(Store(self.generation.snapshot(assignments, self.state_since_ms), purpose))

    def _enter(self, state: State, now: Instant) -> None:
        assert self.state in PREVIOUS_STATES[state], f"{self.state} to {state}"
        self.state = state
        self.state_since_ms = now.wall_ms

    def _extend_session(self, member: Member, now: Instant) -> None:
        member.deadline_s = self._due(now.after_ms(member.session_timeout_ms))

    def _due(self, when_s: float) -> float:
        self.wake_at_s = min(self.wake_at_s, when_s)
        return when_s

    def _set_join_waiter(self, member: Member, waiter: Waiter) -> None:
        """Whoever waited for the same member before is on a connection that the client has given up."""
        self._answer_join(member, _refused_join(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        member.join_waiter = waiter

    def _answer(self, waiter: Waiter, response: JoinGroupResponse | SyncGroupResponse) -> None:
        self._effects.append(Answer(waiter, response))

    def _refuse_join(self, waiter: Waiter, member_id: str, error: ErrorCode) -> None:
        self._answer(waiter, _refused_join(member_id, error))

    def _answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        waiter, member.join_waiter = member.join_waiter, None
        if waiter is not None and waiter is not GONE:
            self._answer(waiter, response)

    def _answer_sync(self, member: Member, response: SyncGroupResponse) -> None:
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self._answer(waiter, response)


def _refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(member_id=member_id, error=error)
