"""Pass Kafka's requests about members, committed offsets and groups to the group coordinator.

Source: kafka.server.KafkaApis (handleFindCoordinatorRequest and those of groups).
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from warmlog.broker.api.addresses import Advertised, described_brokers
from warmlog.broker.api.context import Context
from warmlog.broker.api.groups.consumer_groups import ConsumerGroupsApi
from warmlog.broker.api.handler import Family, Handler
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.groups.commits import Committer, OffsetCommits
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.coordinator import GroupCoordinator
from warmlog.broker.groups.deletion import GroupDeletions
from warmlog.broker.groups.offset_writer import OFFSETS_PER_STEP
from warmlog.broker.groups.offsets import results_of
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.service import GroupService
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.catalog import NO_LEADER
from warmlog.broker.share.state.shard import ShareStateShard
from warmlog.broker.share.state.topic import is_name
from warmlog.broker.transactions.service import TransactionService
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CommittedPartition,
    CoordinatorLocation,
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
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
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
    PartitionEntry,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.group_records import OffsetAndMetadata
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.groups.offsets import MemberOffsetFetchGroup

FIRST_WITH_SHARE_GROUPS = 6  # version of FindCoordinator
MEMBERS_PER_PIECE = 100  # members removed in one step; each piece is like a separate request


def group_families(
    service: GroupService,
    transactions: TransactionService,
    share_states: CoordinatorRuntime[ShareStateShard],
    partitions: Partitions,
    *,
    advertised: Advertised,
    consumer_groups: ConsumerGroupsApi,
) -> list[Family]:
    """Return the handlers of all requests about groups."""
    registry, coordinator, commits = service.registry, service.coordinator, service.commits
    topics: dict[int, CoordinatorTopicUse] = {
        CoordinatorType.GROUP: CoordinatorTopicUse(registry.runtime, registry.runtime.ensure, "consumer groups"),
        CoordinatorType.TRANSACTION: CoordinatorTopicUse(transactions.runtime, transactions.ensure, "transactions"),
        CoordinatorType.SHARE: CoordinatorTopicUse(share_states, share_states.ensure, "share group state"),
    }
    return [
        MembersApi(coordinator, topics, partitions, advertised),
        CommittedOffsetsApi(registry, commits, partitions),
        GroupsApi(registry, coordinator, service.deletions),
        consumer_groups,
    ]


class CoordinatorTopicUse(NamedTuple):
    """A kind of coordinator: its runtime, the function that creates its topic, and the topic's contents."""

    runtime: CoordinatorRuntime[Any]
    ensure: Callable[[], Awaitable[ErrorCode]]
    of: str


class MembersApi:
    """Answers FindCoordinator and the requests of group members."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: Mapping[int, CoordinatorTopicUse],
        partitions: Partitions,
        advertised: Advertised,
    ) -> None:
        """Serve the coordinators of `topics`, by CoordinatorType. `advertised`: this broker's address for clients."""
        self._topics = topics
        self._coordinator = coordinator
        self._partitions = partitions
        self._advertised = advertised

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            FindCoordinatorRequest.api: self.find_coordinator,
            JoinGroupRequest.api: self.join,
            SyncGroupRequest.api: self.sync,
            HeartbeatRequest.api: self.heartbeat,
            LeaveGroupRequest.api: self.leave,
        }

    async def find_coordinator(self, request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
        """Return the leader of each key's partition; create the coordinator's topic, which the client will need."""
        await self._partitions.catalog.settled()
        error, message = await self._check_coordinator(request.key_type, context.version)
        if error is not ErrorCode.NONE:
            failed = partial(CoordinatorLocation, error=error, message=message)
            return FindCoordinatorResponse(coordinators=await context.answer(lambda key: failed(key=key), request.keys))
        is_share = request.key_type == CoordinatorType.SHARE
        runtime = self._topics[request.key_type].runtime
        brokers = {
            broker.node_id: broker
            for broker in described_brokers(
                self._partitions.catalog, self._partitions.node_id, self._advertised, context.session
            )
        }

        def coordinator(key: str) -> CoordinatorLocation:
            if is_share and not is_name(key):
                message = "the key of a share group's coordinator is GROUP:TOPIC-ID:PARTITION"
                return CoordinatorLocation(key=key, error=ErrorCode.INVALID_REQUEST, message=message)
            broker = brokers.get(self._leader_of(runtime.topic, runtime.partition_of(key)))
            if broker is None:
                message = "the coordinator's partition has no leader"
                return CoordinatorLocation(key=key, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=message)
            return CoordinatorLocation(key=key, node_id=broker.node_id, host=broker.host, port=broker.port)

        return FindCoordinatorResponse(coordinators=await context.answer(coordinator, request.keys))

    def _leader_of(self, name: str, index: int) -> int:
        """Return the leader of a coordinator's partition, or NO_LEADER."""
        topic = self._partitions.topic(name)
        return NO_LEADER if topic is None else self._partitions.catalog.partition(topic, index).leader

    async def _check_coordinator(self, key_type: int, version: int) -> tuple[ErrorCode, str | None]:
        kind = self._topics.get(key_type)
        if kind is None:
            return ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}"
        if key_type == CoordinatorType.SHARE and version < FIRST_WITH_SHARE_GROUPS:
            return ErrorCode.INVALID_REQUEST, f"coordinators of share groups need version {FIRST_WITH_SHARE_GROUPS}"
        error = await kind.ensure()
        return error, None if error is ErrorCode.NONE else f"the topic of {kind.of} cannot be created"

    async def join(self, request: JoinGroupRequest, context: Context) -> JoinGroupResponse:
        """Join a group; wait for the end of the rebalance."""
        return await self._coordinator.join(
            request,
            client_id=context.session.client_id,
            host=f"/{context.session.peer[0]}",
            holder=context.session.holder,
        )

    async def sync(self, request: SyncGroupRequest, _: Context) -> SyncGroupResponse:
        """Return the member's assignment, waiting for the leader to send it."""
        return await self._coordinator.sync(request)

    async def heartbeat(self, request: HeartbeatRequest, _: Context) -> HeartbeatResponse:
        """Extend the member's session, without waiting."""
        error = self._coordinator.heartbeat(request.group, request.member_id, request.instance_id, request.generation)
        return HeartbeatResponse(error=error)

    async def leave(self, request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse:
        """Remove members: one entry per member, or none if the group itself is refused."""
        error, errors = await self._coordinator.leave(request.group, request.members[:MEMBERS_PER_PIECE])
        if error is not ErrorCode.NONE:
            return LeaveGroupResponse(error=error)
        for start in range(MEMBERS_PER_PIECE, len(request.members), MEMBERS_PER_PIECE):
            await context.checkpoint()
            piece = request.members[start : start + MEMBERS_PER_PIECE]
            error, piece_errors = await self._coordinator.leave(request.group, piece)
            errors += piece_errors or [error] * len(piece)
        return LeaveGroupResponse(members=await context.map(_left, request.members, errors))


class CommittedOffsetsApi:
    """Answers the requests about committed offsets."""

    def __init__(self, groups: GroupRegistry, commits: OffsetCommits, partitions: Partitions) -> None:
        self._groups = groups
        self._commits = commits
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            OffsetCommitRequest.api: self.commit,
            OffsetFetchRequest.api: self.fetch,
            OffsetDeleteRequest.api: self.delete,
        }

    async def commit(self, request: OffsetCommitRequest, context: Context) -> OffsetCommitResponse:
        """Commit offsets; return when all valid ones are written."""
        committer = Committer(
            generation=request.generation,
            member_id=request.member_id,
            instance_id=request.instance_id,
            holder=context.session.holder,
            version=None if context.session.is_native else context.version,
        )
        commit = self._commits.commit(
            request.group,
            committer,
            request.partitions,
            retention_ms=request.retention_ms,
            checkpoint=context.checkpoint,
        )
        errors = await context.wait(commit)
        results: list[CommittedPartition] = []
        for start in range(0, len(errors), OFFSETS_PER_STEP):
            stop = start + OFFSETS_PER_STEP
            results += results_of(request.partitions[start:stop], errors[start:stop])
            await context.checkpoint()
        return OffsetCommitResponse(partitions=tuple(results))

    async def fetch(self, request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse:
        """Return committed offsets; with `require_stable`, an error for offsets that an open transaction may change."""
        all_of: dict[str, FetchedOffsets] = {}  # by group, so that a repeated group is looked up once
        groups: list[FetchedOffsets] = []
        for requested in request.groups:
            fetched = all_of.get(requested.group) if requested.partitions is None else None
            if fetched is None:
                fetched = await self._fetch(requested, context, is_stable=request.require_stable)
                if requested.partitions is None:
                    all_of[requested.group] = fetched
            groups.append(fetched)
            await context.checkpoint()
        return OffsetFetchResponse(groups=tuple(groups))

    async def _fetch(self, requested: OffsetFetchGroup, context: Context, *, is_stable: bool) -> FetchedOffsets:
        error = self._groups.available(requested.group) or self._check_member(requested)
        if error is not ErrorCode.NONE:
            return FetchedOffsets(group=requested.group, error=error)
        shard = self._groups.shard_of(requested.group)
        if shard is None:  # no group has committed anything
            uncommitted = await context.map(_not_committed, requested.partitions or ())
            return FetchedOffsets(group=requested.group, partitions=uncommitted)
        fetched = await self._fetch_from(shard, requested, context, is_stable=is_stable)
        if not self._groups.is_served(shard):  # its offsets are being freed
            return FetchedOffsets(group=requested.group, error=ErrorCode.NOT_COORDINATOR)
        return FetchedOffsets(group=requested.group, partitions=tuple(fetched))

    def _check_member(self, requested: OffsetFetchGroup) -> ErrorCode:
        """Return NONE if a member of a consumer or streams group may fetch now; others always may."""
        group = self._groups.get(requested.group)
        if isinstance(group, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not isinstance(group, ConsumerGroup | StreamsGroup) or not isinstance(requested, MemberOffsetFetchGroup):
            return ErrorCode.NONE
        return group.check_fetch(requested.member_id, requested.member_epoch)

    async def _fetch_from(
        self, shard: GroupShard, requested: OffsetFetchGroup, context: Context, *, is_stable: bool
    ) -> list[FetchedOffset]:
        offsets, pending = shard.offsets, shard.pending
        fetched: list[FetchedOffset] = []
        if requested.partitions is None:
            for topic, partition, committed in offsets.of(requested.group):
                if is_stable and pending.is_pending(requested.group, topic, partition):
                    fetched.append(_unstable(topic, partition))
                else:
                    fetched.append(self._fetched(topic, partition, committed))
                await context.checkpoint()
        else:
            for entry in requested.partitions:
                if is_stable and pending.is_pending(requested.group, entry.topic, entry.partition):
                    fetched.append(_unstable(entry.topic, entry.partition))
                else:
                    committed_offset = offsets.get(requested.group, entry.topic, entry.partition)
                    fetched.append(self._fetched(entry.topic, entry.partition, committed_offset))
                await context.checkpoint()
        return fetched

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

    async def delete(self, request: OffsetDeleteRequest, context: Context) -> OffsetDeleteResponse:
        """Delete offsets: one entry per partition, or none if the group itself is refused."""
        error = self._commits.check_delete_offsets(request.group)
        if error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error=error)
        pairs = await context.map(lambda requested: (requested.topic, requested.partition), request.partitions)
        errors = await self._commits.delete_offsets(request.group, pairs, context.checkpoint)
        return OffsetDeleteResponse(partitions=await context.map(_committed, request.partitions, errors))


class GroupsApi:
    """Answers the requests that list, describe and delete groups."""

    def __init__(self, groups: GroupRegistry, coordinator: GroupCoordinator, deletions: GroupDeletions) -> None:
        self._groups = groups
        self._coordinator = coordinator
        self._deletions = deletions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            ListGroupsRequest.api: self.list_groups,
            DescribeGroupsRequest.api: self.describe,
            DeleteGroupsRequest.api: self.delete,
        }

    async def list_groups(self, request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
        """List the groups of the requested states and types."""
        error = self._groups.available_all()
        if error is not ErrorCode.NONE:
            return ListGroupsResponse(error=error)
        states = {state.strip().lower() for state in request.states}
        types = {kind.strip().lower() for kind in request.types}
        listed = []
        for group in self._coordinator.list_groups():
            if (not states or group.state.lower() in states) and (not types or group.type in types):
                listed.append(group)
            await context.checkpoint()
        return ListGroupsResponse(groups=tuple(listed))

    async def describe(self, request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
        """Describe each group, in the order of the request."""
        return DescribeGroupsResponse(
            groups=await context.answer(self._coordinator.describe, dict.fromkeys(request.groups))
        )

    async def delete(self, request: DeleteGroupsRequest, context: Context) -> DeleteGroupsResponse:
        """Delete each group independently; one entry per group, even if it is named repeatedly."""
        deleted: dict[str, DeletedGroup] = {}
        for name in request.groups:
            if name not in deleted:
                error = await context.wait(self._deletions.delete(name))
                deleted[name] = DeletedGroup(group=name, error=error)
            await context.checkpoint()
        return DeleteGroupsResponse(groups=tuple(deleted.values()))


def _not_committed(requested: PartitionEntry) -> FetchedOffset:
    return FetchedOffset(topic=requested.topic, partition=requested.partition)


def _unstable(topic: str, partition: int) -> FetchedOffset:
    return FetchedOffset(
        topic=topic,
        partition=partition,
        error=ErrorCode.UNSTABLE_OFFSET_COMMIT,
        message="an open transaction may still change the offset",
    )


def _left(member: LeavingMember, error: ErrorCode) -> LeftMember:
    return LeftMember(member_id=member.member_id, instance_id=member.instance_id, error=error)


def _committed(requested: PartitionEntry, error: ErrorCode) -> CommittedPartition:
    return CommittedPartition(topic=requested.topic, partition=requested.partition, error=error)
