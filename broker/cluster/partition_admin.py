"""Change the states of partitions in a cluster, from any broker: elections and reassignments requested by users.

As in `admin`, every call returns when this broker's image has the change.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules import Change, batches, elect, elect_preferred, reassign, transaction
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import PartitionState
from warmlog.protocol.partitions import TopicIdPartition

PARTITIONS_PER_CHANGE = 50  # partitions decided in one step, which takes 1 to 2 ms

Refused = Mapping[TopicIdPartition, str]  # reasons why partitions cannot be changed


def reassignments(image: ClusterImage) -> dict[TopicIdPartition, PartitionState]:
    """Return the reassignments in progress (ListPartitionReassignments)."""
    return {key: state for key, state in image.partitions.items() if state.adding or state.removing}


async def elect_leaders(node: StoreNode, keys: Iterable[TopicIdPartition], *, is_unclean: bool) -> Refused:
    """Elect each partition's preferred replica, or (unclean) any live one; return the refusals (ElectLeaders)."""

    def decide(image: ClusterImage, key: TopicIdPartition) -> Change | Refusal:
        return elect(image, key, is_unclean=True) if is_unclean else elect_preferred(image, key)

    return await _change_partitions(node, keys, decide)


async def reassign_partitions(node: StoreNode, targets: Mapping[TopicIdPartition, Sequence[int] | None]) -> Refused:
    """Begin to move partitions, or (None) cancel a reassignment; return the refusals."""
    return await _change_partitions(node, targets, lambda image, key: reassign(image, key, targets[key]))


async def _change_partitions(
    node: StoreNode,
    keys: Iterable[TopicIdPartition],
    decide: Callable[[ClusterImage, TopicIdPartition], Change | Refusal],
) -> Refused:
    """Change distinct partitions, in several transactions; return why some cannot be changed."""
    left, refused = deque(keys), dict[TopicIdPartition, str]()
    while left:
        piece = [left.popleft() for _ in range(min(len(left), PARTITIONS_PER_CHANGE))]
        changed, reasons = await _change_some(node, piece, decide)
        refused |= reasons
        left.extendleft([key for key in piece if key not in changed and key not in reasons])
        await trio.lowlevel.checkpoint()  # if all of them are refused, nothing was committed
    return refused


async def _change_some(
    node: StoreNode,
    keys: Sequence[TopicIdPartition],
    decide: Callable[[ClusterImage, TopicIdPartition], Change | Refusal],
) -> tuple[set[TopicIdPartition], Refused]:
    """Change as many partitions as fit into one transaction; return them, and why others cannot be changed.

    If the answer to a transaction is lost, the next attempt sees the intended states and counts them as changed.
    """
    changed, refused = set[TopicIdPartition](), dict[TopicIdPartition, str]()
    tried: dict[TopicIdPartition, PartitionState] = {}

    def make(image: ClusterImage) -> Decision | None:
        changed.clear()
        refused.clear()
        changes: list[Change] = []
        for key in keys:
            change = decide(image, key) if key in image.partitions else Refusal("the partition does not exist")
            if isinstance(change, Refusal):
                if _has_become(image.partitions.get(key), tried.get(key)):
                    changed.add(key)
                else:
                    refused[key] = change.reason
            else:
                changes.append(change)
        if not changes:
            return None
        batch = batches(changes)[0]
        changed.update([change.key for change in batch])
        tried.update((change.key, change.state) for change in batch)
        return transaction(batch)

    await node.commit(make)
    return changed, refused


def _has_become(current: PartitionState | None, wanted: PartitionState | None) -> bool:
    """Return whether a partition is in the intended state, regardless of its revision."""
    return current is not None and wanted is not None and replace(current, revision=wanted.revision) == wanted
