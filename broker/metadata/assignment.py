"""Replica placement for new partitions, as a pure function, and the errors of impossible placements."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from random import Random

from warmlog.broker.metadata.topic import RefusedError


class TooFewBrokersError(RefusedError):
    """There are fewer brokers than replicas, or none of them is alive."""


class InvalidAssignmentError(RefusedError):
    """An assignment of replicas is not possible."""


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    random: Random,
    *,
    fenced: Sequence[int] = (),
    racks: Mapping[int, str | None] | None = None,
    first_partition: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """Return the brokers that hold each partition's replicas, leader first.

    With n brokers and a random start s, the leader of partition i is broker (i + s) mod n. Its followers are the next
    ones, shifted by one more after each full round of leaders, so that the partitions of one leader do not all
    have the same followers. Brokers of different racks (KIP-36) take turns, and no rack gets a second replica before
    each has one. Brokers that are `fenced` lead no partition, and follow only where there are too few other brokers, or
    none in their rack.

    Raises ValueError if there are fewer brokers than replicas, no broker that is not fenced, or a count is below 1.

    Source: org.apache.kafka.admin.AdminUtils.assignReplicasToBrokers, org.apache.kafka.metadata.placement.
    """
    if partitions < 1 or replication_factor < 1:
        raise ValueError(f"partitions ({partitions}) and replication factor ({replication_factor}) must be at least 1")
    known = [*brokers, *fenced]
    if replication_factor > len(known):
        raise ValueError(f"replication factor {replication_factor} is larger than the number of brokers, {len(known)}")
    if not brokers:
        raise ValueError("every broker is fenced")
    rack_of = {broker: (racks or {}).get(broker) for broker in known}
    order = _alternating(brokers, rack_of)
    start, count = random.randrange(len(order)), len(order)
    rows: dict[tuple[int, int], tuple[int, ...]] = {}
    assignment = []
    for partition in range(first_partition, first_partition + partitions):
        rotation = (start + partition) % count, (partition // count) % max(1, len(known) - 1)
        if rotation not in rows:
            rows[rotation] = _row(_candidates(order, fenced, *rotation), rack_of, replication_factor)
        assignment.append(rows[rotation])
    return tuple(assignment)


def _alternating(brokers: Sequence[int], rack_of: Mapping[int, str | None]) -> list[int]:
    """Return the brokers so that neighbours are in different racks, as far as possible."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(rack_of[broker], []).append(broker)
    rounds = zip_longest(*by_rack.values())
    return [broker for each in rounds for broker in each if broker is not None]


def _candidates(order: Sequence[int], fenced: Sequence[int], leader: int, shift: int) -> list[int]:
    """Return the brokers in the order in which they get a partition's replicas, given the leader's position."""
    others = len(order) - 1
    followers = [order[(leader + 1 + (shift + step) % others) % len(order)] for step in range(others)]
    last = [fenced[(leader + shift + step) % len(fenced)] for step in range(len(fenced))]
    return [order[leader], *followers, *last]


def _row(candidates: Sequence[int], rack_of: Mapping[int, str | None], replicas: int) -> tuple[int, ...]:
    """Return the first candidates of different racks, and further ones if there are too few."""
    chosen: list[int] = []
    used: set[str | None] = set()
    for is_new_rack in (True, False):
        for broker in candidates:
            if len(chosen) < replicas and broker not in chosen and (rack_of[broker] not in used or not is_new_rack):
                chosen.append(broker)
                used.add(rack_of[broker])
    return tuple(chosen)
