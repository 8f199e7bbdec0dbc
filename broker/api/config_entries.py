"""Settings as Kafka's clients are told of them.

Owns: how settings in force become entries of a reply: what is left out, where a value comes from (source:
kafka.server.ConfigHelper). Must not know: which settings there are, or who asks.
"""

from collections.abc import Iterable

from broker.config import FIELDS
from broker.dynamic_config import DYNAMIC_SETTINGS, LiveSettings
from broker.metadata.topic import Topic
from broker.setting_documentation import documentation_of
from broker.setting_types import Kind, as_text, kind_of
from broker.topic_config import EffectiveSetting, effective_settings
from protocol.kafka.values import ConfigEntry, ConfigSource, ConfigSynonym, ConfigType

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


def topic_entries(topic: Topic, settings: LiveSettings, *, synonyms: bool, documentation: bool) -> list[ConfigEntry]:
    """All settings of a topic, by name."""
    found = effective_settings(topic.configs, settings)
    return [_entry(setting, synonyms=synonyms, documentation=documentation) for setting in found]


def created_entries(topic: Topic, settings: LiveSettings) -> tuple[ConfigEntry, ...]:
    """What a client that has created a topic is told of its settings."""
    return tuple(topic_entries(topic, settings, synonyms=False, documentation=False))


def broker_entries(settings: LiveSettings, *, synonyms: bool, documentation: bool) -> list[ConfigEntry]:
    """All settings of the broker as it runs, by name."""
    found = [_broker_setting(name, settings) for name in sorted(FIELDS)]
    return [_entry(setting, synonyms=synonyms, documentation=documentation, of_broker=True) for setting in found]


def cluster_entries(settings: LiveSettings, *, synonyms: bool, documentation: bool) -> list[ConfigEntry]:
    """What was set for all brokers while they run, by name."""
    found = [
        EffectiveSetting(name=name, value=text, kind=kind_of(FIELDS[name].type), origins=((name, text, "cluster"),))
        for name, text in sorted(settings.overrides.cluster.items())
    ]
    return [_entry(setting, synonyms=synonyms, documentation=documentation, of_broker=True) for setting in found]


def _broker_setting(name: str, settings: LiveSettings) -> EffectiveSetting:
    """A setting by its own name: what stands in for it where it is not set follows, and never leads."""
    field = FIELDS[name]
    value = as_text(getattr(settings.current, field.name))
    origins = () if value is None else tuple(settings.sources(name))
    return EffectiveSetting(name=name, value=value, kind=kind_of(field.type), origins=origins)


def _entry(setting: EffectiveSetting, *, synonyms: bool, documentation: bool, of_broker: bool = False) -> ConfigEntry:
    return ConfigEntry(
        name=setting.name,
        value=setting.value,
        source=_SOURCES[setting.source],
        read_only=of_broker and setting.name not in DYNAMIC_SETTINGS,
        type=_TYPES[setting.kind],
        synonyms=tuple(_synonyms(setting)) if synonyms else (),
        documentation=documentation_of(setting.name) if documentation else None,
    )


def _synonyms(setting: EffectiveSetting) -> Iterable[ConfigSynonym]:
    return [ConfigSynonym(name=name, value=text, source=_SOURCES[source]) for name, text, source in setting.origins]
