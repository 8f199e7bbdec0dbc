"""More APIs that can be asked of a peer, as in `peer_apis.py`: settings, groups and their committed offsets."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from warmlog.protocol.groups import (
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from warmlog.protocol.kafka.api import API_BY_KEY
from warmlog.protocol.kafka.codec.schema import LAST_VERSION
from warmlog.protocol.kafka.messages.configs import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
)
from warmlog.protocol.kafka.messages.group_offsets import MemberOffsetFetchGroup
from warmlog.protocol.kafka.peer import PeerApi
from warmlog.protocol.kafka.peer_apis import by_topic, error_of

N = TypeVar("N", bound=IntEnum)
Fields = Mapping[str, Any]

_FIRST_LIST_WITH_TYPES = 5


# -- DescribeConfigs --


def _configs_fields(request: DescribeConfigsRequest, _: int) -> dict[str, Any]:
    resources = [
        {"resource_type": one.resource_type, "resource_name": one.name, "configuration_keys": one.keys}
        for one in request.resources
    ]
    return {
        "resources": tuple(resources),
        "include_synonyms": request.include_synonyms,
        "include_documentation": request.include_documentation,
    }


def _configs_response(fields: Fields, _: DescribeConfigsRequest, __: int) -> DescribeConfigsResponse:
    described = [
        DescribedConfigs(
            resource_type=one["resource_type"],
            name=one["resource_name"],
            configs=tuple([_entry(entry) for entry in one["configs"]]),
            error=error_of(one["error_code"]),
            message=one["error_message"],
        )
        for one in fields["results"]
    ]
    return DescribeConfigsResponse(resources=tuple(described))


def _entry(fields: Fields) -> ConfigEntry:
    synonyms = [
        ConfigSynonym(name=one["name"], value=one["value"], source=_known(ConfigSource, one["source"]))
        for one in fields["synonyms"]
    ]
    return ConfigEntry(
        name=fields["name"],
        value=fields["value"],
        source=_known(ConfigSource, fields["config_source"]),
        read_only=fields["read_only"],
        is_sensitive=fields["is_sensitive"],
        type=_known(ConfigType, fields["config_type"]),
        synonyms=tuple(synonyms),
        documentation=fields["documentation"],
    )


def _known(kind: type[N], number: int) -> N:
    """Return the member of an enumeration; a number that is not known here stays as it is."""
    found: Any = kind._value2member_map_.get(number, number)
    member: N = found
    return member


DESCRIBE_CONFIGS = PeerApi(API_BY_KEY[32], 3, 4, _configs_fields, _configs_response)


# -- FindCoordinator, ListGroups --


def _find_fields(request: FindCoordinatorRequest, _: int) -> dict[str, Any]:
    return {"key_type": request.key_type, "coordinator_keys": request.keys}


def _find_response(fields: Fields, _: FindCoordinatorRequest, __: int) -> FindCoordinatorResponse:
    found = [
        FoundCoordinator(
            key=one["key"],
            node_id=one["node_id"],
            host=one["host"],
            port=one["port"],
            error=error_of(one["error_code"]),
            message=one["error_message"],
        )
        for one in fields["coordinators"]
    ]
    return FindCoordinatorResponse(coordinators=tuple(found))


FIND_COORDINATOR = PeerApi(API_BY_KEY[10], 4, 6, _find_fields, _find_response)


def _list_fields(request: ListGroupsRequest, _: int) -> dict[str, Any]:
    return {"states_filter": request.states, "types_filter": request.types}


def _list_span(request: ListGroupsRequest) -> tuple[int, int]:
    return _FIRST_LIST_WITH_TYPES if request.types else 0, LAST_VERSION


def _list_response(fields: Fields, _: ListGroupsRequest, version: int) -> ListGroupsResponse:
    has_types = version >= _FIRST_LIST_WITH_TYPES
    groups = [
        ListedGroup(
            group=one["group_id"],
            protocol_type=one["protocol_type"],
            state=one["group_state"],
            **({"type": one["group_type"]} if has_types else {}),
        )
        for one in fields["groups"]
    ]
    return ListGroupsResponse(groups=tuple(groups), error=error_of(fields["error_code"]))


LIST_GROUPS = PeerApi(API_BY_KEY[16], 4, 5, _list_fields, _list_response, _list_span)


# -- OffsetFetch: version 10 names topics by id, and has no place for the offsets of a topic that no longer exists --


def _committed_fields(request: OffsetFetchRequest, _: int) -> dict[str, Any]:
    return {
        "groups": tuple([_group_fields(one) for one in request.groups]),
        "require_stable": request.require_stable,
    }


def _group_fields(group: OffsetFetchGroup) -> dict[str, Any]:
    member = group if isinstance(group, MemberOffsetFetchGroup) else MemberOffsetFetchGroup(group=group.group)
    topics = None
    if group.partitions is not None:
        topics = tuple(
            [
                {"name": topic, "partition_indexes": tuple([one.partition for one in partitions])}
                for topic, partitions in by_topic(group.partitions, lambda one: one.topic)
            ]
        )
    return {
        "group_id": group.group,
        "member_id": member.member_id,
        "member_epoch": member.member_epoch,
        "topics": topics,
    }


def _committed_response(fields: Fields, _: OffsetFetchRequest, __: int) -> OffsetFetchResponse:
    groups = [
        FetchedOffsets(
            group=group["group_id"],
            partitions=tuple(
                [
                    FetchedOffset(
                        topic=topic["name"],
                        partition=one["partition_index"],
                        offset=one["committed_offset"],
                        leader_epoch=one["committed_leader_epoch"],
                        metadata=one["metadata"] or "",
                        error=error_of(one["error_code"]),
                    )
                    for topic in group["topics"]
                    for one in topic["partitions"]
                ]
            ),
            error=error_of(group["error_code"]),
        )
        for group in fields["groups"]
    ]
    return OffsetFetchResponse(groups=tuple(groups))


OFFSET_FETCH = PeerApi(API_BY_KEY[9], 8, 9, _committed_fields, _committed_response)
