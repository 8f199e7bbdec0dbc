"""Responses to heartbeats of reconciled members: tasks, statuses, and endpoints at which states can be queried.

Source: Kafka's GroupMetadataManager (4.4: streamsGroupHeartbeat, maybeSetTopologyStaleStatus,
maybeUpdateStreamsTargetAssignment).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from warmlog.broker.groups.automaton import Waiter
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.modern.refusals import JOIN
from warmlog.broker.groups.streams.describing import described_tasks
from warmlog.broker.groups.streams.holding import CurrentTasks
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.groups.streams.requests import STATUS_VERSION, StreamsDeclaration
from warmlog.broker.groups.streams.status import Status
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.unstored import Unstored
from warmlog.protocol.kafka.messages.groups.streams import StreamsGroupHeartbeatResponse, StreamsStatus
from warmlog.protocol.kafka.streams_group_records import StreamsMemberMetadata


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """A heartbeat whose member is to be reconciled.

    `known`: the member's previous declaration, None for a new member. `before`: its previous assignment. `is_new`:
    whether it is the first heartbeat of its group.
    """

    declared: StreamsDeclaration
    known: StreamsMemberMetadata | None
    before: CurrentTasks
    is_new: bool

    @property
    def waiter(self) -> Waiter:
        """The request to answer."""
        return self.declared.waiter

    @property
    def member_id(self) -> str:
        """The id of the member."""
        return self.declared.request.member_id


def response(
    group: StoredStreamsGroup,
    unstored: Unstored,
    heartbeat: StreamsHeartbeat,
    current: CurrentTasks,
    *,
    limits: StreamsLimits,
    topics: Topics,
) -> StreamsGroupHeartbeatResponse:
    """Return the response for a member whose assignment is `current`, and count a change of endpoints.

    As in Kafka, the first heartbeat of a group does not count: the epoch of endpoints begins with its records. Unlike
    in Kafka, a member that reports other tasks gets its own again, since the response with them may be lost.
    """
    request, member_id = heartbeat.declared.request, heartbeat.member_id
    metadata = group.metadata[member_id]
    tasks_changed = current.assigned != heartbeat.before.assigned
    endpoint_changed = metadata.user_endpoint != (None if heartbeat.known is None else heartbeat.known.user_endpoint)
    joins = request.member_epoch == JOIN
    if joins or tasks_changed or endpoint_changed:
        unstored.forget_endpoint(member_id)
    has_changed = endpoint_changed or (tasks_changed and metadata.user_endpoint is not None)
    if has_changed and not heartbeat.is_new:
        unstored.endpoint_epoch += 1
    tells = unstored.endpoint_epoch != request.endpoint_epoch or (has_changed and heartbeat.is_new)
    owned = heartbeat.declared.owned
    shows = joins or tasks_changed or (owned is not None and owned != current.tasks)
    tasks = described_tasks(current.tasks) if shows else None
    return StreamsGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        acceptable_recovery_lag=limits.acceptable_recovery_lag,
        task_offset_interval_ms=limits.task_offset_interval_ms,
        status=tuple(_statuses(group, unstored, heartbeat, limits)),
        active=None if tasks is None else tasks.active,
        standby=None if tasks is None else tasks.standby,
        warmup=None if tasks is None else tasks.warmup,
        endpoint_epoch=unstored.endpoint_epoch,
        endpoints=unstored.endpoints(topics) if tells else None,
    )


def _statuses(
    group: StoredStreamsGroup, unstored: Unstored, heartbeat: StreamsHeartbeat, limits: StreamsLimits
) -> Iterator[StreamsStatus]:
    metadata, topology = group.metadata[heartbeat.member_id], group.topology
    if topology is not None and metadata.topology_epoch < topology.value.epoch:
        yield _status(
            Status.STALE_TOPOLOGY,
            f"The member's topology epoch {metadata.topology_epoch} is behind the group's topology epoch "
            f"{topology.value.epoch}.",
        )
    if unstored.is_delayed:
        detail = "Assignment delayed due to the configured initial rebalance delay."
        yield _status(Status.ASSIGNMENT_DELAYED, detail)
    elif group.epoch.epoch > group.target_epoch.epoch:
        yield _status(Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")
    if unstored.configured is not None and unstored.configured.problem is not None:
        yield _status(*unstored.configured.problem)
    if unstored.shutdown_by is not None:
        yield _status(
            Status.SHUTDOWN_APPLICATION,
            f"Streams group member {unstored.shutdown_by} encountered a fatal error and requested a shutdown for the "
            "entire application.",
        )
    missing = [tag for tag in limits.rack_tags if tag not in {each.key for each in metadata.client_tags}]
    if missing and heartbeat.declared.version >= STATUS_VERSION:
        yield _status(
            Status.MISSING_CLIENT_TAGS,
            f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure them "
            "via 'client.tag.<tagKey>' in your Streams config.",
        )


def _status(status: Status, detail: str) -> StreamsStatus:
    return StreamsStatus(code=int(status), detail=detail)
