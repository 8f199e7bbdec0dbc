"""Move partitions to other replicas (KIP-455).

replicas = target + removing      while it is in progress; `adding` are the target's new replicas
"""

from collections.abc import Sequence

from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules.changes import Change, change_of
from warmlog.broker.cluster.rules.states import are_good, completed, without
from warmlog.broker.cluster.values import PartitionState
from warmlog.protocol.partitions import TopicIdPartition


def reassign(image: ClusterImage, key: TopicIdPartition, target: Sequence[int] | None) -> Change | Refusal:
    """Begin to move a partition to these replicas, the preferred one first; None cancels a reassignment.

    It replaces a reassignment in progress, whose added replicas are removed immediately unless the new target has
    them.
    """
    state = image.partitions[key]
    original = [broker for broker in state.replicas if broker not in state.adding]
    if target is None and not (state.adding or state.removing):
        return Refusal("no reassignment is in progress")
    wanted = original if target is None else list(target)
    objection = _objection(image, state, wanted)
    if objection is not None:
        return Refusal(objection)
    removing = [broker for broker in original if broker not in wanted]
    dropped = set(state.replicas) - {*wanted, *removing}
    begun = replace(
        state,
        replicas=(*wanted, *removing),
        adding=tuple([broker for broker in wanted if broker not in original]),
        removing=tuple(removing),
    )
    if dropped:
        begun = without(image, key, begun, dropped)
        is_member = len(begun.isr) + len(begun.elr) < len(state.isr) + len(state.elr)
        if is_member and not are_good(image, begun.isr):
            return Refusal("a replica of the ISR is gone: wait until it is back or has left the ISR")
    changed = completed(image, key, begun)
    return change_of(image, key, changed, changed.isr)


def _objection(image: ClusterImage, state: PartitionState, target: Sequence[int]) -> str | None:
    """Return why a set of replicas is invalid, or None."""
    if not target or len(set(target)) != len(target):
        return "a partition needs at least one replica, and no broker can have two"
    unknown = [broker for broker in target if not image.is_known(broker) and broker not in state.replicas]
    return f"broker {unknown[0]} is not registered" if unknown else None
