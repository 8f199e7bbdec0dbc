"""Changes of partition states, and the transactions that commit them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import broker_key, encode, partition_key
from warmlog.broker.cluster.store import MAX_OPERATIONS, Compare, Put, StoreTransaction
from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


class Change(NamedTuple):
    """A new state of a partition, and everything that the decision depends on, including the old state."""

    key: TopicIdPartition
    state: PartitionState
    compares: tuple[Compare, ...]


def change_of(image: ClusterImage, key: TopicIdPartition, state: PartitionState, members: Iterable[Member]) -> Change:
    """Return a change that depends on the partition's state and the registrations of these members."""
    keys = [partition_key(key), *[broker_key(member.broker) for member in members]]
    return Change(key, state, tuple([Compare(each, image.revision_of(each)) for each in dict.fromkeys(keys)]))


def is_current(image: ClusterImage, change: Change) -> bool:
    """Return whether a change could still be committed, judging by an image."""
    return all(image.revision_of(compare.key) == compare.mod_revision for compare in change.compares)


def transaction(changes: Sequence[Change]) -> StoreTransaction:
    """Return the transaction that makes all of these changes or none. They are based on one image."""
    compares = dict.fromkeys([compare for change in changes for compare in change.compares])
    return StoreTransaction(
        tuple(compares), tuple([Put(partition_key(each.key), encode(each.state)) for each in changes])
    )


def batches(changes: Iterable[Change]) -> list[list[Change]]:
    """Divide changes based on one image so that each part's transaction stays within the store's limit."""
    parts: list[list[Change]] = []
    compares: set[Compare] = set()
    for change in changes:
        compares.update(change.compares)
        if not parts or len(compares) > MAX_OPERATIONS:
            parts.append([])
            compares = set(change.compares)
        parts[-1].append(change)
    return parts
