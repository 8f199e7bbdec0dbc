"""The inputs of a consumer group's target assignment, and the changes that it leads to.

Source: Kafka's TargetAssignmentBuilder.
"""

from collections.abc import Iterator, Mapping

from warmlog.broker.groups.consumer.effects import Assign
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo, Topics
from warmlog.broker.groups.modern.target import NOTHING, changed_target
from warmlog.protocol.kafka.consumer_group_records import TargetAssignment


def computation(group: StoredGroup, assignor: str, topics: Topics) -> Assign:
    """Return the computation for the group's epoch."""
    known: dict[str, TopicInfo | None] = {}
    ids: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}  # most members subscribe to the same topics
    members = {}
    for member_id, metadata in group.metadata.items():
        subscription = (metadata.topics, metadata.regex)
        if subscription not in ids:
            names = set(group.subscriptions.topics_of(metadata))
            known.update({name: topics.named(name) for name in names if name not in known})
            ids[subscription] = frozenset([topic.id for name in names if (topic := known[name]) is not None])
        members[member_id] = Subscriber(
            topics=ids[subscription],
            owned=group.target(member_id).partitions,
            rack_id=metadata.rack_id,
            instance_id=metadata.instance_id,
        )
    existing = {topic.id: topic for topic in known.values() if topic is not None}
    return Assign(group.epoch.epoch, assignor, members, existing)


def assigned(
    group: StoredGroup, computed: Assign, assignments: Mapping[str, Assignment]
) -> Iterator[tuple[str, TargetAssignment | None]]:
    """Yield the members with their new target, None if unchanged. The group may change in between."""
    for computed_for, subscriber in computed.members.items():
        member_id = computed_for
        if member_id not in group.metadata:  # it has left, or is a static member that has restarted since
            member_id = group.static.get(subscriber.instance_id or "", "")
        if member_id not in group.metadata:
            continue
        before = group.targets[member_id].partitions if member_id in group.targets else None
        yield member_id, changed_target(before, assignments.get(computed_for, NOTHING))
