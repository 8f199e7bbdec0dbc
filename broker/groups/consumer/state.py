"""A consumer group (KIP-848) as a state machine without a clock, an event loop or a disk.

Members send heartbeats. Each of them may change the group in three steps: its subscription raises the group's epoch, a
target assignment is computed for that epoch, and the member itself moves towards the target. The caller gets effects
from `take_effects`, carries them out, and reports their outcome with `stored`, `assigned` and `resolved`. It also calls
`expire` no later than `wake_at_s`, which is never after the next deadline and sometimes earlier.

Invariants:
1. A partition is assigned to a member only when no other member has it or still has to give it up.
2. What is stored changes only by `apply`: the state is the same after loading its records.
3. An answer is sent when all changes that it is based on are stored; what could not be stored is undone.
4. The epochs of the group and of its target only grow.

Source: Kafka's GroupMetadataManager (4.4: consumerGroupHeartbeat, consumerGroupLeave, consumerGroupFenceMembers).
"""

from collections.abc import Callable, Generator, Iterable, Mapping

from warmlog.broker.groups.automaton import Answer, Client, Instant, Waiter
from warmlog.broker.groups.consumer import commits
from warmlog.broker.groups.consumer.commits import CommitVerdict
from warmlog.broker.groups.consumer.describing import described
from warmlog.broker.groups.consumer.effects import ClassicMember, Effect
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.members import classic, downgrading
from warmlog.broker.groups.consumer.members.declarations import joined, left_for_restart, updated
from warmlog.broker.groups.consumer.progress import Progress
from warmlog.broker.groups.consumer.requests import (
    Declaration,
    check_member,
    check_regex,
    check_size,
    refusal,
)
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.group import ModernGroup
from warmlog.broker.groups.modern.refusals import JOIN, LEAVE, RefusedError, unknown_member
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART, check_instance
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerGroupState,
    GroupType,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.consumer_group_records import (
    ConsumerGroupKey,
    CurrentKey,
    MemberMetadata,
    encode_key,
)
from warmlog.protocol.kafka.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)


class ConsumerGroup(ModernGroup[ConsumerLimits, ConsumerGroupState, MemberMetadata, Effect]):
    """One group. Not thread-safe: all calls come from the event loop."""

    type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    encode_key = staticmethod(encode_key)
    _group: StoredGroup
    _progress: Progress

    def __init__(self, group_id: str, limits: ConsumerLimits, now: Instant) -> None:
        """Create a group without members."""
        group = StoredGroup(group_id)
        super().__init__(group, Progress(group, limits, now))
        self.sees: Callable[[str], bool] | None = None  # whether the last member may see a topic; None: it may see all
        self._sessions = self._progress.sessions
        self._changes = self._progress.changes

    def abandon(self) -> list[ConsumerGroupKey]:
        """Drop pending stores of a group that could not be stored; return the keys that may be in the log."""
        return self._journal.abandon()

    def set_holder(self, member_id: str, holder: str) -> None:
        """Count a member's memory for this holder from now on."""
        self._group.set_holder(member_id, holder)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic, by name or by a regular expression."""
        return topic in self._group.subscriptions

    def described(self, topics: Topics) -> Generator[None, None, DescribedConsumerGroup]:
        """Describe the group and its members."""
        return described(self._group, self.state, self.limits.assignors, topics)

    # -- heartbeats --

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        waiter: Waiter,
        topics: Topics,
        now: Instant,
    ) -> None:
        """Handle a heartbeat that `check_request` has accepted. `waiter` is answered by an effect, now or later."""
        self._changes.topics = topics
        try:
            self._check_served()
            if request.member_epoch in {LEAVE, LEAVE_FOR_RESTART}:
                self._leave(request, waiter, now)
            else:
                self._progress.accept(self._declared(request, client, waiter), client.holder, now)
        except RefusedError as refused:
            self._journal.emit(refusal(waiter, request, refused))

    def _check_served(self) -> None:
        """Refuse a request to a group that is not served or is being replaced. Raises RefusedError."""
        if self._progress.is_dead:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is not available.")
        if self._journal.is_downgrading:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The group becomes a classic group.")

    def _declared(self, request: ConsumerGroupHeartbeatRequest, client: Client, waiter: Waiter) -> Declaration:
        """Check a heartbeat of a member that joins or stays. Raises RefusedError."""
        group = self._group
        check_size(group, request, self.limits.max_size)
        member_id = request.member_id or client.new_id
        check_member(group, request, member_id)
        replaced = group.static.get(request.instance_id or "") if request.member_epoch == JOIN else None
        known = group.metadata.get(replaced or member_id)
        metadata = updated(known or joined(client), request, client)
        if known is None or metadata.regex != known.regex:
            check_regex(group, metadata.regex)
        return Declaration(waiter, request, member_id, replaced, metadata, request.owned)

    # -- leaving --

    def _leave(self, request: ConsumerGroupHeartbeatRequest, waiter: Waiter, now: Instant) -> None:
        """Remove a member, or keep the partitions of a static one for its restart, until its session ends."""
        group, member_id = self._group, request.member_id
        if request.instance_id is not None:
            check_instance(group.static, request.instance_id, member_id)
        elif member_id not in group.metadata:
            raise unknown_member(self.group_id, member_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)
        if request.instance_id is not None and request.member_epoch == LEAVE_FOR_RESTART:
            self._journal.put(CurrentKey(self.group_id, member_id), left_for_restart(group.current(member_id)))
            self._journal.commit(Answer(waiter, response))
            self._progress.note_state(now)
        else:
            self._progress.remove([member_id], now, Answer(waiter, response))

    # -- members of the classic protocol --

    def upgrade(self, generation: int, members: Mapping[str, ClassicMember], topics: Topics, now: Instant) -> None:
        """Take over the members of a classic group; stored together with the heartbeat that follows."""
        self._changes.take_over(generation, members, topics)
        self._sessions.match(self.limits.session_timeout_ms, now)

    @property
    def is_stored(self) -> bool:
        """Whether a change is stored or being stored."""
        return super().is_stored and not self._journal.row_count

    def join(self, request: JoinGroupRequest, client: Client, waiter: Waiter, topics: Topics, now: Instant) -> None:
        """Handle a JoinGroup."""
        self._changes.topics = topics
        try:
            self._check_served()
            declared = classic.declared(
                self._group, request, client, waiter, topics=topics, max_size=self.limits.max_size
            )
        except RefusedError as refused:
            self._journal.emit(refusal(waiter, request, refused))
            return
        downgrade = downgrading.replacing(self._group, declared, self.limits)
        if downgrade is None:
            self._progress.accept(declared, client.holder, now)
            return
        response = JoinGroupResponse(
            generation=downgrade.generation,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
            member_id=declared.member_id,
        )
        self._progress.downgrade(downgrade, Answer(waiter, response))

    def sync(self, request: SyncGroupRequest, waiter: Waiter, topics: Topics, now: Instant) -> None:
        """Handle a SyncGroup of a member."""
        try:
            self._check_served()
            response = classic.sync(self._group, self._sessions, request, topics, now)
        except RefusedError as refused:
            response = SyncGroupResponse(error=refused.error)
        self._journal.commit(Answer(waiter, response))

    def heartbeat_as_classic(self, member_id: str, instance_id: str | None, generation: int, now: Instant) -> ErrorCode:
        """Extend the session of a member. REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            self._check_served()
            return classic.heartbeat(self._group, self._sessions, member_id, instance_id, generation, now=now)
        except RefusedError as refused:
            return refused.error

    def leave(self, members: Iterable[LeavingMember], waiter: Waiter, now: Instant) -> None:
        """Handle a LeaveGroup."""
        try:
            self._check_served()
        except RefusedError as refused:
            self._journal.emit(Answer(waiter, LeaveGroupResponse(error=refused.error)))
            return
        left, errors = classic.leaving(self._group, members)
        results = tuple([LeftMember(member_id="", error=error) for error in errors])
        self._progress.remove(left, now, Answer(waiter, LeaveGroupResponse(members=results)))

    # -- outcomes of effects --

    def resolved(self, results: Mapping[str, tuple[str, ...]], version: int, now: Instant) -> None:
        """Store the topics that regular expressions match, sorted, at a version of the metadata; empty if that failed.

        The group's epoch rises if they have changed.
        """
        self._progress.resolved(results, version, now)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Record that topics were created, changed or deleted; the next heartbeat decides what follows."""
        self._progress.topics_changed(names)

    # -- offsets --

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, *, version: int | None = None
    ) -> CommitVerdict:
        """Return whether a member may commit offsets. `version`: OffsetCommit's, None for other protocols."""
        return commits.check_commit(self._group, member_id, instance_id, epoch, transactional=False, version=version)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, epoch: int) -> CommitVerdict:
        """Return whether a member may commit offsets in a transaction."""
        return commits.check_commit(self._group, member_id, instance_id, epoch, transactional=True, version=None)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return NONE, or why a member may not fetch committed offsets. None and -1: a client outside the group."""
        return commits.check_fetch(self._group, member_id, epoch)
