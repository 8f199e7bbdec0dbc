"""The state of a streams group that is not stored, and is lost when its coordinator changes.

Source: Kafka's StreamsGroup (4.4: taskOffsets, shutdownRequestMemberId, endpointInformationEpoch,
endpointToPartitionsCache), MemberTaskOffsets.
"""

from collections.abc import Iterable, Mapping

from warmlog.broker.groups.automaton import NEVER
from warmlog.broker.groups.modern.assignment import Topics
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.broker.groups.streams.tasks import TaskId
from warmlog.broker.groups.streams.topology.configured import ConfiguredSubtopology, ConfiguredTopology
from warmlog.broker.groups.streams.topology.endpoints import endpoint_partitions
from warmlog.protocol.kafka.messages.groups.streams import EndpointPartitions, StreamsGroupHeartbeatRequest, TaskOffset

Offsets = Mapping[TaskId, int]


class Unstored:
    """Reported offsets of members, their endpoints, and the request to shut down an application.

    `configured`: the topology as fitted to the topics at the last heartbeat.
    `assigns_at_s`: the end of the delay of an empty group's first assignment, on the event loop's clock.
    """

    __slots__ = (
        "_endpoints",
        "_group",
        "assigns_at_s",
        "configured",
        "end_offsets",
        "endpoint_epoch",
        "offset_count",
        "offsets",
        "shutdown_by",
    )

    def __init__(self, group: StoredStreamsGroup) -> None:
        self._group = group
        self._endpoints: dict[str, EndpointPartitions] = {}  # by member id, where known
        self.assigns_at_s = NEVER
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.offsets: dict[str, Offsets] = {}  # by member id
        self.end_offsets: dict[str, Offsets] = {}
        self.offset_count = 0  # bytes of all members together
        self.shutdown_by: str | None = None  # the first member that requested it

    @property
    def is_delayed(self) -> bool:
        """Whether the first assignment is delayed."""
        return self.assigns_at_s < NEVER

    def configure(self, configured: ConfiguredTopology) -> None:
        """Set the result of fitting the topology to the topics."""
        if configured is not self.configured:
            self.configured = configured
            self._endpoints.clear()

    def report(self, member_id: str, request: StreamsGroupHeartbeatRequest) -> None:
        """Record the offsets that a member reports."""
        if request.task_offsets is not None:
            self._set(self.offsets, member_id, by_task(request.task_offsets))
        if request.task_end_offsets is not None:
            self._set(self.end_offsets, member_id, by_task(request.task_end_offsets))

    def _set(self, offsets: dict[str, Offsets], member_id: str, value: Offsets) -> None:
        self.offset_count += len(value) - len(offsets.get(member_id, ()))
        offsets[member_id] = value

    def request_shutdown(self, member_id: str) -> None:
        """Record that a member requests a shutdown of the application, until the group is empty."""
        self.shutdown_by = self.shutdown_by or member_id

    def forget_endpoint(self, member_id: str) -> None:
        """Record that a member's endpoint or tasks have changed."""
        self._endpoints.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """Drop the state of a member that has left."""
        self._endpoints.pop(member_id, None)
        for offsets in (self.offsets, self.end_offsets):
            self.offset_count -= len(offsets.pop(member_id, ()))
        if not self._group.metadata:
            self.shutdown_by = None

    def endpoints(self, topics: Topics) -> tuple[EndpointPartitions, ...]:
        """Return the partitions that can be queried at each endpoint."""
        subtopologies: Mapping[str, ConfiguredSubtopology] = {}
        if self.configured is not None and self.configured.subtopologies is not None:
            subtopologies = self.configured.subtopologies
        listed = []
        for member_id, metadata in self._group.metadata.items():
            if metadata.user_endpoint is None:
                continue
            known = self._endpoints.get(member_id)
            if known is None:
                tasks = self._group.current(member_id).tasks
                known = endpoint_partitions(metadata.user_endpoint, tasks, subtopologies, topics)
                self._endpoints[member_id] = known
            listed.append(known)
        return tuple(listed)


def by_task(offsets: Iterable[TaskOffset]) -> Offsets:
    """Return offsets by task; the last one of a repeated task."""
    return {TaskId(each.subtopology_id, each.partition): each.offset for each in offsets}
