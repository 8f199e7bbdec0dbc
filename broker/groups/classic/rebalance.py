"""The phases of a group's rebalances, and everything in a group that can expire.

    Empty ─────────────────► PreparingRebalance ◄──────────────┐
      ▲   a member joins      │       ▲    │                   │ a member joins, changes its
      │                       │       │    │ all have joined,  │ metadata, leaves or expires
      │ nobody joined         │       │    ▼ or time is up     │
      └───────────────────────┘   CompletingRebalance ───────► Stable
                                          the leader's assignment is stored
    any ──► Dead: deleted, or the coordinator stops

In PreparingRebalance (the join phase) members send JoinGroup. The phase ends when every member has joined and no id
handed out is unused, or at a deadline: the longest rebalance timeout, or for the first rebalance of an empty group the
initial delay, which is extended while members keep arriving. Dynamic members that have not joined by then are removed,
static ones stay. In CompletingRebalance (the sync phase) members send SyncGroup and wait for the leader's assignment;
the deadline is the longest rebalance timeout again.

Deadlines are seconds on the event loop's clock. `wake_at_s` is a lower bound on all of them: extending a session does
not change it, so `expire` may find nothing to do and then sets it exactly.

Source: org.apache.kafka.coordinator.group.classic.ClassicGroup, ClassicGroupState, and the classic part of
GroupMetadataManager; KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members).
"""

from collections.abc import Mapping
from typing import Self

from warmlog.broker.groups.automaton import NEVER, Instant
from warmlog.broker.groups.classic.effects import Assigned, Emptied, Limits, Purpose
from warmlog.broker.groups.classic.generation import Generation
from warmlog.broker.groups.classic.members import Member, Members
from warmlog.broker.groups.classic.outbox import Outbox
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_MEMBER, GroupState, SyncGroupResponse
from warmlog.protocol.kafka.group_records import StoredGroup

# How long a new member may wait for its first rebalance; until then it has no id for heartbeats.
# Kafka: CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
# Minimum time before absent static members are checked again. A rebalance timeout of 0 is legal, and would make the
# group due again immediately.
MIN_STATIC_WAIT_MS = 1000
# Assigned and unused ids of a group. Beyond this number the oldest one is dropped: its client, if it still exists, gets
# UNKNOWN_MEMBER_ID and requests another one.
MAX_PENDING_IDS = 1000

State = GroupState

# The states from which each state may be entered.
PREVIOUS_STATES: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}


class Rebalance:
    """The state of one group with its generation and deadlines. `ClassicGroup` decides which requests reach it."""

    def __init__(self, limits: Limits, outbox: Outbox, now: Instant) -> None:
        """Start as a group without members."""
        self.state = State.EMPTY
        self.state_since_ms = now.wall_ms  # NO_TIME: restored from a record version without it
        self.generation = Generation()
        self.completed = 0
        self.wake_at_s = NEVER
        self.pending_ids: dict[str, float] = {}  # assigned ids that were not used to join yet, with their deadlines
        self.pending_sync: set[str] = set()  # members that have not sent SyncGroup for this generation
        self.join_deadline_s = NEVER
        self.sync_deadline_s = NEVER
        self._limits = limits
        self._outbox = outbox
        self._is_initial = False  # whether this is the first rebalance of an empty group, which waits for more members
        self._delay_ms = self._delay_left_ms = 0  # initial delay: the current step, and the time left to add
        self._has_new_member = False  # whether a member joined in the current step of the initial delay

    @classmethod
    def restore(cls, stored: StoredGroup, limits: Limits, outbox: Outbox, now: Instant) -> Self:
        """Return the state that a record describes; each member has one session timeout to send a heartbeat.

        A group with more members than `limits` allow is rebalanced immediately, and the last to rejoin are refused.
        Raises MalformedError if the record has a member twice.
        """
        rebalances = len(stored.members) > limits.max_size
        rebalance = cls.resume(Generation.restore(stored), limits, outbox, now, rebalances=rebalances)
        if not rebalances:
            rebalance.state_since_ms = stored.state_since_ms
        return rebalance

    @classmethod
    def resume(cls, generation: Generation, limits: Limits, outbox: Outbox, now: Instant, *, rebalances: bool) -> Self:
        """Return a group whose members have the generation's assignments, and a new session each."""
        rebalance = cls(limits, outbox, now)
        rebalance.generation = generation
        rebalance.state = State.STABLE if generation.members else State.EMPTY
        for member in rebalance.members:
            rebalance.extend_session(member, now)
        if rebalances:
            rebalance.prepare(now)
        return rebalance

    def interrupt(self, error: ErrorCode, now: Instant) -> None:
        """Answer all pending requests with `error`; the members have to join again."""
        for member in self.members:
            self._outbox.fail(member, error, member_id=member.member_id)
            self.extend_session(member, now)

    @property
    def members(self) -> Members:
        """The members, including those that have joined only for the next generation."""
        return self.generation.members

    # -- members --

    def add(self, member: Member, now: Instant) -> None:
        """Add a new member that is waiting for its JoinGroup response, and rebalance."""
        self.pending_ids.pop(member.member_id, None)
        member.deadline_s = self._deadline(now.after_ms(NEW_MEMBER_JOIN_TIMEOUT_MS))
        self._has_new_member = True
        self.members.add(member)
        self.membership_changed(now)

    def add_pending_id(self, member_id: str, timeout_ms: int, now: Instant) -> None:
        """Reserve an id for a client that is to join with it (KIP-394)."""
        if len(self.pending_ids) >= MAX_PENDING_IDS:
            del self.pending_ids[next(iter(self.pending_ids))]
        self.pending_ids[member_id] = self._deadline(now.after_ms(timeout_ms))

    def rename(self, member: Member, new_id: str, now: Instant) -> None:
        """Give a static member its new id, and start a new session."""
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            self.pending_sync.add(new_id)
        self.members.rename(member, new_id)
        member.is_new = False
        self.extend_session(member, now)

    def remove(self, member_id: str, error: ErrorCode) -> Member | None:
        """Remove a member or a pending id, and answer its pending requests with `error`. Does not rebalance."""
        self.pending_ids.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.remove(member_id)
        if member is not None:
            self._outbox.fail(member, error, member_id=NO_MEMBER)
        return member

    def extend_session(self, member: Member, now: Instant) -> None:
        """Restart a member's session timeout."""
        member.deadline_s = self._deadline(now.after_ms(member.session_timeout_ms))

    # -- join phase --

    def membership_changed(self, now: Instant) -> None:
        """Start a rebalance; if one is in its join phase, complete that if all have joined.

        The initial delay runs its full time even if all have joined: its purpose is to wait for unknown members.
        """
        if self.state in PREVIOUS_STATES[State.PREPARING_REBALANCE]:
            self.prepare(now)
        elif not self._is_initial:
            self.complete_if_all_joined(now)

    def prepare(self, now: Instant) -> None:
        """Enter the join phase. The next heartbeat tells members to send JoinGroup."""
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
        elif not self.complete_if_all_joined(now):
            self.join_deadline_s = self._deadline(now.after_ms(timeout_ms))

    def complete_if_all_joined(self, now: Instant) -> bool:
        """End the join phase if all awaited members have joined; return whether it ended."""
        all_joined = not self.pending_ids and self.members.all_joined
        if all_joined:
            self._complete_join_phase(now)
        return all_joined

    def _begin_delay(self, delay_ms: int, left_ms: int, now: Instant) -> None:
        self._delay_ms, self._delay_left_ms = delay_ms, left_ms
        self.join_deadline_s = self._deadline(now.after_ms(delay_ms))

    def _complete_join_phase(self, now: Instant) -> None:
        """Begin the next generation with the members that have joined, and static ones that have not."""
        self.join_deadline_s = NEVER
        for member in self.members:
            if not member.awaits_join and member.instance_id is None:
                self.remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self.members.elect_joined():
            # Only static members are left and none has joined: wait until one does, or until all sessions expire.
            wait_ms = max(self.members.rebalance_timeout_ms, MIN_STATIC_WAIT_MS)
            self.join_deadline_s = self._deadline(now.after_ms(wait_ms))
            return
        self.generation.begin_next()
        self._is_initial = False
        self.pending_sync.clear()
        if self.members:
            self._enter(State.COMPLETING_REBALANCE, now)
            self._begin_sync_phase(now)
        else:
            self._enter(State.EMPTY, now)
            self.store({}, Emptied())

    # -- sync phase --

    def _begin_sync_phase(self, now: Instant) -> None:
        for member in self.members:
            self._outbox.answer_join(member, self.generation.joined(member))
            member.is_new = False
            self.extend_session(member, now)
            self.pending_sync.add(member.member_id)
        self.sync_deadline_s = self._deadline(now.after_ms(self.members.rebalance_timeout_ms))

    def sync_received(self, member: Member) -> None:
        """Record that a member has sent SyncGroup for this generation."""
        self.pending_sync.discard(member.member_id)
        if not self.pending_sync:
            self.sync_deadline_s = NEVER

    def assignment_stored(self, assigned: Assigned, error: ErrorCode, now: Instant) -> None:
        """Distribute a stored assignment, or rebalance again if it was not stored.

        Ignored if another rebalance has begun since.
        """
        if self.state is not State.COMPLETING_REBALANCE or self.generation.number != assigned.generation:
            return
        self._propagate(assigned.assignments if error is ErrorCode.NONE else {}, error, now)
        if error is ErrorCode.NONE:
            self.completed += 1
            self._enter(State.STABLE, now)
        else:
            self.prepare(now)

    def _propagate(self, assignments: Mapping[str, bytes], error: ErrorCode, now: Instant) -> None:
        """Answer every pending SyncGroup with the member's assignment, or with `error`."""
        self.members.assign(assignments)
        for member in self.members:
            if member.sync_waiter is not None:
                response = self.generation.synced(member) if error is ErrorCode.NONE else SyncGroupResponse(error=error)
                self._outbox.answer_sync(member, response)
                self.extend_session(member, now)  # it was suspended while the request was pending

    def _end_sync_phase(self) -> None:
        self.pending_sync.clear()
        self.sync_deadline_s = NEVER

    # -- time --

    def expire(self, now: Instant) -> None:
        """Act on every deadline that has passed, and set `wake_at_s` to the next one."""
        for member_id in [each for each, deadline_s in self.pending_ids.items() if deadline_s <= now.loop_s]:
            self._expire_pending_id(member_id, now)
        for member in self.members:
            if member.deadline_s <= now.loop_s:
                self._expire_member(member, now)
        if self.join_deadline_s <= now.loop_s:
            self._expire_join_phase(now)
        if self.sync_deadline_s <= now.loop_s:
            self._expire_sync_phase(now)
        self.wake_at_s = min(
            self.join_deadline_s,
            self.sync_deadline_s,
            min(self.pending_ids.values(), default=NEVER),
            min((member.deadline_s for member in self.members), default=NEVER),
        )

    def _expire_pending_id(self, member_id: str, now: Instant) -> None:
        self.pending_ids.pop(member_id, None)
        if self.state is State.PREPARING_REBALANCE:
            self.complete_if_all_joined(now)

    def _expire_member(self, member: Member, now: Instant) -> None:
        if member.is_session_suspended:
            member.deadline_s = NEVER  # the session restarts when its request is answered
            return
        if self.remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID) is None:
            return
        if self.state is State.PREPARING_REBALANCE:
            self.complete_if_all_joined(now)
        else:
            self.membership_changed(now)

    def _expire_join_phase(self, now: Instant) -> None:
        if self._is_initial and self._has_new_member and self._delay_left_ms:
            self._has_new_member = False
            step_ms = min(self._limits.initial_rebalance_delay_ms, self._delay_left_ms)
            self._begin_delay(step_ms, max(self._delay_left_ms - self._delay_ms, 0), now)
        else:
            self._complete_join_phase(now)

    def _expire_sync_phase(self, now: Instant) -> None:
        """Remove the members that have not sent SyncGroup, and rebalance the others."""
        late = list(self.pending_sync)
        self._end_sync_phase()
        for member_id in late:
            self.remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if late and self.state in {State.COMPLETING_REBALANCE, State.STABLE}:
            self.prepare(now)

    # -- end --

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Enter Dead, and answer every pending request with `error`."""
        for member in self.members:
            self._outbox.fail(member, error, member_id=member.member_id)
        self._enter(State.DEAD, now)
        self.wake_at_s = NEVER

    # -- helpers --

    def store(self, assignments: Mapping[str, bytes], purpose: Purpose) -> None:
        """Request that the generation be written with these assignments, by member id."""
        self._outbox.store(self.generation.snapshot(assignments, self.state_since_ms), purpose)

    def _enter(self, state: State, now: Instant) -> None:
        assert self.state in PREVIOUS_STATES[state], f"{self.state} to {state}"
        self.state = state
        self.state_since_ms = now.wall_ms

    def _deadline(self, when_s: float) -> float:
        self.wake_at_s = min(self.wake_at_s, when_s)
        return when_s
