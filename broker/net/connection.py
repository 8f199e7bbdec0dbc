"""The state of one connection, without I/O: bytes in, requests out; responses in, bytes and slices out.

    receive -> FrameReader -> next_request -> Exchange -> (handled elsewhere) -> take_replies -> (socket) -> sent

An `Exchange` is an entry of the reply queue: one request, or consecutive produces that are answered together. It is
added when its request is begun; its reply is sent when it is done and all replies before it have been sent.

Invariants:
1. Replies are sent in the order in which their exchanges were added.
2. The caller checks `is_full` before `next_request`, so the number and size of unanswered requests are bounded.
3. Nothing here reads a clock or a socket: times (perf_counter seconds) are arguments. Only `encode_large` is async.
4. Large frames and replies (`protocol/kafka/codec/bounds.py`) are decoded and encoded in a worker thread, one at a
   time.
5. Large requests and responses move to `released` instead of being freed, which would hold the event loop.
"""

import math
from collections import deque
from collections.abc import Callable, Sized
from functools import partial
from typing import Any, Final

from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.produce import LARGE, Produce
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.metrics.registry import RequestMetrics
from warmlog.broker.net.memory_budget import Progress
from warmlog.broker.net.wire import LOOP_WORK, Wire
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT, LargeMessageError, ReplyTooLargeError, refuse_size
from warmlog.protocol.response import ErrorResponse, Response

LARGE_REQUEST_BYTES: Final = 16 << 10  # frame size above which freeing the request may take a millisecond
MAX_UNANSWERED_BYTES = 32 << 20  # per connection; may be exceeded by one frame, so that any frame can be served


class Exchange:
    """Consecutive produces, or one other request, and their replies. Sizes are in bytes, times in seconds.

    Consecutive produces are begun, written and answered together, so their times are measured together.
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
        "response",
        "size",
        "throttle_ms",
    )

    def __init__(self, received_at: float, metrics: RequestMetrics, call: Any) -> None:
        """`call` belongs to the request (see `Wire`), or to the first produce."""
        self.received_at = self.begun_at = self.handled_at = self.done_at = received_at
        self.metrics = metrics
        self.count = self.size = self.throttle_ms = 0  # throttle_ms: of the reply, or of the last produce
        self.produces: list[tuple[Any, Produce]] = []  # with their calls
        self.call = call
        self.response: Response | None = None  # of a request other than produce

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
        """Return the requests and responses, dropping all references to them."""
        owned = [self.response, getattr(self.call, "request", None)]
        for call, produce in self.produces:
            owned.append(getattr(call, "request", None))
            owned += produce.released()
        self.response = self.call = None
        self.produces = []
        return owned

    def notify(self, settled: Callable[[], None]) -> None:
        """Have `settled` called when the first unfinished produce is done. Other requests report their responses."""
        for _, produce in self.produces:
            if not produce.done:
                produce.notify(settled)
                return


class Connection:
    """The state of one connection; its `Channel` moves the bytes."""

    __slots__ = (
        "_decoded",
        "_encoded",
        "_exchanges",
        "_frame",
        "_leaving",
        "_max_requests",
        "_pacer",
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
        "receiving",
        "released",
        "sending",
        "session",
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
        self._leaving: list[Exchange] = []  # encoded but not sent
        self._unanswered_requests = 0
        self._unanswered_bytes = 0
        self._frame: memoryview | None = None  # of the latest request, for `decode_again`
        self.large_frame: memoryview | None = None  # to be decoded by `decode_large`
        self._decoded: tuple[Any, Any, int] | ProtocolError | None = None  # its result
        self.large_reply: Exchange | None = None  # head of the queue, to be encoded by `encode_large`
        self._encoded: list[Sized] | None = None  # its result
        self.released: list[Any] = []  # unused large requests and responses, to be freed in pieces
        self.must_close = False  # after the replies taken so far are sent
        self.last_received = now
        self.last_sent = -math.inf
        self.receiving = Progress()  # of a frame
        self.sending = Progress()  # progress of replies that do not fit into the socket

    # -- requests --

    def receive(self, data: bytes, now: float) -> None:
        """Add received bytes, which must not change afterwards; call `next_request` next."""
        self.reader.feed(data)
        self.receiving.moved += len(data)
        self.last_received = now

    def received(self, count: int, now: float) -> None:
        """Account for bytes that were received directly into the reader's buffer for a large frame."""
        self.reader.received(count)
        self.receiving.moved += count
        self.last_received = now

    def resume_receiving(self, now: float) -> None:
        """Do not count the time in which the broker did not read as idleness or slowness of the peer."""
        self.last_received = now
        self.receiving.end()

    def next_request(self) -> tuple[Any, Any, int] | None:
        """Decode the next complete frame to (call, request, size in bytes); return None if there is none.

        Raises FrameError when frame boundaries are lost, LargeMessageError when `decode_large` must run before the next
        call, and other ProtocolErrors for a frame that is not a valid request.
        """
        decoded, self._decoded = self._decoded, None
        if decoded is not None:
            if isinstance(decoded, ProtocolError):
                raise decoded
            return decoded
        frame = self.reader.next_frame()
        if frame is None:
            self._frame = None
            if self.reader.is_within_frame:
                self.receiving.begin(max(self.last_received, self.last_sent))
            else:
                self.receiving.end()
            return None
        self.receiving.end()
        return self._decode(frame)

    def decode_again(self) -> tuple[Any, Any, int]:
        """Decode the latest request again, since its topic ids may have got other names. Raises as `next_request`."""
        assert self._frame is not None
        return self._decode(self._frame)

    def drop_frame(self) -> None:
        """Release the frame of the latest request."""
        self._frame = None

    def _decode(self, frame: memoryview) -> tuple[Any, Any, int]:
        try:
            call, request = self._wire.decode(frame, self.context)
        except LargeMessageError:
            self.large_frame = frame
            raise
        self._frame = frame
        return call, request, len(frame)

    def decode_large(self) -> None:
        """Decode the large frame for the next `next_request`. Slow: call it in a worker thread."""
        frame, self.large_frame = self.large_frame, None
        assert frame is not None
        try:
            call, request = self._wire.decode(frame, self.context, NO_LIMIT)
            self._decoded = call, request, len(frame)
            self._frame = frame
        except ProtocolError as error:
            self._decoded = error.with_traceback(None)  # its traceback refers to this stack frame: a cycle

    @property
    def held_bytes(self) -> int:
        """Bytes of memory held for unanswered requests and the incomplete one, including its next step."""
        reader = self.reader
        return self._unanswered_bytes + reader.held_bytes + reader.announced_bytes

    @property
    def is_full(self) -> bool:
        """Whether the limits on unanswered requests are reached."""
        return self._unanswered_requests >= self._max_requests or self._unanswered_bytes > MAX_UNANSWERED_BYTES

    def add(self, exchange: Exchange) -> None:
        """Append an exchange to the reply queue."""
        self._exchanges.append(exchange)

    def count(self, exchange: Exchange, size: int) -> None:
        """Count another request of an exchange, of `size` bytes, against the limits until it is answered."""
        exchange.count += 1
        exchange.size += size
        self._unanswered_requests += 1
        self._unanswered_bytes += size

    # -- replies --

    @property
    def is_answered(self) -> bool:
        """Whether the replies of all requests begun so far have been sent."""
        return not self._exchanges and not self._leaving

    @property
    def has_unsent(self) -> bool:
        """Whether `take_replies` has returned replies that are not `sent`."""
        return bool(self._leaving)

    def take_replies(self, now: float) -> list[Sized]:
        """Encode finished replies up to the first unfinished one, as bytes and file slices.

        Stops at a failed produce with acks=0 and sets `must_close`, since closing is the only way to report the error.
        Stops at a reply that takes long to encode and sets `large_reply`; await `encode_large`, then call this again.
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
        """Encode the large reply for the next `take_replies`; return its size in bytes without file slices.

        Raises ReplyTooLargeError beyond `max_bytes`: call it again with a higher limit, or call `refuse_large` first.
        """
        exchange = self.large_reply
        assert exchange is not None
        context = Context(self.session, self._pacer)
        context.start()
        for _, produce in exchange.produces:
            if produce.is_large:
                await produce.respond(context)
        context.end()
        items: list[Sized] = []
        fits = partial(self._fits, exchange, items, max_bytes)
        if not await self._pacer.in_worker(fits, self.session, exchange.size):
            refuse_size(max_bytes)
        self._encoded = items
        return sum([len(item) for item in items if not isinstance(item, FileSlice)])

    def refuse_large(self, error: ReplyTooLargeError) -> None:
        """Replace the large reply by an error."""
        assert self.large_reply is not None
        self.released.append(self.large_reply.response)
        self.large_reply.response = ErrorResponse(error=error.code, message=f"{error} (warmlog.reply.max.bytes)")

    def drop_large(self) -> None:
        """Close the connection instead of the large reply."""
        self._encoded, self.must_close = [], True

    def _fits(self, exchange: Exchange, items: list[Sized], max_bytes: int) -> bool:
        """Encode as `_encode` does; return False beyond `max_bytes`.

        An exception from a worker thread would leave a cycle with the exchange in it.
        """
        try:
            self._encode(exchange, items, NO_LIMIT, max_bytes)
        except ReplyTooLargeError:
            return False
        return True

    def _encode(self, exchange: Exchange, items: list[Sized], limit: int, max_bytes: int) -> None:
        """Append the encoded replies to `items`.

        Raises LargeMessageError when that takes more work than `limit`, and ReplyTooLargeError beyond `max_bytes`.
        """
        wire, throttle_ms, response = self._wire, exchange.throttle_ms, exchange.response
        if response is not None:
            items += wire.encode(exchange.call, response, throttle_ms=throttle_ms, limit=limit, max_bytes=max_bytes)
        produces = exchange.produces
        for call, produce in produces:
            if produce.is_large:
                raise LargeMessageError(f"the outcomes of a produce to more than {LARGE} partitions")
            outcome = produce.response()
            if produce.acks:
                pause_ms = throttle_ms if throttle_ms and produce is produces[-1][1] else 0
                items += wire.encode(call, outcome, throttle_ms=pause_ms, limit=limit, max_bytes=max_bytes)
            elif any(partition.error is not ErrorCode.NONE for partition in outcome.partitions):
                self.must_close = True
                break

    @property
    def has_untaken(self) -> bool:
        """Whether there are requests whose replies are not taken yet."""
        return bool(self._exchanges)

    def watch_first(self, settled: Callable[[], None]) -> None:
        """Have `settled` called when the next unfinished produce of the first exchange is done."""
        self._exchanges[0].notify(settled)

    def sent(self, now: float) -> None:
        """Record that all replies taken so far are sent."""
        for exchange in self._leaving:
            self._unanswered_requests -= exchange.count
            self._unanswered_bytes -= exchange.size
            exchange.metrics.observe(exchange, exchange.done_at, now)
        self._leaving.clear()
        self.last_sent = now
        self.sending.end()
        self.receiving.end()  # the time restarts: waiting for these replies was not slowness

    def abandon(self) -> list[Any]:
        """Return the large requests and responses of a connection that closes, dropping all references to them."""
        owned = self.released
        for exchange in self._exchanges:
            if exchange is self.large_reply or (exchange.size > LARGE_REQUEST_BYTES and not exchange.produces):
                owned += exchange.released()
        decoded, self._decoded, self.released = self._decoded, None, []
        if isinstance(decoded, tuple):
            owned.append(getattr(decoded[0], "request", None))
        return owned

    # -- time --

    def overdue(
        self, now: float, *, slow_peer_s: float, min_rate: float, idle_s: float, is_receiving: bool
    ) -> str | None:
        """Return why the peer is too slow, or an empty text if the connection is idle; None if it is in time.

        After `slow_peer_s`, a frame or reply must move at `min_rate` bytes per second; within a frame, the peer may be
        silent for that time at most. `idle_s` applies between requests. `is_receiving`: whether the broker reads from
        the socket; while it does not, the peer's bytes stay there and do not count.
        """
        if self.sending.exceeds(now, slow_peer_s, min_rate):
            return f"reads its reply too slowly: {self.sending.moved} bytes in {now - self.sending.since:.0f} s"
        if not is_receiving:
            return None
        silent_s = now - max(self.last_received, self.last_sent)
        if not self.reader.is_within_frame:
            return "" if not self._exchanges and silent_s > idle_s else None
        if silent_s > slow_peer_s:
            return f"has sent nothing for {silent_s:.0f} s within a request"
        if self.receiving.exceeds(now, slow_peer_s, min_rate):
            return f"sends its request too slowly: {self.receiving.moved} bytes in {now - self.receiving.since:.0f} s"
        return None
