"""Checks of requests about streams groups."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import lacking, refusal
from warmlog.broker.api.authorization.parts import CheckedCall, answer_allowed
from warmlog.broker.api.groups.streams_groups import check_topics, topology_topics
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups import streams_descriptions as descriptions


async def heartbeat(call: CheckedCall) -> Any:
    """Check READ on the group, and DESCRIBE on each topic of the topology. As in Kafka, names are validated first.

    The handler checks CREATE on the internal topics that it creates.
    """
    request, access = call.request, call.access
    access.require(Operation.READ, ResourceType.GROUP, request.group)
    if request.topology is not None:
        await check_topics(request.topology, call.context)
        names = tuple(topology_topics(request.topology))
        if not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), names)):
            raise refusal(Operation.DESCRIBE, ResourceType.TOPIC)
    return await call.answer()


async def describe(call: CheckedCall) -> Any:
    """Check DESCRIBE on each group and on the topics of its topology, and add the authorized operations."""
    access = call.access

    def refuse(group: str) -> descriptions.DescribedStreamsGroup:
        return descriptions.DescribedStreamsGroup(group=group, **lacking(Operation.DESCRIBE, ResourceType.GROUP))

    may, empty = partial(access.group, Operation.DESCRIBE), descriptions.StreamsGroupDescribeResponse()
    response = await answer_allowed(call, "groups", may, refuse, empty, keeps_each=False)
    shown = [await _shown_group(call, group) for group in response.groups]
    return replace(response, groups=tuple(shown))


async def _shown_group(
    call: CheckedCall, group: descriptions.DescribedStreamsGroup
) -> descriptions.DescribedStreamsGroup:
    access, topics = call.access, set[str]()
    for each in () if group.topology is None else group.topology.subtopologies or ():
        topics.update(each.sources, each.repartition_sinks)
        topics.update([topic.topic for topic in (*each.repartition_sources, *each.changelogs)])
        await call.context.checkpoint()
    if not all(await call.context.map(partial(access.topic, Operation.DESCRIBE), tuple(topics))):
        message = "The described group uses topics that the client is not authorized to describe."
        return descriptions.DescribedStreamsGroup(
            group=group.group, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=message
        )
    if not call.request.include_authorized_operations or group.error is not ErrorCode.NONE:
        return group
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    operations = access.operations(ResourceType.GROUP, group.group)
    return descriptions.AuthorizedStreamsGroup(**fields, operations=operations)
