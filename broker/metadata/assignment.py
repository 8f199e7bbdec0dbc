"""Replica placement for new partitions, as a pure function."""

from collections.abc import Sequence
from random import Random


def assign_replicas(
    brokers: Sequence[int], partitions: int, replication_factor: int, random: Random
) -> tuple[tuple[int, ...], ...]:
    """Return the brokers that hold each partition's replicas, leader first.

    With n brokers and a random start s, replica j of partition i is on broker (i + s + j) mod n; replica 0 leads.
    Leaders and replicas are spread evenly, no broker holds two replicas of a partition, and the random start keeps
    small topics from all beginning on the first broker.

    Raises ValueError if there are fewer brokers than replicas, or a count is below 1.
    """
    if partitions < 1 or replication_factor < 1:
        raise ValueError(f"partitions ({partitions}) and replication factor ({replication_factor}) must be at least 1")
    if replication_factor > len(brokers):
        raise ValueError(
            f"replication factor {replication_factor} is larger than the number of brokers, {len(brokers)}"
        )
    count = len(brokers)
    start = random.randrange(count)
    rows = [
        tuple([brokers[(first + replica) % count] for replica in range(replication_factor)]) for first in range(count)
    ]
    return tuple([rows[(start + partition) % count] for partition in range(partitions)])
