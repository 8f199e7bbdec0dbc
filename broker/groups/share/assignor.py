"""The assignor `simple`: partitions have equally many members, and members equally many partitions.

    sharing = members / partitions, rounded up      the number of members of a partition
        quota   per member: an even part of sharing x partitions, in the members' order

If all have the same subscriptions, this is decided for all partitions together, otherwise for each topic with its
subscribers. Three steps lead from the previous assignment to the next:

1.  A member above its quota gives up partitions, those with the most members first.
2.  A partition with more than `sharing` members is removed from some of them, from those with the most partitions
    first.
3.  Members below their quota get partitions with fewer members in turn, those without a member first.

If all members below their quota already have a partition, it keeps fewer than `sharing` members.

Source: org.apache.kafka.coordinator.group.assignor.SimpleAssignor, SimpleHomogeneousAssignmentBuilder,
SimpleHeterogeneousAssignmentBuilder.
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.modern.assignment import Assignment, Subscriber
from warmlog.broker.groups.modern.pace import Pace

_TopicPartition: TypeAlias = tuple[bytes, int]  # topic id and partition


def assign_shared(
    members: Mapping[str, Subscriber], partitions: Mapping[bytes, frozenset[int]]
) -> Generator[None, None, dict[str, Assignment]]:
    """Return the partitions of each member, mostly its own. Yields at least every millisecond.

    `partitions`: the assignable ones, by topic id.
    """
    pace = Pace()
    shares: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    ids = sorted(members)
    subscriptions = {members[member_id].topics for member_id in ids}
    if len(subscriptions) == 1:
        topics = subscriptions.pop()
        subscribed = {topic_id: numbers for topic_id, numbers in partitions.items() if topic_id in topics}
        yield from _share(ids, members, subscribed, shares, pace)
    else:
        for topic_id in sorted(partitions):
            subscribers = [member_id for member_id in ids if topic_id in members[member_id].topics]
            yield from _share(subscribers, members, {topic_id: partitions[topic_id]}, shares, pace)
            if pace.due(1 + len(ids) // 10):
                yield
    result: dict[str, Assignment] = {}
    for member_id, share in shares.items():
        result[member_id] = {topic_id: frozenset(numbers) for topic_id, numbers in share.items() if numbers}
        if pace.due(1 + len(share)):
            yield
    return result


def _share(
    ids: Sequence[str],
    members: Mapping[str, Subscriber],
    partitions: Mapping[bytes, frozenset[int]],
    shares: Mapping[str, dict[bytes, set[int]]],
    pace: Pace,
) -> Generator[None, None, None]:
    """Distribute the partitions of these topics over the members with these ids."""
    count = sum([len(numbers) for numbers in partitions.values()])
    if not count or not ids:
        return
    sharing = -(-len(ids) // count)
    total = sharing * count
    quotas = {
        member_id: -(-total * (number + 1) // len(ids)) + (-total * number // len(ids))
        for number, member_id in enumerate(ids)
    }
    parts = _Parts({}, {}, pace)
    yield from parts.begin(partitions, {member_id: members[member_id].owned for member_id in ids})
    yield from parts.give_up(quotas)
    yield from parts.limit(sharing)
    yield from parts.fill(quotas, sharing)
    for member_id, mine in parts.held.items():
        share = shares[member_id]
        for topic_id, partition in mine:
            share.setdefault(topic_id, set()).add(partition)
            if pace.due():
                yield


class _Parts(NamedTuple):
    """The partitions of each member, and the members of each partition, in order."""

    held: dict[str, dict[_TopicPartition, None]]
    holders: dict[_TopicPartition, dict[str, None]]
    pace: Pace

    def give(self, key: _TopicPartition, member_id: str) -> None:
        self.held[member_id][key] = None
        self.holders[key][member_id] = None

    def take(self, key: _TopicPartition, member_id: str) -> None:
        del self.held[member_id][key]
        del self.holders[key][member_id]

    def begin(
        self, partitions: Mapping[bytes, frozenset[int]], owned: Mapping[str, Assignment]
    ) -> Generator[None, None, None]:
        """Begin with each member's own partitions of these."""
        for topic_id in sorted(partitions):
            for partition in sorted(partitions[topic_id]):
                self.holders[topic_id, partition] = {}
                if self.pace.due():
                    yield
        for member_id, by_topic in owned.items():
            self.held[member_id] = {}
            for topic_id in sorted(by_topic.keys() & partitions.keys()):
                for partition in sorted(by_topic[topic_id] & partitions[topic_id]):
                    self.give((topic_id, partition), member_id)
                    if self.pace.due():
                        yield

    def give_up(self, quotas: Mapping[str, int]) -> Generator[None, None, None]:
        """Remove partitions from members above their quota."""
        for member_id, mine in self.held.items():
            surplus = len(mine) - quotas[member_id]
            if surplus > 0:
                ordered = yield from self._by_members(mine)
                for key in ordered[-surplus:]:
                    self.take(key, member_id)
                    if self.pace.due():
                        yield
            if self.pace.due():
                yield

    def limit(self, sharing: int) -> Generator[None, None, None]:
        """Remove members from partitions until none has more than `sharing`."""
        for key, having in self.holders.items():
            surplus = len(having) - sharing
            if surplus > 0:
                for member_id in sorted(having, key=lambda each: -len(self.held[each]))[:surplus]:
                    self.take(key, member_id)
            if self.pace.due(1 + len(having)):
                yield

    def fill(self, quotas: Mapping[str, int], sharing: int) -> Generator[None, None, None]:
        """Assign partitions with fewer members than `sharing` to members below their quota, in turn."""
        below = deque([member_id for member_id, mine in self.held.items() if len(mine) < quotas[member_id]])
        for key in (yield from self._by_members(self.holders)):
            having, tries = self.holders[key], len(below)
            while tries and len(having) < sharing:
                member_id = below.popleft()
                tries -= 1
                if member_id not in having:
                    self.give(key, member_id)
                if len(self.held[member_id]) < quotas[member_id]:
                    below.append(member_id)
                if self.pace.due():
                    yield
            if self.pace.due():
                yield

    def _by_members(self, keys: Iterable[_TopicPartition]) -> Generator[None, None, list[_TopicPartition]]:
        """Sort partitions by their number of members."""
        by_count: dict[int, list[_TopicPartition]] = {}
        for key in keys:
            by_count.setdefault(len(self.holders[key]), []).append(key)
            if self.pace.due():
                yield
        return [key for count in sorted(by_count) for key in by_count[count]]
