"""The path of a consumer group's changes: from heartbeats to stored records, and from these to answers.

A checked request changes the group, waits for the target assignment if that has to be computed, moves its member
towards it, and is answered when everything is stored.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from warmlog.broker.groups.automaton import Answer, Instant
from warmlog.broker.groups.consumer.effects import Assign, Downgrade
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.members import downgrading
from warmlog.broker.groups.consumer.members.changes import Changes
from warmlog.broker.groups.consumer.members.reconciliation import goal_of, reconcile
from warmlog.broker.groups.consumer.members.sessions import Sessions
from warmlog.broker.groups.consumer.requests import Declaration, Heartbeat, answer, refusal
from warmlog.broker.groups.consumer.resolution import Resolution
from warmlog.broker.groups.consumer.stored.group import DELETION, StoredGroup
from warmlog.broker.groups.consumer.stored.holding import Current
from warmlog.broker.groups.consumer.target import assigned, computation
from warmlog.broker.groups.modern.assignment import Assignment, Topics
from warmlog.broker.groups.modern.progress import REMOVED_PER_STORE, ModernProgress
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.consumer_group_records import (
    CurrentKey,
    RegexKey,
    TargetAssignment,
    TargetEpochKey,
    TargetKey,
)

RETRY_MS = 1000  # retry of deadlines that pass while the group is being replaced


class Progress(ModernProgress[Assign, Heartbeat, ConsumerGroupState, ConsumerLimits]):
    """The unfinished changes of one group, and the requests that wait for them."""

    sessions: Sessions

    def __init__(self, group: StoredGroup, limits: ConsumerLimits, now: Instant) -> None:
        """Begin with a group without members."""
        super().__init__(
            group, DELETION, limits=limits, sessions=Sessions(group), initial=ConsumerGroupState.EMPTY, now=now
        )
        self.resolution = Resolution(group.subscriptions)
        self.changes = Changes(group, self.journal)
        self._group = group

    @property
    def state(self) -> ConsumerGroupState:
        """The state, as Kafka's tools report it."""
        return ConsumerGroupState.DEAD if self.is_dead else self._group.state

    # -- requests --

    def accept(self, declared: Declaration, holder: str, now: Instant) -> None:
        """Apply a member's declaration to the group, and answer once that is stored."""
        group, topics = self._group, self.changes.topics
        member_id, replaced, metadata = declared.member_id, declared.replaced, declared.metadata
        known = group.metadata.get(replaced or member_id)
        if replaced is not None:
            self.changes.replace(replaced, member_id)
            self.sessions.forget(replaced)
        before = group.current(member_id)
        subscription_changed = metadata is not known and self.changes.subscribe(
            member_id, known, metadata, self.limits.assignors
        )
        group.set_holder(member_id, holder)
        if self.changes.topics_changed:
            self.changes.refresh_topics()
        resolve = self.resolution.begin_if_due(self.limits.regex_refresh_interval_ms, now)
        if resolve is not None:
            self.journal.emit(resolve)
        self.sessions.accept(member_id, self.limits.session_timeout_ms, now)
        if self.parked:
            self._supersede(member_id)
        waiter, request, owned = declared.waiter, declared.request, declared.owned
        heartbeat = Heartbeat(waiter, request, member_id, owned, before, subscription_changed)
        if self.target.is_due(self.limits.assignment_interval_ms, now):
            assert topics is not None, "requests bring the topics"
            self.park(heartbeat, computation(group, group.subscriptions.assignor(self.limits.assignors), topics))
        else:
            self._answer(heartbeat, now)
        self.note_state(now)

    def _supersede(self, member_id: str) -> None:
        """Ignore the report in a member's parked heartbeat, because the answer to a later one assigns partitions."""
        self.parked = deque(
            replace(heartbeat, owned=None) if heartbeat.member_id == member_id else heartbeat
            for heartbeat in self.parked
        )

    def _answer(self, heartbeat: Heartbeat, now: Instant) -> None:
        """Move a member towards its target, and answer its heartbeat once everything is stored."""
        group = self._group
        current = group.current(heartbeat.member_id)
        if heartbeat.subscription_changed or not current.is_reconciled_to(group.target_epoch.epoch):
            current = self._reconcile(heartbeat, current, now)
        self.journal.commit(answer(heartbeat, current, self.limits.heartbeat_interval_ms))

    def _reconcile(self, heartbeat: Heartbeat, current: Current, now: Instant) -> Current:
        assert self.changes.topics is not None, "heartbeats bring the topics"
        member_id = heartbeat.member_id
        goal = goal_of(self._group, member_id, self.changes.topics)
        after = reconcile(current, goal, heartbeat.owned, subscription_changed=heartbeat.subscription_changed)
        if after is not current:
            self.journal.put(CurrentKey(self._group.group_id, member_id), after.value)
            self.sessions.limit_revocation(member_id, after, now)
        return after

    # -- the end of memberships --

    def remove(self, member_ids: Collection[str], now: Instant, *answers: Answer) -> None:
        """Remove members. If only classic members are left, the group becomes a classic group."""
        for member_id in member_ids:
            self.sessions.forget(member_id)
        downgrade = downgrading.without(self._group, member_ids, self.limits)
        if downgrade is not None:
            self.downgrade(downgrade, *answers)
            return
        if member_ids:
            self.changes.remove(member_ids)
        self.journal.commit(*answers)
        self.note_state(now)

    def downgrade(self, downgrade: Downgrade, *answers: Answer) -> None:
        """Replace the group by a classic group, and answer once that is stored."""
        self.target.invalidate()
        self.fail_parked(ErrorCode.REBALANCE_IN_PROGRESS)
        self.journal.downgrade(downgrade, *answers)

    def expire(self, now: Instant) -> None:
        """Remove members whose session has ended or that were too slow in a rebalance."""
        if self.journal.is_downgrading:
            self.sessions.wake_at_s = now.after_ms(RETRY_MS)
            return
        member_ids = self.sessions.due(now)
        for start in range(0, len(member_ids), REMOVED_PER_STORE):
            if not self.journal.is_downgrading:
                self.remove(member_ids[start : start + REMOVED_PER_STORE], now)

    # -- outcomes of effects --

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied."""
        self.changes.topics = topics
        orphans = self._group.orphans()
        for start in range(0, len(orphans), REMOVED_PER_STORE):  # they have no session that could end
            self.changes.remove(orphans[start : start + REMOVED_PER_STORE])
            self.journal.commit()
        self._group.reindex()
        self.note_state(now)
        self._match_sessions(now)

    def _match_sessions(self, now: Instant) -> None:
        self.sessions.match(self.limits.session_timeout_ms, now)

    def _reverted(self) -> None:
        self.resolution.has_new_topics = True
        self.changes.topics_changed = True

    def _targets(
        self, running: Assign, assignments: Mapping[str, Assignment]
    ) -> Iterator[tuple[TargetKey, TargetAssignment | None, int]]:
        for member_id, target in assigned(self._group, running, assignments):
            yield TargetKey(self._group.group_id, member_id), target, len(self._group.target(member_id).partitions)

    def _target_epoch_key(self) -> TargetEpochKey:
        return TargetEpochKey(self._group.group_id)

    def _respond(self, heartbeat: Heartbeat, now: Instant) -> int:
        self._answer(heartbeat, now)
        return len(self._group.target(heartbeat.member_id).partitions)

    def _refusal(self, heartbeat: Heartbeat, refused: RefusedError) -> Answer:
        return refusal(heartbeat.waiter, heartbeat.request, refused)

    def resolved(self, results: Mapping[str, tuple[str, ...]], version: int, now: Instant) -> None:
        """Store the sorted topics that regular expressions match at a metadata version; empty if matching failed.

        The group's epoch rises if they have changed.
        """
        resolved = self.resolution.end(results, version)
        if self.is_dead or self.journal.is_downgrading:
            return
        has_changed = False
        for regex, value in resolved.items():
            before = self._group.subscriptions.resolved.get(regex)
            has_changed |= frozenset(value.topics) != frozenset(before.topics if before is not None else ())
            self.journal.put(RegexKey(self._group.group_id, regex), value)
        if has_changed:
            self.changes.raise_epoch()
        elif self.journal.row_count:
            self.changes.refresh_topics()
        self.journal.commit()
        self.note_state(now)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Record that topics were created, changed or deleted; the next heartbeat decides what follows."""
        subscriptions = self._group.subscriptions
        self.resolution.has_new_topics |= subscriptions.has_regexes
        self.changes.topics_changed |= subscriptions.topics.forget(names)
