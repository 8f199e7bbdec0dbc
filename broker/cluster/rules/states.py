"""Transitions of a partition's state that all decisions share, without comparisons."""

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules.durability import min_isr
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


def are_good(image: ClusterImage, members: Sequence[Member]) -> bool:
    """Return whether there is a member, and all of them are good."""
    return bool(members) and all(image.is_good(member) for member in members)


def good_in_sync(image: ClusterImage, state: PartitionState) -> set[int]:
    """Return the live brokers of the ISR that have all committed records."""
    return {member.broker for member in state.isr if image.is_good(member)}


def in_order(state: PartitionState, brokers: Iterable[int]) -> list[int]:
    """Sort brokers by the preference order of the partition's replicas."""
    left = set(brokers)
    return [*[broker for broker in state.replicas if broker in left], *sorted(left.difference(state.replicas))]


def with_isr(
    image: ClusterImage, key: TopicIdPartition, state: PartitionState, isr: Sequence[Member]
) -> PartitionState:
    """Replace the ISR by good members; removed members stay eligible while the new ISR is too small to commit."""
    in_sync = {member.broker for member in isr}
    left = {member.broker: member for member in (*state.elr, *state.isr) if member.broker not in in_sync}
    return settled(image, key, replace(state, isr=tuple(isr), elr=tuple(left.values())))


def settled(image: ClusterImage, key: TopicIdPartition, state: PartitionState) -> PartitionState:
    """Empty the ELR if the ISR is good and large enough, so that its leader can commit again."""
    is_enough = len(state.isr) >= min_isr(image, key, state) and are_good(image, state.isr)
    return replace(state, elr=()) if is_enough and state.elr else state


def without(
    image: ClusterImage, key: TopicIdPartition, state: PartitionState, brokers: Collection[int]
) -> PartitionState:
    """Remove replicas; the remaining members of the ISR must be good. A leader epoch begins.

    If the leader is removed, the first good member of the ISR succeeds it.
    """
    changed = replace(
        state,
        replicas=tuple([broker for broker in state.replicas if broker not in brokers]),
        isr=tuple([member for member in state.isr if member.broker not in brokers]),
        elr=tuple([member for member in state.elr if member.broker not in brokers]),
        leader_epoch=state.leader_epoch + 1,
    )
    if changed.leader_id in brokers:
        good = in_order(changed, good_in_sync(image, changed))
        good.sort(key=image.draining.__contains__)
        changed = replace(changed, leader=image.current(good[0]) if good else None)
    return settled(image, key, changed)


def completed(image: ClusterImage, key: TopicIdPartition, state: PartitionState) -> PartitionState:
    """End a reassignment if every added replica is in sync, and enough of the target are."""
    if not (state.adding or state.removing):
        return state
    target = replace(state, adding=(), removing=())
    ended = without(image, key, target, state.removing) if state.removing else settled(image, key, target)
    in_sync = {member.broker for member in ended.isr}
    is_covered = in_sync.issuperset(state.adding) and len(in_sync) >= min_isr(image, key, ended)
    return ended if is_covered and are_good(image, ended.isr) else state
