"""Checks of requests about the cluster and about settings."""

from collections.abc import Callable
from typing import Any

from warmlog.broker.api.access import Access, lacking
from warmlog.broker.api.authorization.parts import Check, CheckedCall, answer_allowed
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.kafka.messages.cluster.configs import ConfigResourceType
from warmlog.protocol.kafka.messages.cluster.discovery import AuthorizedCluster

_OF_CLUSTER = frozenset(
    {ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS}
)


def cluster(operation: Operation) -> Check:
    """Return a check of an operation on the cluster: without it, the request is refused as a whole."""

    async def check(call: CheckedCall) -> Any:
        call.access.require(operation, ResourceType.CLUSTER)
        return await call.answer()

    return check


async def unchecked(call: CheckedCall) -> Any:
    """Accept every sender."""
    return await call.answer()


async def describe_cluster(call: CheckedCall) -> Any:
    """Accept every sender; the authorized operations are shown with DESCRIBE on the cluster."""
    response, access = await call.answer(), call.access
    if not call.request.operations:
        return response
    operations = access.operations(ResourceType.CLUSTER) if access.cluster(Operation.DESCRIBE) else 0
    fields = {name: getattr(response, name) for name in response.__struct_fields__}
    return AuthorizedCluster(**fields, authorized=operations)


def each_resource(operation: Operation, result: Callable[..., Any], response: Callable[..., Any]) -> Check:
    """Return a check of each resource with settings; brokers, loggers and client metrics count as the cluster."""

    def refuse(item: Any) -> Any:
        kinds = {ConfigResourceType.TOPIC: ResourceType.TOPIC, ConfigResourceType.GROUP: ResourceType.GROUP}
        kind = kinds.get(item.resource_type, ResourceType.CLUSTER)
        return result(resource_type=item.resource_type, name=item.name, **lacking(operation, kind))

    async def check(call: CheckedCall) -> Any:
        access = call.access

        def may(item: Any) -> bool:
            return _may_configure(access, operation, item)

        return await answer_allowed(call, "resources", may, refuse, response(resources=()))

    return check


def _may_configure(access: Access, operation: Operation, item: Any) -> bool:
    """Return whether an operation on a resource with settings is allowed; handlers refuse unknown types."""
    if item.resource_type == ConfigResourceType.TOPIC:
        return access.topic(operation, item.name)
    if item.resource_type == ConfigResourceType.GROUP:
        return access.group(operation, item.name)
    return item.resource_type not in _OF_CLUSTER or access.cluster(operation)
