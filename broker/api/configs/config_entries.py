"""Format effective settings as entries of responses: values, sources, synonyms.

Source: kafka.server.ConfigHelper.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial

from warmlog.broker.settings.documentation import documentation_of
from warmlog.broker.settings.kafka_settings import ResourceKind, broker_setting, resource_settings
from warmlog.broker.settings.live import DYNAMIC_SETTINGS, LiveSettings
from warmlog.broker.settings.settings import FIELDS
from warmlog.broker.settings.topics import (
    MIN_ISR,
    EffectiveSetting,
    default_min_isr,
    effective_setting,
    effective_settings,
)
from warmlog.broker.settings.types import Kind, as_text, kind_of
from warmlog.protocol.kafka.messages.cluster.configs import ConfigEntry, ConfigSource, ConfigSynonym, ConfigType

MAX_SHARED = 1000  # cached configurations of a few KB each
_SOURCES = {
    "topic": ConfigSource.TOPIC,
    "broker": ConfigSource.DYNAMIC_BROKER,
    "cluster": ConfigSource.DYNAMIC_DEFAULT_BROKER,
    "static": ConfigSource.STATIC_BROKER,
    "default": ConfigSource.DEFAULT,
}
_TYPES = {
    Kind.BOOLEAN: ConfigType.BOOLEAN,
    Kind.INT: ConfigType.INT,
    Kind.LONG: ConfigType.LONG,
    Kind.DOUBLE: ConfigType.DOUBLE,
    Kind.STRING: ConfigType.STRING,
    Kind.LIST: ConfigType.LIST,
}


class TopicEntries:
    """The settings of topics as entries of responses.

    Entries inherited from the broker are built once until a broker setting changes, and topics with equal settings of
    their own share one tuple.
    """

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._overrides = settings.overrides  # settings for which the caches are valid
        self._inherited: dict[tuple[int, bool, bool], dict[str, ConfigEntry]] = {}
        self._shared: dict[Hashable, tuple[ConfigEntry, ...]] = {}

    def of(
        self, configs: Mapping[str, str], replicas: int, *, synonyms: bool = False, documentation: bool = False
    ) -> tuple[ConfigEntry, ...]:
        """Return all settings of a topic that sets `configs`, sorted by name: the same object for equal arguments.

        `replicas` is its replication factor, on which the default of `min.insync.replicas` depends.
        """
        if self._overrides is not self._settings.overrides or len(self._shared) >= MAX_SHARED:
            self._overrides = self._settings.overrides
            self._inherited.clear()
            self._shared.clear()
        min_isr = default_min_isr(replicas)
        key = tuple(sorted(configs.items())), min_isr, synonyms, documentation
        entries = self._shared.get(key)
        if entries is None:
            entries = self._shared[key] = self._build(configs, replicas, synonyms=synonyms, documentation=documentation)
        return entries

    def _build(
        self, configs: Mapping[str, str], replicas: int, *, synonyms: bool, documentation: bool
    ) -> tuple[ConfigEntry, ...]:
        entry = partial(_entry, synonyms=synonyms, documentation=documentation)
        key = default_min_isr(replicas), synonyms, documentation
        inherited = self._inherited.get(key)
        if inherited is None:
            settings = effective_settings({}, self._settings, replicas=replicas)
            inherited = self._inherited[key] = {setting.name: entry(setting) for setting in settings}
        own = {
            name: entry(effective_setting(name, text, self._settings, replicas=replicas))
            for name, text in configs.items()
            if name in inherited
        }
        return tuple((inherited | own).values())


def broker_entries(settings: LiveSettings, replicas: int, *, synonyms: bool, documentation: bool) -> list[ConfigEntry]:
    """Return the broker's effective settings, sorted by name. `replicas`: the default replication factor."""
    effective = [_broker_setting(name, settings, replicas) for name in sorted(FIELDS)]
    entries = [_entry(setting, synonyms=synonyms, documentation=documentation, of_broker=True) for setting in effective]
    entries += [_kept_entry(name, origins, synonyms=synonyms) for name, origins in settings.kept_settings().items()]
    return sorted(entries, key=lambda entry: entry.name)


def cluster_entries(settings: LiveSettings, *, synonyms: bool, documentation: bool) -> list[ConfigEntry]:
    """Return the dynamic defaults set for all brokers, sorted by name."""
    entries = []
    for name, text in sorted(settings.overrides.cluster.items()):
        origin = (name, text, "cluster")
        if name in FIELDS:
            setting = EffectiveSetting(name=name, value=text, kind=kind_of(FIELDS[name].type), origins=(origin,))
            entries.append(_entry(setting, synonyms=synonyms, documentation=documentation, of_broker=True))
        else:
            entries.append(_kept_entry(name, [origin], synonyms=synonyms))
    return entries


def resource_entries(settings: LiveSettings, kind: ResourceKind, name: str, *, synonyms: bool) -> list[ConfigEntry]:
    """Return the stored settings of a group or client metrics subscription, sorted by name."""
    types = resource_settings(kind)
    source = ConfigSource.DYNAMIC_GROUP if kind == "group" else ConfigSource.DYNAMIC_CLIENT_METRICS
    texts = settings.overrides.resources.get(f"{kind}:{name}", {})
    return [
        ConfigEntry(
            name=each,
            value=text,
            source=source,
            type=ConfigType[types[each].upper()],
            synonyms=_resource_synonyms(settings, each, text, source) if synonyms else (),
        )
        for each, text in sorted(texts.items())
        if each in types
    ]


def _resource_synonyms(settings: LiveSettings, name: str, text: str, source: ConfigSource) -> tuple[ConfigSynonym, ...]:
    """Return the candidate values of a group's setting: its own, and those of the corresponding broker setting."""
    own = ConfigSynonym(name=name, value=text, source=source)
    if f"group.{name}" not in FIELDS:
        return (own,)
    of_broker = [
        ConfigSynonym(name=each, value=value, source=_SOURCES[origin])
        for each, value, origin in settings.sources(f"group.{name}")
    ]
    return (own, *of_broker)


def _kept_entry(name: str, origins: Sequence[tuple[str, str, str]], *, synonyms: bool) -> ConfigEntry:
    """Return a stored broker setting without effect. `origins`: as in EffectiveSetting, at least one."""
    kafkas = broker_setting(name)
    assert kafkas is not None, "unknown settings are not kept"
    _, text, source = origins[0]
    given = [ConfigSynonym(name=each, value=value, source=_SOURCES[origin]) for each, value, origin in origins]
    return ConfigEntry(
        name=name,
        value=text,
        source=_SOURCES[source],
        read_only=kafkas.scope == "startup",
        is_sensitive=kafkas.type == "password",
        type=ConfigType[kafkas.type.upper()],
        synonyms=tuple(given) if synonyms else (),
    )


def _broker_setting(name: str, settings: LiveSettings, replicas: int) -> EffectiveSetting:
    """Return a setting's effective value. Its own name comes first among the origins, fallbacks follow."""
    if name == MIN_ISR:
        return effective_setting(name, None, settings, replicas=replicas)
    field = FIELDS[name]
    value = as_text(getattr(settings.current, field.name))
    origins = () if value is None else tuple(settings.sources(name))
    return EffectiveSetting(name=name, value=value, kind=kind_of(field.type), origins=origins)


def _entry(setting: EffectiveSetting, *, synonyms: bool, documentation: bool, of_broker: bool = False) -> ConfigEntry:
    kafkas = broker_setting(setting.name) if of_broker else None
    is_secret = kafkas is not None and kafkas.type == "password"
    return ConfigEntry(
        name=setting.name,
        value=setting.value,
        source=_SOURCES[setting.source],
        read_only=of_broker and setting.name not in DYNAMIC_SETTINGS,
        is_sensitive=is_secret,
        type=ConfigType.PASSWORD if is_secret else _TYPES[setting.kind],
        synonyms=tuple(_synonyms(setting)) if synonyms else (),
        documentation=documentation_of(setting.name) if documentation else None,
    )


def _synonyms(setting: EffectiveSetting) -> Iterable[ConfigSynonym]:
    return [ConfigSynonym(name=name, value=text, source=_SOURCES[source]) for name, text, source in setting.origins]
