"""The assignor `uniform` for members with different subscriptions.

1.  Members keep their partitions of topics that they subscribe to.
2.  Partitions without an owner go, topic by topic, to the subscriber with the fewest partitions of all topics. Topics
    with the most partitions per subscriber come first, then topics with the fewest subscribers, where the choice is
    smallest.
3.  Topic by topic, of the subscribers that have a partition of it, the one with the most partitions in all gives one to
    the subscriber with the fewest, as long as they differ by two or more. That is repeated until no topic changes, and
    16 times at most: with overlapping subscriptions it may take many rounds until little is gained.
4.  Partitions that owners lost in step 3 return to them where that does not reduce the balance (`returns.py`).

The subscribers of a topic then differ by one partition at most, unless they have no partition of it to give.

Source: org.apache.kafka.coordinator.group.assignor.UniformHeterogeneousAssignmentBuilder (1 to 3).
"""

from collections.abc import Generator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from warmlog.broker.groups.consumer.assignors.ledger import Ledger
from warmlog.broker.groups.consumer.assignors.returns import exchange_lost, return_lost
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.broker.groups.modern.pace import Pace

_ROUNDS = 16


def assign_by_load(
    members: Mapping[str, Subscriber], topics: Mapping[bytes, TopicInfo], pace: Pace
) -> Generator[None, None, dict[str, Assignment]]:
    """Return partitions for each member, about equally many as far as subscriptions allow.

    Yields at least every millisecond.
    """
    return (yield from _Balancing(members, topics, pace).assign())


class _Balancing:
    """The assignment of a group whose members subscribe to different topics."""

    def __init__(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, TopicInfo], pace: Pace) -> None:
        self._topics = topics
        self._pace = pace
        self._ledger = Ledger(members)
        self._subscribers: dict[bytes, list[int]] = {}

    def assign(self) -> Generator[None, None, dict[str, Assignment]]:
        """Run the four steps: keep, give, balance, return."""
        yield from self._subscribe()
        taken = yield from self._keep()
        in_order = sorted(self._subscribers, key=self._rank)
        for topic_id in in_order:
            yield from self._give(topic_id, taken[topic_id])
        movable = [topic_id for topic_id in in_order if len(self._subscribers[topic_id]) > 1]
        for _ in range(_ROUNDS):
            yield from self._balance(movable)
            if not (yield from return_lost(self._ledger, self._pace)):
                break
        yield from exchange_lost(self._ledger, self._pace)
        return (yield from self._assigned())

    def _subscribe(self) -> Generator[None, None, None]:
        for number, member in enumerate(self._ledger.members):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(number)
                if self._pace.due():
                    yield

    def _rank(self, topic_id: bytes) -> tuple[float, int, bytes]:
        subscribers = len(self._subscribers[topic_id])
        return -self._topics[topic_id].partitions / subscribers, subscribers, topic_id

    def _keep(self) -> Generator[None, None, dict[bytes, bytearray]]:
        """Keep members' partitions of their topics; return for each topic a 0 per partition without an owner."""
        ledger = self._ledger
        taken = {topic_id: bytearray(self._topics[topic_id].partitions) for topic_id in self._subscribers}
        ledger.held = {topic_id: {} for topic_id in self._subscribers}
        for number, member in enumerate(ledger.members):
            for topic_id, owned in member.owned.items():
                if topic_id not in member.topics:
                    continue
                flags = taken[topic_id]
                mine: list[int] = []
                for partition in sorted(owned):
                    if partition < len(flags) and not flags[partition]:
                        flags[partition] = 1
                        mine.append(partition)
                    if self._pace.due():
                        yield
                if mine:
                    ledger.add(topic_id, number, mine)
                if self._pace.due():
                    yield
        return taken

    def _give(self, topic_id: bytes, taken: bytearray) -> Generator[None, None, None]:
        """Assign partitions without an owner to the subscribers with the fewest."""
        partition = taken.find(0)
        if partition < 0:
            return
        loads = self._ledger.loads
        in_order = sorted(self._subscribers[topic_id], key=loads.__getitem__)
        fewest = [(loads[number], position) for position, number in enumerate(in_order)]  # sorted, hence a heap
        if self._pace.due(len(fewest)):
            yield
        while partition >= 0:
            load, position = fewest[0]
            heapreplace(fewest, (load + 1, position))
            self._ledger.add(topic_id, in_order[position], [partition])
            partition = taken.find(0, partition + 1)
            if self._pace.due(2):
                yield

    def _balance(self, topic_ids: list[bytes]) -> Generator[None, None, None]:
        """Move partitions until a whole round over all topics needs no change."""
        unchanged = 0
        for _ in range(_ROUNDS):
            for topic_id in topic_ids:
                moved = yield from self._balance_topic(topic_id)
                unchanged = 1 if moved else unchanged + 1
                if unchanged >= len(topic_ids):
                    return

    def _balance_topic(self, topic_id: bytes) -> Generator[None, None, bool]:
        """Move partitions from subscribers with the most to subscribers with the fewest; return whether any moved.

        As long as a subscriber has partitions to give, it has more than every subscriber that takes some: its entry in
        `fewest`, and their entries in `most`, may be outdated. Once it has none left, it may take some itself.
        """
        held, loads, subscribers = self._ledger.held[topic_id], self._ledger.loads, self._subscribers[topic_id]
        if self._pace.due(1 + (len(held) + len(subscribers)) // 10):
            yield
        if max(map(loads.__getitem__, held), default=0) - min(map(loads.__getitem__, subscribers)) <= 1:
            return False
        most = [(-loads[number], -number) for number in held]
        fewest = [(loads[number], number) for number in subscribers]
        heapify(most)
        heapify(fewest)
        if self._pace.due(len(held) + len(subscribers)):
            yield
        while most and -most[0][0] - fewest[0][0] > 1:
            giver, taker = -most[0][1], fewest[0][1]
            if fewest[0][0] != loads[taker]:
                heappop(fewest)
                continue
            self._ledger.move(topic_id, held[giver][-1], giver, taker)
            heapreplace(fewest, (loads[taker], taker))
            if giver in held:
                heapreplace(most, (-loads[giver], -giver))
            else:
                heappop(most)
                heappush(fewest, (loads[giver], giver))
            if self._pace.due(4):
                yield
        return True

    def _assigned(self) -> Generator[None, None, dict[str, Assignment]]:
        """Return the result. Unchanged partitions of a topic are the same object as in the member's `owned`."""
        ledger = self._ledger
        assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in ledger.ids}
        for topic_id, held in ledger.held.items():
            for number, partitions in held.items():
                made = frozenset(partitions)
                owned = ledger.members[number].owned.get(topic_id)
                assigned[ledger.ids[number]][topic_id] = owned if owned == made else made
                if self._pace.due(1 + len(made) // 10):
                    yield
        return dict(assigned)
