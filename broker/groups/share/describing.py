"""Describe a share group for ShareGroupDescribe.

Source: Kafka's ShareGroup.asDescribedGroup, ShareGroupMember.asShareGroupDescribeMember.
"""

from collections.abc import Generator

from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.describing import described_assignment
from warmlog.broker.groups.share.stored import StoredShareGroup
from warmlog.protocol.groups import ShareGroupState
from warmlog.protocol.kafka.messages.share.groups import DescribedShareGroup, DescribedShareMember

ASSIGNOR = "simple"


def described(
    group: StoredShareGroup, state: ShareGroupState, topics: Topics
) -> Generator[None, None, DescribedShareGroup]:
    """Describe a group, and yield after each member, since one may have thousands of topics.

    Partitions of topics that no longer exist, and members that leave in the meantime, are omitted.
    """
    members = []
    for member_id in list(group.metadata):
        if member_id in group.metadata:
            members.append(_member(group, member_id, topics))
            yield
    return DescribedShareGroup(
        group=group.group_id,
        state=state.value,
        epoch=group.epoch.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor=ASSIGNOR,
        members=tuple(members),
    )


def _member(group: StoredShareGroup, member_id: str, topics: Topics) -> DescribedShareMember:
    metadata, current = group.metadata[member_id], group.current(member_id)
    return DescribedShareMember(
        member_id=member_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topics=metadata.topics,
        assignment=described_assignment(current.assigned, topics),
    )
