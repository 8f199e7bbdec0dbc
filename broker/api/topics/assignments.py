"""Leader elections and partition reassignments.

On a standalone broker an election is not needed for an online partition and not possible for an offline one, and a
reassignment to this broker changes nothing. In a cluster, `broker.cluster.rules` decides about both. Source:
org.apache.kafka.controller.ReplicationControlManager.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.partitions import Partitions, UnknownTopicError
from warmlog.broker.partitions.topics.catalog import NO_LEADER, registered
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.topics.assignments import (
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
from warmlog.protocol.partitions import TopicIdPartition

PARTITIONS_PER_PIECE = 500  # of a request, changed in the store before other tasks run: a millisecond each way
T = TypeVar("T", PartitionEntry, Reassignment)

# By election type: preferred, unclean.
_NO_CANDIDATE = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
_UNCLEAN = 1
_NOT_NEEDED = "Leader election not needed for topic partition."


class AssignmentsApi:
    """Answers the requests about leaders and replicas."""

    def __init__(self, partitions: Partitions, node: StoreNode) -> None:
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
        """Elect the preferred replica of each partition, or (unclean) any live one; report impossible elections."""
        if not 0 <= request.election_type < len(_NO_CANDIDATE):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown election type {request.election_type}")
        partitions: Sequence[PartitionEntry] | None = request.partitions
        if partitions is None:
            partitions = await self._all_needed(request.election_type, context)
        wanted: dict[PartitionEntry, Topic] = {}
        failed: dict[PartitionEntry, PartitionResult] = {}
        for requested in partitions:
            await context.checkpoint()
            try:
                topic = self._known(requested)
            except EXPECTED as error:
                failed[requested] = _failed(requested, error)
                continue
            if self._is_needed(topic, requested.partition, request.election_type):
                wanted[requested] = topic
            else:
                failed[requested] = _result(requested, ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED)
        refused = await _elect_in(self._node, wanted, is_unclean=request.election_type == _UNCLEAN)
        code = _NO_CANDIDATE[request.election_type]

        def result(requested: PartitionEntry) -> PartitionResult:
            reason = refused.get(requested)
            return failed.get(requested) or (_result(requested) if reason is None else _result(requested, code, reason))

        return ElectLeadersResponse(partitions=await context.map(result, partitions))

    async def _all_needed(self, election_type: int, context: Context) -> list[PartitionEntry]:
        """Return all partitions whose leader an election would change."""
        needed = []
        for topic in self._partitions.topics():
            for index in range(topic.partitions):
                await context.checkpoint()
                if self._is_needed(topic, index, election_type):
                    needed.append(PartitionEntry(topic=topic.name, partition=index))
        return needed

    def _is_needed(self, topic: Topic, index: int, election_type: int) -> bool:
        """Return whether an election would change the leader of a partition."""
        info = self._partitions.catalog.partition(topic, index)
        if election_type == _UNCLEAN:
            return info.leader == NO_LEADER
        return info.leader != info.replicas[0]

    # -- reassignments --

    async def alter(
        self, request: AlterPartitionReassignmentsRequest, context: Context
    ) -> AlterPartitionReassignmentsResponse:
        """Begin to move partitions to other replicas, or cancel a move."""
        wanted: dict[Reassignment, Topic] = {}
        failed: dict[Reassignment, PartitionResult] = {}
        for requested in request.partitions:
            await context.checkpoint()
            try:
                wanted[requested] = topic = self._check(requested)
                if requested.replicas is not None and not request.may_change_factor:
                    self._check_factor(topic, requested.partition, len(requested.replicas))
            except EXPECTED as error:
                wanted.pop(requested, None)
                failed[requested] = _failed(requested, error)
        refused = await _reassign_in(self._node, wanted)

        def result(requested: Reassignment) -> PartitionResult:
            return failed.get(requested) or _altered(requested, refused.get(requested))

        return AlterPartitionReassignmentsResponse(partitions=await context.map(result, request.partitions))

    def _check(self, requested: Reassignment) -> Topic:
        """Return the topic. Raises RequestError or UnknownTopicError for impossible replicas."""
        topic = self._known(requested)
        replicas = requested.replicas
        if replicas is None:
            return topic
        if not replicas:
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty")
        if len(set(replicas)) < len(replicas):
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas names a broker twice")
        catalog = self._partitions.catalog
        known = registered(catalog).union(catalog.partition(topic, requested.partition).replicas)
        unknown = next((broker for broker in replicas if broker not in known), None)
        if unknown is not None:
            there_are = ", ".join(map(str, sorted(known)))
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"unknown broker {unknown}: there is only {there_are}"
            )
        return topic

    def _check_factor(self, topic: Topic, index: int, factor: int) -> None:
        """Raise RequestError if this is not the partition's replication factor (KIP-860)."""
        info = self._partitions.catalog.partition(topic, index)
        current = len(info.replicas) - len(info.removing)
        if factor != current:
            message = f"The replication factor is changed from {current} to {factor}"
            raise RequestError(ErrorCode.INVALID_REPLICATION_FACTOR, message)

    async def list_ongoing(
        self, request: ListPartitionReassignmentsRequest, context: Context
    ) -> ListPartitionReassignmentsResponse:
        """Return the reassignments in progress; none on a standalone broker."""
        is_requested: Callable[[str, int], bool] = lambda *_: True  # noqa: E731
        if request.partitions is not None:
            requested = {(entry.topic, entry.partition) for entry in request.partitions}
            is_requested = lambda *key: key in requested  # noqa: E731
        image, ongoing = self._node.image, []
        for key, state in list(image.partitions.items()):
            name = image.names.get(key.topic_id)
            if (state.adding or state.removing) and name is not None and is_requested(name, key.partition):
                ongoing.append(
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
        return ListPartitionReassignmentsResponse(partitions=tuple(ongoing))

    def _known(self, requested: PartitionEntry | Reassignment) -> Topic:
        """Return the topic of an existing partition, online or not. Raises UnknownTopicError."""
        topic = self._partitions.topic(requested.topic)
        if topic is None or not 0 <= requested.partition < topic.partitions:
            raise UnknownTopicError(f"no partition {requested.topic}-{requested.partition}")
        return topic


async def _elect_in(
    node: StoreNode, wanted: Mapping[PartitionEntry, Topic], *, is_unclean: bool
) -> Mapping[PartitionEntry, str]:
    """Elect leaders in the store; return the reasons of impossible elections. Raises MetadataError."""
    if node.is_alone:
        return dict.fromkeys(wanted, "The only replica is offline.")
    from warmlog.broker.cluster import partition_admin  # a standalone broker does not need it

    return await _in_pieces(wanted, lambda keys: partition_admin.elect_leaders(node, keys, is_unclean=is_unclean))


async def _reassign_in(node: StoreNode, wanted: Mapping[Reassignment, Topic]) -> Mapping[Reassignment, str]:
    """Begin or cancel reassignments in the store; see `_elect_in`."""
    if node.is_alone:
        return {
            requested: "No partition reassignment is in progress." for requested in wanted if requested.replicas is None
        }
    from warmlog.broker.cluster import partition_admin

    def change(keys: Mapping[TopicIdPartition, Reassignment]) -> Awaitable[Mapping[TopicIdPartition, str]]:
        return partition_admin.reassign_partitions(node, {key: requested.replicas for key, requested in keys.items()})

    return await _in_pieces(wanted, change)


async def _in_pieces(
    wanted: Mapping[T, Topic],
    change: Callable[[Mapping[TopicIdPartition, T]], Awaitable[Mapping[TopicIdPartition, str]]],
) -> Mapping[T, str]:
    """Change partitions in pieces; return the reasons why some cannot be changed. Raises MetadataError."""
    refused: dict[T, str] = {}
    left = iter(wanted.items())
    while piece := list(islice(left, PARTITIONS_PER_PIECE)):
        keys = {TopicIdPartition(topic.id, requested.partition): requested for requested, topic in piece}
        reasons = await admin.in_time(partial(change, keys))
        refused.update({keys[key]: reason for key, reason in reasons.items()})
    return refused


def _altered(requested: Reassignment, refusal: str | None) -> PartitionResult:
    if refusal is None:
        return _result(requested)
    is_cancelled = requested.replicas is None
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS if is_cancelled else ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return _result(requested, code, refusal)


def _result(
    requested: PartitionEntry | Reassignment, error: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> PartitionResult:
    return PartitionResult(topic=requested.topic, partition=requested.partition, error=error, message=message)


def _failed(requested: PartitionEntry | Reassignment, error: Exception) -> PartitionResult:
    return _result(requested, *describe(error))
