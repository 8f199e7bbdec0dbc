"""Decide how the states of partitions change: who is in sync, and who leads. Pure: an image in, a transaction out.

A decision is a `Transaction` that compares everything it depends on, or a `Refusal`. Several brokers may decide at the
same time and on old images: at most one of the transactions is committed, the others change nothing.

Safety (each rule is removed once in `tests/broker/cluster/test_model.py`, which then finds lost records):

1. Entries of an ISR or ELR name a history of a broker's data (`values.Member`). An entry whose history has ended, by an
   unclean start, is not good, and never leads.
2. A change of an ISR compares the registrations of *every* member of the new ISR, and the added ones must have fetched
   with their current epoch.
3. While the ISR is smaller than `min.insync.replicas`, those that left it stay eligible (ELR): the leader commits
   nothing without them. Whatever could let it commit again empties the ELR in the same transaction.
4. If no entry is good, but all brokers of the ISR and the ELR are back, the longest log leads.
5. Only an election raises the leader epoch.

Source: org.apache.kafka.controller.PartitionChangeBuilder, KIP-966, KIP-903, KIP-455.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from broker.cluster.image import BROKER_DEFAULTS, ClusterImage, PartitionKey
from broker.cluster.keys import broker_key, configs_key, encode, partition_key, topic_key
from broker.cluster.store import MAX_OPERATIONS, Compare, Operation, Put, Transaction
from broker.cluster.values import NO_EPOCH, Member, PartitionState

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
REPLICAS_FOR_TWO = 3  # from this replication factor on, the default of min.insync.replicas is 2


class Refusal(NamedTuple):
    """A change that is not allowed; `reason` is one line for users."""

    reason: str


Decision: TypeAlias = Transaction | Refusal


class LogEnd(NamedTuple):
    """Where the log of a replica ends: the leader epoch of its last record, and the offset after it."""

    epoch: int
    offset: int


class Change(NamedTuple):
    """A new state of a partition, and what it depends on besides the old one."""

    key: PartitionKey
    state: PartitionState
    compares: tuple[Compare, ...]


# -- settings that decide ----------------------------------------------------------------------------------------------


def default_of(image: ClusterImage, name: str) -> str | None:
    """Return a setting that all brokers share; None if it is not set."""
    defaults = image.configs.get(BROKER_DEFAULTS)
    return None if defaults is None else defaults.values.get(name)


def config_of(image: ClusterImage, topic: UUID, name: str) -> str | None:
    """Return a setting of a topic, or of all brokers; None if neither is set."""
    state = image.topics.get(image.names.get(topic, ""))
    found = None if state is None else state.configs.get(name)
    return default_of(image, name) if found is None else found


def min_isr(image: ClusterImage, topic: UUID, replicas: int) -> int:
    """Return how many members the ISR needs for acks=all, by the settings of the topic and of all brokers."""
    return effective_min_isr(config_of(image, topic, MIN_ISR), replicas)


def effective_min_isr(text: str | None, replicas: int) -> int:
    """Return `min.insync.replicas`, at most the number of replicas.

    Unless it is set, 2 where there are three replicas or more: then no acknowledged record is on one disk only.
    """
    wanted = int(text) if text is not None else 2 if replicas >= REPLICAS_FOR_TWO else 1
    return max(1, min(wanted, replicas))


def allows_unclean(image: ClusterImage, topic: UUID) -> bool:
    """Return whether a replica that lacks acknowledged records may lead."""
    return (config_of(image, topic, UNCLEAN) or "false") == "true"


def _change(image: ClusterImage, key: PartitionKey, state: PartitionState, members: Iterable[Member] = ()) -> Change:
    """Return a change that depends on the registrations of these members, and on `min_isr` if an ELR is left."""
    keys = [broker_key(member.broker) for member in members]
    if state.elr:
        keys += [topic_key(image.names.get(key.topic, "")), configs_key()]
    return Change(key, state, tuple([Compare(each, image.revision_of(each)) for each in keys]))


# -- the ISR -----------------------------------------------------------------------------------------------------------


def change_isr(
    image: ClusterImage, key: PartitionKey, revision: int, leader: Member, isr: Sequence[Member]
) -> Change | Refusal:
    """Decide on the ISR that a leader proposes for the revision of the state that it knows.

    It completes a reassignment whose target is in it.
    """
    state = image.partitions.get(key)
    if state is None or state.revision != revision:
        return Refusal(f"the partition has changed since revision {revision}")
    if state.leader != leader or leader.broker not in {member.broker for member in isr}:
        return Refusal(f"broker {leader.broker} does not lead in this epoch")
    known = {member.broker for member in state.isr}
    for member in isr:
        objection = _objection(image, state, member, is_new=member.broker not in known)
        if objection is not None:
            return Refusal(objection)
    changed = _complete_reassignment(image, key, _with_isr(image, key, state, isr))
    return _change(image, key, changed, (leader, *isr))


def _objection(image: ClusterImage, state: PartitionState, member: Member, *, is_new: bool) -> str | None:
    """Return why a member cannot be in the next ISR, or None."""
    if not image.is_good(member):
        return f"broker {member.broker} has lost data since epoch {member.epoch}, or is gone"
    if is_new and not image.may_join(member):
        return f"broker {member.broker} has another epoch than {member.epoch}, or is about to stop"
    if is_new and member.broker not in state.replicas:
        return f"broker {member.broker} has no replica"
    return None


def _with_isr(image: ClusterImage, key: PartitionKey, state: PartitionState, isr: Sequence[Member]) -> PartitionState:
    """Replace the ISR; those that leave it stay eligible while it is too small to commit anything."""
    left: dict[int, Member] = {}
    if len(isr) < min_isr(image, key.topic, len(state.replicas)):
        in_sync = {member.broker for member in isr}
        left = {member.broker: member for member in (*state.elr, *state.isr) if member.broker not in in_sync}
    return replace(state, isr=tuple(isr), elr=tuple(left.values()))


def fence(image: ClusterImage, key: PartitionKey) -> Change | Refusal:
    """Take out of the ISR of a partition whose leader lives those whose registration has ended, or that drain."""
    state = image.partitions[key]
    if state.leader is None or not image.is_good(state.leader):
        return Refusal("it has no leader")
    kept = [member for member in state.isr if member.broker == state.leader.broker or _stays(image, member)]
    if len(kept) == len(state.isr):
        return Refusal("nobody has to leave")
    return _change(image, key, _with_isr(image, key, state, kept), kept)


def _stays(image: ClusterImage, member: Member) -> bool:
    return image.is_good(member) and member.broker not in image.draining


def disown(image: ClusterImage, key: PartitionKey, me: Member) -> Change | Refusal:
    """Take a replica that has lost its data, or its disk, out of ISR and ELR. It leads no more.

    The last one stays eligible, with an epoch that is never good: if its data comes back, it is the longest log.
    """
    state = image.partitions.get(key)
    if state is None or me.broker not in {member.broker for member in (*state.isr, *state.elr)}:
        return Refusal("it is neither in the ISR nor in the ELR")
    isr = tuple([member for member in state.isr if member.broker != me.broker])
    elr = tuple([member for member in state.elr if member.broker != me.broker])
    if not isr and not elr:
        elr = (Member(me.broker, NO_EPOCH),)
    leader = None if state.leader_id == me.broker else state.leader
    return _change(image, key, _settled(image, key, replace(state, isr=isr, elr=elr, leader=leader)), (me,))


def _settled(image: ClusterImage, key: PartitionKey, state: PartitionState) -> PartitionState:
    """Empty the ELR if the ISR is large enough for the leader to commit without it."""
    is_enough = len(state.isr) >= min_isr(image, key.topic, len(state.replicas))
    return replace(state, elr=()) if is_enough and state.elr else state


# -- elections ---------------------------------------------------------------------------------------------------------


def needs_election(image: ClusterImage, state: PartitionState) -> bool:
    """Return whether a partition has no leader that is alive and means to stay."""
    return state.leader is None or not image.is_good(state.leader) or state.leader.broker in image.draining


def needs_log_ends(image: ClusterImage, state: PartitionState) -> bool:
    """Return whether the longest log has to be found: all members are back, and none of them in time."""
    members = (*state.isr, *state.elr)
    is_any_good = any(image.is_good(member) for member in members)
    return bool(members) and not is_any_good and all(member.broker in image.brokers for member in members)


class _Choice(NamedTuple):
    """A leader, and the brokers of its ISR. `is_alone`: nobody else is known to have what the leader has."""

    leader: int
    isr: set[int]
    is_alone: bool = False


def elect(
    image: ClusterImage, key: PartitionKey, log_ends: Mapping[int, LogEnd] | None = None, *, is_unclean: bool = False
) -> Change | Refusal:
    """Elect a leader: a good replica of the ISR, else of the ELR, else the longest log, else any if that is allowed.

    `log_ends`: of the replicas, where `needs_log_ends`. `is_unclean`: any replica that lives, whatever the settings say
    (ElectLeaders).
    """
    state = image.partitions[key]
    if not needs_election(image, state):
        return Refusal("the leader lives")
    choice = _from_isr(image, state)
    if choice is None and state.leader is not None and image.is_good(state.leader):
        return Refusal("no other replica is in sync")
    choice = choice or _from_elr(image, state) or _longest(image, state, log_ends or {})
    if choice is None and (is_unclean or allows_unclean(image, key.topic)):
        choice = _any(image, state)
    if choice is None:
        return Refusal("no replica that has all acknowledged records lives")
    return _elected(image, key, choice)


def elect_preferred(image: ClusterImage, key: PartitionKey) -> Change | Refusal:
    """Let the first replica lead, if it is in the ISR."""
    state = image.partitions[key]
    first = state.replicas[0]
    good = {member.broker for member in state.isr if image.is_good(member)}
    if state.leader_id == first and not needs_election(image, state):
        return Refusal("the preferred replica leads")
    if first not in good or first in image.draining:
        return Refusal(f"the preferred replica {first} is not in sync, or is about to stop")
    return _elected(image, key, _Choice(first, good))


def _from_isr(image: ClusterImage, state: PartitionState) -> _Choice | None:
    """Choose the first replica in the ISR; one that drains only if the leader is gone and there is no other."""
    good = {member.broker for member in state.isr if image.is_good(member)}
    candidates = [broker for broker in _in_order(state, good) if broker not in image.draining]
    if candidates:
        return _Choice(candidates[0], good - image.draining)
    if good and (state.leader is None or not image.is_good(state.leader)):
        return _Choice(_in_order(state, good)[0], good)
    return None


def _from_elr(image: ClusterImage, state: PartitionState) -> _Choice | None:
    eligible = [member.broker for member in state.elr if image.is_good(member)]
    eligible.sort(key=image.draining.__contains__)
    return _Choice(eligible[0], {eligible[0]}) if eligible else None


def _longest(image: ClusterImage, state: PartitionState, log_ends: Mapping[int, LogEnd]) -> _Choice | None:
    members = {member.broker for member in (*state.isr, *state.elr)}
    if not needs_log_ends(image, state) or not members.issubset(log_ends):
        return None
    chosen = max(_in_order(state, members), key=log_ends.__getitem__)
    return _Choice(chosen, {chosen}, is_alone=True)


def _any(image: ClusterImage, state: PartitionState) -> _Choice | None:
    alive = [broker for broker in state.replicas if broker in image.brokers]
    return _Choice(alive[0], {alive[0]}, is_alone=True) if alive else None


def _elected(image: ClusterImage, key: PartitionKey, choice: _Choice) -> Change:
    """Begin a leader epoch. The ISR's members get their current epochs."""
    state = image.partitions[key]
    members = [_current(image, broker) for broker in _in_order(state, choice.isr)]
    changed = _with_isr(image, key, state, members)
    changed = replace(
        changed,
        elr=() if choice.is_alone else changed.elr,
        leader=_current(image, choice.leader),
        leader_epoch=state.leader_epoch + 1,
    )
    return _change(image, key, changed, members)


def _in_order(state: PartitionState, brokers: set[int]) -> list[int]:
    return [*[broker for broker in state.replicas if broker in brokers], *sorted(brokers - set(state.replicas))]


def _current(image: ClusterImage, broker: int) -> Member:
    found = image.current(broker)
    assert found is not None, "only registered brokers lead or are in sync"
    return found


# -- reassignment ------------------------------------------------------------------------------------------------------


def reassign(image: ClusterImage, key: PartitionKey, target: Sequence[int] | None) -> Change | Refusal:
    """Begin to move a partition to other replicas, first the preferred one; None cancels what was begun (KIP-455)."""
    state = image.partitions[key]
    original = [broker for broker in state.replicas if broker not in state.adding]
    if target is None:
        if not (state.adding or state.removing):
            return Refusal("no reassignment is in progress")
        target = original
    if not target or len(set(target)) != len(target):
        return Refusal("a partition needs at least one replica, and no broker can have two")
    unknown = [broker for broker in target if broker not in image.brokers and broker not in original]
    if unknown:
        return Refusal(f"broker {unknown[0]} is not alive")
    adding = tuple([broker for broker in target if broker not in original])
    removing = tuple([broker for broker in original if broker not in target])
    dropped = set(state.replicas) - {*target, *removing}
    replicas = (*target, *removing)
    isr = tuple([member for member in state.isr if member.broker not in dropped])
    elr = tuple([member for member in state.elr if member.broker not in dropped])
    if not isr:
        return Refusal("no replica that stays is in sync")
    changed = replace(state, replicas=replicas, adding=adding, removing=removing, isr=isr, elr=elr)
    changed = _complete_reassignment(image, key, changed)
    if changed.leader_id in dropped:
        changed = _led_by_member(image, changed)
    return _change(image, key, _settled(image, key, changed), changed.isr)


def _complete_reassignment(image: ClusterImage, key: PartitionKey, state: PartitionState) -> PartitionState:
    """End a reassignment if every added replica is in sync, and enough of the target; a removed leader hands over."""
    if not (state.adding or state.removing):
        return state
    target = tuple([broker for broker in state.replicas if broker not in state.removing])
    in_sync = {member.broker for member in state.isr}
    needed = min_isr(image, key.topic, len(target))
    if not in_sync.issuperset(state.adding) or len(in_sync.intersection(target)) < needed:
        return state
    isr = tuple([member for member in state.isr if member.broker in target])
    elr = tuple([member for member in state.elr if member.broker in target])
    changed = _settled(image, key, replace(state, replicas=target, adding=(), removing=(), isr=isr, elr=elr))
    return changed if state.leader is None or state.leader_id in target else _led_by_member(image, changed)


def _led_by_member(image: ClusterImage, state: PartitionState) -> PartitionState:
    """Let the first good member of the ISR lead, in the next epoch."""
    choice = _from_isr(image, replace(state, leader=None))
    leader = None if choice is None else image.current(choice.leader)
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


# -- min.insync.replicas -----------------------------------------------------------------------------------------------


def before_min_isr(image: ClusterImage, topic: str, text: str | None) -> list[Change]:
    """Return what must happen with, or before, another `min.insync.replicas` of a topic; None: its default.

    The ELR of each partition whose leader can commit from then on is emptied, since its members will lack records.
    """
    changes = []
    for key in image.keys_of(image.topics[topic]):
        found = image.partitions[key]
        if found.elr and len(found.isr) >= effective_min_isr(text, len(found.replicas)):
            changes.append(Change(key, replace(found, elr=()), ()))
    return changes


# -- transactions ------------------------------------------------------------------------------------------------------


def transaction(image: ClusterImage, changes: Sequence[Change], others: Sequence[Operation] = ()) -> Transaction:
    """Return the transaction that makes these changes together: all of them, or none."""
    compares: dict[str, Compare] = {}
    for change in changes:
        key = partition_key(change.key)
        compares[key] = Compare(key, image.partitions[change.key].revision)
        compares.update({compare.key: compare for compare in change.compares})
    puts = [Put(partition_key(change.key), encode(change.state)) for change in changes]
    return Transaction(tuple(compares.values()), (*puts, *others))


def batches(changes: Iterable[Change]) -> list[list[Change]]:
    """Divide changes so that the transaction of each part stays within the store's limit."""
    parts: list[list[Change]] = []
    keys: set[str] = set()
    for change in changes:
        needed = {partition_key(change.key), *[compare.key for compare in change.compares]}
        if not parts or len(keys | needed) > MAX_OPERATIONS or len(parts[-1]) == MAX_OPERATIONS:
            parts.append([])
            keys = set()
        keys |= needed
        parts[-1].append(change)
    return parts
