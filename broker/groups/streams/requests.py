"""Validate heartbeats, and refuse those of unknown or fenced members. Changes nothing.

Source: Kafka's GroupCoordinatorService.throwIfStreamsGroupHeartbeatRequestIsInvalid and the first checks of
GroupMetadataManager.streamsGroupHeartbeat and streamsGroupLeave (4.4).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warmlog.broker.groups.automaton import Answer, Client, Waiter
from warmlog.broker.groups.modern.refusals import JOIN, RefusedError, is_empty, unknown_member
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART, check_instance, unreleased
from warmlog.broker.groups.streams.holding import KNOWN_STATES, owns_only
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import Tasks, task_map
from warmlog.broker.groups.streams.topology.configured import ConfiguredSubtopology, ConfiguredTopology
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.streams import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TaskOffset,
    Topology,
)
from warmlog.protocol.kafka.streams_group_records import StreamsMemberMetadata

UNCHANGED_TIMEOUT = -1
NO_TOPOLOGY_EPOCH = -1
STATUS_VERSION = 1  # version of StreamsGroupHeartbeat: the first whose clients know the status MISSING_CLIENT_TAGS


@dataclass(frozen=True, slots=True)
class StreamsDeclaration:
    """An accepted heartbeat and its declaration.

    `replaced`: the former id of a restarted static member. `topology`: the group's, or its first one.
    `owned`: the tasks that the member reports; None without a report.
    """

    waiter: Waiter
    request: StreamsGroupHeartbeatRequest
    version: int
    replaced: str | None
    metadata: StreamsMemberMetadata
    topology: Topology
    owned: Tasks | None


def refusal(waiter: Waiter, refused: RefusedError) -> Answer:
    """Return the response that refuses a request."""
    return Answer(waiter, StreamsGroupHeartbeatResponse(error=refused.error, message=refused.message))


def check_request(request: StreamsGroupHeartbeatRequest) -> tuple[ErrorCode, str | None]:
    """Return NONE, or why a heartbeat is invalid regardless of the group's state."""
    message = _unsupported(request.topology) or _invalid(request)
    if message is not None:
        return ErrorCode.INVALID_REQUEST, message
    if request.topology is not None and request.topology.epoch < 0:
        return ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, "The epoch of the topology must not be negative."
    for each in () if request.topology is None else request.topology.subtopologies:
        for topic in each.changelogs:
            if topic.partitions:
                return ErrorCode.STREAMS_INVALID_TOPOLOGY, (
                    f"Changelog topic {topic.topic} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
    return ErrorCode.NONE, None


def _unsupported(topology: Topology | None) -> str | None:
    has_regexes = topology is not None and any(each.source_regexes for each in topology.subtopologies)
    return "Regular expressions for source topics are not supported yet." if has_regexes else None


def _invalid(request: StreamsGroupHeartbeatRequest) -> str | None:
    """Return the message of the first rule that a request violates."""
    epoch = request.member_epoch
    joins = epoch == JOIN
    kinds = (request.active, request.standby, request.warmup)
    some, all_of_them = any(kind is not None for kind in kinds), all(kind is not None for kind in kinds)
    rules = (
        (is_empty(request.member_id), "MemberId can't be empty."),
        (is_empty(request.group), "GroupId can't be empty."),
        (is_empty(request.instance_id), "InstanceId can't be empty."),
        (is_empty(request.rack_id), "RackId can't be empty."),
        (
            joins and request.rebalance_timeout_ms == UNCHANGED_TIMEOUT,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (joins and request.active != (), "ActiveTasks must be empty when (re-)joining."),
        (joins and request.standby != (), "StandbyTasks must be empty when (re-)joining."),
        (joins and request.warmup != (), "WarmupTasks must be empty when (re-)joining."),
        (joins and request.topology is None, "Topology must be non-null when (re-)joining."),
        (epoch == LEAVE_FOR_RESTART and request.instance_id is None, "InstanceId can't be null."),
        (
            epoch < LEAVE_FOR_RESTART,
            f"MemberEpoch is {epoch}, but must be greater than or equal to {LEAVE_FOR_RESTART}.",
        ),
        (some and not all_of_them, "If one task-type is non-null, all must be non-null."),
        (not joins and request.topology is not None, "Topology can only be provided when (re-)joining."),
    )
    broken = next((message for is_broken, message in rules if is_broken), None)
    return broken or _duplicate(request.task_offsets or ()) or _duplicate(request.task_end_offsets or ())


def _duplicate(offsets: Iterable[TaskOffset]) -> str | None:
    seen = set()
    for each in offsets:
        task = each.subtopology_id, each.partition
        if task in seen:
            return (
                f"Task offsets contain a duplicate entry for subtopology {each.subtopology_id} and partition "
                f"{each.partition}."
            )
        seen.add(task)
    return None


def owned_tasks(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """Return the tasks that a member reports; None without a report."""
    if request.active is None or request.standby is None or request.warmup is None:
        return None
    return Tasks(_map(request.active), _map(request.standby), _map(request.warmup))


def _map(tasks: Iterable[TaskIds]) -> dict[str, tuple[int, ...]]:
    return dict(task_map((each.subtopology_id, number) for each in tasks for number in each.partitions))


def check_size(group: StoredStreamsGroup, request: StreamsGroupHeartbeatRequest, max_size: int) -> None:
    """Refuse a new member of a full group. Raises RefusedError."""
    if len(group.metadata) < max_size or request.member_id in group.metadata or request.instance_id in group.static:
        return
    raise RefusedError(
        ErrorCode.GROUP_MAX_SIZE_REACHED, f"The streams group has reached its maximum capacity of {max_size} members."
    )


def check_member(group: StoredStreamsGroup, request: StreamsGroupHeartbeatRequest, owned: Tasks | None) -> None:
    """Refuse a heartbeat of an unknown or fenced member, or with a wrong epoch. Raises RefusedError."""
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        if request.member_epoch != JOIN and member_id not in group.metadata:
            raise unknown_member(group.group_id, member_id)
    elif request.member_epoch != JOIN:
        check_instance(group.static, instance_id, member_id)
    else:
        owner = group.static.get(instance_id)
        if owner is not None and group.current(owner).epoch != LEAVE_FOR_RESTART:
            raise unreleased(instance_id, member_id, owner)
    if member_id in group.metadata:
        _check_epoch(group, request, owned)


def _check_epoch(group: StoredStreamsGroup, request: StreamsGroupHeartbeatRequest, owned: Tasks | None) -> None:
    """Refuse a wrong epoch.

    The previous epoch is accepted if the member reports only what it was assigned: its last response may be lost.
    """
    current = group.current(request.member_id)
    received, known = request.member_epoch, current.epoch
    if current.value.state not in KNOWN_STATES and (owned is None or owned):
        message = "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin."
        raise RefusedError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    if received in {JOIN, known}:
        return
    if received == current.value.previous_epoch and received < known and owns_only(owned, current.assigned):
        return
    comparison = "greater" if received > known else "smaller"
    raise RefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {comparison} member epoch ({received}) than the one known by the group "
        f"coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def agreed_topology(group: StoredStreamsGroup, request: StreamsGroupHeartbeatRequest) -> Topology:
    """Return the group's topology, or the one that its first member brings.

    A member may join with an earlier topology, which its status then says. Raises RefusedError for a different
    topology, and if there is none.
    """
    given = request.topology
    if group.topology is None:
        if given is None:
            raise _without_topology()
        return given
    known = group.topology.value
    if given is not None and given.epoch >= known.epoch and _by_id(given) != _by_id(known):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _by_id(topology: Topology) -> tuple[int, dict[str, object]]:
    return topology.epoch, {each.subtopology_id: each for each in topology.subtopologies}


def _without_topology() -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")


def checked(configured: ConfiguredTopology | None, owned: Tasks | None) -> ConfiguredTopology:
    """Return the configured topology. Raises RefusedError if a member reports tasks that it does not have."""
    if configured is None:
        raise _without_topology()
    if owned is not None and configured.is_ready and configured.subtopologies is not None:
        _check_tasks(configured.subtopologies, owned)
    return configured


def _check_tasks(subtopologies: Mapping[str, ConfiguredSubtopology], owned: Tasks) -> None:
    for tasks in (owned.active, owned.standby, owned.warmup):
        for subtopology_id, numbers in tasks.items():
            subtopology = subtopologies.get(subtopology_id)
            if subtopology is None:
                message = f"Subtopology {subtopology_id} does not exist in the topology."
                raise RefusedError(ErrorCode.INVALID_REQUEST, message)
            count = subtopology.number_of_tasks
            wrong = next((number for number in numbers if not 0 <= number < count), None)
            if wrong is not None:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"Task {wrong} for subtopology {subtopology_id} is invalid. Number of tasks for this subtopology: "
                    f"{count}",
                )


def updated(
    known: StreamsMemberMetadata | None, request: StreamsGroupHeartbeatRequest, client: Client
) -> StreamsMemberMetadata:
    """Return a member with a heartbeat's declaration, or `known` itself if nothing changes."""
    before = known or StreamsMemberMetadata(
        client_id="", client_host="", topology_epoch=NO_TOPOLOGY_EPOCH, process_id=""
    )
    timeout_ms, endpoint = request.rebalance_timeout_ms, request.user_endpoint
    if endpoint is None and request.member_epoch != JOIN:
        endpoint = before.user_endpoint
    after = StreamsMemberMetadata(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT else timeout_ms,
        topology_epoch=before.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=before.process_id if request.process_id is None else request.process_id,
        user_endpoint=endpoint,
        client_tags=before.client_tags if request.client_tags is None else _tags(request.client_tags),
    )
    return known if known is not None and after == known else after


def _tags(tags: Iterable[KeyValue]) -> tuple[KeyValue, ...]:
    values = {tag.key: tag.value for tag in tags}
    return tuple([KeyValue(key=key, value=values[key]) for key in sorted(values)])


def needs_new_epoch(known: StreamsMemberMetadata | None, metadata: StreamsMemberMetadata) -> bool:
    """Return whether a changed declaration affects the assignment; a static member's may not."""
    if known is None or metadata.instance_id is None:
        return True
    return (known.topology_epoch, known.rack_id, known.client_tags, known.process_id) != (
        metadata.topology_epoch,
        metadata.rack_id,
        metadata.client_tags,
        metadata.process_id,
    )
