"""Move one member from its current assignment to its target, one step per heartbeat.

    STABLE ──────────────► UNREVOKED_PARTITIONS     the member still has partitions that the target gives to others
      ▲ ▲                    │
      │ └────────────────────┤  it no longer reports them
      │                      ▼
      └───────────────── UNRELEASED_PARTITIONS      other members still have partitions of its target

A member in UNREVOKED_PARTITIONS keeps its epoch and is fenced at its rebalance timeout. In the other two states it is
in the target's epoch. A partition is assigned to a member only when no other member has it.

Source: Kafka's CurrentAssignmentBuilder (4.4).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import Current, Holding, MemberState, held_partitions, owns_any
from warmlog.broker.groups.modern.assignment import Assignment, Topics
from warmlog.protocol.kafka.consumer_group_records import CurrentAssignment
from warmlog.protocol.kafka.messages.groups.consumer import TopicPartitions

_NONE_HELD: Mapping[int, int] = {}
_NONE_WANTED: frozenset[int] = frozenset()


class Goal(NamedTuple):
    """A member's target, and the partitions that other members leave to it.

    `epoch`: the target's epoch. `subscribes`: whether the member subscribes to a topic, by id. `is_free`: whether no
    other member has a partition.
    """

    epoch: int
    target: Assignment
    subscribes: Callable[[bytes], bool]
    is_free: Callable[[bytes, int], bool]


def goal_of(group: StoredGroup, member_id: str, topics: Topics) -> Goal:
    """Return a member's goal. It does not subscribe to topics that do not exist."""
    names = frozenset(group.subscriptions.topics_of(group.metadata[member_id]))

    def subscribes(topic_id: bytes) -> bool:
        topic = topics.identified(topic_id)
        return topic is not None and topic.name in names

    return Goal(
        epoch=group.target_epoch.epoch,
        target=group.target(member_id).partitions,
        subscribes=subscribes,
        is_free=lambda topic_id, partition: group.owner(topic_id, partition) in {None, member_id},
    )


def reconcile(
    current: Current, goal: Goal, owned: Sequence[TopicPartitions] | None, *, subscription_changed: bool
) -> Current:
    """Return a member's next state, or `current` itself if there is nothing to change.

    `owned`: the partitions that the member reports; None (no report) counts as all of them.
    """
    state = current.value.state
    if state == MemberState.STABLE and current.epoch == goal.epoch:
        return _without_unsubscribed(current, goal, owned) if subscription_changed else current
    if state == MemberState.UNREVOKED_PARTITIONS and owns_any(owned, current.to_revoke):
        return _without_unsubscribed(current, goal, owned) if subscription_changed else current
    return _advanced(current, goal, owned)


def _without_unsubscribed(current: Current, goal: Goal, owned: Sequence[TopicPartitions] | None) -> Current:
    """Remove topics that the member no longer subscribes to; everything else waits for the next target."""
    removed = {topic_id: held for topic_id, held in current.assigned.items() if not goal.subscribes(topic_id)}
    if not removed:
        return current
    kept = {topic_id: held for topic_id, held in current.assigned.items() if topic_id not in removed}
    to_revoke = dict(current.to_revoke)
    for topic_id, held in removed.items():
        to_revoke[topic_id] = {**to_revoke.get(topic_id, {}), **held}
    if owns_any(owned, to_revoke):
        return _changed(current, MemberState.UNREVOKED_PARTITIONS, current.epoch, kept, to_revoke)
    return _changed(current, current.value.state, current.epoch, kept, current.to_revoke)


def _advanced(current: Current, goal: Goal, owned: Sequence[TopicPartitions] | None) -> Current:
    """Move towards the target as far as this member and others allow."""
    kept: dict[bytes, Mapping[int, int]] = {}
    to_revoke: dict[bytes, dict[int, int]] = {}
    free: dict[bytes, list[int]] = {}
    has_unreleased = False
    for topic_id in goal.target.keys() | current.assigned.keys():
        held = current.assigned.get(topic_id, _NONE_HELD)
        wanted = goal.target.get(topic_id, _NONE_WANTED)
        if wanted and not goal.subscribes(topic_id):
            wanted = _NONE_WANTED
        if held.keys() == wanted:
            if held:
                kept[topic_id] = held
            continue
        keep = {partition: epoch for partition, epoch in held.items() if partition in wanted}
        if keep:
            kept[topic_id] = keep
        if len(keep) < len(held):
            to_revoke[topic_id] = {partition: epoch for partition, epoch in held.items() if partition not in wanted}
        missing = [partition for partition in wanted if partition not in held]
        available = [partition for partition in missing if goal.is_free(topic_id, partition)]
        has_unreleased |= len(available) < len(missing)
        if available:
            free[topic_id] = available
    if to_revoke and owns_any(owned, to_revoke):
        return _changed(current, MemberState.UNREVOKED_PARTITIONS, current.epoch, kept, to_revoke)
    for topic_id, partitions in free.items():
        kept[topic_id] = {**kept.get(topic_id, _NONE_HELD), **dict.fromkeys(partitions, goal.epoch)}
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return _changed(current, state, goal.epoch, kept, {})


def _changed(current: Current, state: int, epoch: int, assigned: Holding, to_revoke: Holding) -> Current:
    """Return the member with these partitions, or `current` if its record would be the same."""
    value = CurrentAssignment(
        epoch=epoch,
        previous_epoch=current.epoch,
        state=int(state),
        assigned=held_partitions(assigned),
        to_revoke=held_partitions(to_revoke),
    )
    return current if value == current.value else Current(value, assigned, to_revoke)
