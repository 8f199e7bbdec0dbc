"""The settings of a topic.

Which there are, what stands in for one that is not set, and the log configuration they make.

Owns: `TOPIC_SETTINGS`, the one table. Names and meanings are Kafka's (source:
org.apache.kafka.common.config.TopicConfig); a setting that is not in the table is refused, never kept. Must not know:
who sets them, or how a log uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.config import Settings
from broker.log.config import LogConfig
from broker.setting_types import (
    Bytes,
    CleanupPolicy,
    Compression,
    Count,
    GzipLevel,
    IndexBytes,
    Lz4Level,
    Messages,
    Millis,
    PositiveMillis,
    Ratio,
    Retention,
    SegmentBytes,
    SettingError,
    TimestampType,
    ZstdLevel,
    check_value,
    nearest,
)


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic: its type with its range, and the broker's setting that holds where it is not set."""

    type: Any
    broker: str


TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    "cleanup.policy": TopicSetting(CleanupPolicy, "log.cleanup.policy"),
    "compression.gzip.level": TopicSetting(GzipLevel, "compression.gzip.level"),
    "compression.lz4.level": TopicSetting(Lz4Level, "compression.lz4.level"),
    "compression.type": TopicSetting(Compression, "compression.type"),
    "compression.zstd.level": TopicSetting(ZstdLevel, "compression.zstd.level"),
    "delete.retention.ms": TopicSetting(Millis, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": TopicSetting(Millis, "log.segment.delete.delay.ms"),
    "flush.messages": TopicSetting(Messages, "log.flush.interval.messages"),
    "flush.ms": TopicSetting(Millis, "log.flush.interval.ms"),
    "index.interval.bytes": TopicSetting(Bytes, "log.index.interval.bytes"),
    "max.compaction.lag.ms": TopicSetting(PositiveMillis, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": TopicSetting(Bytes, "message.max.bytes"),
    "message.timestamp.after.max.ms": TopicSetting(Millis, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": TopicSetting(Millis, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": TopicSetting(TimestampType, "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": TopicSetting(Ratio, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": TopicSetting(Millis, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": TopicSetting(Count, "min.insync.replicas"),
    "preallocate": TopicSetting(bool, "log.preallocate"),
    "retention.bytes": TopicSetting(Retention, "log.retention.bytes"),
    "retention.ms": TopicSetting(Retention, "log.retention.ms"),
    "segment.bytes": TopicSetting(SegmentBytes, "log.segment.bytes"),
    "segment.index.bytes": TopicSetting(IndexBytes, "log.index.size.max.bytes"),
    "segment.jitter.ms": TopicSetting(Millis, "log.roll.jitter.ms"),
    "segment.ms": TopicSetting(PositiveMillis, "log.roll.ms"),
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
        else settings.effective(setting.broker)
        for name, setting in TOPIC_SETTINGS.items()
    }
    return LogConfig(**values, index_search=settings.warmlog_index_search, walk_records=settings.warmlog_records_walk)


def effective_settings(configs: Mapping[str, str], settings: Settings) -> list[EffectiveSetting]:
    """Every topic setting as it is in force, by name."""
    defaults = Settings()
    found = []
    for name, setting in TOPIC_SETTINGS.items():
        value = settings.effective(setting.broker)
        source = "default" if value == defaults.effective(setting.broker) else "broker"
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
