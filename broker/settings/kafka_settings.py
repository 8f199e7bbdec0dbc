"""Kafka's settings that have no effect here. They are accepted, kept and described, so that tools may set them.

A name that Kafka does not have either is refused, as it is almost always misspelled. Kafka accepts any name for a
broker. `kafka_settings.json` is written by `interop/generate_kafka_settings.py`.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from warmlog.broker.settings.types import MAX_INT32, SettingError, as_text, check_value
from warmlog.protocol.records.record import MAX_INT64

logger = logging.getLogger(__name__)

# The kinds of resources, besides brokers and topics, that have settings in Kafka.
ResourceKind = Literal["group", "client-metrics"]
# A broker that ignored one of these would listen at addresses that were not configured, or admit excluded clients.
_PROTECTING = frozenset({
    "security.inter.broker.protocol",
})  # fmt: skip
_OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.(.+)")
_TYPES: Mapping[str, Any] = {
    "boolean": bool,
    "short": Annotated[int, Meta(ge=-(1 << 15), le=(1 << 15) - 1)],
    "int": Annotated[int, Meta(ge=-MAX_INT32 - 1, le=MAX_INT32)],
    "long": Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)],
    "double": float,
}
_reported: set[str] = set()


class BrokerSetting(msgspec.Struct, frozen=True):
    """A broker's setting in Kafka. `scope`: "startup", "cluster" (all brokers or one), "broker" or "listener"."""

    type: str
    scope: Literal["startup", "cluster", "broker", "listener"]


class _Settings(msgspec.Struct, frozen=True):
    broker: dict[str, BrokerSetting]
    group: dict[str, str]
    client_metrics: dict[str, str]


#: Settings of groups that Kafka has since 4.4; the file is of 4.3.
_NEWER_GROUP: Mapping[str, str] = {
    "errors.deadletterqueue.copy.record.enable": "boolean",
    "errors.deadletterqueue.topic.name": "string",
}


@cache
def _settings() -> _Settings:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Settings)


def broker_setting(name: str) -> BrokerSetting | None:
    """Return a broker setting of Kafka, with or without the prefix of a listener, or None."""
    known = _settings().broker
    of_listener = _OF_LISTENER.fullmatch(name)
    if of_listener is None:
        return known.get(name)
    name = of_listener[1]
    setting = known.get(name) or known.get(name.partition(".")[2])  # after the name of a SASL mechanism
    return setting if setting is None else BrokerSetting(setting.type, "broker")


def resource_settings(kind: ResourceKind) -> Mapping[str, str]:
    """Return the settings of a kind of resources with their types."""
    return {**_settings().group, **_NEWER_GROUP} if kind == "group" else _settings().client_metrics


def check_at_startup(name: str, value: Any, *, origin: str) -> str | None:
    """Return the text of a broker's setting in a configuration; None if Kafka has no such setting.

    Raises what `check_kept` raises.
    """
    setting = broker_setting(name)
    return None if setting is None else check_kept(name, value, setting.type, origin=origin)


def check_kept(name: str, value: Any, type_name: str, *, origin: str, has_effect: bool = False) -> str:
    """Return the text of a value, and unless it `has_effect` log once that it has none.

    Raises SettingError if it has another type, and for a setting that would protect the broker.
    """
    if name in _PROTECTING:
        raise SettingError(f"{origin}: {name} is not supported, and the broker is not protected as it says")
    text = as_text(check_value(name, value, _TYPES.get(type_name, str), origin=origin)) or ""
    of_listener = _OF_LISTENER.fullmatch(name)
    reported = name if of_listener is None else of_listener[1]
    if not has_effect and reported not in _reported:
        _reported.add(reported)
        logger.warning("%s: %s is a setting of Kafka that has no effect here", origin, name)
    return text
