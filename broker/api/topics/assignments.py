"""Leader elections and partition reassignments.

On a broker by itself an election is not needed for an online partition and not possible for an offline one, and a
reassignment to this broker changes nothing. In a cluster they are decisions of `broker.cluster.rules`. Source:
org.apache.kafka.controller.ReplicationControlManager.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.api.context import Context
from broker.api.errors import EXPECTED, RequestError, describe
from broker.api.handler import Handler
from broker.metadata.topic import Topic
from broker.partitions.partitions import Partitions, UnknownTopicError
from broker.partitions.topics.catalog import NO_LEADER, registered
from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.kafka.controller_values import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
)

if TYPE_CHECKING:
    from broker.cluster.node import ClusterNode

# By election type: preferred, unclean.
_NO_CANDIDATE = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
_UNCLEAN = 1


class AssignmentsApi:
    """Answers the requests about leaders and replicas."""

    def __init__(self, partitions: Partitions, node: "ClusterNode | None" = None) -> None:
        self._partitions = partitions
        self._node = node

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            ElectLeadersRequest.api: self.elect,
            AlterPartitionReassignmentsRequest.api: self.alter,
            ListPartitionReassignmentsRequest.api: self.list_ongoing,
        }

    # -- elections --

    async def elect(self, request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
        """Elect the preferred replica of each partition, or (unclean) any that lives; report what is not possible."""
        if not 0 <= request.election_type < len(_NO_CANDIDATE):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}")
        if request.partitions is not None:
            elected = [await self._elect(asked, request.election_type, context) for asked in request.partitions]
            return ElectLeadersResponse(partitions=tuple(elected))
        failed = []
        for topic in self._partitions.topics():
            for index in range(topic.partitions):
                await context.checkpoint()
                if self._is_wanted(topic, index, request.election_type):
                    asked = TopicPartition(topic=topic.name, partition=index)
                    failed.append(await self._elect(asked, request.election_type, context))
        return ElectLeadersResponse(partitions=tuple(failed))

    def _is_wanted(self, topic: Topic, index: int, election_type: int) -> bool:
        """Whether an election of all partitions is about this one."""
        found = self._partitions.catalog.partition(topic, index)
        if election_type == _UNCLEAN or self._node is None:
            return found.leader == NO_LEADER
        return found.leader != found.replicas[0]

    async def _elect(self, asked: TopicPartition, election_type: int, context: Context) -> PartitionResult:
        await context.checkpoint()
        try:
            topic = self._known(asked)
        except EXPECTED as error:
            return _failed(asked, error)
        found = self._partitions.catalog.partition(topic, asked.partition)
        is_needed = found.leader == NO_LEADER if election_type == _UNCLEAN else found.leader != found.replicas[0]
        if not is_needed:
            code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
            return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)
        reason: str | None = "The only replica is offline."
        if self._node is not None:
            reason = await _elect_in(self._node, topic, asked.partition, is_unclean=election_type == _UNCLEAN)
        if reason is None:
            return PartitionResult(topic=asked.topic, partition=asked.partition)
        code = _NO_CANDIDATE[election_type]
        return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=reason)

    # -- reassignments --

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: Context
    ) -> AlterPartitionReassignmentsResponse:
        """Begin to move partitions to other replicas, or cancel that."""
        altered = []
        for asked in request.partitions:
            altered.append(await self._altered(asked, may_change_factor=request.may_change_factor))
            await context.checkpoint()
        return AlterPartitionReassignmentsResponse(partitions=tuple(altered))

    async def _altered(self, asked: Reassignment, *, may_change_factor: bool) -> PartitionResult:
        try:
            topic = self._check(asked)
            if asked.replicas is not None and not may_change_factor:
                self._check_factor(topic, asked.partition, len(asked.replicas))
        except EXPECTED as error:
            return _failed(asked, error)
        reason = None if self._node is None else await _reassign_in(self._node, topic, asked)
        if reason is None:
            return PartitionResult(topic=asked.topic, partition=asked.partition)
        is_cancelled = asked.replicas is None
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS if is_cancelled else ErrorCode.INVALID_REPLICA_ASSIGNMENT
        return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=reason)

    def _check(self, asked: Reassignment) -> Topic:
        """Return the topic. Raises RequestError or UnknownTopicError for replicas that are not possible."""
        topic = self._known(asked)
        replicas = asked.replicas
        if replicas is None:
            if self._node is None:
                raise RequestError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
            return topic
        if not replicas:
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty")
        if len(set(replicas)) < len(replicas):
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas names a broker twice")
        catalog = self._partitions.catalog
        known = registered(catalog).union(catalog.partition(topic, asked.partition).replicas)
        unknown = next((broker for broker in replicas if broker not in known), None)
        if unknown is not None:
            there_are = ", ".join(map(str, sorted(known)))
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"unknown broker {unknown}: there is only {there_are}"
            )
        return topic

    def _check_factor(self, topic: Topic, index: int, factor: int) -> None:
        """Raise RequestError if this is not the replication factor of a partition (KIP-860)."""
        found = self._partitions.catalog.partition(topic, index)
        current = len(found.replicas) - len(found.removing)
        if factor != current:
            message = f"The replication factor is changed from {current} to {factor}"
            raise RequestError(ErrorCode.INVALID_REPLICATION_FACTOR, message)

    async def list_ongoing(
        self, request: ListPartitionReassignmentsRequest, context: Context
    ) -> ListPartitionReassignmentsResponse:
        """Return the reassignments that are in progress: none on a broker by itself."""
        if self._node is None:
            return ListPartitionReassignmentsResponse()
        is_asked: Callable[[str, int], bool] = lambda *_: True  # noqa: E731
        if request.partitions is not None:
            asked = {(one.topic, one.partition) for one in request.partitions}
            is_asked = lambda *key: key in asked  # noqa: E731
        image, found = self._node.image, []
        for key, state in list(image.partitions.items()):
            name = image.names.get(key.topic)
            if (state.adding or state.removing) and name is not None and is_asked(name, key.partition):
                found.append(
                    OngoingReassignment(
                        topic=name,
                        partition=key.partition,
                        replicas=state.replicas,
                        adding=state.adding,
                        removing=state.removing,
                    )
                )
            if context.is_piece_over:
                await context.pause()
        return ListPartitionReassignmentsResponse(partitions=tuple(found))

    def _known(self, asked: TopicPartition | Reassignment) -> Topic:
        """Return the topic of a partition. Raises UnknownTopicError for one that does not exist. Offline ones exist."""
        topic = self._partitions.topic(asked.topic)
        if topic is None or not 0 <= asked.partition < topic.partitions:
            raise UnknownTopicError(f"no partition {asked.topic}-{asked.partition}")
        return topic


async def _elect_in(node: "ClusterNode", topic: Topic, index: int, *, is_unclean: bool) -> str | None:
    """Elect a leader in the cluster's store. Return why that is not possible, or None. Raises MetadataError."""
    from broker.cluster import admin  # a broker by itself does not need it
    from broker.cluster.image import PartitionKey

    key = PartitionKey(topic.id, index)
    return await admin.in_time(lambda: admin.elect_leader(node, key, is_unclean=is_unclean))


async def _reassign_in(node: "ClusterNode", topic: Topic, asked: Reassignment) -> str | None:
    """Begin or cancel a reassignment in the cluster's store; see `_elect_in`."""
    from broker.cluster import admin
    from broker.cluster.image import PartitionKey

    key = PartitionKey(topic.id, asked.partition)
    return await admin.in_time(lambda: admin.reassign_partition(node, key, asked.replicas))


def _failed(asked: TopicPartition | Reassignment, error: Exception) -> PartitionResult:
    code, message = describe(error)
    return PartitionResult(topic=asked.topic, partition=asked.partition, error=code, message=message)
