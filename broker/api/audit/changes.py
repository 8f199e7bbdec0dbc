"""Requests that change something in an administrator's responsibility, and what they change.

Requests about records (Produce, transactions) and about members and offsets of groups are not included. Values of
settings, salts and passwords are omitted.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from warmlog.broker.security.acls import Operation, PatternType, Permission, ResourceType
from warmlog.protocol.acls import AclEntry, AclQuery
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.cluster.configs import ConfigAlteration
from warmlog.protocol.kafka.messages.cluster.controller import FeatureUpdate
from warmlog.protocol.kafka.messages.records.offsets import RecordsToDelete
from warmlog.protocol.kafka.messages.security.authentication import (
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from warmlog.protocol.kafka.messages.security.quotas import QuotaAlteration
from warmlog.protocol.kafka.messages.security.scram import ScramDeletion, ScramUpsertion
from warmlog.protocol.kafka.messages.share.offsets import AlteredTopic
from warmlog.protocol.kafka.messages.topics.assignments import Reassignment
from warmlog.protocol.kafka.messages.topics.changes import NewPartitions
from warmlog.protocol.kafka.messages.topics.log_dirs import LogDirTarget
from warmlog.protocol.native.share import GroupAlteration, ShareStart
from warmlog.protocol.request import NewTopic, TopicAlteration

MAX_MOVED: Final = 100  # partitions listed per log directory or topic


class Activity(IntEnum):
    """The kind of a change. Source: OCSF, class API Activity."""

    CREATE = 1
    READ = 2
    UPDATE = 3
    DELETE = 4
    OTHER = 99


class Resource(NamedTuple):
    """A request's object: type, name, and the requested details, for the reader of the log."""

    type: str
    name: str
    details: Mapping[str, Any] = {}


class Change(NamedTuple):
    """A request that changes something, and how to read its items, which are in `fields` or the request itself."""

    activity: Activity
    fields: tuple[str, ...]
    describe: Callable[[Any], Resource]


def _topic(topic: str | NewTopic | NewPartitions | TopicAlteration) -> Resource:
    """Describe a topic, given as a name or as a value with the name and details."""
    if isinstance(topic, str):
        return Resource("topic", topic)
    counts = {name: getattr(topic, name, None) for name in ("partitions", "replication_factor", "count")}
    details: dict[str, Any] = {name: number for name, number in counts.items() if isinstance(number, int)}
    if configs := getattr(topic, "configs", None):
        details["configs"] = sorted(configs)
    return Resource("topic", topic.name, details)


def _partition(partition: RecordsToDelete | Reassignment | PartitionEntry) -> Resource:
    values = {name: getattr(partition, name, None) for name in ("offset", "replicas")}
    details = {name: value for name, value in values.items() if value is not None}
    return Resource("partition", f"{partition.topic}-{partition.partition}", details)


def _start_offsets(topic: AlteredTopic) -> Resource:
    moved = [[each.partition, each.start_offset] for each in topic.partitions[:MAX_MOVED]]
    return Resource("topic", topic.topic, {"start_offsets": moved})


def _log_dir(target: LogDirTarget) -> Resource:
    moved = [f"{each.topic}-{each.partition}" for each in target.partitions[:MAX_MOVED]]
    return Resource("log directory", target.path, {"partitions": moved})


def _group(group: str) -> Resource:
    return Resource("group", group)


def _start(start: ShareStart) -> Resource:
    return Resource("partition", f"{start.topic}-{start.partition}", {"start_offset": start.offset})


def _group_configs(group: GroupAlteration) -> Resource:
    return Resource("group", group.name, {"configs": sorted(group.configs)})


def _configs(altered: ConfigAlteration) -> Resource:
    kinds = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
    names = sorted({change.name for change in altered.changes})
    return Resource(kinds.get(altered.resource_type, str(altered.resource_type)), altered.name, {"configs": names})


def _acl(acl: AclEntry | AclQuery) -> Resource:
    details = {
        "pattern": _label(PatternType, acl.pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _label(Operation, acl.operation),
        "permission": _label(Permission, acl.permission),
    }
    return Resource(f"acl of {_label(ResourceType, acl.resource_type).lower()}", acl.name or "", details)


def _label(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _user(credential: ScramDeletion | ScramUpsertion) -> Resource:
    return Resource("user", credential.user, {"mechanism": credential.mechanism})


def _quota(alteration: QuotaAlteration) -> Resource:
    named = ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in alteration.entity)
    return Resource("client quota", named)


def _feature(update: FeatureUpdate) -> Resource:
    return Resource("feature", update.name, {"level": update.level})


def _node(node_id: int) -> Resource:
    return Resource("broker", str(node_id))


def _new_token(request: CreateDelegationTokenRequest) -> Resource:
    """Describe a requested token: its owner, if that is another principal, and its renewers."""
    details: dict[str, Any] = {"renewers": [_principal(each) for each in request.renewers]}
    if request.owner is not None:
        details["owner"] = _principal(request.owner)
    return Resource("delegation token", "", details)


def _principal(named: tuple[str, str]) -> str:
    kind, name = named
    return f"{kind}:{name}"


def _token(request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest) -> Resource:
    """Describe a token by its requested remaining validity; its HMAC is a secret, and the handler sets the name."""
    return Resource("delegation token", "", {"period_ms": request.period_ms})


#: By API. A test compares the keys with the APIs that the table of rights knows.
CHANGES: Final[Mapping[str, Change]] = {
    "create_topics": Change(Activity.CREATE, ("topics",), _topic),
    "delete_topics": Change(Activity.DELETE, ("topics",), _topic),
    "create_partitions": Change(Activity.UPDATE, ("topics",), _topic),
    "alter_topics": Change(Activity.UPDATE, ("topics",), _topic),
    "promote_topics": Change(Activity.UPDATE, ("topics",), _topic),
    "delete_records": Change(Activity.DELETE, ("partitions",), _partition),
    "alter_partition_reassignments": Change(Activity.UPDATE, ("partitions",), _partition),
    "elect_leaders": Change(Activity.UPDATE, ("partitions",), _partition),
    "alter_replica_log_dirs": Change(Activity.UPDATE, ("targets",), _log_dir),
    "delete_groups": Change(Activity.DELETE, ("groups",), _group),
    "offset_delete": Change(Activity.DELETE, ("partitions",), _partition),
    "alter_share_group_offsets": Change(Activity.UPDATE, ("topics",), _start_offsets),
    "delete_share_group_offsets": Change(Activity.DELETE, ("topics",), _topic),
    "reset_share_group": Change(Activity.UPDATE, ("starts",), _start),
    "alter_groups": Change(Activity.UPDATE, ("groups",), _group_configs),
    "alter_configs": Change(Activity.UPDATE, ("resources",), _configs),
    "create_acls": Change(Activity.CREATE, ("acls",), _acl),
    "delete_acls": Change(Activity.DELETE, ("filters",), _acl),
    "alter_user_scram_credentials": Change(Activity.UPDATE, ("deletions", "upsertions"), _user),
    "alter_client_quotas": Change(Activity.UPDATE, ("alterations",), _quota),
    "update_features": Change(Activity.UPDATE, ("updates",), _feature),
    "unregister_broker": Change(Activity.DELETE, ("broker_id",), _node),
    "create_delegation_token": Change(Activity.CREATE, (), _new_token),
    "renew_delegation_token": Change(Activity.UPDATE, (), _token),
    "expire_delegation_token": Change(Activity.DELETE, (), _token),
    "unregister_controller": Change(Activity.DELETE, ("controller_id",), _node),
}


def changed(api: str, request: Any) -> list[Any]:
    """Return the items of a request of an API in CHANGES, in order, each described by the change's `describe`."""
    if not CHANGES[api].fields:
        return [request]
    items: list[Any] = []
    for field in CHANGES[api].fields:
        value = getattr(request, field)
        if value is not None:
            items += value if isinstance(value, tuple | list) else [value]
    return items
