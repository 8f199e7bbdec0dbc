"""The current settings: the static ones, overridden by those changed while the broker runs.

Source: org.apache.kafka.server.config.DynamicBrokerConfig, KIP-226.

Invariants:
1. No module copies a dynamic setting: it reads `LiveSettings.current` whenever it needs the value. Objects computed
   from settings, such as the configuration of a log, are recomputed by their owner after a change.
2. The current settings are valid, each value and their combination.

3. Settings that only Kafka has are stored and described, and change nothing.

Precedence, lowest first: static configuration, defaults set for all brokers, values set for this broker.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from warmlog.broker.settings.kafka_settings import broker_setting, check_kept
from warmlog.broker.settings.listeners import is_of_listener
from warmlog.broker.settings.loading import check_together
from warmlog.broker.settings.settings import FIELDS, Settings
from warmlog.broker.settings.types import SettingError, as_text, check_value, nearest

logger = logging.getLogger(__name__)

# Settings that take effect immediately: Kafka's supported dynamic settings, and some of warmlog's own.
DYNAMIC_SETTINGS = frozenset({
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.topic.name.prefix",
    "group.consumer.assignment.interval.ms",
    "group.share.assignment.interval.ms",
    "group.streams.assignment.interval.ms",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.preallocate",
    "log.retention.bytes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "message.max.bytes",
    "min.insync.replicas",
    "producer.id.expiration.ms",
    "unclean.leader.election.enable",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "warmlog.index.search",
    "warmlog.mirror.max.bytes.per.second",
    "warmlog.records.walk",
}) & FIELDS.keys()  # fmt: skip

# The aliases that apply if a setting is not set, in order of precedence.
STAND_INS: Mapping[str, tuple[str, ...]] = {
    "log.dirs": ("log.dir",),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    "log.retention.minutes": ("log.retention.hours",),
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.roll.ms": ("log.roll.hours",),
}

_DEFAULTS = Settings()
_ALL_BROKERS = ""  # the name of the cluster-wide defaults in Kafka's requests and in the metadata store


class StaticSettingError(SettingError):
    """A setting cannot be changed while the broker runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The settings changed while the broker runs, as text: for all brokers, and for this one.

    `resources`: settings of other resources, by `group:NAME` or `client-metrics:NAME`.
    """

    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, kept: Mapping[str, str]) -> "Overrides":
        """Parse the names and values of `kept`."""
        scopes: dict[bool, dict[str, str]] = {True: {}, False: {}}
        resources: dict[str, dict[str, str]] = {}
        for key, text in kept.items():
            scope, _, name = key.rpartition("/")
            if ":" in scope:
                resources.setdefault(scope, {})[name] = text
            else:
                scopes[scope == _ALL_BROKERS][name] = text
        return cls(cluster=scopes[True], broker=scopes[False], resources=resources)

    def kept(self, node_id: int) -> dict[str, str]:
        """Return names and values to persist: `/NAME` for all brokers, `NODE_ID/NAME`, `group:GROUP/NAME`."""
        scopes = {_ALL_BROKERS: self.cluster, str(node_id): self.broker, **self.resources}
        return {f"{scope}/{name}": text for scope, texts in scopes.items() for name, text in texts.items()}

    def with_resource(self, resource: str, texts: Mapping[str, str]) -> "Overrides":
        """Return the overrides with the settings of one of the other resources replaced."""
        resources = {name: texts_of for name, texts_of in self.resources.items() if name != resource}
        return dataclass_replace(self, resources={**resources, **({resource: texts} if texts else {})})


class LiveSettings:
    """Holds the current settings."""

    def __init__(self, static: Settings) -> None:
        self.static = static
        self.overrides = Overrides()
        self._current = static

    @property
    def current(self) -> Settings:
        """The current settings."""
        return self._current

    def combined(self, overrides: Overrides) -> Settings:
        """Return the settings with these overrides.

        Raises StaticSettingError for a setting that cannot be changed, and SettingError for one that is unknown, out of
        range, or conflicts with another.
        """
        values = {}
        for changes in (overrides.cluster, overrides.broker):
            for name, text in changes.items():
                value = check_dynamic(name, text)
                if name in FIELDS:
                    values[FIELDS[name].name] = value
        settings = replace(self.static, **values)
        check_together(settings)
        return settings

    def take(self, overrides: Overrides) -> None:
        """Apply overrides. Raises what `combined` raises, and then changes nothing."""
        self._current = self.combined(overrides)
        self.overrides = overrides

    def take_kept(self, kept: Mapping[str, str]) -> None:
        """Apply stored overrides; log and ignore those that are no longer valid."""
        overrides = Overrides.parse(kept)
        sound = dataclass_replace(overrides, cluster=_sound(overrides.cluster), broker=_sound(overrides.broker))
        try:
            self.take(sound)
        except SettingError as error:
            logger.warning("ignoring all persisted broker settings, because they conflict: %s", error)

    def kept_settings(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return the broker settings without effect, with their values in the form of `sources`."""
        scopes = {
            "broker": self.overrides.broker,
            "cluster": self.overrides.cluster,
            "static": {**self.static.without_effect, **self.static.of_listeners},
        }
        kept: dict[str, list[tuple[str, str, str]]] = {}
        for source, texts in scopes.items():
            for name, text in texts.items():
                if name not in FIELDS:
                    kept.setdefault(name, []).append((name, text, source))
        return kept

    def sources(self, name: str) -> list[tuple[str, str, str]]:
        """Return every value that a setting could take, in order of precedence, as (name, value, source).

        The sources are "broker" and "cluster" (changed while the broker runs), "static" and "default". Within a source,
        the aliases of the setting follow it.
        """
        names = (name, *STAND_INS.get(name, ()))
        scopes = {
            "broker": self.overrides.broker,
            "cluster": self.overrides.cluster,
            "static": {setting: text for setting in names if (text := self._started_with(setting)) is not None},
            "default": {
                setting: text for setting in names if (text := as_text(_value(_DEFAULTS, setting))) is not None
            },
        }
        return [
            (setting, texts[setting], source)
            for source, texts in scopes.items()
            for setting in names
            if setting in texts
        ]

    def _started_with(self, name: str) -> str | None:
        """Return the static value, or None where it equals the default."""
        value = _value(self.static, name)
        return None if value == _value(_DEFAULTS, name) else as_text(value)


def check_dynamic(name: str, text: str, *, is_default: bool = False) -> object:
    """Convert the value of a setting that can be changed while the broker runs. Raises SettingError.

    `is_default`: for all brokers.
    """
    kafkas = None if name in FIELDS else broker_setting(name)
    if name not in FIELDS and kafkas is None:
        raise SettingError(f"unknown setting {name!r}{nearest(name, FIELDS)}")
    if name not in DYNAMIC_SETTINGS and (kafkas is None or kafkas.scope == "startup" or is_of_listener(name)):
        raise StaticSettingError(
            f"{name} cannot be changed while the broker runs: set it in the configuration and restart the broker"
        )
    if kafkas is None:
        return check_value(name, text, FIELDS[name].type, origin="broker")
    if kafkas.scope == "listener":
        raise SettingError(f"{name} can be set for a listener only: listener.name.NAME.{name}")
    if kafkas.scope == "broker" and is_default:
        raise SettingError(f"{name} can be set for one broker only, not for all")
    return check_kept(name, text, kafkas.type, origin="broker")


def _value(settings: Settings, name: str) -> object:
    return getattr(settings, FIELDS[name].name)


def _sound(changes: Mapping[str, str]) -> dict[str, str]:
    sound = {}
    for name, text in changes.items():
        try:
            check_dynamic(name, text)
        except SettingError as error:
            logger.warning("ignoring a persisted broker setting that is no longer valid: %s", error)
        else:
            sound[name] = text
    return sound
