"""Checks of requests about share groups and their offsets."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import lacking
from warmlog.broker.api.authorization.parts import CheckedCall, answer_allowed, without_hidden
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share import groups, offsets
from warmlog.protocol.native import share as native
from warmlog.protocol.request import Value
from warmlog.protocol.response import ErrorResponse, TopicResult

_NOT_READABLE = lacking(Operation.READ, ResourceType.TOPIC)
_NOT_DESCRIBABLE = lacking(Operation.DESCRIBE, ResourceType.TOPIC)


async def describe(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group and on the topics of its members, and add the authorized operations."""
    access = call.access

    def refuse(group: str) -> groups.DescribedShareGroup:
        return groups.DescribedShareGroup(group=group, **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may, empty = partial(access.group, Operation.DESCRIBE), groups.ShareGroupDescribeResponse()
    response = await answer_allowed(call, "groups", may, refuse, empty, keeps_each=False)
    shown = [await _shown_group(call, group) for group in response.groups]
    return replace(response, groups=tuple(shown))


async def _shown_group(call: CheckedCall, group: groups.DescribedShareGroup) -> groups.DescribedShareGroup:
    access, topics = call.access, set[str]()
    for member in group.members:
        topics.update([each.topic for each in member.assignment.partitions])
        await call.context.checkpoint()
    if not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), tuple(topics))):
        message = "The group has described topic(s) that the client is not authorized to describe."
        return groups.DescribedShareGroup(
            group=group.group, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=message
        )
    if not call.request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return group
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    operations = access.operations(ResourceType.GROUP, group.group)
    return groups.AuthorizedShareGroup(**fields, operations=operations)


async def describe_offsets(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group and topic; topics without it are omitted from a list of all offsets of a group."""

    def refuse(group: offsets.ShareOffsetsGroup) -> offsets.DescribedShareOffsets:
        return offsets.DescribedShareOffsets(group=group.group, **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    def may(group: offsets.ShareOffsetsGroup) -> bool:
        return call.access.group(Operation.DESCRIBE, group.group)

    flags = await call.context.map(may, call.request.groups)
    allowed, hidden = [], []
    for group, is_allowed in zip(call.request.groups, flags, strict=True):
        if is_allowed:
            shown, not_shown = await _split(call, Operation.DESCRIBE, group.topics or (), _topic_of)
            allowed.append(group if group.topics is None else replace(group, topics=shown))
            hidden.append(not_shown)
    response = offsets.DescribeShareGroupOffsetsResponse()
    if allowed:
        response = await call.answer(replace(call.request, groups=tuple(allowed)))
    answers = iter(zip(allowed, hidden, response.groups, strict=True))
    merged = []
    for group, is_allowed in zip(call.request.groups, flags, strict=True):
        merged.append(await _shown_offsets(call, *next(answers)) if is_allowed else refuse(group))
    return replace(response, groups=tuple(merged))


async def _shown_offsets(
    call: CheckedCall,
    group: offsets.ShareOffsetsGroup,
    hidden: Sequence[offsets.NumberedPartitions],
    described: offsets.DescribedShareOffsets,
) -> offsets.DescribedShareOffsets:
    """Return the offsets of a group without hidden topics; hidden topics of the request get an error."""
    if described.error is not ErrorCode.NONE:
        return described
    if group.topics is None:
        shown: offsets.DescribedShareOffsets = await without_hidden(
            call, described, "topics", lambda topic: call.access.topic(Operation.DESCRIBE, topic.topic)
        )
        return shown

    def refuse(topic: offsets.NumberedPartitions) -> offsets.DescribedShareTopic:
        partitions = [
            offsets.DescribedSharePartition(partition=partition, **_NOT_DESCRIBABLE) for partition in topic.partitions
        ]
        return offsets.DescribedShareTopic(topic=topic.topic, partitions=tuple(partitions))

    return replace(described, topics=(*described.topics, *await call.context.map(refuse, hidden)))


async def alter_offsets(call: CheckedCall) -> Any:
    """Check READ on the group and on each topic."""

    def refuse(topic: offsets.AlteredTopic) -> offsets.TopicOutcomes:
        partitions = [offsets.PartitionOutcome(partition=each.partition, **_NOT_READABLE) for each in topic.partitions]
        return offsets.TopicOutcomes(topic=topic.topic, partitions=tuple(partitions))

    return await _change_offsets(call, Operation.READ, _topic_of, refuse)


async def delete_offsets(call: CheckedCall) -> Any:
    """Check DELETE on the group, and READ on each topic."""

    def refuse(topic: str) -> offsets.TopicOutcome:
        return offsets.TopicOutcome(topic=topic, **_NOT_READABLE)

    return await _change_offsets(call, Operation.DELETE, str, refuse)


async def _change_offsets(
    call: CheckedCall, operation: Operation, name_of: Callable[[Any], str], refuse: Callable[[Any], Any]
) -> Any:
    """Have the handler change the topics that the sender may read. The group is checked even if there are none."""
    call.access.require(operation, ResourceType.GROUP, call.request.group)
    allowed, hidden = await _split(call, Operation.READ, call.request.topics, name_of)
    response = await call.answer(replace(call.request, topics=allowed) if hidden else None)
    if not hidden or response.error is not ErrorCode.NONE:
        return response
    return replace(response, topics=(*await call.context.map(refuse, hidden), *response.topics))


async def _split(
    call: CheckedCall, operation: Operation, topics: Sequence[Any], name_of: Callable[[Any], str]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the topics on which an operation is allowed, and the others."""
    flags = await call.context.map(lambda topic: call.access.topic(operation, name_of(topic)), topics)
    pairs = list(zip(topics, flags, strict=True))
    return tuple([topic for topic, may in pairs if may]), tuple([topic for topic, may in pairs if not may])


def _topic_of(item: Any) -> str:
    name: str = item.topic
    return name


# -- on the native protocol --


async def native_records(call: CheckedCall) -> Any:
    """Check READ on the group and on each topic of a session's request."""

    def refuse(item: native.AcknowledgedPartition) -> Value:
        if call.request.api == native.AcknowledgeShareGroupRequest.api:
            return native.ShareOutcome(topic=item.topic, partition=item.partition, **_NOT_READABLE)
        error, message = _NOT_READABLE["error"], _NOT_READABLE["message"]
        given = error if item.acknowledgements else ErrorCode.NONE
        return native.SharedPartition(
            topic=item.topic, partition=item.partition, error=error, message=message, acknowledge_error=given
        )

    return await _natively(call, "partitions", refuse)


async def reset(call: CheckedCall) -> Any:
    """Check READ on the group and on each topic."""

    def refuse(item: native.ShareStart) -> Value:
        return native.ShareOutcome(topic=item.topic, partition=item.partition, **_NOT_READABLE)

    return await _natively(call, "starts", refuse)


async def _natively(call: CheckedCall, items: str, refuse: Callable[[Any], Value]) -> Any:
    """Have the handler answer the items whose topics the sender may read."""
    call.access.require(Operation.READ, ResourceType.GROUP, call.request.group)
    allowed, hidden = await _split(call, Operation.READ, getattr(call.request, items), _topic_of)
    response = await call.answer(replace(call.request, **{items: allowed}) if hidden else None)
    if not hidden or isinstance(response, ErrorResponse):
        return response
    return replace(response, partitions=(*response.partitions, *await call.context.map(refuse, hidden)))


async def alter_groups(call: CheckedCall) -> Any:
    """Check ALTER_CONFIGS on each group."""

    def may(group: native.GroupAlteration) -> bool:
        return call.access.group(Operation.ALTER_CONFIGS, group.name)

    def refuse(group: native.GroupAlteration) -> TopicResult:
        return TopicResult(name=group.name, **lacking(Operation.ALTER_CONFIGS, ResourceType.GROUP))

    return await answer_allowed(call, "groups", may, refuse, native.AlterGroupsResponse())
