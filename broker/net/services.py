"""What all connections of a listener share."""

import logging
import math

import trio

from broker.api.context import Session
from broker.api.dispatch import Dispatcher
from broker.api.pacing import Pacer
from broker.loop_guard import LoopGuard
from broker.metrics import Metrics
from broker.net.inflight import InflightBytes
from broker.net.sendfile import SlicePath
from broker.net.wire import Wire
from broker.writer import Writer
from protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

TELL_PAUSE_S = 10.0


class Services:
    """Handlers, limits and metrics; and when something was last told of a connection."""

    __slots__ = (
        "dispatcher",
        "guard",
        "inflight",
        "max_frame_bytes",
        "max_requests",
        "metrics",
        "pacer",
        "slices",
        "slow_peer_s",
        "tell_at",
        "wire",
        "writer",
    )

    def __init__(
        self, *, wire: Wire, dispatcher: Dispatcher, writer: Writer, metrics: Metrics, inflight: InflightBytes,
        slices: SlicePath, guard: LoopGuard, pacer: Pacer, max_frame_bytes: int, max_requests: int, slow_peer_s: float,
    ) -> None:  # fmt: skip
        self.wire = wire
        self.dispatcher = dispatcher
        self.writer = writer
        self.metrics = metrics
        self.inflight = inflight
        self.slices = slices
        self.guard = guard
        self.pacer = pacer
        self.max_frame_bytes = max_frame_bytes
        self.max_requests = max_requests
        self.slow_peer_s = slow_peer_s
        self.tell_at = -math.inf  # by trio's clock

    def tell_closed(self, session: Session, error: ProtocolError) -> None:
        """Log why a connection had to be closed; only now and then: who sends nonsense may do so without end."""
        now = trio.current_time()
        if now >= self.tell_at:
            self.tell_at = now + TELL_PAUSE_S
            logger.info("%s: %s:%d: closed: %s", session.listener, *session.peer, error)
