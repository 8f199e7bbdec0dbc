"""Checks of requests about groups and their offsets."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import Access, lacking, refusal
from warmlog.broker.api.authorization.parts import (
    Asked,
    Check,
    answer_allowed,
    without_hidden,
)
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CommittedPartition,
    CoordinatorType,
    DeletedGroup,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorResponse,
    FoundCoordinator,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchResponse,
)
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.kafka.messages.groups.admin import AuthorizedGroup
from warmlog.protocol.native.groups import DescribeConsumerGroupsResponse, DescribedConsumerGroup


def one_group(operation: Operation) -> Check:
    """Return a check of the only group of a request."""

    async def check(asked: Asked) -> Any:
        asked.access.require(operation, ResourceType.GROUP, asked.request.group)
        return await asked.answer()

    return check


async def find_coordinator(asked: Asked) -> Any:
    """Check DESCRIBE on each group or transactional id; only brokers ask for the coordinator of a share group."""
    request, access = asked.request, asked.access
    if request.key_type == CoordinatorType.SHARE:
        access.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return await asked.answer()
    is_group = request.key_type == CoordinatorType.GROUP
    if not is_group and request.key_type != CoordinatorType.TRANSACTION:
        return await asked.answer()
    kind = ResourceType.GROUP if is_group else ResourceType.TRANSACTIONAL_ID

    def refuse(key: str) -> FoundCoordinator:
        return FoundCoordinator(key=key, **lacking(Operation.DESCRIBE, kind))

    may = partial(access.may, Operation.DESCRIBE, kind)
    return await answer_allowed(
        asked, "keys", may, refuse, FindCoordinatorResponse(coordinators=()), results="coordinators"
    )


async def join_native(asked: Asked) -> Any:
    """Check READ on the group, and DESCRIBE on the topics, whose partitions the response names."""
    request, access = asked.request, asked.access
    access.require(Operation.READ, ResourceType.GROUP, request.group)
    if not all(await asked.context.map(partial(access.topic, Operation.DESCRIBE), request.topics)):
        raise refusal(Operation.DESCRIBE, ResourceType.TOPIC)
    response = await asked.answer()
    return await without_hidden(asked, response, "partitions", partial(_is_shown, access))


def _is_shown(access: Access, item: Any) -> bool:
    return access.topic(Operation.DESCRIBE, item.topic)


# -- offsets --


def offsets_of_group(operation: Operation, response: Callable[..., Any]) -> Check:
    """Return a check of an operation on the group, and of READ on the topic of each partition."""

    def refuse(item: Any) -> CommittedPartition:
        return CommittedPartition(
            topic=item.topic, partition=item.partition, **lacking(Operation.READ, ResourceType.TOPIC)
        )

    async def check(asked: Asked) -> Any:
        access = asked.access
        access.require(operation, ResourceType.GROUP, asked.request.group)

        def may(item: Any) -> bool:
            return item.topic == UNKNOWN_TOPIC_NAME or access.topic(Operation.READ, item.topic)

        return await answer_allowed(asked, "partitions", may, refuse, response(partitions=()))

    return check


commit = offsets_of_group(Operation.READ, OffsetCommitResponse)
delete_offsets = offsets_of_group(Operation.DELETE, OffsetDeleteResponse)


async def fetch_offsets(asked: Asked) -> Any:
    """Check DESCRIBE on each group and topic; of all offsets of a group, those without it are left out."""
    access, context = asked.access, asked.context
    groups: list[FetchedOffsets | None] = []
    smaller: list[OffsetFetchGroup] = []
    flags: list[tuple[bool, ...] | None] = []
    for group in asked.request.groups:
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
    response = await asked.answer(replace(asked.request, groups=tuple(smaller)))
    found = iter(zip(response.groups, flags, strict=True))
    wanted = iter([group for group, refused in zip(asked.request.groups, groups, strict=True) if refused is None])
    merged = []
    for refused in groups:
        if refused is not None:
            merged.append(refused)
            continue
        answered, of_group = next(found)
        merged.append(await _merged(asked, next(wanted), answered, of_group))
    return replace(response, groups=tuple(merged))


def _may_fetch(access: Access, item: Any) -> bool:
    return item.topic == UNKNOWN_TOPIC_NAME or access.topic(Operation.DESCRIBE, item.topic)


def _refused_offset(item: Any) -> FetchedOffset:
    return FetchedOffset(topic=item.topic, partition=item.partition, **lacking(Operation.DESCRIBE, ResourceType.TOPIC))


async def _merged(
    asked: Asked, group: OffsetFetchGroup, found: FetchedOffsets, flags: tuple[bool, ...] | None
) -> FetchedOffsets:
    """Return the offsets of a group with the refusals in their places."""
    if flags is None or group.partitions is None:
        shown: FetchedOffsets = await without_hidden(asked, found, "partitions", partial(_may_fetch, asked.access))
        return shown
    if all(flags) or found.error is not ErrorCode.NONE:
        return found
    left = iter(found.partitions)

    def place(item: Any, is_allowed: bool) -> FetchedOffset:
        return next(left) if is_allowed else _refused_offset(item)

    return replace(found, partitions=await asked.context.map(place, group.partitions, flags))


# -- lists and descriptions --


async def list_groups(asked: Asked) -> Any:
    """List all groups with DESCRIBE on the cluster, otherwise those with DESCRIBE."""
    access = asked.access
    response: ListGroupsResponse = await asked.answer()
    if access.cluster(Operation.DESCRIBE):
        return response
    return await without_hidden(asked, response, "groups", lambda group: access.group(Operation.DESCRIBE, group.group))


async def describe(asked: Asked) -> Any:
    """Check DESCRIBE on each group, and add the authorized operations."""
    access = asked.access

    def refuse(group: str) -> DescribedGroup:
        return DescribedGroup(group=group, state="", **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may = partial(access.group, Operation.DESCRIBE)
    response = await answer_allowed(asked, "groups", may, refuse, DescribeGroupsResponse(groups=()))
    if not asked.request.include_authorized_operations:
        return response
    return replace(response, groups=await asked.context.map(partial(_with_operations, access), response.groups))


def _with_operations(access: Access, group: DescribedGroup) -> DescribedGroup:
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    return AuthorizedGroup(**fields, operations=access.operations(ResourceType.GROUP, group.group))


async def describe_native(asked: Asked) -> Any:
    """Check DESCRIBE on each group; topics without it are left out."""
    access = asked.access

    def refuse(group: str) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(group=group, state="", **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may, empty = partial(access.group, Operation.DESCRIBE), DescribeConsumerGroupsResponse(groups=())
    response = await answer_allowed(asked, "groups", may, refuse, empty)
    groups = [await _without_topics(asked, group) for group in response.groups]
    return replace(response, groups=tuple(groups))


async def _without_topics(asked: Asked, group: DescribedConsumerGroup) -> DescribedConsumerGroup:
    access, is_shown = asked.access, partial(_is_shown, asked.access)
    members = []
    for member in group.members:
        shown = await without_hidden(asked, member, "partitions", is_shown)
        members.append(replace(shown, topics=tuple(filter(partial(access.topic, Operation.DESCRIBE), shown.topics))))
    found: DescribedConsumerGroup = await without_hidden(asked, group, "positions", is_shown)
    return replace(found, members=tuple(members))


async def delete(asked: Asked) -> Any:
    """Check DELETE on each group; one result per group, even if it is named repeatedly."""

    def refuse(group: str) -> DeletedGroup:
        return DeletedGroup(group=group, **lacking(Operation.DELETE, ResourceType.GROUP))

    may, empty = partial(asked.access.group, Operation.DELETE), DeleteGroupsResponse(groups=())
    return await answer_allowed(asked, "groups", may, refuse, empty, keeps_each=False)
