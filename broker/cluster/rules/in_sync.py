"""Change the ISR while a leader lives: proposals of leaders, brokers that end or drain, replicas that lost data.

change_isr    the leader proposes members to add and to remove
fence         the controller removes brokers whose registration has ended, or that drain
disown        a broker removes its own replica, whose data no longer matches the leader's knowledge of it
"""

from collections.abc import Sequence

from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import draining_key
from warmlog.broker.cluster.rules.changes import Change, change_of
from warmlog.broker.cluster.rules.states import are_good, completed, settled, with_isr
from warmlog.broker.cluster.store import ABSENT, Compare
from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


def change_isr(
    image: ClusterImage, key: TopicIdPartition, revision: int, leader: Member, isr: Sequence[Member]
) -> Change | Refusal:
    """Accept or refuse the ISR that a leader proposes, based on the state's revision that it knows.

    An ISR that covers the target of a reassignment completes it.
    """
    state = image.partitions.get(key)
    if state is None or state.revision != revision:
        return Refusal(f"the partition has changed since revision {revision}")
    if state.leader != leader or leader.broker not in {member.broker for member in isr}:
        return Refusal(f"broker {leader.broker} does not lead in this epoch")
    added = [member for member in isr if member not in state.isr]
    for member in isr:
        objection = _objection(image, state, member, is_new=member in added)
        if objection is not None:
            return Refusal(objection)
    changed = completed(image, key, with_isr(image, key, state, isr))
    change = change_of(image, key, changed, (leader, *isr))
    stay = [Compare(draining_key(member.broker), ABSENT) for member in added]
    return change._replace(compares=(*change.compares, *stay))


def _objection(image: ClusterImage, state: PartitionState, member: Member, *, is_new: bool) -> str | None:
    """Return why a member cannot be in the next ISR, or None."""
    if not image.is_good(member):
        return f"broker {member.broker} has lost data since epoch {member.epoch}, or is gone"
    if is_new and not image.may_join(member):
        return f"broker {member.broker} has another epoch than {member.epoch}, or is about to stop"
    if is_new and member.broker not in state.replicas:
        return f"broker {member.broker} has no replica"
    return None


def fence(image: ClusterImage, key: TopicIdPartition) -> Change | Refusal:
    """Remove brokers that drain, or whose registration has ended, from an ISR whose leader is alive."""
    state = image.partitions[key]
    if state.leader is None or not image.is_good(state.leader):
        return Refusal("it has no leader")
    kept = [member for member in state.isr if member.broker == state.leader.broker or _stays(image, member)]
    if len(kept) == len(state.isr):
        return Refusal("no member has to leave")
    return change_of(image, key, with_isr(image, key, state, kept), kept)


def _stays(image: ClusterImage, member: Member) -> bool:
    return image.is_good(member) and member.broker not in image.draining


def disown(image: ClusterImage, key: TopicIdPartition, me: Member) -> Change | Refusal:
    """Remove a replica that has lost its data or its disk from ISR and ELR. It cannot lead until it is back.

    A leader epoch begins, even if another broker leads, because the leader's knowledge of this replica's log is out of
    date. Unless good copies remain, the replica stays eligible with an epoch that is never good: its log may be the
    longest.
    """
    state = image.partitions.get(key)
    if state is None or me.broker not in state.replicas:
        return Refusal(f"broker {me.broker} has no replica")
    isr = tuple([member for member in state.isr if member.broker != me.broker])
    elr = tuple([member for member in state.elr if member.broker != me.broker])
    is_member = len(isr) + len(elr) < len(state.isr) + len(state.elr)
    if is_member and not are_good(image, isr):
        elr = (*elr, Member(me.broker, NO_EPOCH))
    leader = None if state.leader_id == me.broker else state.leader
    changed = replace(state, isr=isr, elr=elr, leader=leader, leader_epoch=state.leader_epoch + 1)
    return change_of(image, key, settled(image, key, changed), (me, *isr))
