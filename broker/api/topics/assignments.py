"""Leader elections and partition reassignments, for a single broker.

This broker is the only replica of every partition. An election is not needed for an online partition and not possible
for an offline one. A reassignment to this broker changes nothing; one to other brokers is refused. Source:
org.apache.kafka.controller.ReplicationControlManager.
"""

from collections.abc import Mapping

from broker.api.context import Context
from broker.api.errors import EXPECTED, RequestError, describe
from broker.api.handler import Handler
from broker.partitions.partitions import Partitions, UnknownTopicError
from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.kafka.controller_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    Reassignment,
)

# By election type: preferred, unclean.
_NO_CANDIDATE = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)


class AssignmentsApi:
    """Answers the requests about leaders and replicas."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            ElectLeadersRequest.api: self.elect,
            AlterPartitionReassignmentsRequest.api: self.alter,
            ListPartitionReassignmentsRequest.api: self.list_ongoing,
        }

    async def elect(self, request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
        """Report for each partition that an election is not needed, or that it has no candidate."""
        if not 0 <= request.election_type < len(_NO_CANDIDATE):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}")

        def elected(asked: TopicPartition) -> PartitionResult:
            return self._elect(asked, request.election_type)

        if request.partitions is not None:
            return ElectLeadersResponse(partitions=await context.map(elected, request.partitions))
        failed = []
        for topic in self._partitions.topics():
            for index in range(topic.partitions):
                await context.checkpoint()
                if self._partitions.get(topic.name, index) is None:
                    failed.append(elected(TopicPartition(topic=topic.name, partition=index)))
        return ElectLeadersResponse(partitions=tuple(failed))

    def _elect(self, asked: TopicPartition, election_type: int) -> PartitionResult:
        try:
            self._check_known(asked)
        except EXPECTED as error:
            return _failed(asked, error)
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        if self._partitions.get(asked.topic, asked.partition) is None:
            code, message = _NO_CANDIDATE[election_type], "The only replica is offline."
        return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: Context
    ) -> AlterPartitionReassignmentsResponse:
        """Accept assignments equal to the current ones, refuse all others."""

        def altered(asked: Reassignment) -> PartitionResult:
            try:
                self._check(asked)
            except EXPECTED as error:
                return _failed(asked, error)
            return PartitionResult(topic=asked.topic, partition=asked.partition)

        return AlterPartitionReassignmentsResponse(partitions=await context.map(altered, request.partitions))

    def _check(self, asked: Reassignment) -> None:
        """Raise RequestError or UnknownTopicError unless the partition already has these replicas."""
        self._check_known(asked)
        replicas, node_id = asked.replicas, self._partitions.node_id
        if replicas is None:
            raise RequestError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        if not replicas:
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty")
        if len(set(replicas)) < len(replicas):
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas names a broker twice")
        unknown = [broker for broker in replicas if broker != node_id]
        if unknown:
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"unknown broker {unknown[0]}: the only broker has id {node_id}",
            )

    async def list_ongoing(
        self, _: ListPartitionReassignmentsRequest, __: Context
    ) -> ListPartitionReassignmentsResponse:
        """Return an empty list, since there is no other broker to which a partition could move."""
        return ListPartitionReassignmentsResponse()

    def _check_known(self, asked: TopicPartition | Reassignment) -> None:
        """Raise UnknownTopicError for a partition that does not exist. Offline partitions exist."""
        topic = self._partitions.topic(asked.topic)
        if topic is None or not 0 <= asked.partition < topic.partitions:
            raise UnknownTopicError(f"no partition {asked.topic}-{asked.partition}")


def _failed(asked: TopicPartition | Reassignment, error: Exception) -> PartitionResult:
    code, message = describe(error)
    return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)
