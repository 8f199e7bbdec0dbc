"""Describe a streams group for StreamsGroupDescribe.

Source: Kafka's StreamsGroup.asDescribedGroup, StreamsGroupMember.asStreamsGroupDescribeMember,
StreamsTopology.asStreamsGroupDescribeTopology (4.4).
"""

from collections.abc import Generator, Iterable

from warmlog.broker.groups.streams.holding import task_ids_of
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import Tasks
from warmlog.broker.groups.streams.unstored import Offsets, Unstored
from warmlog.protocol.groups import StreamsGroupState
from warmlog.protocol.kafka.messages.groups.streams import (
    InternalTopic,
    TaskOffset,
)
from warmlog.protocol.kafka.messages.groups.streams_descriptions import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
)

ASSIGNOR = "sticky"


def described(
    group: StoredStreamsGroup, unstored: Unstored, state: StreamsGroupState
) -> Generator[None, None, DescribedStreamsGroup]:
    """Describe a group, and yield after each member, since one may have thousands of tasks.

    Members that leave in the meantime are omitted.
    """
    members = []
    for member_id in list(group.metadata):
        if member_id in group.metadata:
            members.append(_member(group, unstored, member_id))
            yield
    return DescribedStreamsGroup(
        group=group.group_id,
        state=state.value,
        epoch=group.epoch.epoch,
        assignment_epoch=group.target_epoch.epoch,
        topology=_topology(group, unstored),
        members=tuple(members),
        assignor=ASSIGNOR,
    )


def _topology(group: StoredStreamsGroup, unstored: Unstored) -> DescribedTopology | None:
    """Return the configured topology, or the declared one while it cannot be configured."""
    configured = unstored.configured
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        described_ones = [each.described(name) for name, each in configured.subtopologies.items()]
        return DescribedTopology(epoch=configured.epoch, subtopologies=tuple(described_ones))
    if group.topology is None:
        return None
    value = group.topology.value
    subtopologies = [
        DescribedSubtopology(
            subtopology_id=each.subtopology_id,
            sources=tuple(sorted(each.sources)),
            repartition_sinks=tuple(sorted(each.repartition_sinks)),
            changelogs=_by_name(each.changelogs),
            repartition_sources=_by_name(each.repartition_sources),
        )
        for each in sorted(value.subtopologies, key=lambda each: each.subtopology_id)
    ]
    return DescribedTopology(epoch=value.epoch, subtopologies=tuple(subtopologies))


def _by_name(topics: Iterable[InternalTopic]) -> tuple[InternalTopic, ...]:
    return tuple(sorted(topics, key=lambda topic: topic.topic))


def _member(group: StoredStreamsGroup, unstored: Unstored, member_id: str) -> DescribedStreamsMember:
    metadata, current = group.metadata[member_id], group.current(member_id)
    return DescribedStreamsMember(
        member_id=member_id,
        member_epoch=current.epoch,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=metadata.user_endpoint,
        client_tags=metadata.client_tags,
        task_offsets=_offsets(unstored.offsets.get(member_id, {})),
        task_end_offsets=_offsets(unstored.end_offsets.get(member_id, {})),
        assignment=described_tasks(current.tasks),
        target=described_tasks(group.target(member_id).tasks),
    )


def described_tasks(tasks: Tasks) -> DescribedTasks:
    """Return tasks in the form of responses."""
    return DescribedTasks(
        active=task_ids_of(tasks.active), standby=task_ids_of(tasks.standby), warmup=task_ids_of(tasks.warmup)
    )


def _offsets(offsets: Offsets) -> tuple[TaskOffset, ...]:
    return tuple(
        TaskOffset(subtopology_id=task.subtopology_id, partition=task.partition, offset=offset)
        for task, offset in sorted(offsets.items())
    )
