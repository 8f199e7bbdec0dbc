"""The inputs of a streams group's target assignment, and the changes that it leads to.

Source: Kafka's TargetAssignmentBuilder (streams, 4.4).
"""

from collections.abc import Iterator, Mapping

from warmlog.broker.groups.streams.assignor.sticky import NO_OFFSETS, TaskMember
from warmlog.broker.groups.streams.effects import AssignTasks
from warmlog.broker.groups.streams.holding import target_of
from warmlog.broker.groups.streams.limits import STANDBY_REPLICAS
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import NOTHING, Tasks
from warmlog.broker.groups.streams.unstored import Unstored
from warmlog.protocol.kafka.streams_group_records import StreamsTarget


def computation(group: StoredStreamsGroup, unstored: Unstored) -> AssignTasks:
    """Return the computation for the group's epoch."""
    members = {
        member_id: TaskMember(
            metadata.process_id, group.current(member_id).tasks, unstored.offsets.get(member_id, NO_OFFSETS)
        )
        for member_id, metadata in group.metadata.items()
    }
    configured = unstored.configured
    is_ready = configured is not None and configured.is_ready and configured.subtopologies is not None
    return AssignTasks(
        epoch=group.epoch.epoch,
        members=members,
        instances={owner: instance_id for instance_id, owner in group.static.items()},
        subtopologies=configured.subtopologies or {} if configured is not None and is_ready else {},
        standby_replicas=_standby_replicas(group),
    )


def _standby_replicas(group: StoredStreamsGroup) -> int:
    configs = {config.key: config.value for config in group.epoch.assignment_configs or ()}
    text = configs.get(STANDBY_REPLICAS, "")
    return int(text) if text.isdecimal() else 0


def assigned(
    group: StoredStreamsGroup, computed: AssignTasks, assignments: Mapping[str, Tasks]
) -> Iterator[tuple[str, StreamsTarget | None]]:
    """Yield the members with their new target, None if unchanged. The group may change in between."""
    for computed_for in computed.members:
        member_id = computed_for
        if member_id not in group.metadata:  # it has left, or is a static member that has restarted since
            member_id = group.static.get(computed.instances.get(computed_for, ""), "")
        if member_id not in group.metadata:
            continue
        target = target_of(assignments.get(computed_for, NOTHING))
        before = group.targets.get(member_id)
        yield member_id, None if before is not None and before.value == target else target
