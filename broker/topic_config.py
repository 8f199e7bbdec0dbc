"""The settings of a topic.

Which there are, what stands in for one that is not set, and the log configuration they make.

Owns: `TOPIC_SETTINGS`, the one table. Names and meanings are Kafka's (source:
org.apache.kafka.common.config.TopicConfig); a setting that is not in the table is refused, never kept. Must not know:
who sets them, or how a log uses them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.config import (
    Bytes,
    CleanupPolicy,
    IndexBytes,
    Messages,
    Millis,
    PositiveMillis,
    Ratio,
    Retention,
    SegmentBytes,
    SettingError,
    Settings,
    check_value,
    nearest,
)
from broker.log.config import LogConfig


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic: its type with its range, and the broker's value that holds where the topic has none."""

    type: Any
    broker_value: Callable[[Settings], Any]


TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    "cleanup.policy": TopicSetting(CleanupPolicy, lambda s: s.log_cleanup_policy),
    "delete.retention.ms": TopicSetting(Millis, lambda s: s.log_cleaner_delete_retention_ms),
    "file.delete.delay.ms": TopicSetting(Millis, lambda s: s.log_segment_delete_delay_ms),
    "flush.messages": TopicSetting(Messages, lambda s: s.log_flush_interval_messages),
    "flush.ms": TopicSetting(Millis, lambda s: s.flush_ms),
    "index.interval.bytes": TopicSetting(Bytes, lambda s: s.log_index_interval_bytes),
    "max.compaction.lag.ms": TopicSetting(PositiveMillis, lambda s: s.log_cleaner_max_compaction_lag_ms),
    "max.message.bytes": TopicSetting(Bytes, lambda s: s.message_max_bytes),
    "min.cleanable.dirty.ratio": TopicSetting(Ratio, lambda s: s.log_cleaner_min_cleanable_ratio),
    "min.compaction.lag.ms": TopicSetting(Millis, lambda s: s.log_cleaner_min_compaction_lag_ms),
    "preallocate": TopicSetting(bool, lambda s: s.log_preallocate),
    "retention.bytes": TopicSetting(Retention, lambda s: s.log_retention_bytes),
    "retention.ms": TopicSetting(Retention, lambda s: s.retention_ms),
    "segment.bytes": TopicSetting(SegmentBytes, lambda s: s.log_segment_bytes),
    "segment.index.bytes": TopicSetting(IndexBytes, lambda s: s.log_index_size_max_bytes),
    "segment.jitter.ms": TopicSetting(Millis, lambda s: s.segment_jitter_ms),
    "segment.ms": TopicSetting(PositiveMillis, lambda s: s.segment_ms),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting as it is in force: its value as text, and its source: "topic", "broker" or "default"."""

    name: str
    value: str
    source: str


def check_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Raise SettingError for a setting that is unknown or out of range; None (which resets one) is always in range."""
    for name, text in configs.items():
        setting = _setting(name)
        if text is not None:
            check_value(name, text, setting.type, origin="topic")


def log_config(configs: Mapping[str, str], settings: Settings) -> LogConfig:
    """The log configuration of a topic with these settings of its own."""
    values = {
        name.replace(".", "_"): check_value(name, configs[name], setting.type, origin="topic")
        if name in configs
        else setting.broker_value(settings)
        for name, setting in TOPIC_SETTINGS.items()
    }
    return LogConfig(**values, index_search=settings.warmlog_index_search, walk_records=settings.warmlog_records_walk)


def effective_settings(configs: Mapping[str, str], settings: Settings) -> list[EffectiveSetting]:
    """Every topic setting as it is in force, by name."""
    defaults = Settings()
    found = []
    for name, setting in TOPIC_SETTINGS.items():
        value = setting.broker_value(settings)
        source = "default" if value == setting.broker_value(defaults) else "broker"
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in configs:
            text, source = configs[name], "topic"
        found.append(EffectiveSetting(name=name, value=text, source=source))
    return found


def _setting(name: str) -> TopicSetting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise SettingError(f"unknown topic setting {name!r}{nearest(name, TOPIC_SETTINGS)}")
    return setting
