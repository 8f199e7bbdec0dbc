"""Checks of requests about groups and their offsets."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import Access, lacking, refusal
from warmlog.broker.api.authorization.parts import (
    Check,
    CheckedCall,
    answer_allowed,
    without_hidden,
)
from warmlog.broker.groups.share.requests import MAX_MEMBER_ID
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CommittedPartition,
    CoordinatorLocation,
    CoordinatorType,
    DeletedGroup,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchResponse,
)
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.groups import consumer
from warmlog.protocol.kafka.messages.groups.admin import AuthorizedGroup
from warmlog.protocol.native.groups import DescribeConsumerGroupsResponse, DescribedConsumerGroup


def named_group(operation: Operation) -> Check:
    """Return a check of the only group of a request."""

    async def check(call: CheckedCall) -> Any:
        call.access.require(operation, ResourceType.GROUP, call.request.group)
        return await call.answer()

    return check


async def find_coordinator(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group or transactional id; only brokers look up the coordinator of a share group."""
    request, access = call.request, call.access
    if request.key_type == CoordinatorType.SHARE:
        access.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return await call.answer()
    is_group = request.key_type == CoordinatorType.GROUP
    if not is_group and request.key_type != CoordinatorType.TRANSACTION:
        return await call.answer()
    kind = ResourceType.GROUP if is_group else ResourceType.TRANSACTIONAL_ID

    def refuse(key: str) -> CoordinatorLocation:
        return CoordinatorLocation(key=key, **lacking(Operation.DESCRIBE, kind))

    may = partial(access.may, Operation.DESCRIBE, kind)
    return await answer_allowed(
        call, "keys", may, refuse, FindCoordinatorResponse(coordinators=()), results="coordinators"
    )


async def join_native(call: CheckedCall) -> Any:
    """Check READ on the group, and DESCRIBE on the topics, whose partitions the response names."""
    request, access = call.request, call.access
    access.require(Operation.READ, ResourceType.GROUP, request.group)
    if not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), request.topics)):
        raise refusal(Operation.DESCRIBE, ResourceType.TOPIC)
    response = await call.answer()
    return await without_hidden(call, response, "partitions", partial(_is_shown, access))


def _is_shown(access: Access, item: Any) -> bool:
    return access.topic(Operation.DESCRIBE, item.topic)


# -- offsets --


def offsets_of_group(operation: Operation, response: Callable[..., Any]) -> Check:
    """Return a check of an operation on the group, and of READ on the topic of each partition."""

    def refuse(item: Any) -> CommittedPartition:
        return CommittedPartition(
            topic=item.topic, partition=item.partition, **lacking(Operation.READ, ResourceType.TOPIC)
        )

    async def check(call: CheckedCall) -> Any:
        access = call.access
        access.require(operation, ResourceType.GROUP, call.request.group)

        def may(item: Any) -> bool:
            return item.topic == UNKNOWN_TOPIC_NAME or access.topic(Operation.READ, item.topic)

        return await answer_allowed(call, "partitions", may, refuse, response(partitions=()))

    return check


commit = offsets_of_group(Operation.READ, OffsetCommitResponse)
delete_offsets = offsets_of_group(Operation.DELETE, OffsetDeleteResponse)


async def fetch_offsets(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group and topic; topics without it are omitted from a list of all offsets."""
    access, context = call.access, call.context
    groups: list[FetchedOffsets | None] = []
    smaller: list[OffsetFetchGroup] = []
    flags: list[tuple[bool, ...] | None] = []
    for group in call.request.groups:
        if not access.group(Operation.DESCRIBE, group.group):
            groups.append(FetchedOffsets(group=group.group, **lacking(Operation.DESCRIBE, ResourceType.GROUP)))
            continue
        groups.append(None)
        if group.partitions is None:
            flags.append(None)
            smaller.append(group)
            continue
        allowed = await context.map(partial(_may_fetch, access), group.partitions)
        flags.append(allowed)
        kept = [item for item, is_allowed in zip(group.partitions, allowed, strict=True) if is_allowed]
        smaller.append(group if all(allowed) else replace(group, partitions=tuple(kept)))
    if not smaller:
        return OffsetFetchResponse(groups=tuple([each for each in groups if each is not None]))
    response = await call.answer(replace(call.request, groups=tuple(smaller)))
    fetched = iter(zip(response.groups, flags, strict=True))
    wanted = iter([group for group, refused in zip(call.request.groups, groups, strict=True) if refused is None])
    merged = []
    for refused in groups:
        if refused is not None:
            merged.append(refused)
            continue
        answered, of_group = next(fetched)
        merged.append(await _merged(call, next(wanted), answered, of_group))
    return replace(response, groups=tuple(merged))


def _may_fetch(access: Access, item: Any) -> bool:
    return item.topic == UNKNOWN_TOPIC_NAME or access.topic(Operation.DESCRIBE, item.topic)


def _refused_offset(item: Any) -> FetchedOffset:
    return FetchedOffset(topic=item.topic, partition=item.partition, **lacking(Operation.DESCRIBE, ResourceType.TOPIC))


async def _merged(
    call: CheckedCall, group: OffsetFetchGroup, fetched: FetchedOffsets, flags: tuple[bool, ...] | None
) -> FetchedOffsets:
    """Return the offsets of a group with refusals in the original positions."""
    if flags is None or group.partitions is None:
        shown: FetchedOffsets = await without_hidden(call, fetched, "partitions", partial(_may_fetch, call.access))
        return shown
    if all(flags) or fetched.error is not ErrorCode.NONE:
        return fetched
    left = iter(fetched.partitions)

    def merged(item: Any, is_allowed: bool) -> FetchedOffset:
        return next(left) if is_allowed else _refused_offset(item)

    return replace(fetched, partitions=await call.context.map(merged, group.partitions, flags))


# -- consumer groups (KIP-848) --


async def consumer_heartbeat(call: CheckedCall) -> Any:
    """Check READ on the group, and DESCRIBE on each topic in the subscription."""
    request, access = call.request, call.access
    access.require(Operation.READ, ResourceType.GROUP, request.group)
    if request.topics and not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), request.topics)):
        raise refusal(Operation.DESCRIBE, ResourceType.TOPIC)
    return await call.answer()


async def share_heartbeat(call: CheckedCall) -> Any:
    """Check the same for a share group; an invalid member id is left to the handler, as in Kafka."""
    call.access.require(Operation.READ, ResourceType.GROUP, call.request.group)
    if 0 < len(call.request.member_id) <= MAX_MEMBER_ID:
        return await consumer_heartbeat(call)
    return await call.answer()


async def describe_consumer_groups(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group and on the topics of its members, and add the authorized operations."""
    access = call.access

    def refuse(group: str) -> consumer.DescribedConsumerGroup:
        return consumer.DescribedConsumerGroup(group=group, **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may, empty = partial(access.group, Operation.DESCRIBE), consumer.ConsumerGroupDescribeResponse()
    response = await answer_allowed(call, "groups", may, refuse, empty, keeps_each=False)
    groups = [await _shown_consumer_group(call, group) for group in response.groups]
    return replace(response, groups=tuple(groups))


async def _shown_consumer_group(
    call: CheckedCall, group: consumer.DescribedConsumerGroup
) -> consumer.DescribedConsumerGroup:
    access, topics = call.access, set[str]()
    for member in group.members:
        topics.update([each.topic for each in (*member.assignment.partitions, *member.target.partitions)])
        await call.context.checkpoint()
    if not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), tuple(topics))):
        message = "The group has described topic(s) that the client is not authorized to describe."
        return consumer.DescribedConsumerGroup(
            group=group.group, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=message
        )
    if not call.request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return group
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    operations = access.operations(ResourceType.GROUP, group.group)
    return consumer.AuthorizedConsumerGroup(**fields, operations=operations)


# -- lists and descriptions --


async def list_groups(call: CheckedCall) -> Any:
    """List all groups with DESCRIBE on the cluster, otherwise the groups on which the sender has DESCRIBE."""
    access = call.access
    response: ListGroupsResponse = await call.answer()
    if access.cluster(Operation.DESCRIBE):
        return response
    return await without_hidden(call, response, "groups", lambda group: access.group(Operation.DESCRIBE, group.group))


async def describe(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group, and add the authorized operations."""
    access = call.access

    def refuse(group: str) -> DescribedGroup:
        return DescribedGroup(group=group, state="", **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may = partial(access.group, Operation.DESCRIBE)
    empty = DescribeGroupsResponse(groups=())
    response = await answer_allowed(call, "groups", may, refuse, empty, keeps_each=False)
    if not call.request.include_authorized_operations:
        return response
    return replace(response, groups=await call.context.map(partial(_with_operations, access), response.groups))


def _with_operations(access: Access, group: DescribedGroup) -> DescribedGroup:
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    return AuthorizedGroup(**fields, operations=access.operations(ResourceType.GROUP, group.group))


async def describe_native(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group; topics without it are omitted."""
    access = call.access

    def refuse(group: str) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(group=group, state="", **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may, empty = partial(access.group, Operation.DESCRIBE), DescribeConsumerGroupsResponse(groups=())
    response = await answer_allowed(call, "groups", may, refuse, empty)
    groups = [await _without_topics(call, group) for group in response.groups]
    return replace(response, groups=tuple(groups))


async def _without_topics(call: CheckedCall, group: DescribedConsumerGroup) -> DescribedConsumerGroup:
    access, is_shown = call.access, partial(_is_shown, call.access)
    members = []
    for member in group.members:
        shown = await without_hidden(call, member, "partitions", is_shown)
        members.append(replace(shown, topics=tuple(filter(partial(access.topic, Operation.DESCRIBE), shown.topics))))
    described: DescribedConsumerGroup = await without_hidden(call, group, "positions", is_shown)
    return replace(described, members=tuple(members))


async def delete(call: CheckedCall) -> Any:
    """Check DELETE on each group; one result per group, even if it is named repeatedly."""

    def refuse(group: str) -> DeletedGroup:
        return DeletedGroup(group=group, **lacking(Operation.DELETE, ResourceType.GROUP))

    may, empty = partial(call.access.group, Operation.DELETE), DeleteGroupsResponse(groups=())
    return await answer_allowed(call, "groups", may, refuse, empty, keeps_each=False)
