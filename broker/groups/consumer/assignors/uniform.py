"""The assignor `uniform`: members get equally many partitions, and keep as many of theirs as that allows.

If all have the same subscriptions, two members differ by one partition at most, and no equally balanced assignment
moves fewer partitions. One pass over the members, in the order of their ids, decides this:

    partitions / members = least, rest extra
    a member keeps up to    least + 1   while extra > 0; if it owns as many, one extra is used up
                            least       from then on
    when only as many members are left as extras, each of them gets one, regardless of what it owns
    partitions without an owner go, in order, to members below their number

So the extras go to members that own `least + 1` or more, and to others only if there are too few of them.

With different subscriptions `heterogeneous.py` decides.

Source: org.apache.kafka.coordinator.group.assignor.UniformAssignor, UniformHomogeneousAssignmentBuilder.
"""

from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from warmlog.broker.groups.consumer.assignors.heterogeneous import assign_by_load
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.broker.groups.modern.pace import Pace

_FREE, _TAKEN = 0, 1


def assign_uniformly(
    members: Mapping[str, Subscriber], topics: Mapping[bytes, TopicInfo]
) -> Generator[None, None, dict[str, Assignment]]:
    """Return equally many partitions for each member, mostly its own. Yields at least every millisecond."""
    if not members:
        return {}
    pace = Pace()
    subscription = next(iter(members.values())).topics
    for member in members.values():
        if member.topics != subscription:
            return (yield from assign_by_load(members, topics, pace))
        if pace.due(1 + len(subscription) // 10):
            yield
    counts = {topic_id: topics[topic_id].partitions for topic_id in subscription}
    return (yield from _Same(members, counts, pace).assign())


class _Lacking(NamedTuple):
    member_id: str
    number: int


class _Same:
    """The assignment of a group whose members all subscribe to the same topics."""

    def __init__(self, members: Mapping[str, Subscriber], counts: Mapping[bytes, int], pace: Pace) -> None:
        self._members = members
        self._pace = pace
        self._topic_ids = sorted(counts)
        self._taken = {topic_id: bytearray(count) for topic_id, count in counts.items()}
        self._least, self._extra = divmod(sum(counts.values()), len(members))
        self._assigned: dict[str, dict[bytes, frozenset[int]]] = {}
        self._lacking: list[_Lacking] = []

    def assign(self) -> Generator[None, None, dict[str, Assignment]]:
        """Let members keep their partitions up to their number, then assign missing ones."""
        following = len(self._members)
        for member_id in sorted(self._members):
            may_have_extra, must_have_extra = self._extra > 0, self._extra >= following
            quota = self._least + may_have_extra
            kept = yield from self._keep(member_id, quota)
            if may_have_extra and (kept == quota or must_have_extra):
                self._extra -= 1
            else:
                quota = self._least
            if kept < quota:
                self._lacking.append(_Lacking(member_id, quota - kept))
            following -= 1
            if self._pace.due():
                yield
        yield from self._give()
        return dict(self._assigned)

    def _keep(self, member_id: str, quota: int) -> Generator[None, None, int]:
        """Let a member keep up to `quota` of its partitions; return how many it keeps."""
        kept = self._assigned[member_id] = {}
        left = quota
        owned_by_topic = self._members[member_id].owned
        for topic_id in sorted(owned_by_topic):
            taken, owned = self._taken.get(topic_id), owned_by_topic[topic_id]
            if self._pace.due():
                yield
            if taken is None or not left:
                continue
            mine = yield from self._take(taken, owned, left)
            if mine:
                kept[topic_id] = owned if len(mine) == len(owned) else frozenset(mine)
                left -= len(mine)
        return quota - left

    def _take(self, taken: bytearray, owned: frozenset[int], limit: int) -> Generator[None, None, list[int]]:
        """Mark up to `limit` of the partitions, those with the lowest numbers, as taken; return them."""
        mine: list[int] = []
        for partition in sorted(owned) if len(owned) > limit else owned:
            if len(mine) == limit:
                break
            if partition < len(taken) and taken[partition] == _FREE:
                taken[partition] = _TAKEN
                mine.append(partition)
            if self._pace.due():
                yield
        return mine

    def _give(self) -> Generator[None, None, None]:
        """Assign partitions that are not taken to members that lack some."""
        free = self._free()
        for member_id, count in self._lacking:
            given: dict[bytes, set[int]] = {}
            for topic_id, partition in islice(free, count):
                given.setdefault(topic_id, set()).add(partition)
                if self._pace.due():
                    yield
            assigned = self._assigned[member_id]
            for topic_id, partitions in given.items():
                assigned[topic_id] = assigned.get(topic_id, frozenset()).union(partitions)
            if self._pace.due(1 + len(given)):
                yield

    def _free(self) -> Iterator[tuple[bytes, int]]:
        for topic_id in self._topic_ids:
            taken = self._taken[topic_id]
            partition = taken.find(_FREE)
            while partition >= 0:
                yield topic_id, partition
                partition = taken.find(_FREE, partition + 1)
