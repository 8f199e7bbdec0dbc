"""Log when the brokers cannot be reached, so that a program waiting for them does not appear idle."""

import logging

import anyio

from warmlog.client.errors import WarmlogError

logger = logging.getLogger("warmlog.client")

LOG_AFTER_S = 1.0  # longer than leader changes and broker restarts take


class Outage:
    """A period in which every attempt fails. Logs once after `LOG_AFTER_S`, and once when it is over."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._logged = False

    def attempt_failed(self, error: WarmlogError) -> None:
        """Record an error after which the client retries."""
        now = anyio.current_time()
        if self._since is None:
            self._since = now
        elif not self._logged and now - self._since >= LOG_AFTER_S:
            self._logged = True
            logger.warning("%s; retrying", error.message)

    def end(self) -> None:
        """Record that an attempt has succeeded."""
        if self._logged and self._since is not None:
            logger.info("connected again after %.0f s", anyio.current_time() - self._since)
        self._since = None
        self._logged = False
