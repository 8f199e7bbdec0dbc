"""The assignor `simple`: partitions and members have equally many of each other, and little moves."""

from random import Random

import pytest

from tests.broker.groups.consumer.assigning import finished
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber
from warmlog.broker.groups.share.assignor import assign_shared

IDS = [bytes([number]) * 16 for number in range(4)]


def assign(members: dict[str, Subscriber], partitions: dict[bytes, int]) -> dict[str, Assignment]:
    return finished(assign_shared(members, {each: frozenset(range(count)) for each, count in partitions.items()}))


def holders(assigned: dict[str, Assignment]) -> dict[tuple[bytes, int], int]:
    """Return the number of members of each partition."""
    counts: dict[tuple[bytes, int], int] = {}
    for assignment in assigned.values():
        for topic_id, numbers in assignment.items():
            for partition in numbers:
                counts[topic_id, partition] = counts.get((topic_id, partition), 0) + 1
    return counts


def members(count: int, topics: frozenset[bytes] = frozenset(IDS[:1])) -> dict[str, Subscriber]:
    return {f"m{number:03}": Subscriber(topics, {}) for number in range(count)}


@pytest.mark.parametrize(
    ("count", "partitions", "sizes", "sharing"),
    [
        (1, 3, [3], {1}),
        (2, 3, [1, 2], {1}),
        (3, 3, [1, 1, 1], {1}),
        (4, 3, [1, 1, 2, 2], {2}),  # each partition has two of four members
        (6, 3, [1] * 6, {2}),
        (7, 3, [1] * 5 + [2] * 2, {3}),
        (3, 1, [1, 1, 1], {3}),
        (3, 0, [0, 0, 0], set()),
        (0, 3, [], set()),
    ],
)
def test_partitions_are_shared_evenly(count: int, partitions: int, sizes: list[int], sharing: set[int]) -> None:
    assigned = assign(members(count), {IDS[0]: partitions})
    assert sorted(sum(map(len, each.values())) for each in assigned.values()) == sizes
    assert set(holders(assigned).values()) == sharing


def test_nothing_moves_without_a_reason() -> None:
    first = assign(members(5), {IDS[0]: 7})
    owning = {name: Subscriber(frozenset(IDS[:1]), first[name]) for name in first}
    assert assign(owning, {IDS[0]: 7}) == first


def test_a_new_member_takes_its_part_only() -> None:
    first = assign(members(2), {IDS[0]: 8})
    owning = {name: Subscriber(frozenset(IDS[:1]), first[name]) for name in first}
    second = assign({**owning, "new": Subscriber(frozenset(IDS[:1]), {})}, {IDS[0]: 8})
    assert sorted(sum(map(len, each.values())) for each in second.values()) == [2, 3, 3]
    for name, before in first.items():
        assert second[name][IDS[0]] <= before[IDS[0]]


def test_what_is_not_initialized_or_not_subscribed_to_is_given_up() -> None:
    owned = {IDS[0]: frozenset({0, 5}), IDS[1]: frozenset({0})}
    assert assign({"a": Subscriber(frozenset(IDS[:1]), owned)}, {IDS[0]: 2}) == {"a": {IDS[0]: frozenset({0, 1})}}


@pytest.mark.parametrize("seed", range(200))
def test_every_partition_has_a_member_and_members_have_only_what_they_subscribe_to(seed: int) -> None:
    random = Random(seed)
    partitions = {each: random.randrange(12) for each in IDS}
    subscriptions = [frozenset(random.sample(IDS, random.randint(0, 4))) for _ in range(random.choice((1, 1, 3)))]
    known: dict[str, Assignment] = {}
    for _ in range(4):
        group = {
            f"m{number}": Subscriber(random.choice(subscriptions), known.get(f"m{number}", {}))
            for number in random.sample(range(20), random.randrange(20))
        }
        assigned = assign(group, partitions)
        assert assigned.keys() == group.keys()
        counts = holders(assigned)
        subscribed = {topic_id for member in group.values() for topic_id in member.topics}
        expected = {(each, number) for each in subscribed for number in range(partitions[each])}
        assert counts.keys() == expected
        for name, assignment in assigned.items():
            assert assignment.keys() <= group[name].topics
        if len({member.topics for member in group.values()}) == 1 and expected:
            sharing = -(-len(group) // len(expected))
            assert max(counts.values()) <= sharing
            sizes = [sum(map(len, each.values())) for each in assigned.values()]
            assert max(sizes) <= -(-sharing * len(expected) // len(group))
        known = assigned
        partitions = {each: count + random.randrange(2) for each, count in partitions.items()}
