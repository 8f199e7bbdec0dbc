"""Settings of consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071).

Each is a setting of the broker, or of a single group. `deliveries.py` has the settings of deliveries of records.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorConfig, GroupConfig (4.4: validate).
"""

from collections.abc import Mapping
from typing import Final

from warmlog.broker.settings.groups.deliveries import OF_DELIVERIES, check_deliveries
from warmlog.broker.settings.groups.own_limits import check_bounds, effective, of_broker
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError, parts

ASSIGNORS: Final = ("uniform", "range")
SHARE_ASSIGNOR: Final = "simple"
STREAMS_ASSIGNOR: Final = "sticky"
_KINDS: Final = ("consumer", "share", "streams")
_STANDBY_REPLICAS: Final = "streams.num.standby.replicas"
_MOST_REPLICAS: Final = "group.streams.max.standby.replicas"
_RACK_TAGS: Final = "streams.rack.aware.assignment.tags"
_STREAMS_ASSIGNOR: Final = "streams.assignor.name"
_TIMES: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
#: Settings that a group may have of its own.
OWN: Final = (
    OF_DELIVERIES
    | {f"{kind}.{time}" for kind in _KINDS for time in _TIMES}
    | {_STANDBY_REPLICAS, "streams.initial.rebalance.delay.ms", _RACK_TAGS, _STREAMS_ASSIGNOR}
)


def check_groups(settings: Settings) -> None:
    """Raise SettingError for conflicting settings of groups."""
    for kind in _KINDS:
        for time in _TIMES:
            check_bounds(f"group.{kind}.{time}", of_broker(settings, f"{kind}.{time}"), settings, f"{kind}.{time}")
        _check_heartbeats(kind, f"group.{kind}", settings, {})
    assignors = parts(settings.group_consumer_assignors)
    if not assignors or not set(assignors) <= set(ASSIGNORS):
        given = settings.group_consumer_assignors
        raise SettingError(f"group.consumer.assignors: expected uniform, range or both, not {given!r}")
    if parts(settings.group_share_assignors) != [SHARE_ASSIGNOR]:
        raise SettingError(f"group.share.assignors: expected {SHARE_ASSIGNOR}, not {settings.group_share_assignors!r}")
    _check_replicas(f"group.{_STANDBY_REPLICAS}", settings.group_streams_num_standby_replicas, settings)
    _check_streams_assignor("group.streams.assignors", settings.group_streams_assignors)
    _check_tags(f"group.{_RACK_TAGS}", settings.group_streams_rack_aware_assignment_tags)


def check_own(texts: Mapping[str, str], settings: Settings) -> None:
    """Raise SettingError for settings of a group that this broker's settings do not allow.

    Values are texts of the right type by names such as `consumer.session.timeout.ms`.
    """
    for kind in _KINDS:
        for time in _TIMES:
            name = f"{kind}.{time}"
            if name in texts:
                check_bounds(name, int(texts[name]), settings, name)
        _check_heartbeats(kind, kind, settings, texts)
    if _STANDBY_REPLICAS in texts:
        _check_replicas(_STANDBY_REPLICAS, int(texts[_STANDBY_REPLICAS]), settings)
    _check_streams_assignor(_STREAMS_ASSIGNOR, texts.get(_STREAMS_ASSIGNOR, STREAMS_ASSIGNOR))
    _check_tags(_RACK_TAGS, texts.get(_RACK_TAGS, ""))
    if int(texts.get("streams.initial.rebalance.delay.ms", 0)) < 0:
        raise SettingError("streams.initial.rebalance.delay.ms: expected at least 0")
    check_deliveries(texts, settings)


def _check_replicas(given: str, value: int, settings: Settings) -> None:
    most = settings.group_streams_max_standby_replicas
    if not 0 <= value <= most:
        raise SettingError(f"{given}: expected 0 to {most} ({_MOST_REPLICAS}), not {value}")


def _check_streams_assignor(given: str, text: str) -> None:
    if parts(text) != [STREAMS_ASSIGNOR]:
        raise SettingError(f"{given}: expected {STREAMS_ASSIGNOR}, not {text!r}")


def _check_tags(given: str, text: str) -> None:
    if len(parts(text)) < len(text.split(",")) and text.strip():
        raise SettingError(f"{given}: expected different keys of tags, separated by commas, not {text!r}")


def _check_heartbeats(kind: str, prefix: str, settings: Settings, texts: Mapping[str, str]) -> None:
    interval_ms = effective(settings, f"{kind}.heartbeat.interval.ms", texts)
    timeout_ms = effective(settings, f"{kind}.session.timeout.ms", texts)
    if interval_ms >= timeout_ms:
        raise SettingError(
            f"{prefix}.heartbeat.interval.ms: expected less than {prefix}.session.timeout.ms ({timeout_ms}),"
            f" not {interval_ms}"
        )


#: Descriptions of the broker's settings, for `documentation`.
TEXTS: Final[Mapping[str, str]] = {
    "group.consumer.assignment.interval.ms": "Shortest time between two assignments that are computed for a group of"
    " the consumer protocol.",
    "group.consumer.assignors": "Assignors that groups of the consumer protocol may use, separated by commas: uniform"
    " and range. The first is used if members request none.",
    "group.consumer.heartbeat.interval.ms": "How often members of the consumer protocol send heartbeats.",
    "group.consumer.max.assignment.interval.ms": "Largest value of a group's consumer.assignment.interval.ms.",
    "group.consumer.max.heartbeat.interval.ms": "Largest value of a group's consumer.heartbeat.interval.ms.",
    "group.consumer.max.session.timeout.ms": "Longest session timeout that a group of the consumer protocol may be"
    " given.",
    "group.consumer.max.size": "Maximum number of members of a group of the consumer protocol.",
    "group.consumer.migration.policy": "Whether a group with members may change its protocol: upgrade (to the consumer"
    " protocol), downgrade (to the classic protocol), bidirectional, or disabled.",
    "group.consumer.min.assignment.interval.ms": "Smallest value of a group's consumer.assignment.interval.ms.",
    "group.consumer.min.heartbeat.interval.ms": "Smallest value of a group's consumer.heartbeat.interval.ms.",
    "group.consumer.min.session.timeout.ms": "Shortest session timeout that a group of the consumer protocol may be"
    " given.",
    "group.consumer.regex.refresh.interval.ms": "How often the topics of a subscription by regular expression are"
    " looked up, if no topic is created or deleted.",
    "group.consumer.session.timeout.ms": "How long a member of the consumer protocol may be silent before it is removed"
    " from its group.",
    "group.share.assignment.interval.ms": "Minimum interval between two computed assignments of a share group.",
    "group.share.assignors": "Assignor of share groups: simple.",
    "group.share.delivery.count.limit": "Maximum number of deliveries of a record to a share group.",
    "group.share.max.delivery.count.limit": "Largest limit of deliveries that a share group may be given.",
    "group.share.max.partition.max.record.locks": "Largest number of record locks that a share group may be given.",
    "group.share.max.record.lock.duration.ms": "Longest duration of record locks that a share group may be given.",
    "group.share.max.share.sessions": "Maximum number of share sessions: each member of a share group has one on each"
    " broker that it fetches from.",
    "group.share.min.delivery.count.limit": "Smallest limit of deliveries that a share group may be given.",
    "group.share.min.partition.max.record.locks": "Smallest number of record locks that a share group may be given.",
    "group.share.min.record.lock.duration.ms": "Shortest duration of record locks that a share group may be given.",
    "group.share.partition.max.record.locks": "How many offsets of a partition may be in flight for a share group: from"
    " the first that is not done to the last that was delivered.",
    "group.share.record.lock.duration.ms": "How long a member of a share group holds a record that was delivered to it,"
    " unless it renews the lock.",
    "group.share.heartbeat.interval.ms": "How often members of share groups send heartbeats.",
    "group.share.initialize.retry.interval.ms": "Time after which creating the delivery state of a share group's"
    " partitions is repeated if it had no outcome.",
    "group.share.max.assignment.interval.ms": "Longest interval of assignments that a share group may be given.",
    "group.share.max.heartbeat.interval.ms": "Longest heartbeat interval that a share group may be given.",
    "group.share.max.session.timeout.ms": "Longest session timeout that a share group may be given.",
    "group.share.max.size": "Maximum number of members of a share group.",
    "group.share.min.assignment.interval.ms": "Shortest interval of assignments that a share group may be given.",
    "group.share.min.heartbeat.interval.ms": "Shortest heartbeat interval that a share group may be given.",
    "group.share.min.session.timeout.ms": "Shortest session timeout that a share group may be given.",
    "group.share.session.timeout.ms": "How long a member of a share group may be silent before it is removed from the"
    " group.",
    "group.streams.assignment.interval.ms": "Shortest time between two assignments of tasks that are computed for a"
    " streams group.",
    "group.streams.assignors": "Assignor of streams groups: sticky.",
    "group.streams.heartbeat.interval.ms": "How often members of streams groups send heartbeats.",
    "group.streams.initial.rebalance.delay.ms": "How long the first assignment of tasks waits for more members, after"
    " the first member of a streams group has joined.",
    "group.streams.max.assignment.interval.ms": "Longest interval of assignments that a streams group may be given.",
    "group.streams.max.heartbeat.interval.ms": "Longest heartbeat interval that a streams group may be given.",
    "group.streams.max.session.timeout.ms": "Longest session timeout that a streams group may be given.",
    "group.streams.max.size": "Maximum number of members of a streams group.",
    "group.streams.max.standby.replicas": "Largest number of standby replicas that a streams group may be given.",
    "group.streams.min.assignment.interval.ms": "Shortest interval of assignments that a streams group may be given.",
    "group.streams.min.heartbeat.interval.ms": "Shortest heartbeat interval that a streams group may be given.",
    "group.streams.min.session.timeout.ms": "Shortest session timeout that a streams group may be given.",
    "group.streams.num.standby.replicas": "Number of standby tasks of each task with a state in a streams group, if it"
    " has enough processes.",
    "group.streams.rack.aware.assignment.tags": "Keys of client tags, separated by commas, that the members of streams"
    " groups are to have; members without one have a status that names it. The assignor sticky does not use them.",
    "group.streams.session.timeout.ms": "How long a member of a streams group may be silent before it is removed from"
    " the group.",
}
