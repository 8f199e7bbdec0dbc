"""Settings of deliveries to share groups: the broker's, and a group's own.

Source: org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig, ShareGroupConfigProvider,
org.apache.kafka.coordinator.group.GroupConfig, ShareGroupAutoOffsetResetStrategy.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from warmlog.broker.settings.groups.own_limits import check_bounds, effective, of_broker
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError

#: Settings of deliveries that a group may have of its own.
OF_DELIVERIES: Final = frozenset({
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.topic.name",
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
})  # fmt: skip
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_BY_DURATION: Final = "by_duration:"
_LIMITS: Final = ("share.delivery.count.limit", "share.partition.max.record.locks", "share.record.lock.duration.ms")
_ISOLATION: Final = ("read_committed", "read_uncommitted")
_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DURATION = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:[.,](\d{0,9}))?S)?)?", re.IGNORECASE
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


class ShareRules(NamedTuple):
    """The rules of deliveries to a group.

    `start`: where a group without stored state begins, EARLIEST, LATEST, or a number of ms before now.
    `dead_letter_topic`: empty for none.
    """

    lock_ms: int
    max_deliveries: int
    max_locks: int
    is_committed: bool
    renews: bool
    start: str | int
    dead_letter_topic: str
    copies_records: bool


def share_rules(settings: Settings, texts: Mapping[str, str]) -> ShareRules:
    """Return the rules of a group with these settings of its own, which were validated when they were set."""
    max_deliveries, max_locks, lock_ms = (effective(settings, limit, texts) for limit in _LIMITS)
    return ShareRules(
        lock_ms=lock_ms,
        max_deliveries=max_deliveries,
        max_locks=max_locks,
        is_committed=texts.get("share.isolation.level", "").lower() == "read_committed",
        renews=texts.get("share.renew.acknowledge.enable", "true") != "false",
        start=parse_start(texts.get("share.auto.offset.reset", LATEST)),
        dead_letter_topic=texts.get("errors.deadletterqueue.topic.name", ""),
        copies_records=texts.get("errors.deadletterqueue.copy.record.enable") == "true",
    )


def parse_start(text: str) -> str | int:
    """Return EARLIEST, LATEST, or the ms of `by_duration:PnDTnHnMn.nS`. Raises SettingError."""
    if text in {EARLIEST, LATEST}:
        return text
    parsed = _DURATION.fullmatch(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if parsed is None or not any(parsed.groups()):
        raise SettingError(
            f"share.auto.offset.reset: expected earliest, latest or by_duration:PnDTnHnMn.nS, not {text!r}"
        )
    *counts, fraction = parsed.groups()
    whole_ms = sum(int(count or 0) * unit for count, unit in zip(counts, _UNITS_MS, strict=True))
    return whole_ms + int(f"{fraction or '':0<3}"[:3])


def check_deliveries(texts: Mapping[str, str], settings: Settings) -> None:
    """Raise SettingError for a group's settings that Kafka, or this broker's settings, do not allow."""
    for limit in _LIMITS:
        text = texts.get(limit)
        if text is not None:
            check_bounds(limit, int(text), settings, limit)
    parse_start(texts.get("share.auto.offset.reset", LATEST))
    isolation = texts.get("share.isolation.level", _ISOLATION[0])
    if isolation.lower() not in _ISOLATION:
        raise SettingError(f"share.isolation.level: expected {' or '.join(_ISOLATION)}, not {isolation!r}")
    name = texts.get(_DEAD_LETTERS, "")
    if name.startswith("__"):
        raise SettingError(f"{_DEAD_LETTERS}: names that begin with __ are internal topics")
    if name and not _TOPIC_NAME.fullmatch(name):
        raise SettingError(f"{_DEAD_LETTERS}: {name[:300]!r} cannot be the name of a topic")


def check_share_deliveries(settings: Settings) -> None:
    """Raise SettingError for conflicting settings of share groups."""
    for limit in _LIMITS:
        check_bounds(f"group.{limit}", of_broker(settings, limit), settings, limit)
