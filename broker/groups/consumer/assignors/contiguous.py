"""The assignor `range`: each member gets a contiguous range of the partitions of each topic that it subscribes to.

The subscribers of a topic are in order, static members first, by instance id, and then the others, by member id. The
first subscribers get one more partition each if the partitions cannot be divided equally. Hence

1.  topics with the same number of partitions and the same subscribers are co-partitioned: a member has the same
    partitions of each of them;
2.  a static member that restarts with another member id gets the same partitions again.

The assignment does not depend on what members own.

Source: org.apache.kafka.coordinator.group.assignor.RangeAssignor.
"""

from collections.abc import Generator, Mapping, Sequence

from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.broker.groups.modern.pace import Pace


def assign_ranges(
    members: Mapping[str, Subscriber], topics: Mapping[bytes, TopicInfo]
) -> Generator[None, None, dict[str, Assignment]]:
    """Return contiguous ranges of partitions for each member. Yields at least every millisecond."""
    pace = Pace()
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    subscribers = yield from _subscribers(members, pace)
    for topic_id in sorted(subscribers):
        in_order = subscribers[topic_id]
        partitions = topics[topic_id].partitions
        least, extra = divmod(partitions, len(in_order))
        start = 0
        for index, member_id in enumerate(in_order[:partitions]):
            end = start + least + (index < extra)
            assigned[member_id][topic_id] = frozenset(range(start, end))
            if pace.due(1 + (end - start) // 10):
                yield
            start = end
    return dict(assigned)


def _subscribers(members: Mapping[str, Subscriber], pace: Pace) -> Generator[None, None, dict[bytes, Sequence[str]]]:
    """Return the members that subscribe to each topic, in order."""
    others = sorted(member_id for member_id, member in members.items() if member.instance_id is None)
    static = sorted(
        (member.instance_id, member_id) for member_id, member in members.items() if member.instance_id is not None
    )
    in_order = [*(member_id for _, member_id in static), *others]
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return dict.fromkeys(subscriptions.pop(), in_order)
    subscribers: dict[bytes, list[str]] = {}
    for member_id in in_order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
            if pace.due():
                yield
    return dict(subscribers)
