"""Describe a consumer group for ConsumerGroupDescribe.

Source: Kafka's ConsumerGroup.asDescribedGroup, ConsumerGroupMember.asConsumerGroupDescribeMember.
"""

from collections.abc import Generator, Sequence

from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.describing import described_assignment
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.messages.groups.consumer import DescribedConsumer, DescribedConsumerGroup

CLASSIC_PROTOCOL, CONSUMER_PROTOCOL = 0, 1


def described(
    group: StoredGroup, state: ConsumerGroupState, assignors: Sequence[str], topics: Topics
) -> Generator[None, None, DescribedConsumerGroup]:
    """Describe a group, and yield after each member, since one may have thousands of topics.

    Partitions of topics that no longer exist, and members that leave in the meantime, are omitted.
    """
    members = []
    for member_id in list(group.metadata):
        if member_id in group.metadata:
            members.append(_member(group, member_id, topics))
            yield
    return DescribedConsumerGroup(
        group=group.group_id,
        state=state.value,
        epoch=group.epoch.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor=group.subscriptions.assignor(assignors),
        members=tuple(members),
    )


def _member(group: StoredGroup, member_id: str, topics: Topics) -> DescribedConsumer:
    metadata, current = group.metadata[member_id], group.current(member_id)
    return DescribedConsumer(
        member_id=member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topics=metadata.topics,
        regex=metadata.regex,
        assignment=described_assignment(current.assigned, topics),
        target=described_assignment(group.target(member_id).partitions, topics),
        type=CONSUMER_PROTOCOL if metadata.classic is None else CLASSIC_PROTOCOL,
    )
