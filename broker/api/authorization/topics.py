"""Checks of requests about topics and their partitions."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from warmlog.broker.api.access import Access, lacking
from warmlog.broker.api.authorization.parts import (
    Check,
    CheckedCall,
    answer_allowed,
    without_hidden,
)
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME, topic_id_text
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest
from warmlog.protocol.kafka.messages.topics.changes import KafkaCreatedTopic, KafkaDeleteTopicsRequest
from warmlog.protocol.kafka.messages.topics.metadata import (
    AuthorizedMetadata,
    AuthorizedTopic,
    DescribeTopicPartitionsResponse,
    KafkaMetadataRequest,
    requested_topics,
)
from warmlog.protocol.request import TopicAlteration
from warmlog.protocol.response import (
    AlterTopicsResponse,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    MetadataResponse,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)

CLIENT = -1  # the replica id of a client


def each_partition(operation: Operation, result: Callable[..., Any], response: Callable[..., Any]) -> Check:
    """Return a check of the topic of each partition in a request."""

    def refuse(item: Any) -> Any:
        return result(topic=item.topic, partition=item.partition, **lacking(operation, ResourceType.TOPIC))

    async def check(call: CheckedCall) -> Any:
        access = call.access

        def may(item: Any) -> bool:
            return access.topic(operation, item.topic)

        return await answer_allowed(call, "partitions", may, refuse, response(partitions=()))

    return check


def each_partition_or_peer(
    operation: Operation, result: Callable[..., Any], response: Callable[..., Any], *, of_replicas: bool = False
) -> Check:
    """Return the same check, which brokers also pass with CLUSTER_ACTION. `of_replicas`: only with a replica id."""
    check = each_partition(operation, result, response)

    async def check_or_peer(call: CheckedCall) -> Any:
        request = call.request
        is_client = of_replicas and not (isinstance(request, KafkaListOffsetsRequest) and request.replica_id != CLIENT)
        if not is_client and call.access.cluster(Operation.CLUSTER_ACTION):
            return await call.answer()
        return await check(call)

    return check_or_peer


def named_topic(operation: Operation) -> Check:
    """Return a check of the only topic of a request."""

    async def check(call: CheckedCall) -> Any:
        call.access.require(operation, ResourceType.TOPIC, call.request.topic)
        return await call.answer()

    return check


def may_create(access: Access, name: str) -> bool:
    """Return whether a topic may be created."""
    return access.cluster(Operation.CREATE) or access.topic(Operation.CREATE, name)


# -- Metadata, DescribeTopicPartitions --


async def metadata(call: CheckedCall) -> Any:
    """Hide topics without DESCRIBE, create none without CREATE, and add the authorized operations."""
    request = call.request
    if request.topics is None:
        response = await without_hidden(call, await call.answer(), "topics", partial(_is_shown, call.access))
        return await _with_operations(call, response)
    refused: dict[str | bytes, TopicMetadata] = {}
    names: list[str] = []
    topic_ids: list[bytes] = []
    creates = request.auto_create and call.partitions.settings.auto_create_topics_enable
    for name, topic_id in requested_topics(request):
        await call.context.checkpoint()
        if name != UNKNOWN_TOPIC_NAME and not call.access.topic(Operation.DESCRIBE, name):
            if topic_id != NO_TOPIC_ID:
                refused[topic_id] = TopicMetadata(
                    name=UNKNOWN_TOPIC_NAME, topic_id=topic_id_text(topic_id), error=ErrorCode.UNKNOWN_TOPIC_ID
                )
            else:
                refused[name] = _unauthorized(Operation.DESCRIBE, name)
        elif creates and name and not call.partitions.has(name) and not may_create(call.access, name):
            refused[name] = _unauthorized(Operation.CREATE, name)
        else:
            names.append(name)
            topic_ids.append(topic_id)
    if refused:
        request = replace(request, topics=tuple(names))
        if isinstance(request, KafkaMetadataRequest):
            request = replace(request, topic_ids=tuple(topic_ids))
    response = await _with_operations(call, await call.answer(request))
    return replace(response, topics=(*response.topics, *refused.values())) if refused else response


def _is_shown(access: Access, topic: TopicMetadata) -> bool:
    return access.topic(Operation.DESCRIBE, topic.name)


def _unauthorized(operation: Operation, name: str) -> TopicMetadata:
    return TopicMetadata(name=name, **lacking(operation, ResourceType.TOPIC))


async def _with_operations(call: CheckedCall, response: MetadataResponse) -> MetadataResponse:
    request, access = call.request, call.access
    if not isinstance(request, KafkaMetadataRequest):
        return response
    if request.topic_operations:
        response = replace(response, topics=await call.context.map(partial(_authorized, access), response.topics))
    if request.cluster_operations:
        operations = access.operations(ResourceType.CLUSTER) if access.cluster(Operation.DESCRIBE) else 0
        fields = {name: getattr(response, name) for name in response.__struct_fields__}
        response = AuthorizedMetadata(**fields, operations=operations)
    return response


def _authorized(access: Access, topic: TopicMetadata) -> TopicMetadata:
    if topic.name == UNKNOWN_TOPIC_NAME:
        return topic
    fields = {name: getattr(topic, name) for name in topic.__struct_fields__}
    return AuthorizedTopic(**fields, operations=access.operations(ResourceType.TOPIC, topic.name))


async def describe_partitions(call: CheckedCall) -> Any:
    """Hide topics without DESCRIBE: omit them from a list of all topics, and refuse them if they are named."""
    request, access, context = call.request, call.access, call.context
    start = "" if request.cursor is None else request.cursor[0]
    is_all = not request.topics
    allowed: list[str] = []
    refused: dict[str, TopicMetadata] = {}
    for name in request.topics or [topic.name for topic in call.partitions.topics()]:
        await context.checkpoint()
        if access.topic(Operation.DESCRIBE, name):
            if not is_all or name >= start:
                allowed.append(name)
        elif not is_all and name >= start:
            refused[name] = _unauthorized(Operation.DESCRIBE, name)
    if not is_all and not refused:
        return await _page(call, request)
    if not allowed:
        return DescribeTopicPartitionsResponse(topics=tuple(refused.values()))
    allowed_request = replace(request, topics=tuple(allowed))
    if request.cursor is not None and start not in allowed:
        allowed_request = replace(
            allowed_request, topics=tuple([name for name in allowed if name >= start]), cursor=None
        )
    response = await _page(call, allowed_request)
    return replace(response, topics=(*response.topics, *refused.values()))


async def _page(call: CheckedCall, request: Any) -> DescribeTopicPartitionsResponse:
    response: DescribeTopicPartitionsResponse = await call.answer(request)
    authorized = partial(_authorized, call.access)
    return replace(response, topics=await call.context.map(authorized, response.topics))


# -- changes --


async def create(call: CheckedCall) -> Any:
    """Check CREATE; the settings of a created topic are shown with DESCRIBE_CONFIGS."""
    access = call.access

    def refuse(topic: Any) -> CreatedTopic:
        return CreatedTopic(name=topic.name, **lacking(Operation.CREATE, ResourceType.TOPIC))

    def may(topic: Any) -> bool:
        return may_create(access, topic.name)

    response = await answer_allowed(call, "topics", may, refuse, CreateTopicsResponse(topics=()))
    return replace(response, topics=await call.context.map(partial(_shown, access), response.topics))


def _shown(access: Access, topic: CreatedTopic) -> CreatedTopic:
    """Return the result of a creation without the parts that need DESCRIBE_CONFIGS."""
    if not isinstance(topic, KafkaCreatedTopic) or topic.error is not ErrorCode.NONE:
        return topic
    if access.topic(Operation.DESCRIBE_CONFIGS, topic.name):
        return topic
    hidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return replace(topic, partitions=-1, replication_factor=-1, configs=(), config_error=hidden)


async def delete(call: CheckedCall) -> Any:
    """Check DELETE. A topic identified by its id, without DESCRIBE, appears not to exist."""
    request, access = call.request, call.access
    if access.cluster(Operation.DELETE):
        return await call.answer()
    topic_ids = request.topic_ids if isinstance(request, KafkaDeleteTopicsRequest) else None
    results: list[TopicResult | None] = []
    for number, name in enumerate(request.topics):
        await call.context.checkpoint()
        if name == UNKNOWN_TOPIC_NAME or access.topic(Operation.DELETE, name):
            results.append(None)
        elif topic_ids and topic_ids[number] != NO_TOPIC_ID and not access.topic(Operation.DESCRIBE, name):
            results.append(TopicResult(name=UNKNOWN_TOPIC_NAME, error=ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            results.append(TopicResult(name=name, **lacking(Operation.DELETE, ResourceType.TOPIC)))
    kept = [number for number, result in enumerate(results) if result is None]
    if len(kept) == len(results):
        return await call.answer()
    if not kept:
        return DeleteTopicsResponse(topics=tuple([each for each in results if each is not None]))
    smaller = replace(request, topics=tuple([request.topics[number] for number in kept]))
    if topic_ids:
        smaller = replace(smaller, topic_ids=tuple([topic_ids[number] for number in kept]))
    response = await call.answer(smaller)
    for number, result in zip(kept, response.topics, strict=True):
        results[number] = result
    return DeleteTopicsResponse(topics=tuple([each for each in results if each is not None]))


def each_named(operation: Operation, response: Callable[..., Any]) -> Check:
    """Return a check of each item of `topics` by its name."""

    async def check(call: CheckedCall) -> Any:
        access = call.access

        def may(item: Any) -> bool:
            return access.topic(operation, item.name)

        def refuse(item: Any) -> TopicResult:
            return TopicResult(name=item.name, **lacking(operation, ResourceType.TOPIC))

        return await answer_allowed(call, "topics", may, refuse, response(topics=()))

    return check


async def alter(call: CheckedCall) -> Any:
    """Check ALTER_CONFIGS for settings, and ALTER for partitions."""
    access = call.access

    def may(item: TopicAlteration) -> bool:
        return (item.partitions is None or access.topic(Operation.ALTER, item.name)) and (
            (not item.configs and item.partitions is not None) or access.topic(Operation.ALTER_CONFIGS, item.name)
        )

    def refuse(item: TopicAlteration) -> TopicResult:
        lacks_alter = item.partitions is not None and not access.topic(Operation.ALTER, item.name)
        operation = Operation.ALTER if lacks_alter else Operation.ALTER_CONFIGS
        return TopicResult(name=item.name, **lacking(operation, ResourceType.TOPIC))

    return await answer_allowed(call, "topics", may, refuse, AlterTopicsResponse(topics=()))


async def describe(call: CheckedCall) -> Any:
    """Check DESCRIBE, and DESCRIBE_CONFIGS, since the response has both."""
    access = call.access

    def may(name: str) -> bool:
        return access.topic(Operation.DESCRIBE, name) and access.topic(Operation.DESCRIBE_CONFIGS, name)

    def refuse(name: str) -> TopicDescription:
        operation = Operation.DESCRIBE_CONFIGS if access.topic(Operation.DESCRIBE, name) else Operation.DESCRIBE
        return TopicDescription(name=name, **lacking(operation, ResourceType.TOPIC))

    return await answer_allowed(call, "topics", may, refuse, DescribeTopicsResponse(topics=()), keeps_each=False)
