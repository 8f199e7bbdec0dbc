"""The path of a streams group's changes: from heartbeats to stored records, and from these to answers.

A checked heartbeat changes the group, waits for the target assignment if that has to be computed, moves its member
towards it, and is answered when everything is stored.

Source: Kafka's GroupMetadataManager (4.4: streamsGroupHeartbeat, maybeUpdateStreamsTargetAssignment,
computeDelayedTargetAssignment, streamsGroupFenceMember, replaceStreamsMember).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from warmlog.broker.groups.automaton import NEVER, Answer, Instant
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.progress import REMOVED_PER_STORE, ModernProgress
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.broker.groups.modern.sessions import MemberSessions
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART
from warmlog.broker.groups.streams.effects import AssignTasks
from warmlog.broker.groups.streams.holding import (
    NONE_HELD,
    CurrentTasks,
    Holding,
    StreamsMemberState,
    current_assignment,
)
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.groups.streams.reconciliation import goal_of, reconcile
from warmlog.broker.groups.streams.requests import StreamsDeclaration, needs_new_epoch, refusal
from warmlog.broker.groups.streams.responses import StreamsHeartbeat, response
from warmlog.broker.groups.streams.stored import DELETION, StoredStreamsGroup
from warmlog.broker.groups.streams.target import assigned, computation
from warmlog.broker.groups.streams.tasks import Tasks
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology
from warmlog.broker.groups.streams.unstored import Unstored
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import StreamsGroupState
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch
from warmlog.protocol.kafka.streams_group_records import (
    StreamsCurrentKey,
    StreamsEpochKey,
    StreamsGroupEpoch,
    StreamsMemberKey,
    StreamsTarget,
    StreamsTargetEpochKey,
    StreamsTargetKey,
    TopologyKey,
)

TASKS_PER_SUBTOPOLOGY = 5
NOT_VALIDATED = -1


class StreamsProgress(ModernProgress[AssignTasks, StreamsHeartbeat, StreamsGroupState, StreamsLimits]):
    """The unfinished changes of one group, and the heartbeats that wait for them."""

    sessions: MemberSessions

    def __init__(self, group: StoredStreamsGroup, limits: StreamsLimits, now: Instant) -> None:
        """Begin with a group without members."""
        super().__init__(
            group, DELETION, limits=limits, sessions=MemberSessions(), initial=StreamsGroupState.EMPTY, now=now
        )
        self.unstored = Unstored(group)
        self.topics: Topics | None = None
        self._group = group

    @property
    def state(self) -> StreamsGroupState:
        """The state, as Kafka's tools report it."""
        return StreamsGroupState.DEAD if self.is_dead else self._group.state

    @property
    def wake_at_s(self) -> float:
        """The latest time to call `expire`."""
        return min(super().wake_at_s, self.unstored.assigns_at_s)

    # -- requests --

    def accept(self, declared: StreamsDeclaration, configured: ConfiguredTopology, holder: str, now: Instant) -> None:
        """Apply a member's declaration to the group, and answer once that is stored."""
        group, unstored, request = self._group, self.unstored, declared.request
        member_id, is_new = request.member_id, not group.is_stored
        was_empty = not group.metadata
        known = group.metadata.get(declared.replaced or member_id)
        if declared.replaced is not None:
            self._replace(declared.replaced, member_id)
        before = group.current(member_id)
        unstored.configure(configured)
        self._declare(declared, configured)
        group.set_holder(member_id, holder)
        unstored.report(member_id, request)
        self.sessions.extend(member_id, self.limits.session_timeout_ms, now)
        if request.shutdown_application:
            unstored.request_shutdown(member_id)
        if was_empty and self.limits.initial_rebalance_delay_ms and not unstored.is_delayed:
            unstored.assigns_at_s = now.after_ms(self.limits.initial_rebalance_delay_ms)
        if self.parked:
            self._supersede(member_id)
        heartbeat = StreamsHeartbeat(declared, known, before, is_new=is_new)
        if self._is_assignment_due(now):
            self.park(heartbeat, computation(group, unstored))
        else:
            self._answer(heartbeat, now)
        self.note_state(now)

    def _declare(self, declared: StreamsDeclaration, configured: ConfiguredTopology) -> None:
        """Set a member's declaration, and raise the epoch if it, or a change of topics, affects the assignment."""
        group, request, metadata = self._group, declared.request, declared.metadata
        known = group.metadata.get(request.member_id)
        changed = False
        if metadata != known:
            self.journal.put(StreamsMemberKey(group.group_id, request.member_id), metadata)
            changed = needs_new_epoch(known, metadata)
        if group.topology is None:
            self.journal.put(TopologyKey(group.group_id), declared.topology)
        epoch = group.epoch
        validated = declared.topology.epoch if configured.is_ready else NOT_VALIDATED
        configs = self.limits.assignment_configs
        if (
            changed
            or configured.metadata_hash != epoch.metadata_hash
            or validated != epoch.validated_topology_epoch
            or set(configs) != set(epoch.assignment_configs or ())
        ):
            raised = StreamsGroupEpoch(
                epoch=epoch.epoch + 1,
                metadata_hash=configured.metadata_hash,
                validated_topology_epoch=validated,
                assignment_configs=configs,
                stored_description_epoch=epoch.stored_description_epoch,
                failed_description_epoch=epoch.failed_description_epoch,
            )
            self.journal.put(StreamsEpochKey(group.group_id), raised)

    def _replace(self, old_id: str, member_id: str) -> None:
        """Assign a new id to a restarted static member. It keeps its tasks, and begins in epoch 0."""
        group, group_id = self._group, self._group.group_id
        metadata, target, current = group.metadata[old_id], group.target(old_id), group.current(old_id)
        self._delete(old_id)
        self.journal.put(StreamsMemberKey(group_id, member_id), metadata)
        self.journal.put(StreamsTargetKey(group_id, member_id), target.value)
        rejoined = current_assignment(0, 0, current.value.state, current.assigned, current.to_revoke)
        self.journal.put(StreamsCurrentKey(group_id, member_id), rejoined)

    def _supersede(self, member_id: str) -> None:
        """Ignore the report in a member's parked heartbeat, because the answer to a later one assigns tasks."""
        self.parked = deque(
            replace(heartbeat, declared=replace(heartbeat.declared, owned=None))
            if heartbeat.member_id == member_id
            else heartbeat
            for heartbeat in self.parked
        )

    def _is_assignment_due(self, now: Instant) -> bool:
        if self.unstored.is_delayed:
            return False
        return self.target.is_due(self.limits.assignment_interval_ms, now, single_member_waits=True)

    def _answer(self, heartbeat: StreamsHeartbeat, now: Instant) -> None:
        """Move a member towards its target, and answer its heartbeat once everything is stored."""
        assert self.topics is not None, "heartbeats bring the topics"
        group, member_id = self._group, heartbeat.member_id
        current = group.current(member_id)
        if not current.is_reconciled_to(group.target_epoch.epoch):
            current = self._reconcile(heartbeat, current, now)
        answer = response(group, self.unstored, heartbeat, current, limits=self.limits, topics=self.topics)
        self.journal.commit(Answer(heartbeat.declared.waiter, answer))

    def _reconcile(self, heartbeat: StreamsHeartbeat, current: CurrentTasks, now: Instant) -> CurrentTasks:
        group, member_id = self._group, heartbeat.member_id
        goal = goal_of(group, member_id)
        if self.unstored.is_delayed:
            goal = goal._replace(target=Tasks())
        after = reconcile(current, goal, heartbeat.declared.owned)
        if after is not current:
            self.journal.put(StreamsCurrentKey(group.group_id, member_id), after.value)
            self._limit_revocation(member_id, after, now)
        return after

    def _limit_revocation(self, member_id: str, current: CurrentTasks, now: Instant) -> None:
        if current.value.state == StreamsMemberState.UNREVOKED_TASKS:
            timeout_ms = self._group.metadata[member_id].rebalance_timeout_ms
            self.sessions.limit_revocation(member_id, timeout_ms, now)
        else:
            self.sessions.end_revocation(member_id)

    # -- the end of memberships --

    def leave_for_restart(self, member_id: str, answer: Answer, now: Instant) -> None:
        """Keep the tasks of a static member until it returns or its session ends.

        The epochs of its tasks become 0, so that commits in flight are accepted.
        """
        current = self._group.current(member_id)
        active = {each: dict.fromkeys(epochs, 0) for each, epochs in current.assigned.active.items()}
        value = current_assignment(
            LEAVE_FOR_RESTART,
            current.value.previous_epoch,
            current.value.state,
            Holding(active, current.assigned.standby, current.assigned.warmup),
            NONE_HELD,
        )
        self.journal.put(StreamsCurrentKey(self._group.group_id, member_id), value)
        self.journal.commit(answer)
        self.note_state(now)

    def remove(self, member_ids: Collection[str], now: Instant, *answers: Answer) -> None:
        """Remove members, and raise the epoch."""
        group = self._group
        for member_id in member_ids:
            self._delete(member_id)
        if member_ids:
            epoch = group.epoch
            raised = StreamsGroupEpoch(
                epoch=epoch.epoch + 1,
                metadata_hash=epoch.metadata_hash,
                validated_topology_epoch=epoch.validated_topology_epoch,
                assignment_configs=epoch.assignment_configs or (),
                stored_description_epoch=epoch.stored_description_epoch,
                failed_description_epoch=epoch.failed_description_epoch,
            )
            self.journal.put(StreamsEpochKey(group.group_id), raised)
            if not group.metadata:  # there is nothing to assign, and the next member need not wait
                self.journal.put(StreamsTargetEpochKey(group.group_id), TargetEpoch(epoch=raised.epoch))
        self.journal.commit(*answers)
        self.note_state(now)

    def _delete(self, member_id: str) -> None:
        group_id = self._group.group_id
        self.journal.put(StreamsCurrentKey(group_id, member_id), None)
        self.journal.put(StreamsTargetKey(group_id, member_id), None)
        self.journal.put(StreamsMemberKey(group_id, member_id), None)
        self.sessions.forget(member_id)
        self.unstored.forget(member_id)

    def expire(self, now: Instant) -> None:
        """Remove members whose session has ended or that did not give up tasks in time; end a delay."""
        super().expire(now)
        if self.unstored.assigns_at_s <= now.loop_s:
            self.unstored.assigns_at_s = NEVER
            if self._group.metadata and self.unstored.configured is not None and self._is_assignment_due(now):
                self.compute(computation(self._group, self.unstored))

    # -- outcomes of effects --

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied."""
        self.topics = topics
        orphans = self._group.orphans()
        for start in range(0, len(orphans), REMOVED_PER_STORE):  # they have no session that could end
            self.remove(orphans[start : start + REMOVED_PER_STORE], now)
        self._group.reindex()
        self._match_sessions(now)
        self.note_state(now)

    def _match_sessions(self, now: Instant) -> None:
        """Set the deadlines of members that follow from the stored state."""
        group = self._group
        self.sessions.match(group.metadata, self.limits.session_timeout_ms, now)
        for member_id in group.metadata:
            current = group.current(member_id)
            is_unrevoked = current.value.state == StreamsMemberState.UNREVOKED_TASKS
            if is_unrevoked != self.sessions.is_revoking(member_id):
                self._limit_revocation(member_id, current, now)

    def _targets(
        self, running: AssignTasks, assignments: Mapping[str, Tasks]
    ) -> Iterator[tuple[StreamsTargetKey, StreamsTarget | None, int]]:
        for member_id, target in assigned(self._group, running, assignments):
            yield StreamsTargetKey(self._group.group_id, member_id), target, self._units(member_id)

    def _target_epoch_key(self) -> StreamsTargetEpochKey:
        return StreamsTargetEpochKey(self._group.group_id)

    def _respond(self, heartbeat: StreamsHeartbeat, now: Instant) -> int:
        self._answer(heartbeat, now)
        return self._units(heartbeat.member_id)

    def _refusal(self, heartbeat: StreamsHeartbeat, refused: RefusedError) -> Answer:
        return refusal(heartbeat.waiter, refused)

    def _units(self, member_id: str) -> int:
        """Estimate the units of work for a member's tasks: a subtopology takes as much as a few tasks."""
        tasks = self._group.target(member_id).tasks
        kinds = (tasks.active, tasks.standby, tasks.warmup)
        return sum([TASKS_PER_SUBTOPOLOGY + len(numbers) for kind in kinds for numbers in kind.values()])

    # -- the end --

    def close(self, error: ErrorCode, now: Instant) -> None:
        """Stop: answer all waiting clients with an error."""
        super().close(error, now)
        self.unstored.assigns_at_s = NEVER
