"""The levels of the broker's loggers, as Kafka's clients see and change them (KIP-412).

Owns: which loggers there are for them, and what Kafka's names of levels mean here. A level that is set holds until the
broker stops. Must not know: requests.

Source: org.apache.kafka.server.logger.RuntimeLoggerManager.
"""

import logging
from collections.abc import Sequence

from broker.api.errors import RequestError
from protocol.errors import ErrorCode
from protocol.kafka.values import ConfigChange, ConfigEntry, ConfigOperation, ConfigSource

ROOT = "root"
OWN_PACKAGES = frozenset({"broker", "protocol", "warmlog"})
# Kafka's TRACE is missing: nothing here is told below DEBUG.
LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_entries() -> list[ConfigEntry]:
    """Each logger with the level from which on it tells, by name."""
    return [
        ConfigEntry(name=name, value=_level_name(name), source=ConfigSource.DYNAMIC_BROKER_LOGGER)
        for name in sorted(_names())
    ]


def check_levels(changes: Sequence[ConfigChange]) -> None:
    """Raise RequestError unless all of these can be made."""
    known = _names()
    for change in changes:
        if change.operation not in {ConfigOperation.SET, ConfigOperation.DELETE}:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{change.name}: a level is set or deleted, it is no list")
        if change.name not in known:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"there is no logger {change.name!r}")
        if change.operation == ConfigOperation.DELETE and change.name == ROOT:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the root logger has nobody to take a level from")
        if change.operation == ConfigOperation.SET and change.value not in LEVELS:
            raise RequestError(
                ErrorCode.INVALID_CONFIG,
                f"{change.name}: expected a level of {', '.join(LEVELS)}, not {change.value!r}",
            )


def set_levels(changes: Sequence[ConfigChange]) -> None:
    """Make changes that `check_levels` has found good. Without a level of its own a logger has its parent's."""
    for change in changes:
        level = logging.NOTSET if change.operation == ConfigOperation.DELETE else LEVELS[change.value or ""]
        _logger(change.name).setLevel(level)


def _names() -> set[str]:
    own = {name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] in OWN_PACKAGES}
    return {ROOT, *own}


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_name(name: str) -> str:
    """The least of the named levels that the logger tells."""
    level = _logger(name).getEffectiveLevel()
    return next((known for known, value in LEVELS.items() if level <= value), "FATAL")
