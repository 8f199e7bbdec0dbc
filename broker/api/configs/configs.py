"""Describe and alter the settings of topics, the broker and its loggers.

Changes to one resource are applied together or not at all; a failure does not affect other resources. Source:
kafka.server.ConfigAdminManager, ConfigHelper; org.apache.kafka.controller.ConfigurationControlManager.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from warmlog.broker.api.configs.config_entries import (
    TopicEntries,
    broker_entries,
    cluster_entries,
    resource_entries,
)
from warmlog.broker.api.configs.loggers import check_levels, logger_entries, set_levels
from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.metadata.topic import check_name
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.errors import UnknownTopicError
from warmlog.broker.partitions.topics.topics import Change
from warmlog.broker.settings.groups.checks import OWN, check_own
from warmlog.broker.settings.groups.deliveries import OF_DELIVERIES, check_deliveries
from warmlog.broker.settings.kafka_settings import ResourceKind, broker_setting, check_kept, resource_settings
from warmlog.broker.settings.live import Overrides, check_dynamic
from warmlog.broker.settings.settings import FIELDS, Settings
from warmlog.broker.settings.topics import topic_setting_default, topic_setting_kind
from warmlog.broker.settings.types import Kind, SettingError, as_text, kind_of, nearest, parts
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    ConfigAlteration,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigQuery,
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KEYS_PER_PIECE = 4096  # requested names filtered in one step: 0.3 ms
MAX_CHANGES = 1000  # per resource; no resource has as many settings
_BROKER_ID = re.compile(r"-?[0-9]{1,10}")
# Resources whose settings are stored. Those of groups take effect; those of client metrics (KIP-714) do not.
_KEPT: Mapping[int, ResourceKind] = {
    ConfigResourceType.GROUP: "group",
    ConfigResourceType.CLIENT_METRICS: "client-metrics",
}
MAX_KEPT = 1000  # number of such resources
_ALL_TYPES = frozenset(map(int, ConfigResourceType))
_LIST_OPERATIONS = {ConfigOperation.APPEND, ConfigOperation.SUBTRACT}


class ConfigsApi:
    """Answers the requests about settings."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._topic_entries = TopicEntries(partitions.live_settings)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeConfigsRequest.api: self.describe_configs,
            AlterConfigsRequest.api: self.alter_configs,
            ListConfigResourcesRequest.api: self.list_resources,
        }

    # -- list --

    async def list_resources(
        self, request: ListConfigResourcesRequest, context: Context
    ) -> ListConfigResourcesResponse:
        """List the resources that have settings: brokers, their loggers, topics, and groups with stored settings."""
        types = frozenset(request.types) or _ALL_TYPES
        if not types <= _ALL_TYPES:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"unknown resource types {sorted(types - _ALL_TYPES)}")
        resources = [
            (int(kind), str(broker.node_id))
            for kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.BROKER)
            if kind in types
            for broker in self._partitions.catalog.brokers()
        ]
        if ConfigResourceType.TOPIC in types:
            for topic in self._partitions.topics():
                await context.checkpoint()
                resources.append((int(ConfigResourceType.TOPIC), topic.name))
        for resource in sorted(self._partitions.live_settings.overrides.resources):
            kind, _, name = resource.partition(":")
            resources += [(int(each), name) for each, known in _KEPT.items() if known == kind and each in types]
        return ListConfigResourcesResponse(resources=tuple(resources))

    # -- describe --

    async def describe_configs(self, request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
        """Return the effective settings of each resource."""
        described = partial(self._described, request, context)
        return DescribeConfigsResponse(resources=await context.answer_at_length(described, request.resources))

    async def _described(
        self, request: DescribeConfigsRequest, context: Context, query: ConfigQuery
    ) -> DescribedConfigs:
        try:
            entries = self._entries(query, request)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedConfigs(resource_type=query.resource_type, name=query.name, error=code, message=message)
        if query.keys:
            names = {entry.name for entry in entries}
            wanted = set[str]()
            for start in range(0, len(query.keys), KEYS_PER_PIECE):
                wanted |= names.intersection(query.keys[start : start + KEYS_PER_PIECE])
                await context.checkpoint()
            entries = [entry for entry in entries if entry.name in wanted]
        return DescribedConfigs(resource_type=query.resource_type, name=query.name, configs=tuple(entries))

    def _entries(self, query: ConfigQuery, request: DescribeConfigsRequest) -> Sequence[ConfigEntry]:
        synonyms, documentation = request.include_synonyms, request.include_documentation
        settings = self._partitions.live_settings
        if query.resource_type == ConfigResourceType.TOPIC:
            check_name(query.name)
            topic = self._partitions.topic(query.name)
            if topic is None:
                raise UnknownTopicError(f"no topic {query.name!r}")
            replicas = self._partitions.catalog.replication_factor(topic)
            return self._topic_entries.of(topic.configs, replicas, synonyms=synonyms, documentation=documentation)
        _check_type(query.resource_type)
        if (kind := _KEPT.get(query.resource_type)) is not None:
            _check_named(query, kind)
            return resource_entries(settings, kind, query.name, synonyms=synonyms)
        if query.resource_type == ConfigResourceType.BROKER_LOGGER:
            self._check_broker(query.name)
            return logger_entries()
        if not query.name:
            return cluster_entries(settings, synonyms=synonyms, documentation=documentation)
        self._check_broker(query.name)
        replicas = self._partitions.default_replication_factor
        return broker_entries(settings, replicas, synonyms=synonyms, documentation=documentation)

    # -- alter --

    async def alter_configs(self, request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
        """Change each resource independently; refuse one that is named twice."""
        repeated = await context.repeated(
            (alteration.resource_type, alteration.name) for alteration in request.resources
        )
        altered = []
        for alteration in request.resources:
            is_twice = (alteration.resource_type, alteration.name) in repeated
            altered.append(await self._altered(alteration, request, is_twice=is_twice))
            await context.checkpoint()
        return AlterConfigsResponse(resources=tuple(altered))

    async def _altered(
        self, alteration: ConfigAlteration, request: AlterConfigsRequest, *, is_twice: bool
    ) -> AlteredConfigs:
        try:
            if is_twice:
                raise RequestError(ErrorCode.INVALID_REQUEST, "the resource occurs twice in the request")
            _check_changes(alteration.changes)
            await self._alter(alteration, request)
        except EXPECTED as error:
            code, message = describe(error)
            return AlteredConfigs(
                resource_type=alteration.resource_type, name=alteration.name, error=code, message=message
            )
        return AlteredConfigs(resource_type=alteration.resource_type, name=alteration.name)

    async def _alter(self, alteration: ConfigAlteration, request: AlterConfigsRequest) -> None:
        if alteration.resource_type == ConfigResourceType.TOPIC:
            if not alteration.name:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, "default settings of topics cannot be altered: name a topic"
                )
            check_name(alteration.name)
            if self._partitions.topic(alteration.name) is None:  # without waiting for the lock of topic changes
                raise UnknownTopicError(f"no topic {alteration.name!r}")
            change = self._topic_change(alteration.changes, incremental=request.incremental)
            await self._partitions.alter(alteration.name, change, validate_only=request.validate_only)
            return
        _check_type(alteration.resource_type)
        if (kind := _KEPT.get(alteration.resource_type)) is not None:
            _check_named(alteration, kind)
            kept = partial(
                _changed_resource, alteration, kind, request.incremental, self._partitions.live_settings.current
            )
            await self._partitions.alter_broker(kept, validate_only=request.validate_only)
            return
        if alteration.resource_type == ConfigResourceType.BROKER_LOGGER:
            self._alter_levels(alteration, request)
            return
        if alteration.name:
            self._check_broker(alteration.name)
        try:
            await self._partitions.alter_broker(
                _broker_change(alteration, incremental=request.incremental), validate_only=request.validate_only
            )
        except SettingError as error:  # as in Kafka, which uses INVALID_CONFIG for topics (KAFKA-13609)
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _alter_levels(self, alteration: ConfigAlteration, request: AlterConfigsRequest) -> None:
        if not request.incremental:
            raise RequestError(ErrorCode.INVALID_REQUEST, "change the levels of loggers with IncrementalAlterConfigs")
        self._check_broker(alteration.name)
        check_levels(alteration.changes)
        if not request.validate_only:
            set_levels(alteration.changes)

    def _topic_change(self, changes: Sequence[ConfigChange], *, incremental: bool) -> Change:
        settings = self._partitions.settings
        return _change(
            changes,
            incremental=incremental,
            kind_of_setting=topic_setting_kind,
            default_of=lambda name: topic_setting_default(name, settings),
        )

    def _check_broker(self, name: str) -> None:
        """Raise RequestError unless the name is this broker's id."""
        if _BROKER_ID.fullmatch(name) is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"a broker id must be a number, not {name!r}")
        if int(name) != self._partitions.node_id:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"broker {name} was asked for, but this is broker {self._partitions.node_id}"
            )


def _check_type(resource_type: int) -> None:
    """Raise RequestError for an unknown resource type."""
    if resource_type not in ConfigResourceType.__members__.values():
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown resource type {resource_type}")


def _check_named(requested: ConfigQuery | ConfigAlteration, kind: ResourceKind) -> None:
    if not requested.name:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"the name of the {kind} resource is empty")


def _check_changes(changes: Sequence[ConfigChange]) -> None:
    """Raise RequestError for changes that are invalid regardless of the setting."""
    if len(changes) > MAX_CHANGES:
        message = f"{len(changes)} changes to one resource exceed the maximum of {MAX_CHANGES}"
        raise RequestError(ErrorCode.INVALID_REQUEST, message)
    twice = [name for name, times in Counter(change.name for change in changes).items() if times > 1]
    if twice:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"settings named twice in the request: {', '.join(twice)}")
    for change in changes:
        if change.operation not in ConfigOperation.__members__.values():
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{change.name}: unknown operation {change.operation}")
        if change.value is None and change.operation != ConfigOperation.DELETE:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{change.name}: the value is missing")


def _change(
    changes: Sequence[ConfigChange],
    *,
    incremental: bool,
    kind_of_setting: Callable[[str], Kind | None],
    default_of: Callable[[str], str],
) -> Change:
    """Return a function from a resource's own settings to the changed ones."""

    def change(own: Mapping[str, str]) -> Mapping[str, str]:
        changed = dict(own) if incremental else {}
        for item in changes:
            if item.operation == ConfigOperation.DELETE:
                changed.pop(item.name, None)
            elif item.operation in _LIST_OPERATIONS:
                if kind_of_setting(item.name) is not Kind.LIST:
                    raise RequestError(
                        ErrorCode.INVALID_CONFIG, f"{item.name} is not a list: it can be set and deleted only"
                    )
                changed[item.name] = _joined(changed.get(item.name, default_of(item.name)), item)
            else:
                changed[item.name] = item.value or ""
        return changed

    return change


def _joined(text: str, change: ConfigChange) -> str:
    """Append members to a list, or subtract them from it."""
    members, given = parts(text), parts(change.value or "")
    if change.operation == ConfigOperation.SUBTRACT:
        return ",".join(member for member in members if member not in given)
    return ",".join(dict.fromkeys([*members, *given]))


def _changed_resource(
    alteration: ConfigAlteration, kind: ResourceKind, incremental: bool, settings: Settings, overrides: Overrides
) -> Overrides:
    """Return the overrides with changed settings of a group or of a client metrics subscription.

    Raises RequestError for an unknown setting and a value of the wrong type, with Kafka's codes, and for too many
    resources.
    """
    known, resource = resource_settings(kind), f"{kind}:{alteration.name}"
    change = _change(
        alteration.changes,
        incremental=incremental,
        kind_of_setting=lambda name: Kind.LIST if known.get(name) == "list" else None,
        default_of=lambda _: "",
    )
    changed = change(overrides.resources.get(resource, {}))
    code = ErrorCode.INVALID_CONFIG if kind == "group" else ErrorCode.INVALID_REQUEST
    checked = {}
    for name, text in changed.items():
        if name not in known:
            raise RequestError(code, f"unknown {kind} setting {name!r}{nearest(name, known)}")
        try:
            checked[name] = check_kept(name, text, known[name], origin=kind, has_effect=name in OWN | OF_DELIVERIES)
        except SettingError as error:
            raise RequestError(code, str(error)) from None
    if kind == "group":
        try:
            check_own(checked, settings)
            check_deliveries(checked, settings)
        except SettingError as error:
            raise RequestError(code, str(error)) from None
    if checked and resource not in overrides.resources and len(overrides.resources) >= MAX_KEPT:
        raise RequestError(ErrorCode.POLICY_VIOLATION, f"{MAX_KEPT} resources have settings, the maximum")
    return overrides.with_resource(resource, checked)


def _broker_change(alteration: ConfigAlteration, *, incremental: bool) -> Callable[[Overrides], Overrides]:
    """Return a function that changes the overrides of this broker, or of all brokers if no broker is named."""
    change = _change(
        alteration.changes,
        incremental=incremental,
        kind_of_setting=_broker_setting_kind,
        default_of=_broker_setting_default,
    )

    def changed(overrides: Overrides) -> Overrides:
        own = change(overrides.broker if alteration.name else overrides.cluster)
        check = partial(check_dynamic, is_default=not alteration.name)
        checked = {name: as_text(check(name, text)) or "" for name, text in own.items()}
        return replace(overrides, broker=checked) if alteration.name else replace(overrides, cluster=checked)

    return changed


def _broker_setting_kind(name: str) -> Kind | None:
    if name in FIELDS:
        return kind_of(FIELDS[name].type)
    kafkas = broker_setting(name)
    return Kind.LIST if kafkas is not None and kafkas.type == "list" else None


def _broker_setting_default(name: str) -> str:
    return (as_text(FIELDS[name].default) if name in FIELDS else None) or ""
