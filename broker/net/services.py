"""Handlers, limits and metrics shared by all connections of a listener."""

import logging
import math
from collections.abc import Callable
from time import perf_counter
from typing import Final

from warmlog.broker.api.context import Session
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.metrics.registry import Metrics, RequestMetrics
from warmlog.broker.net.memory_budget import MemoryBudget
from warmlog.broker.net.sendfile import SlicePath
from warmlog.broker.net.turns.turn import ServingTurn
from warmlog.broker.net.wire import Wire
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.broker.security.sasl import Login, LoginRules
from warmlog.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

LOG_PAUSE_S: Final = 10.0


class Services:
    """The dependencies of channels, and the rate limit of log lines about peers."""

    __slots__ = (
        "_api_metrics",
        "_guard",
        "dispatcher",
        "log_at",
        "login_rules",
        "logins",
        "max_frame_bytes",
        "max_reply_bytes",
        "max_requests",
        "metrics",
        "name",
        "pacer",
        "quotas",
        "replies",
        "requests",
        "slices",
        "slow_peer_bytes",
        "slow_peer_s",
        "turn",
        "wire",
    )

    def __init__(
        self, *, name: str, wire: Wire, turn: ServingTurn, dispatcher: Dispatcher, metrics: Metrics,
        requests: MemoryBudget, replies: MemoryBudget, slices: SlicePath, pacer: Pacer, quotas: ClientQuotas,
        max_frame_bytes: int,
        max_reply_bytes: int, max_requests: int, slow_peer_s: float, slow_peer_bytes: int,
        login_rules: LoginRules | None = None, logins: MemoryBudget | None = None,
        guard: Callable[[Wire, Login], Wire] | None = None,
    ) -> None:  # fmt: skip
        self.name = name  # the listener's
        self.wire = wire
        self.login_rules = login_rules  # None if clients do not log in
        self.logins = requests if logins is None else logins  # used instead of `requests` before a login is complete
        self._guard = guard
        self.turn = turn
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.requests = requests
        self.slices = slices
        self.pacer = pacer
        self.quotas = quotas
        self.max_frame_bytes = max_frame_bytes
        self.replies = replies
        self.max_reply_bytes = max_reply_bytes
        self.max_requests = max_requests
        self.slow_peer_s = slow_peer_s
        self.slow_peer_bytes = slow_peer_bytes  # per second
        self.log_at = -math.inf  # in perf_counter seconds
        self._api_metrics: dict[str, RequestMetrics] = {}

    def wire_of(self, session: Session) -> Wire:
        """Return the wire format of a connection."""
        if session.login is None or self._guard is None:
            return self.wire
        return self._guard(self.wire, session.login)

    def api_metrics(self, api: str) -> RequestMetrics:
        """Return the histograms of an API on this listener."""
        histograms = self._api_metrics.get(api)
        if histograms is None:
            histograms = self._api_metrics[api] = self.metrics.requests(api, self.name)
        return histograms

    def log_closed(self, session: Session, error: ProtocolError) -> None:
        """Log why a connection is closed. Rate-limited, since a peer may send endless invalid frames."""
        self._log(session, "closed", error)

    def evicted(self, session: Session, reason: str, why: str) -> None:
        """Count and log a connection that is closed to free memory, or because its peer is too slow."""
        self.metrics.evicted_connections[reason].add()
        self._log(session, "closed", why)

    def log_refused(self, session: Session, error: ProtocolError) -> None:
        """Log why a request gets an error instead of its reply. Rate-limited."""
        self._log(session, "refused a request", error)

    def log_handshake(self, session: Session, why: str) -> None:
        """Log why a TLS handshake failed. Rate-limited."""
        self._log(session, "refused", why)

    def _log(self, session: Session, what: str, error: ProtocolError | str) -> None:
        now = perf_counter()
        if now >= self.log_at:
            self.log_at = now + LOG_PAUSE_S
            logger.info("%s: %s:%d: %s: %s", session.listener, *session.peer, what, error)
