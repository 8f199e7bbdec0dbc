"""The settings of a topic: names, defaults, validation, and the log configuration that results from them.

Names and meanings are Kafka's (source: org.apache.kafka.common.config.TopicConfig). `TOPIC_SETTINGS`,
`REPLICA_LISTS`, `TAKES_DEAD_LETTERS` and `FIXED_SETTINGS` list all that are accepted; any other name is rejected.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warmlog.broker.log.config import LogConfig
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import (
    Bytes,
    CleanupPolicy,
    Compression,
    Count,
    GzipLevel,
    IndexBytes,
    Kind,
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
    as_text,
    check_value,
    kind_of,
    nearest,
    parts,
)


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A topic setting: its type with its range, and the broker setting that is its default."""

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
    "unclean.leader.election.enable": TopicSetting(bool, "unclean.leader.election.enable"),
}


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """A setting of Kafka's that supports one value only here; any other value is rejected."""

    value: str
    kind: Kind
    reason: str


LEADER_THROTTLED = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED = "follower.replication.throttled.replicas"
REPLICA_LISTS = (FOLLOWER_THROTTLED, LEADER_THROTTLED)  # settings of topics only, empty by default; see `names_replica`
TAKES_DEAD_LETTERS = "errors.deadletterqueue.group.enable"  # a setting of topics only, off by default

FIXED_SETTINGS: Mapping[str, FixedSetting] = {
    "local.retention.bytes": FixedSetting("-2", Kind.LONG, "there is no remote storage"),
    "local.retention.ms": FixedSetting("-2", Kind.LONG, "there is no remote storage"),
    "max.decompressed.message.bytes": FixedSetting("2147483639", Kind.INT, "no batch may open to more than 128 MiB"),
    "remote.copy.lag.bytes": FixedSetting("-1", Kind.LONG, "there is no remote storage"),
    "remote.copy.lag.ms": FixedSetting("0", Kind.LONG, "there is no remote storage"),
    "remote.log.copy.disable": FixedSetting("false", Kind.BOOLEAN, "there is no remote storage"),
    "remote.log.delete.on.disable": FixedSetting("false", Kind.BOOLEAN, "there is no remote storage"),
    "remote.storage.enable": FixedSetting("false", Kind.BOOLEAN, "there is no remote storage"),
}
MIN_ISR = "min.insync.replicas"
_ALL = "*"
_OFF = "false"
_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_REPLICAS_FOR_TWO = 3  # from this replication factor on, its default is 2
SETTING_NAMES = tuple(sorted((*TOPIC_SETTINGS, *REPLICA_LISTS, TAKES_DEAD_LETTERS, *FIXED_SETTINGS)))
MAX_CACHED_CONFIGS = 1000  # distinct sets of topic settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A topic setting in force: its value as text, and the values it could take, in order of precedence.

    Each of `origins` is (name, value, source); the source is "topic" or one of `LiveSettings.sources`. It is empty for
    a setting that exists on topics only and is not set.
    """

    name: str
    value: str | None
    kind: Kind
    origins: tuple[tuple[str, str, str], ...]

    @property
    def source(self) -> str:
        """Return the source of the value in force."""
        return self.origins[0][2] if self.origins else "default"


def check_topic_configs(configs: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Validate and normalize all settings of a topic.

    Raises SettingError for an unknown name, a value out of range, or values that conflict.
    """
    checked = {name: check_topic_setting(name, text) for name, text in configs.items()}
    config = log_config(checked, settings)
    lags = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if lags[0] > lags[1] and not configs.keys().isdisjoint({"min.compaction.lag.ms", "max.compaction.lag.ms"}):
        raise SettingError(f"topic: min.compaction.lag.ms ({lags[0]}) is larger than max.compaction.lag.ms ({lags[1]})")
    return checked


def check_topic_setting(name: str, text: str) -> str:
    """Validate and normalize a setting's value. Raises SettingError."""
    if name in REPLICA_LISTS:
        return _check_replicas(name, text)
    if name == TAKES_DEAD_LETTERS:
        return as_text(check_value(name, text, bool, origin="topic")) or ""
    fixed = FIXED_SETTINGS.get(name)
    if fixed is None:
        return as_text(check_value(name, text, _setting(name).type, origin="topic")) or ""
    if text.strip().lower() != fixed.value:
        raise SettingError(f"topic: {name}: expected {fixed.value!r} ({fixed.reason}), not {text!r}")
    return fixed.value


def check_setting_name(name: str) -> None:
    """Raise SettingError for an unknown name."""
    if name not in SETTING_NAMES:
        _setting(name)


def _check_replicas(name: str, text: str) -> str:
    replicas = parts(text)
    if replicas != [_ALL] and not all(map(_REPLICA.fullmatch, replicas)):
        raise SettingError(f"topic: {name}: expected PARTITION:BROKER,PARTITION:BROKER,... or {_ALL}, not {text!r}")
    return ",".join(replicas)


def names_replica(replicas: str, partition: int, broker: int) -> bool:
    """Return whether the value of a setting in REPLICA_LISTS names a replica."""
    return replicas == _ALL or f"{partition}:{broker}" in replicas.split(",")


def topic_setting_kind(name: str) -> Kind | None:
    """Return the kind of a setting's values, or None for an unknown name."""
    if name in REPLICA_LISTS:
        return Kind.LIST
    if name == TAKES_DEAD_LETTERS:
        return Kind.BOOLEAN
    if name in FIXED_SETTINGS:
        return FIXED_SETTINGS[name].kind
    return kind_of(TOPIC_SETTINGS[name].type) if name in TOPIC_SETTINGS else None


def topic_setting_default(name: str, settings: Settings) -> str:
    """Return a setting's default for a topic. Raises SettingError for an unknown name."""
    if name in REPLICA_LISTS:
        return ""
    if name == TAKES_DEAD_LETTERS:
        return _OFF
    if name in FIXED_SETTINGS:
        return FIXED_SETTINGS[name].value
    return as_text(settings.effective(_setting(name).broker)) or ""


def log_config(configs: Mapping[str, str], settings: Settings) -> LogConfig:
    """Return the log configuration of a topic with these settings."""
    values = {
        name.replace(".", "_"): check_value(name, configs[name], setting.type, origin="topic")
        if name in configs
        else settings.effective(setting.broker)
        for name, setting in TOPIC_SETTINGS.items()
    }
    return LogConfig(
        **values,
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
        index_search=settings.warmlog_index_search,
        walk_records=settings.warmlog_records_walk,
    )


class LogConfigs:
    """Caches log configurations by topic settings: most topics have none of their own. Belongs to the event loop."""

    def __init__(self, settings: LiveSettings) -> None:
        self._live_settings = settings
        self._settings: Settings | None = None
        self._configs: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, configs: Mapping[str, str]) -> LogConfig:
        """Return the configuration of a log whose topic has these settings."""
        current = self._live_settings.current
        if self._settings is not current or len(self._configs) >= MAX_CACHED_CONFIGS:
            self._settings = current
            self._configs.clear()
        key = frozenset(configs.items())
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = log_config(configs, current)
        return config


def default_min_isr(replicas: int) -> int:
    """Return `min.insync.replicas` of a topic with this replication factor where nothing sets it.

    2 where there are three replicas or more: then no acknowledged record is on one disk only.
    """
    return 2 if replicas >= _REPLICAS_FOR_TWO else 1


def effective_settings(
    configs: Mapping[str, str], settings: LiveSettings, *, replicas: int = 1
) -> list[EffectiveSetting]:
    """Return every setting in force for a topic that sets `configs`, by name. `replicas`: its replication factor."""
    return [effective_setting(name, configs.get(name), settings, replicas=replicas) for name in SETTING_NAMES]


def effective_setting(name: str, own: str | None, settings: LiveSettings, *, replicas: int = 1) -> EffectiveSetting:
    """Return one of SETTING_NAMES as in force for a topic that sets it to `own`, or does not set it (None)."""
    if name in REPLICA_LISTS or name == TAKES_DEAD_LETTERS:
        origins = [] if own is None else [(name, own, "topic")]
        kind, default = (Kind.LIST, "") if name in REPLICA_LISTS else (Kind.BOOLEAN, _OFF)
        return EffectiveSetting(name=name, value=own or default, kind=kind, origins=tuple(origins))
    fixed = FIXED_SETTINGS.get(name)
    if fixed is not None:
        origins = [] if own is None else [(name, own, "topic")]
        return EffectiveSetting(name=name, value=fixed.value, kind=fixed.kind, origins=tuple(origins))
    setting = TOPIC_SETTINGS[name]
    origins = settings.sources(setting.broker)
    value = as_text(settings.current.effective(setting.broker)) or ""
    if name == MIN_ISR:
        default = str(default_min_isr(replicas))
        value, origins = value or default, [*origins, (name, default, "default")]
    if own is not None:
        value, origins = own, [(name, own, "topic"), *origins]
    return EffectiveSetting(name=name, value=value, kind=kind_of(setting.type), origins=tuple(origins))


def _setting(name: str) -> TopicSetting:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise SettingError(f"unknown topic setting {name!r}{nearest(name, SETTING_NAMES)}")
    return setting
