"""The path of a share group's changes: from heartbeats to stored records, and from these to answers.

A checked request changes the group, waits for the target assignment if that has to be computed, moves its member to it
in one step, since partitions are shared, and is answered when everything is stored.
"""

from collections.abc import Collection, Iterator, Mapping

from warmlog.broker.groups.automaton import Answer, Instant, Waiter
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, Topics
from warmlog.broker.groups.modern.progress import ModernProgress
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.broker.groups.modern.sessions import MemberSessions
from warmlog.broker.groups.modern.target import changed_target, topic_partitions
from warmlog.broker.groups.share.effects import AssignShared, Initialize
from warmlog.broker.groups.share.initialization import Initialization
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.share.partition_states import Numbers
from warmlog.broker.groups.share.requests import ShareHeartbeat, refusal
from warmlog.broker.groups.share.stored import DELETION, STABLE, ShareCurrent, StoredShareGroup
from warmlog.protocol.groups import ShareGroupState
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetAssignment, TargetEpoch
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest
from warmlog.protocol.kafka.share_group_records import (
    ShareCurrentAssignment,
    ShareCurrentKey,
    ShareEpochKey,
    ShareMemberKey,
    ShareMemberMetadata,
    SharePartitions,
    SharePartitionsKey,
    ShareTargetEpochKey,
    ShareTargetKey,
)


class ShareProgress(ModernProgress[AssignShared, ShareHeartbeat, ShareGroupState, ShareLimits]):
    """The unfinished changes of one group, and the requests that wait for them."""

    sessions: MemberSessions

    def __init__(self, group: StoredShareGroup, limits: ShareLimits, now: Instant) -> None:
        """Begin with a group without members."""
        super().__init__(
            group, DELETION, limits=limits, sessions=MemberSessions(), initial=ShareGroupState.EMPTY, now=now
        )
        self.initialization = Initialization(group)
        self.topics: Topics | None = None
        self._topics_changed = True  # whether topics may have changed since the group's epoch began
        self._checked_version = -1  # the group's revision when initialized and assigned partitions were last compared
        self._has_unassigned = False
        self._group = group

    @property
    def state(self) -> ShareGroupState:
        """The state, as Kafka's tools report it."""
        return ShareGroupState.DEAD if self.is_dead else self._group.state

    # -- requests --

    def accept(
        self,
        request: ShareGroupHeartbeatRequest,
        metadata: ShareMemberMetadata,
        waiter: Waiter,
        holder: str,
        now: Instant,
    ) -> None:
        """Apply a member's declaration to the group, and answer once that is stored."""
        group, member_id = self._group, request.member_id
        known, before = group.metadata.get(member_id), group.current(member_id)
        changed = self._subscribe(member_id, known, metadata)
        group.set_holder(member_id, holder)
        if not changed and group.epoch.epoch <= group.target_epoch.epoch:
            changed = self._is_assignment_pending()
        if changed or self._topics_changed:
            changed = self._raise_epoch(only_if_changed=not changed)
        self.sessions.extend(member_id, self.limits.session_timeout_ms, now)
        initialize = self._begin_initialization(now)
        heartbeat = ShareHeartbeat(waiter, request, before, changed)
        if self.target.is_due(self.limits.assignment_interval_ms, now):
            self.journal.commit(*initialize)
            self.park(heartbeat, self._computation())
        else:
            self._answer(heartbeat, *initialize)
        self.note_state(now)

    def _subscribe(self, member_id: str, known: ShareMemberMetadata | None, metadata: ShareMemberMetadata) -> bool:
        """Set a member's declaration; return whether its topics have changed."""
        if metadata is known:
            return False
        self.journal.put(ShareMemberKey(self._group.group_id, member_id), metadata)
        changed = metadata.topics != (() if known is None else known.topics)
        self.initialization.is_due |= changed
        return changed

    def _is_assignment_pending(self) -> bool:
        """Return whether the assignable partitions differ from those of the target."""
        group, topics = self._group, self.topics
        assert topics is not None, "requests bring the topics"
        if self._checked_version != group.version or self._topics_changed:
            self._checked_version = group.version
            self._has_unassigned = not all(
                group.is_shared(topic_id, known.partitions)
                for topic_id, known in group.states.initialized.items()
                if known.name in group.topics and topics.identified(topic_id) is not None
            )
        return self._has_unassigned

    def _raise_epoch(self, *, only_if_changed: bool) -> bool:
        """Begin the group's next epoch, in any case or if its topics have changed; return whether it began."""
        assert self.topics is not None, "requests bring the topics"
        current, topics_hash = self._group.epoch, self._group.topics.hash(self.topics)
        self.initialization.is_due |= self._topics_changed
        self._topics_changed = False
        if only_if_changed and topics_hash == current.metadata_hash:
            return False
        key = ShareEpochKey(self._group.group_id)
        self.journal.put(key, GroupEpoch(epoch=current.epoch + 1, metadata_hash=topics_hash))
        return True

    def _begin_initialization(self, now: Instant) -> list[Initialize]:
        """Store that partitions are being initialized; return the effect that initializes them, if any."""
        assert self.topics is not None, "requests bring the topics"
        missing = self.initialization.missing(self.topics, self.limits.initialize_retry_interval_ms, now)
        if not missing:
            return []
        initialize = self.initialization.begin(missing, self._group.epoch.epoch, now)
        self.put_states(self._group.states.begun(missing))
        return [initialize]

    def put_states(self, value: SharePartitions) -> None:
        """Set the states of partitions as part of a decision."""
        if value != self._group.states.value:
            self.journal.put(SharePartitionsKey(self._group.group_id), value)

    def _computation(self) -> AssignShared:
        """Return the computation for the group's epoch."""
        group, topics = self._group, self.topics
        assert topics is not None, "requests bring the topics"
        ids = {name: topic.id for name in group.topics if (topic := topics.named(name)) is not None}
        subscriptions: dict[tuple[str, ...], frozenset[bytes]] = {}  # most members subscribe to the same topics
        members = {}
        for member_id, metadata in group.metadata.items():
            if metadata.topics not in subscriptions:
                subscriptions[metadata.topics] = frozenset([ids[name] for name in metadata.topics if name in ids])
            members[member_id] = Subscriber(subscriptions[metadata.topics], group.target(member_id).partitions)
        initialized = group.states.initialized
        partitions = {each: initialized[each].partitions for each in ids.values() if each in initialized}
        return AssignShared(group.epoch.epoch, members, partitions)

    def _answer(self, heartbeat: ShareHeartbeat, *then: Initialize) -> None:
        """Move a member to the target, and answer its heartbeat once everything is stored."""
        group, member_id = self._group, heartbeat.request.member_id
        current = group.current(member_id)
        if heartbeat.changed or current.epoch != group.target_epoch.epoch:
            current = self._reconciled(member_id, current)
            if current.value != group.current(member_id).value:
                self.journal.put(ShareCurrentKey(group.group_id, member_id), current.value)
        self.journal.commit(heartbeat.answer(current, self.limits.heartbeat_interval_ms), *then)

    def _reconciled(self, member_id: str, current: ShareCurrent) -> ShareCurrent:
        """Return a member with its target, limited to existing topics that it subscribes to."""
        assert self.topics is not None, "requests bring the topics"
        names, assigned = frozenset(self._group.metadata[member_id].topics), {}
        for topic_id, partitions in self._group.target(member_id).partitions.items():
            topic = self.topics.identified(topic_id)
            if topic is not None and topic.name in names:
                assigned[topic_id] = partitions
        epoch = self._group.target_epoch.epoch
        previous = current.value.previous_epoch if epoch == current.epoch else current.epoch
        value = ShareCurrentAssignment(
            epoch=epoch, previous_epoch=previous, state=STABLE, assigned=topic_partitions(assigned)
        )
        return ShareCurrent(value, assigned)

    # -- the end of memberships --

    def remove(self, member_ids: Collection[str], now: Instant, *answers: Answer) -> None:
        """Remove members, and raise the epoch."""
        group_id = self._group.group_id
        for member_id in member_ids:
            self.sessions.forget(member_id)
            self.journal.put(ShareCurrentKey(group_id, member_id), None)
            self.journal.put(ShareTargetKey(group_id, member_id), None)
            self.journal.put(ShareMemberKey(group_id, member_id), None)
        if member_ids:
            self._raise_epoch(only_if_changed=False)
            if not self._group.metadata:  # there is nothing to assign, and the next member need not wait
                self.journal.put(ShareTargetEpochKey(group_id), TargetEpoch(epoch=self._group.epoch.epoch))
        self.journal.commit(*answers)
        self.note_state(now)

    # -- outcomes of effects --

    def loaded(self, topics: Topics, now: Instant) -> None:
        """Begin to serve a group whose records were applied."""
        self.topics = topics
        self.initialization.loaded(now)
        self._match_sessions(now)
        self.note_state(now)

    def _match_sessions(self, now: Instant) -> None:
        self.sessions.match(self._group.metadata, self.limits.session_timeout_ms, now)

    def _reverted(self) -> None:
        self._topics_changed = self.initialization.is_due = True

    def _targets(
        self, _: AssignShared, assignments: Mapping[str, Assignment]
    ) -> Iterator[tuple[ShareTargetKey, TargetAssignment | None, int]]:
        for member_id, computed in assignments.items():
            if member_id in self._group.metadata:
                before = self._group.targets.get(member_id)
                target = changed_target(None if before is None else before.partitions, computed)
                yield ShareTargetKey(self._group.group_id, member_id), target, len(computed)

    def _target_epoch_key(self) -> ShareTargetEpochKey:
        return ShareTargetEpochKey(self._group.group_id)

    def _respond(self, heartbeat: ShareHeartbeat, _: Instant) -> int:
        self._answer(heartbeat)
        return len(self._group.target(heartbeat.member_id).partitions)

    def _refusal(self, heartbeat: ShareHeartbeat, refused: RefusedError) -> Answer:
        return refusal(heartbeat.waiter, refused)

    def initialized(self, done: Numbers, failed: Numbers, now: Instant) -> None:
        """Store which initializations have succeeded; the next heartbeat repeats the failed ones."""
        if self.is_dead:
            return
        begun = self._group.states.initializing
        done = {each: numbers & begun[each].partitions for each, numbers in done.items() if each in begun}
        if done:
            self.put_states(self._group.states.completed(done))
        if failed:
            self.put_states(self._group.states.abandoned(failed))
            self.initialization.is_due = True
        self.journal.commit()
        self.note_state(now)

    def topics_changed(self, names: Collection[str], topics: Topics) -> None:
        """Record that topics were created, changed or deleted, and drop the partitions of deleted ones.

        The next heartbeat decides everything else. The share coordinator deletes their states on its own.
        """
        self._topics_changed |= self._group.topics.forget(names)
        states, changed = self._group.states, frozenset(names)
        known = {topic_id: each.name for topic_id, each in (*states.initializing.items(), *states.initialized.items())}
        known |= states.deleting
        gone = [each for each, name in known.items() if name in changed and topics.identified(each) is None]
        if gone and not self.is_dead:
            self.put_states(states.without(gone))
            self.journal.commit()
