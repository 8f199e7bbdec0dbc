"""Groups for assignors in a short notation, random ones, and what their assignments have in common.

Assignments are written as "T1:0,1 T2:0". The topics of a group are "T1:3 T2:2", with their numbers of partitions, in
the order of their ids.
"""

import random
from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.consumer.assignors import ASSIGNORS
from warmlog.broker.groups.modern.assignment import Assignment, Assignor, Subscriber, TopicInfo

Members: TypeAlias = dict[str, Subscriber]
Topics: TypeAlias = dict[bytes, TopicInfo]


class Group(NamedTuple):
    members: Members
    topics: Topics


class Row(NamedTuple):
    """One of Kafka's tests. `members`: subscription and owned partitions, and perhaps an instance id."""

    name: str
    topics: str
    members: Mapping[str, tuple[str, ...]]
    expected: Mapping[str, str]

    def group(self) -> Group:
        ids = {
            text.partition(":")[0]: (bytes([1] * 15 + [number]), int(text.partition(":")[2]))
            for number, text in enumerate(self.topics.split())
        }
        topics = {topic_id: TopicInfo(topic_id, name, count) for name, (topic_id, count) in ids.items()}
        members = {}
        for member_id, (subscription, owned, *instance) in self.members.items():
            parts = [text.split(":") for text in owned.split()]
            members[member_id] = Subscriber(
                topics=frozenset(ids[name][0] for name in subscription.split()),
                owned={ids[name][0]: frozenset(map(int, numbers.split(","))) for name, numbers in parts},
                instance_id=instance[0] if instance else None,
            )
        return Group(members, topics)


def written(assigned: Mapping[str, Assignment], topics: Topics) -> dict[str, str]:
    """Return assignments in the notation of the rows."""
    return {
        member_id: " ".join(
            f"{topics[topic_id].name}:{','.join(map(str, sorted(assignment[topic_id])))}"
            for topic_id in sorted(assignment)
        )
        for member_id, assignment in assigned.items()
    }


def finished(steps: Generator[None, None, dict[str, Assignment]]) -> dict[str, Assignment]:
    """Drive an assignor to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: dict[str, Assignment] = end.value
            return result


def assign(assignor: Assignor, group: Group) -> dict[str, Assignment]:
    return finished(assignor(group.members, group.topics))


def moved(members: Members, assigned: Mapping[str, Assignment]) -> int:
    """Return how many partitions members got that they did not own."""
    return sum(
        len(partitions - members[member_id].owned.get(topic_id, frozenset()))
        for member_id, assignment in assigned.items()
        for topic_id, partitions in assignment.items()
    )


def load(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def imbalance(assigned: Mapping[str, Assignment]) -> int:
    """Return the sum of the squares of the members' numbers of partitions: less is more even."""
    return sum(load(assignment) ** 2 for assignment in assigned.values())


def check_complete(group: Group, assigned: Mapping[str, Assignment]) -> None:
    """All partitions of subscribed topics are assigned once, to subscribers; nothing else is."""
    assert assigned.keys() == group.members.keys()
    given = [
        (topic_id, partition)
        for member_id, assignment in assigned.items()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    ]
    for member_id, assignment in assigned.items():
        assert assignment.keys() <= group.members[member_id].topics
        assert all(assignment.values()), "an empty set of partitions"
    subscribed = {topic_id for member in group.members.values() for topic_id in member.topics}
    wanted = {(topic_id, index) for topic_id in subscribed for index in range(group.topics[topic_id].partitions)}
    assert len(given) == len(set(given))
    assert set(given) == wanted


def random_group(seed: int) -> Group:
    """Return a group in the middle of its life: members came and went, topics grew, subscriptions changed."""
    dice = random.Random(seed)
    ids = [dice.randbytes(16) for _ in range(dice.randint(1, 12))]
    topics = {topic_id: TopicInfo(topic_id, topic_id.hex(), dice.randint(1, 20)) for topic_id in ids}
    kinds = [frozenset(dice.sample(ids, dice.randint(1, len(ids)))) for _ in range(dice.choice([1, 1, 2, 3, 30]))]
    subscriptions = {f"m{number:02}": dice.choice(kinds) for number in range(dice.randint(1, 30))}
    first = {member_id: Subscriber(topics=kind, owned={}) for member_id, kind in subscriptions.items()}
    chosen = dice.choice(["none", "range", "uniform", "random"])
    owned: Mapping[str, Assignment] = {}
    if chosen in ASSIGNORS:
        owned = finished(ASSIGNORS[chosen](first, topics))
    elif chosen == "random":
        owned = _random_owners(dice, first, topics)
    for member_id in dice.sample(sorted(subscriptions), dice.randint(0, len(subscriptions) - 1)):
        if dice.random() < 0.5:
            del subscriptions[member_id]
        else:
            subscriptions[member_id] = dice.choice(kinds)
    for number in range(dice.choice([0, 0, 1, 5])):
        subscriptions[f"m{dice.randint(0, 99):02}x{number}"] = dice.choice(kinds)
    for topic_id in dice.sample(ids, dice.randint(0, len(ids)) // 2):
        topics[topic_id] = topics[topic_id]._replace(partitions=topics[topic_id].partitions + dice.randint(1, 5))
    return Group(
        {
            member_id: Subscriber(topics=kind, owned=owned.get(member_id, {}))
            for member_id, kind in sorted(subscriptions.items())
        },
        topics,
    )


def _random_owners(dice: random.Random, members: Members, topics: Topics) -> dict[str, Assignment]:
    owned: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    for topic_id, topic in topics.items():
        subscribers = [member_id for member_id, member in members.items() if topic_id in member.topics]
        for partition in range(topic.partitions if subscribers else 0):
            owned[dice.choice(subscribers)].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}
        for member_id, topics in owned.items()
    }
