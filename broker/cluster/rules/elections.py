"""Elect leaders: a good replica of the ISR, else of the ELR, else the longest log, else (if allowed) any that lives."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules.changes import Change, change_of
from warmlog.broker.cluster.rules.durability import allows_unclean
from warmlog.broker.cluster.rules.states import good_in_sync, in_order, with_isr
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


class LogEnd(NamedTuple):
    """The end of a replica's log: the leader epoch of its last record (-1 if empty), and the offset after it."""

    epoch: int
    offset: int


class _Choice(NamedTuple):
    """A leader, and the brokers of its ISR.

    `compared`: further brokers on whose registrations the choice depends. `is_alone`: acknowledged records are given
    up, so no other replica stays eligible. `log_epoch`: the latest leader epoch in a log, if the log ends were queried;
    it is later than the state's if the store was restored from a backup.
    """

    leader: int
    isr: set[int]
    compared: tuple[Member, ...] = ()
    log_epoch: int = -1
    is_alone: bool = False


def needs_election(image: ClusterImage, state: PartitionState) -> bool:
    """Return whether a partition lacks a leader that is alive and not draining."""
    return state.leader is None or not image.is_good(state.leader) or state.leader.broker in image.draining


def log_end_holders(image: ClusterImage, state: PartitionState) -> tuple[Member, ...]:
    """Return the replicas to query for the ends of their logs, if all of ISR and ELR are back, and none is good.

    The other live replicas come after ISR and ELR: one of them may have records that all members of those have lost.
    Query the log ends and pass them to `elect`; they become invalid when one of the brokers registers again.
    """
    members = (*state.isr, *state.elr)
    back = _registered(image, [member.broker for member in members])
    if not members or len(back) < len(members) or any(image.is_good(member) for member in members):
        return ()
    known = {member.broker for member in members}
    return (*back, *_registered(image, [broker for broker in state.replicas if broker not in known]))


def _registered(image: ClusterImage, brokers: Iterable[int]) -> list[Member]:
    """Return the registrations of the live brokers."""
    return [each for broker in brokers if (each := image.current(broker)) is not None]


def elect(
    image: ClusterImage,
    key: TopicIdPartition,
    log_ends: Mapping[Member, LogEnd] | None = None,
    *,
    is_unclean: bool = False,
) -> Change | Refusal:
    """Elect a leader for a partition whose leader is missing or draining.

    `log_ends`: those of the `log_end_holders`, queried after that call. `is_unclean`: elect any live replica,
    regardless of the settings (ElectLeaders).
    """
    state = image.partitions[key]
    if not needs_election(image, state):
        return Refusal("the leader lives")
    choice = _from_isr(image, state)
    if choice is None and state.leader is not None and image.is_good(state.leader):
        return Refusal("no other replica is in sync")
    choice = choice or _from_elr(image, state) or _longest(image, state, log_ends or {})
    if choice is None and (is_unclean or allows_unclean(image, key)):
        choice = _any(image, state)
    if choice is None:
        return Refusal("no live replica has all acknowledged records")
    return _elected(image, key, choice)


def elect_preferred(image: ClusterImage, key: TopicIdPartition) -> Change | Refusal:
    """Elect the first replica, if it is in the ISR."""
    state = image.partitions[key]
    first = state.replicas[0]
    good = good_in_sync(image, state)
    if state.leader_id == first and not needs_election(image, state):
        return Refusal("the preferred replica leads")
    if first not in good or first in image.draining:
        return Refusal(f"the preferred replica {first} is not in sync, or is about to stop")
    return _elected(image, key, _Choice(first, good))


def step_aside(image: ClusterImage, key: TopicIdPartition, me: Member) -> Change | Refusal:
    """Remove this broker, which can no longer append, from the ISR. If it leads, elect another replica.

    It has all records so far, so it stays eligible, like a lagging replica.
    """
    state = image.partitions.get(key)
    good = set() if state is None else good_in_sync(image, state)
    if state is None or me.broker not in good:
        return Refusal(f"broker {me.broker} is not in sync")
    others = good - {me.broker}
    if state.leader_id == me.broker:
        others -= image.draining
        if not others:
            return Refusal("no other replica is in sync")
        return _elected(image, key, _Choice(in_order(state, others)[0], others))
    if state.leader_id not in others:
        return Refusal("there is no leader")
    kept = [member for member in state.isr if member.broker in others]
    return change_of(image, key, with_isr(image, key, state, kept), (me, *kept))


def _from_isr(image: ClusterImage, state: PartitionState) -> _Choice | None:
    """Choose the first replica in the ISR; a draining one only if the leader is gone and there is no other."""
    good = good_in_sync(image, state)
    candidates = good - image.draining
    if candidates:
        return _Choice(in_order(state, candidates)[0], candidates)
    if good and (state.leader is None or not image.is_good(state.leader)):
        return _Choice(in_order(state, good)[0], good)
    return None


def _from_elr(image: ClusterImage, state: PartitionState) -> _Choice | None:
    eligible = _those_that_stay_first(image, [member.broker for member in state.elr if image.is_good(member)])
    return _Choice(eligible[0], {eligible[0]}) if eligible else None


def _longest(image: ClusterImage, state: PartitionState, log_ends: Mapping[Member, LogEnd]) -> _Choice | None:
    """Choose the longest reported log; all of ISR and ELR must have reported, and are preferred among equals."""
    members = set(_registered(image, [member.broker for member in (*state.isr, *state.elr)]))
    holders = {each.broker: each for each in log_end_holders(image, state) if each in log_ends}
    if not holders or not members <= log_ends.keys():
        return None
    chosen = max(in_order(state, holders), key=lambda broker: (log_ends[holders[broker]], holders[broker] in members))
    log_epoch = max(end.epoch for end in log_ends.values())
    return _Choice(chosen, {chosen}, tuple(holders.values()), log_epoch)


def _any(image: ClusterImage, state: PartitionState) -> _Choice | None:
    alive = _those_that_stay_first(image, [broker for broker in state.replicas if broker in image.brokers])
    return _Choice(alive[0], {alive[0]}, is_alone=True) if alive else None


def _those_that_stay_first(image: ClusterImage, brokers: Iterable[int]) -> list[int]:
    return sorted(brokers, key=image.draining.__contains__)


def _elected(image: ClusterImage, key: TopicIdPartition, choice: _Choice) -> Change:
    """Begin a leader epoch. The ISR's members get their current epochs."""
    state = image.partitions[key]
    members = [_current(image, broker) for broker in in_order(state, choice.isr)]
    changed = with_isr(image, key, state, members)
    changed = replace(
        changed,
        elr=() if choice.is_alone else changed.elr,
        leader=_current(image, choice.leader),
        leader_epoch=max(state.leader_epoch, choice.log_epoch) + 1,
    )
    return change_of(image, key, changed, (*members, *choice.compared))


def _current(image: ClusterImage, broker: int) -> Member:
    registration = image.current(broker)
    assert registration is not None, "only registered brokers can lead or be in sync"
    return registration
