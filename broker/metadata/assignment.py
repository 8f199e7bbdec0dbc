"""Which broker leads which partition, and which ones hold its replicas: a pure function.

Must not know: topics, networks, or who is alive.
"""

from collections.abc import Sequence
from random import Random


def assign_replicas(
    brokers: Sequence[int], partitions: int, replication_factor: int, random: Random
) -> tuple[tuple[int, ...], ...]:
    """The replicas of each partition, leader first.

    With n brokers and a random start s, partition i leads on broker (i + s) mod n, and its replica j is on broker (i +
    s + j) mod n.

    So leaders and replicas are spread evenly, no partition has two replicas on one broker, and topics of few partitions
    do not all begin on the first.

    Raises ValueError if there are fewer brokers than replicas, or a count is below 1.
    """
    if partitions < 1 or replication_factor < 1:
        raise ValueError("partitions and replication factor must be at least 1")
    if replication_factor > len(brokers):
        raise ValueError(
            f"replication factor {replication_factor} is larger than the number of brokers, {len(brokers)}"
        )
    start = random.randrange(len(brokers))
    return tuple(
        tuple(brokers[(start + partition + replica) % len(brokers)] for replica in range(replication_factor))
        for partition in range(partitions)
    )
