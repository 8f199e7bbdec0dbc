"""Leaders and replicas of partitions, where there is one broker: ElectLeaders and partition reassignments.

Every partition has this broker as its only replica. An election is needed for none that is in service and possible for
none that is offline; a reassignment to this broker changes nothing, one to others is refused. Source:
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

# By the type of an election: of the preferred leader, unclean.
_NOBODY_TO_ELECT = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)


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
        """Say of each partition that its leader needs no election, or that it has none to elect."""
        if not 0 <= request.election_type < len(_NOBODY_TO_ELECT):
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
            code, message = _NOBODY_TO_ELECT[election_type], "The only replica is offline."
        return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: Context
    ) -> AlterPartitionReassignmentsResponse:
        """Accept the assignment that there is, refuse any other."""

        def altered(asked: Reassignment) -> PartitionResult:
            try:
                self._check(asked)
            except EXPECTED as error:
                return _failed(asked, error)
            return PartitionResult(topic=asked.topic, partition=asked.partition)

        return AlterPartitionReassignmentsResponse(partitions=await context.map(altered, request.partitions))

    def _check(self, asked: Reassignment) -> None:
        """Raise RequestError or UnknownTopicError unless a partition is where it is to be."""
        self._check_known(asked)
        replicas, node_id = asked.replicas, self._partitions.node_id
        if replicas is None:
            raise RequestError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        if not replicas:
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty")
        if len(set(replicas)) < len(replicas):
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas names a broker twice")
        strangers = [broker for broker in replicas if broker != node_id]
        if strangers:
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"there is no broker {strangers[0]}: the only one has id {node_id}",
            )

    async def list_ongoing(
        self, _: ListPartitionReassignmentsRequest, __: Context
    ) -> ListPartitionReassignmentsResponse:
        """List nothing: there is no other broker to which a partition could move."""
        return ListPartitionReassignmentsResponse()

    def _check_known(self, asked: TopicPartition | Reassignment) -> None:
        """Raise UnknownTopicError for a partition that there is not; offline ones there are."""
        topic = self._partitions.topic(asked.topic)
        if topic is None or not 0 <= asked.partition < topic.partitions:
            raise UnknownTopicError(f"no partition {asked.topic}-{asked.partition}")


def _failed(asked: TopicPartition | Reassignment, error: Exception) -> PartitionResult:
    code, message = describe(error)
    return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)
