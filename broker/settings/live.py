"""The broker's settings as they are in force: those it was started with, and over them what was changed since.

Owns: which settings can be changed while the broker runs, and which of several values holds (source:
org.apache.kafka.server.config.DynamicBrokerConfig, KIP-226). Must not know: who changes them, where they are kept, or
what follows from a change.

Invariants:
1. Nobody keeps a dynamic setting: who needs one asks `LiveSettings.current` when it needs it. (What is computed from
   settings, as the configuration of a log, is computed anew by whoever keeps it.)
2. What has been taken is sound, each value and all of them together.

Order, later ones winning: what the broker was started with, what was set for all brokers, what was set for this one.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from broker.settings.settings import FIELDS, Settings, check_together
from broker.settings.types import SettingError, as_text, check_value, nearest

logger = logging.getLogger(__name__)

# Settings that take effect at once. They are those of Kafka's dynamic ones that are served, and warmlog's own.
DYNAMIC_SETTINGS = frozenset({
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
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
    "max.connections",
    "message.max.bytes",
    "min.insync.replicas",
    "producer.id.expiration.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "warmlog.index.search",
    "warmlog.records.walk",
}) & FIELDS.keys()  # fmt: skip

# The names that stand in for a setting where it is not set, the strongest first.
STAND_INS: Mapping[str, tuple[str, ...]] = {
    "log.dirs": ("log.dir",),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    "log.retention.minutes": ("log.retention.hours",),
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.roll.ms": ("log.roll.hours",),
}

_DEFAULTS = Settings()
_ALL_BROKERS = ""  # how the cluster's defaults are named in Kafka's requests, and in what is kept


class StaticSettingError(SettingError):
    """A setting that cannot be changed while the broker runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What was set while the broker runs, as text: for all brokers, and for this one."""

    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, kept: Mapping[str, str]) -> "Overrides":
        """Parse persisted settings, name to text."""
        scopes: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for key, text in kept.items():
            scope, _, name = key.partition("/")
            scopes[scope == _ALL_BROKERS][name] = text
        return cls(cluster=scopes[True], broker=scopes[False])

    def kept(self, node_id: int) -> dict[str, str]:
        """As names and values to keep: `/NAME` for all brokers, `NODE_ID/NAME` for this one."""
        cluster = {f"{_ALL_BROKERS}/{name}": text for name, text in self.cluster.items()}
        return cluster | {f"{node_id}/{name}": text for name, text in self.broker.items()}


class LiveSettings:
    """The one holder of the broker's settings."""

    def __init__(self, static: Settings) -> None:
        self.static = static
        self.overrides = Overrides()
        self._current = static

    @property
    def current(self) -> Settings:
        """The settings in force."""
        return self._current

    def combined(self, overrides: Overrides) -> Settings:
        """Return what the settings would be with these overrides.

        Raises StaticSettingError, and SettingError for what is unknown or out of range, or does not go together.
        """
        values = {}
        for changes in (overrides.cluster, overrides.broker):
            for name, text in changes.items():
                values[FIELDS[name].name] = check_dynamic(name, text)
        settings = replace(self.static, **values)
        check_together(settings)
        return settings

    def take(self, overrides: Overrides) -> None:
        """Let these hold from now on. Raises what `combined` raises, and then nothing has changed."""
        self._current = self.combined(overrides)
        self.overrides = overrides

    def take_kept(self, kept: Mapping[str, str]) -> None:
        """Let hold what was kept when the broker last ran. What is not sound any more is told and left out."""
        overrides = Overrides.parse(kept)
        sound = Overrides(cluster=_sound(overrides.cluster), broker=_sound(overrides.broker))
        try:
            self.take(sound)
        except SettingError as error:
            logger.warning("the settings that were changed while the broker ran do not hold: %s", error)

    def sources(self, name: str) -> list[tuple[str, str, str]]:
        """Where the value of a setting may come from, what holds first: (name, value, source).

        The sources are "broker" and "cluster" (set while it runs), "static" and "default". Names that stand in for the
        setting follow within each.
        """
        names = (name, *STAND_INS.get(name, ()))
        scopes = {
            "broker": self.overrides.broker,
            "cluster": self.overrides.cluster,
            "static": {one: text for one in names if (text := self._started_with(one)) is not None},
            "default": {one: text for one in names if (text := as_text(_value(_DEFAULTS, one))) is not None},
        }
        return [(one, texts[one], source) for source, texts in scopes.items() for one in names if one in texts]

    def _started_with(self, name: str) -> str | None:
        """Return the value given at startup; None if there is none, or if it is the default."""
        value = _value(self.static, name)
        return None if value == _value(_DEFAULTS, name) else as_text(value)


def check_dynamic(name: str, text: str) -> object:
    """Parse the value of a setting that can be changed at run time. Raises SettingError."""
    if name not in FIELDS:
        raise SettingError(f"unknown setting {name!r}{nearest(name, FIELDS)}")
    if name not in DYNAMIC_SETTINGS:
        raise StaticSettingError(f"{name} cannot be changed while the broker runs: set it at the start")
    return check_value(name, text, FIELDS[name].type, origin="broker")


def _value(settings: Settings, name: str) -> object:
    return getattr(settings, FIELDS[name].name)


def _sound(changes: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in changes.items():
        try:
            check_dynamic(name, text)
        except SettingError as error:
            logger.warning("a setting that was changed while the broker ran does not hold any more: %s", error)
        else:
            found[name] = text
    return found
