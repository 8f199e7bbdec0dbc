"""Log configurations, made once for all topics with the same settings: most topics have none of their own."""

from collections.abc import Mapping

from broker.log.config import LogConfig
from broker.settings.live import LiveSettings
from broker.settings.settings import Settings
from broker.settings.topics import log_config

MAX_KEPT = 1000  # different sets of topic settings; more are made again


class LogConfigs:
    """The log configurations that are in force. Belongs to the event loop."""

    def __init__(self, settings: LiveSettings) -> None:
        self._live_settings = settings
        self._settings: Settings | None = None
        self._made: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, configs: Mapping[str, str]) -> LogConfig:
        """Return the configuration of a log whose topic has these settings."""
        current = self._live_settings.current
        if self._settings is not current or len(self._made) >= MAX_KEPT:
            self._settings = current
            self._made.clear()
        key = frozenset(configs.items())
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = log_config(configs, current)
        return found
