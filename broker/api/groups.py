"""Groups: Kafka's requests about members, offsets and groups as a whole, to the coordinator and back.

Owns: the way from request to coordinator and from its answers to responses. Must not know: what a group does.

Source: kafka.server.KafkaApis (handleFindCoordinatorRequest and those of groups).
"""

from collections.abc import Mapping
from typing import ClassVar

from broker.api.addresses import Advertised
from broker.api.context import Context
from broker.api.handler import Family, Handler
from broker.api.producers import TransactionsUnservedError
from broker.groups.commits import Committer, OffsetCommits
from broker.groups.coordinator import GroupCoordinator
from broker.groups.registry import GroupRegistry
from broker.groups.service import GroupService
from broker.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.groups import (
    CommittedPartition,
    CoordinatorType,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.kafka.group_records import OffsetAndMetadata
from protocol.kafka.values import topic_id_text


def group_families(service: GroupService, partitions: Partitions, advertised: Advertised) -> list[Family]:
    """The handlers of all that Kafka's clients ask about groups."""
    registry, coordinator, commits = service.registry, service.coordinator, service.commits
    return [
        MembersApi(registry, coordinator, partitions.node_id, advertised),
        CommittedOffsetsApi(registry, commits, partitions),
        GroupsApi(registry, coordinator, commits),
    ]


class MembersApi:
    """Where the coordinator is, and what members ask of it."""

    def __init__(
        self, groups: GroupRegistry, coordinator: GroupCoordinator, node_id: int, advertised: Advertised
    ) -> None:
        """`advertised`: where a client is told to come to."""
        self._groups = groups
        self._coordinator = coordinator
        self._node_id = node_id
        self._advertised = advertised

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {
            FindCoordinatorRequest.api: self.find_coordinator,
            JoinGroupRequest.api: self.join,
            SyncGroupRequest.api: self.sync,
            HeartbeatRequest.api: self.heartbeat,
            LeaveGroupRequest.api: self.leave,
        }

    async def find_coordinator(self, request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
        """It is here, for every group. Who asks is about to use one, so the topic for them is made now."""
        error, message = await self._check_coordinator(request.key_type)
        if error is not ErrorCode.NONE:
            failed = [FoundCoordinator(key=key, error=error, message=message) for key in request.keys]
            return FindCoordinatorResponse(coordinators=tuple(failed))
        host, port = self._advertised.of(context.session)
        found = [FoundCoordinator(key=key, node_id=self._node_id, host=host, port=port) for key in request.keys]
        return FindCoordinatorResponse(coordinators=tuple(found))

    async def _check_coordinator(self, key_type: int) -> tuple[ErrorCode, str | None]:
        if key_type == CoordinatorType.GROUP:
            error = await self._groups.log.ensure()
            return error, None if error is ErrorCode.NONE else "the topic in which groups are kept cannot be created"
        if key_type == CoordinatorType.TRANSACTION:
            return TransactionsUnservedError.code, "transactions are not served: there is no coordinator for them"
        return ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}"

    async def join(self, request: JoinGroupRequest, context: Context) -> JoinGroupResponse:
        """Waits for the rebalance."""
        return await self._coordinator.join(
            request, client_id=context.session.client_id, host=f"/{context.session.peer[0]}"
        )

    async def sync(self, request: SyncGroupRequest, _: Context) -> SyncGroupResponse:
        """Waits for the leader."""
        return await self._coordinator.sync(request)

    async def heartbeat(self, request: HeartbeatRequest, _: Context) -> HeartbeatResponse:
        """At once."""
        error = self._coordinator.heartbeat(request.group, request.member_id, request.instance_id, request.generation)
        return HeartbeatResponse(error=error)

    async def leave(self, request: LeaveGroupRequest, _: Context) -> LeaveGroupResponse:
        """Remove members: one entry per member, or none if the group itself is refused."""
        error, errors = self._coordinator.leave(request.group, request.members)
        if error is not ErrorCode.NONE:
            return LeaveGroupResponse(error=error)
        members = [
            LeftMember(member_id=member.member_id, instance_id=member.instance_id, error=each)
            for member, each in zip(request.members, errors, strict=True)
        ]
        return LeaveGroupResponse(members=tuple(members))


class CommittedOffsetsApi:
    """Offsets that groups commit."""

    def __init__(self, groups: GroupRegistry, commits: OffsetCommits, partitions: Partitions) -> None:
        """Over the groups and the topics that there are."""
        self._groups = groups
        self._commits = commits
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {
            OffsetCommitRequest.api: self.commit,
            OffsetFetchRequest.api: self.fetch,
            OffsetDeleteRequest.api: self.delete,
        }

    async def commit(self, request: OffsetCommitRequest, _: Context) -> OffsetCommitResponse:
        """Answered when all that could be is written."""
        committer = Committer(
            generation=request.generation, member_id=request.member_id, instance_id=request.instance_id
        )
        errors = await self._commits.commit(
            request.group, committer, request.partitions, retention_ms=request.retention_ms
        )
        partitions = [
            CommittedPartition(topic=asked.topic, partition=asked.partition, error=error)
            for asked, error in zip(request.partitions, errors, strict=True)
        ]
        return OffsetCommitResponse(partitions=tuple(partitions))

    async def fetch(self, request: OffsetFetchRequest, _: Context) -> OffsetFetchResponse:
        """What is committed. Nothing here is unstable: an open transaction's offsets are not known at all."""
        return OffsetFetchResponse(groups=tuple([self._fetch(asked) for asked in request.groups]))

    def _fetch(self, asked: OffsetFetchGroup) -> FetchedOffsets:
        error = self._groups.available(asked.group)
        if error is not ErrorCode.NONE:
            return FetchedOffsets(group=asked.group, error=error)
        offsets = self._groups.offsets
        if asked.partitions is None:
            found = [self._fetched(*entry) for entry in offsets.of(asked.group)]
        else:
            found = [
                self._fetched(one.topic, one.partition, offsets.get(asked.group, one.topic, one.partition))
                for one in asked.partitions
            ]
        return FetchedOffsets(group=asked.group, partitions=tuple(found))

    def _fetched(self, topic: str, partition: int, committed: OffsetAndMetadata | None) -> FetchedOffset:
        if committed is None:
            return FetchedOffset(topic=topic, partition=partition)
        known = self._partitions.topic(topic)
        return FetchedOffset(
            topic=topic,
            partition=partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            topic_id=None if known is None else topic_id_text(known.id.bytes),
        )

    async def delete(self, request: OffsetDeleteRequest, _: Context) -> OffsetDeleteResponse:
        """Delete offsets: one entry per partition, or none if the group itself is refused."""
        error = self._commits.check_delete_offsets(request.group)
        if error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error=error)
        pairs = [(asked.topic, asked.partition) for asked in request.partitions]
        errors = await self._commits.delete_offsets(request.group, pairs)
        partitions = [
            CommittedPartition(topic=asked.topic, partition=asked.partition, error=each)
            for asked, each in zip(request.partitions, errors, strict=True)
        ]
        return OffsetDeleteResponse(partitions=tuple(partitions))


class GroupsApi:
    """Groups as administrators see them."""

    types: ClassVar[frozenset[str]] = frozenset({"classic"})  # those that a broker here has

    def __init__(self, groups: GroupRegistry, coordinator: GroupCoordinator, commits: OffsetCommits) -> None:
        """Over the groups."""
        self._groups = groups
        self._coordinator = coordinator
        self._commits = commits

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {
            ListGroupsRequest.api: self.list_groups,
            DescribeGroupsRequest.api: self.describe,
            DeleteGroupsRequest.api: self.delete,
        }

    async def list_groups(self, request: ListGroupsRequest, _: Context) -> ListGroupsResponse:
        """Those of the states and types asked for."""
        error = self._groups.available_all()
        if error is not ErrorCode.NONE:
            return ListGroupsResponse(error=error)
        states = {state.strip().lower() for state in request.states}
        types = {kind.strip().lower() for kind in request.types}
        if types and not types & self.types:
            return ListGroupsResponse()
        listed = [group for group in self._coordinator.list_groups() if not states or group.state.lower() in states]
        return ListGroupsResponse(groups=tuple(listed))

    async def describe(self, request: DescribeGroupsRequest, _: Context) -> DescribeGroupsResponse:
        """One entry per group."""
        return DescribeGroupsResponse(groups=tuple([self._coordinator.describe(name) for name in request.groups]))

    async def delete(self, request: DeleteGroupsRequest, _: Context) -> DeleteGroupsResponse:
        """One entry per group."""
        deleted = [DeletedGroup(group=name, error=await self._commits.delete(name)) for name in request.groups]
        return DeleteGroupsResponse(groups=tuple(deleted))
