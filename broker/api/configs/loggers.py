"""Describe and change the levels of the broker's loggers (KIP-412). A change lasts until the broker stops.

Source: org.apache.kafka.server.logger.RuntimeLoggerManager.
"""

import logging
from collections.abc import Sequence

from warmlog.broker.api.errors import RequestError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import ConfigChange, ConfigEntry, ConfigOperation, ConfigSource

ROOT = "root"
OWN_PACKAGES = frozenset({"warmlog"})
# Without Kafka's TRACE, since nothing is logged below DEBUG.
LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_entries() -> list[ConfigEntry]:
    """Return each logger with its effective level, sorted by name."""
    return [
        ConfigEntry(name=name, value=_level_name(name), source=ConfigSource.DYNAMIC_BROKER_LOGGER)
        for name in sorted(_names())
    ]


def check_levels(changes: Sequence[ConfigChange]) -> None:
    """Raise RequestError unless all changes can be applied."""
    known = _names()
    for change in changes:
        if change.operation not in {ConfigOperation.SET, ConfigOperation.DELETE}:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"{change.name}: a level is not a list: it can be set and deleted only"
            )
        if change.name not in known:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"unknown logger {change.name!r}")
        if change.operation == ConfigOperation.DELETE and change.name == ROOT:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "the level of the root logger cannot be deleted: it has no parent"
            )
        if change.operation == ConfigOperation.SET and change.value not in LEVELS:
            raise RequestError(
                ErrorCode.INVALID_CONFIG,
                f"{change.name}: the level must be one of {', '.join(LEVELS)}, not {change.value!r}",
            )


def set_levels(changes: Sequence[ConfigChange]) -> None:
    """Apply changes validated by `check_levels`. A logger whose level is deleted inherits that of its parent."""
    for change in changes:
        level = logging.NOTSET if change.operation == ConfigOperation.DELETE else LEVELS[change.value or ""]
        _logger(change.name).setLevel(level)


def _names() -> set[str]:
    own = {name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] in OWN_PACKAGES}
    return {ROOT, *own}


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_name(name: str) -> str:
    """Return the lowest named level that the logger emits."""
    level = _logger(name).getEffectiveLevel()
    return next((known for known, value in LEVELS.items() if level <= value), "FATAL")
