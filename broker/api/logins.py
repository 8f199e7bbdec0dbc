"""Shared by the logins of all listeners: a worker that checks secrets, a metric, and log lines."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

import trio

from warmlog.broker.api.fair_queue import FairQueue
from warmlog.broker.metrics.registry import Metrics
from warmlog.protocol.scram import SaslError

LOG_PAUSE_S: Final = 10.0

logger = logging.getLogger(__name__)


class Logins:
    """Checks passwords and tokens in one worker, addresses in turn. Belongs to the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._results: Counter[tuple[str, str, str]] = Counter()  # by listener, mechanism and result
        self._checks = FairQueue(1)
        self._worker = trio.CapacityLimiter(1)
        self._log_at = 0.0  # time before which no line is logged, on trio's clock
        self._unlogged = 0
        metrics.counter(
            "warmlog_logins_total",
            "Logins of clients, with SASL or to HTTP.",
            lambda: list(self._results.items()),
            ("listener", "mechanism", "result"),
        )

    async def check(
        self, check: Callable[[], bool], address: str, is_needed: Callable[[], bool] = lambda: True
    ) -> bool:
        """Return the result of `check`; False if it is no longer needed when its turn comes."""
        async with self._checks.slot(address):
            return is_needed() and await trio.to_thread.run_sync(check, limiter=self._worker)

    def succeeded(self, listener: str, mechanism: str) -> None:
        """Count a login."""
        self._results[listener, mechanism, "ok"] += 1

    def failed(self, listener: str, peer: tuple[str, int], mechanism: str, why: SaslError | str) -> None:
        """Count and log a failed login. Rate-limited. No name or mechanism that the client sent is logged."""
        self._results[listener, mechanism, "failed"] += 1
        now = trio.current_time()
        if now < self._log_at:
            self._unlogged += 1
            return
        more, self._unlogged = self._unlogged, 0
        self._log_at = now + LOG_PAUSE_S
        since = f" ({more} more since the last line)" if more else ""
        logger.warning("%s: %s:%d: login failed: %s: %s%s", listener, *peer, mechanism, why, since)
