"""One client's side of the protocol, without a socket: bytes in, requests out; replies in, bytes and slices out.

    receive -> FrameReader -> next_request -> Exchange -> (handled elsewhere) -> take_replies -> (socket) -> sent

An `Exchange` keeps the place of what is answered together: one request, or the produces that came in a row. It is added
when its request is begun, and its reply leaves when it is done and everything before it has left.

Invariants:
1. Replies leave in the order in which their exchanges were added.
2. At the limits on what is unanswered, `next_request` gives nothing until something was answered.
3. Nothing here reads a clock or knows a socket: times (perf_counter seconds) are given. Only `encode_large` waits.
4. Frames and replies that take long (`codec/bounds.py`) are decoded and encoded by a worker thread, one at a time.
5. Large requests and responses are not freed here, which would take long, too: `released` has them once they are done.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Any

from broker.api.context import Context, Session
from broker.api.pacing import Pacer
from broker.api.records.produce import LARGE, Produce
from broker.log.io.files import FileSlice
from broker.metrics.registry import RequestMetrics
from broker.net.inflight import Share
from broker.net.wire import LOOP_WORK, Wire
from protocol.errors import ErrorCode, ProtocolError
from protocol.frame import FrameReader
from protocol.kafka.codec.bounds import NO_LIMIT, LargeMessageError, ReplyTooLargeError
from protocol.response import ErrorResponse, Response

LARGE_REQUEST_BYTES = 16 << 10  # of a frame: its request may have so many parts that freeing them takes a millisecond
MAX_UNANSWERED_BYTES = 32 << 20  # of one connection; one full frame above it is still taken, so nothing gets stuck


class Exchange:
    """What is answered together: the produces that came in a row, or one other request. Sizes in bytes, times in s.

    The produces are begun, written and answered together, so each is timed as all of them.
    """

    __slots__ = (
        "begun_at",
        "call",
        "count",
        "done_at",
        "handled_at",
        "metrics",
        "produces",
        "received_at",
        "reply_share",
        "response",
        "share",
        "size",
    )

    def __init__(self, received_at: float, metrics: RequestMetrics, call: Any) -> None:
        """For a request by its call (see Wire); of produces it is the first one's."""
        self.received_at = self.begun_at = self.handled_at = self.done_at = received_at
        self.metrics = metrics
        self.count = self.size = 0
        self.share: Share | None = None  # of the bytes in flight, if a large frame is among the requests
        self.reply_share: Share | None = None  # of the bytes of replies, if it is a long one
        self.produces: list[tuple[Any, Produce]] = []  # with their calls
        self.call = call
        self.response: Response | None = None  # of another request

    @property
    def done(self) -> bool:
        """Whether the replies can be encoded."""
        produces = self.produces
        if not produces:
            return self.response is not None
        for _, produce in produces:  # noqa: SIM110  # a generator costs twice the loop, on every read
            if not produce.done:
                return False
        return True

    def released(self) -> list[Any]:
        """Give up the requests and responses, and return them."""
        owned = [self.response, getattr(self.call, "request", None)]
        for call, produce in self.produces:
            owned.append(getattr(call, "request", None))
            owned += produce.released()
        self.response = self.call = None
        self.produces = []
        return owned

    def notify(self, settled: Callable[[], None]) -> None:
        """Call back when some produce that is not settled yet is. For other requests, whoever answers them tells."""
        for _, produce in self.produces:
            if not produce.done:
                produce.notify(settled)
                return


class Connection:
    """The state of one connection. Belongs to whoever moves its bytes (`Channel`)."""

    __slots__ = (
        "_decoded",
        "_encoded",
        "_exchanges",
        "_leaving",
        "_max_requests",
        "_pacer",
        "_slow_since",
        "_unanswered_bytes",
        "_unanswered_requests",
        "_wire",
        "context",
        "large_frame",
        "large_reply",
        "last_received",
        "last_sent",
        "must_close",
        "reader",
        "released",
        "session",
        "waits_since",
    )

    def __init__(
        self, session: Session, wire: Wire, pacer: Pacer, now: float, *, max_frame_bytes: int, max_requests: int
    ) -> None:
        self.session = session
        self.context = Context(session, pacer)
        self.reader = FrameReader(max_frame_bytes)
        self._wire = wire
        self._pacer = pacer
        self._max_requests = max_requests
        self._exchanges: deque[Exchange] = deque()
        self._leaving: list[Exchange] = []  # encoded, and not yet sent
        self._unanswered_requests = 0
        self._unanswered_bytes = 0
        self.large_frame: memoryview | None = None  # waits for `decode_large`
        self._decoded: tuple[Any, Any, int] | ProtocolError | None = None  # by it
        self.large_reply: Exchange | None = None  # the first one; waits for `encode_large`
        self._encoded: list[Sized] | None = None  # by it
        self.released: list[Any] = []  # large requests and responses that are done, to be freed in pieces
        self.must_close = False  # once what was taken is sent
        self.last_received = now
        self.last_sent = -math.inf
        self.waits_since = math.inf  # for the peer to take something of a reply
        self._slow_since = 0.0  # `waits_since` when the peer was too slow for the first time

    # -- requests --

    def receive(self, data: bytes, now: float) -> None:
        """Take what was received; then ask for requests. `data` must not change afterwards."""
        self.reader.feed(data)
        self.last_received = now

    def received(self, count: int, now: float) -> None:
        """As `receive`, for bytes that were received into the reader's buffer for a large frame."""
        self.reader.received(count)
        self.last_received = now

    def next_request(self) -> tuple[Any, Any, int] | None:
        """Decode the next whole frame: its call, the request, and its size; None if there is no whole one.

        Raises FrameError where the stream is out of step, LargeMessageError where `decode_large` must be called before
        this is called again, and other ProtocolErrors for a frame that is no request.
        """
        decoded, self._decoded = self._decoded, None
        if decoded is not None:
            if isinstance(decoded, ProtocolError):
                raise decoded
            return decoded
        frame = self.reader.next_frame()
        if frame is None:
            return None
        try:
            call, request = self._wire.decode(frame, self.context)
        except LargeMessageError:
            self.large_frame = frame
            raise
        return call, request, len(frame)

    def decode_large(self) -> None:
        """Decode the large frame, for the next `next_request`. Takes long: call it in a worker thread."""
        frame, self.large_frame = self.large_frame, None
        assert frame is not None
        try:
            call, request = self._wire.decode(frame, self.context, NO_LIMIT)
            self._decoded = call, request, len(frame)
        except ProtocolError as error:
            self._decoded = error

    @property
    def is_full(self) -> bool:
        """Whether so much is unanswered that nothing more is taken."""
        return self._unanswered_requests >= self._max_requests or self._unanswered_bytes > MAX_UNANSWERED_BYTES

    def add(self, exchange: Exchange) -> None:
        """Give an exchange its place among the replies."""
        self._exchanges.append(exchange)

    def count(self, exchange: Exchange, size: int) -> None:
        """Count one more request of an exchange, of so many bytes, against the limits until it is answered."""
        exchange.count += 1
        exchange.size += size
        self._unanswered_requests += 1
        self._unanswered_bytes += size

    # -- replies --

    @property
    def is_answered(self) -> bool:
        """Whether every request that was begun is answered, and its reply sent."""
        return not self._exchanges and not self._leaving

    @property
    def has_unsent(self) -> bool:
        """Whether replies were taken that are not `sent` yet."""
        return bool(self._leaving)

    def take_replies(self, now: float) -> list[Sized]:
        """Encode the replies that are done, up to the first that is not: bytes, and slices as they were given.

        At a produce with acks=0 that has failed it stops, and `must_close` is set: closing is the only way to say so.
        At one that takes long to encode it stops, and `large_reply` is set, until `encode_large` was awaited.
        """
        items: list[Sized] = []
        exchanges, leaving = self._exchanges, self._leaving
        while exchanges and exchanges[0].done:
            exchange = exchanges[0]
            is_large = exchange.size > LARGE_REQUEST_BYTES and exchange.response is not None
            if exchange is self.large_reply:
                if self._encoded is None:
                    break
                is_large = True
                items += self._encoded
                self.large_reply = self._encoded = None
            else:
                count = len(items)
                try:
                    self._encode(exchange, items, LOOP_WORK, NO_LIMIT)
                except LargeMessageError:
                    del items[count:]
                    self.large_reply = exchange
                    break
            exchanges.popleft()
            exchange.done_at = now
            leaving.append(exchange)
            if is_large:
                self.released += exchange.released()
            if self.must_close:
                break
        return items

    async def encode_large(self, max_bytes: int = NO_LIMIT) -> int:
        """Encode the large reply, for the next `take_replies`; returns how many bytes it takes.

        Raises ReplyTooLargeError for more than `max_bytes`: then call it again with more, or `refuse_large` first.
        """
        exchange = self.large_reply
        assert exchange is not None
        context = Context(self.session, self._pacer)
        context.start()
        for _, produce in exchange.produces:
            if produce.is_large:
                await produce.respond(context)
        items: list[Sized] = []
        await self._pacer.in_worker(partial(self._encode, exchange, items, NO_LIMIT, max_bytes))
        self._encoded = items
        return sum([len(item) for item in items if not isinstance(item, FileSlice)])

    def refuse_large(self, error: ReplyTooLargeError) -> None:
        """Let the large reply be an error."""
        assert self.large_reply is not None
        self.released.append(self.large_reply.response)
        self.large_reply.response = ErrorResponse(error=error.code, message=f"{error} (warmlog.reply.max.bytes)")

    def drop_large(self) -> None:
        """Close the connection instead of the large reply."""
        self._encoded, self.must_close = [], True

    def _encode(self, exchange: Exchange, items: list[Sized], limit: int, max_bytes: int) -> None:
        """Add the replies to `items`.

        Raises LargeMessageError where that takes more work than the limit, and ReplyTooLargeError.
        """
        encode = self._wire.encode
        if exchange.response is not None:
            items += encode(exchange.call, exchange.response, limit=limit, max_bytes=max_bytes)
        for call, produce in exchange.produces:
            if produce.is_large:
                raise LargeMessageError(f"the outcomes of a produce to more than {LARGE} partitions")
            response = produce.response()
            if produce.acks:
                items += encode(call, response, limit=limit, max_bytes=max_bytes)
            elif any(partition.error is not ErrorCode.NONE for partition in response.partitions):
                self.must_close = True
                break

    def watch_first(self, settled: Callable[[], None]) -> None:
        """Call back when something of the first reply that is missing is there."""
        if self._exchanges:
            self._exchanges[0].notify(settled)

    def sent(self, now: float) -> Sequence[Share]:
        """Account for the replies that were taken, all of which are sent; returns the shares to give back."""
        shares: list[Share] = []
        for exchange in self._leaving:
            self._unanswered_requests -= exchange.count
            self._unanswered_bytes -= exchange.size
            exchange.metrics.observe(exchange, exchange.done_at, now)
            if exchange.share is not None:
                shares.append(exchange.share)
            if exchange.reply_share is not None:
                shares.append(exchange.reply_share)
        self._leaving.clear()
        self.last_sent = now
        self.waits_since = math.inf
        return shares

    def unanswered_shares(self) -> list[Share]:
        """The shares of everything that is not answered, for a connection that ends."""
        unanswered = (*self._exchanges, *self._leaving)
        shares = [share for exchange in unanswered for share in (exchange.share, exchange.reply_share)]
        return [share for share in shares if share is not None]

    def abandon(self) -> list[Any]:
        """Give up the large requests and responses of a connection that ends, and return them."""
        owned = self.released
        for exchange in self._exchanges:
            if exchange is self.large_reply or (exchange.size > LARGE_REQUEST_BYTES and not exchange.produces):
                owned += exchange.released()
        decoded, self._decoded, self.released = self._decoded, None, []
        if isinstance(decoded, tuple):
            owned.append(getattr(decoded[0], "request", None))
        return owned

    # -- time --

    def is_overdue(self, now: float, *, slow_peer_s: float, idle_s: float, is_receiving: bool) -> bool:
        """Whether the peer takes too long: to take its reply, or to say something while it is its turn.

        Within a frame, as for a reply, the slow-peer limit holds, between requests the idle limit. `is_receiving`:
        whether we wait for the peer. While a request is handled, a fetch waits, or we wait for room, what the peer
        sends stays in the socket, and its silence says nothing.
        """
        if now - self.waits_since > slow_peer_s:
            if self.waits_since == self._slow_since:
                return True  # at the second look: after a freeze of the whole machine, the socket has its turn first
            self._slow_since = self.waits_since
        if not is_receiving:
            return False
        silent_s = now - max(self.last_received, self.last_sent)
        if self.reader.is_within_frame:
            return silent_s > slow_peer_s
        return not self._exchanges and silent_s > idle_s
