"""One client's connection: frames in, replies out, in order.

Owns: the receive loop, the outbox of replies, and the limits of one connection. Must not know: what requests mean
beyond produce (queued, many at once), fetch (may wait) and the rest (awaited one by one).

    receive -> frames -> decode -+- produce: queued, its place kept in the outbox; all of one read are written together
                                 +- others: first everything before them is answered, then they are handled and answered
    outbox -> encode -> send       by the receiver itself if all is done, else by the sending task, so that the next
    frames can come in meanwhile

Invariants:
1. Replies leave in the order of their requests.
2. Only one task sends at a time (`_sending`).
3. What is received and not yet answered is bounded, in requests and in bytes; past it the connection is not read (the
   peer's window closes).
"""

import logging
import math
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from functools import partial
from time import perf_counter
from typing import Any

import trio

from broker.api.dispatch import Dispatcher
from broker.api.fetch import Fetch
from broker.api.produce import Produce
from broker.api.session import Session
from broker.metrics import Metrics, RequestMetrics
from broker.net.inflight import InflightBytes, Share
from broker.net.sender import Sender, SlowPeerError
from broker.net.sendfile import TruncatedSliceError
from broker.net.wire import Wire
from broker.writer import Writer
from protocol.errors import FrameError, ProtocolError
from protocol.frame import FrameReader
from protocol.request import FetchRequest, ProduceRequest, Request
from protocol.response import Response

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10  # one read: some 300 small requests; larger frames are received into a buffer of their own
MAX_TURN_S = 0.005  # then others get the loop: one read can bring 3,000 small requests that are answered one by one
PEER_CHECK_S = 1.0  # how late the end of a peer may be noticed that sent more requests behind a waiting fetch
TELL_PAUSE_S = 10.0
TCP_ESTABLISHED = 1  # the first byte of Linux's tcp_info: closed by the peer is 8, reset 7
MAX_UNANSWERED_BYTES = 32 << 20  # of one connection; one full frame above it is still taken, so nothing gets stuck


class Exchange:
    """What is answered together: the produces that came in one read, or one other request. Its place in the outbox.

    Sizes in bytes, times in perf_counter seconds; the produces are begun, written and answered together, so each is
    timed as all of them.
    """

    __slots__ = (
        "begun_at",
        "count",
        "handled_at",
        "metrics",
        "produces",
        "received_at",
        "reply",
        "share",
        "size",
    )

    def __init__(self, received_at: float, metrics: RequestMetrics) -> None:
        self.received_at = self.begun_at = self.handled_at = received_at
        self.metrics = metrics
        self.count = self.size = 0
        self.share: Share | None = None  # of the bytes in flight, if a large frame is among the requests
        self.produces: list[tuple[Any, Produce]] = []  # with their calls (see Wire)
        self.reply: tuple[Any, Response] | None = None

    @property
    def done(self) -> bool:
        """Whether the replies can be encoded."""
        for _, produce in self.produces:  # noqa: SIM110  # a generator costs twice the loop, on every read
            if not produce.done:
                return False
        return True

    async def wait(self) -> None:
        """Return when done."""
        for _, produce in self.produces:
            await produce.wait()


class PeerGoneError(Exception):
    """The other end has closed, or must be closed: nothing more can be said on this connection."""


class Services:
    """What all connections of a listener share."""

    __slots__ = (
        "dispatcher",
        "inflight",
        "max_frame_bytes",
        "max_requests",
        "metrics",
        "slow_peer_s",
        "tell_at",
        "wire",
        "writer",
    )

    def __init__(
        self, *, wire: Wire, dispatcher: Dispatcher, writer: Writer, metrics: Metrics, inflight: InflightBytes,
        max_frame_bytes: int, max_requests: int, slow_peer_s: float,
    ) -> None:  # fmt: skip
        self.wire = wire
        self.dispatcher = dispatcher
        self.writer = writer
        self.metrics = metrics
        self.inflight = inflight
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


class Connection:
    """Serves one accepted, non-blocking socket until either end closes it. Closes the socket."""

    def __init__(self, sock: socket.socket, session: Session, services: Services) -> None:
        self._sock = sock
        self._session = session
        self._services = services
        self._wire = services.wire
        self._produce_metrics = services.metrics.requests("produce", services.wire.name)
        self._reader = FrameReader(services.max_frame_bytes)
        self._sender = Sender(sock, services.metrics, services.slow_peer_s)
        self._outbox: deque[Exchange] = deque()
        self._unanswered_requests = 0
        self._unanswered_bytes = 0
        self._share: Share | None = None  # of the large frame that is being received
        self._shares: set[Share] = set()  # of all that is received and not answered, too
        self._sending = False
        self._work = trio.Event()  # there is something for the sending task
        self._settled = trio.Event()  # the outbox has become shorter
        self._stopping = False
        self._closed = False
        self._receiving = False  # whether we wait for the peer: only then is silence the peer's
        self._wait: trio.CancelScope | None = None
        self.last_active = trio.current_time()

    # -- life --

    async def serve(self) -> None:
        """Receive and answer until the end. Returns however the connection ended; only defects of ours are raised."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_loop, nursery.cancel_scope)
                try:
                    await self._receive_loop()
                    await self._answer_all()
                except (PeerGoneError, SlowPeerError, TruncatedSliceError, OSError) as error:
                    logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def stop(self) -> None:
        """Take no more requests; what was received is answered, then the connection closes.

        A request that waits (for data, for a group) is not answered any more: nothing will come.
        """
        self._stopping = True
        if self._wait is not None:
            self._wait.cancel()
        if not self._closed:
            shutdown(self._sock, socket.SHUT_RD)

    def is_overdue(self, now: float, idle_s: float) -> bool:
        """Whether the peer has been silent too long while it was its turn.

        Within a frame the slow-peer limit holds, between requests the idle limit. While a request is handled, a fetch
        waits, or we wait for room, what the peer sends stays in the socket, and its silence says nothing.
        """
        if not self._receiving:
            return False
        silent_s = now - self.last_active
        if self._reader.is_within_frame:
            return silent_s > self._services.slow_peer_s
        return not self._outbox and silent_s > idle_s

    def drop(self) -> None:
        """End the connection as if the peer had."""
        if not self._closed:
            shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and give back what was reserved."""
        if not self._closed:
            self._closed = True
            for share in self._shares:
                self._services.inflight.release(share)
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    # -- receive --

    async def _receive_loop(self) -> None:
        reader, services = self._reader, self._services
        while not self._stopping:
            self._receiving = True
            await trio.lowlevel.wait_readable(self._sock)
            self._receiving = False
            if not self._receive_available():
                return
            self.last_active = trio.current_time()
            try:
                await self._take_frames()
            except FrameError as error:
                await self._refuse_stream(error)
                return
            if self._outbox:
                if services.writer.is_shared(self):
                    await trio.lowlevel.cancel_shielded_checkpoint()
                services.writer.write_queued()
                await self._answer()
            if reader.announced_bytes:
                await self._reserve(reader.announced_bytes)

    async def _take_frames(self) -> None:
        """Queue or handle every whole frame of one read. Raises FrameError where the stream is out of step."""
        next_frame, decode, session = self._reader.next_frame, self._wire.decode, self._session
        begin_produce = self._services.dispatcher.begin_produce
        received_at = perf_counter()
        turn_ends = received_at + MAX_TURN_S
        run: Exchange | None = None  # the produces in a row
        while (frame := next_frame()) is not None:
            if run is None and perf_counter() > turn_ends:
                await trio.lowlevel.checkpoint()
                turn_ends = perf_counter() + MAX_TURN_S
            try:
                call, request = decode(frame, session)
            except ProtocolError as error:
                _handled(run)
                run = None
                await self._refuse(error, len(frame))
                continue
            if isinstance(request, ProduceRequest):
                produce = begin_produce(request)
                if produce is None:
                    _handled(run)
                    run = None  # it may be answered while we wait
                    produce = await self._prepare_and_begin(request)
                if run is None:
                    run = Exchange(received_at, self._produce_metrics)
                    run.begun_at = perf_counter()
                    self._outbox.append(run)
                run.produces.append((call, produce))
                self._keep(run, len(frame))
            else:
                _handled(run)
                run = None
                await self._handle(call, request, len(frame), received_at)
        _handled(run)

    def _receive_available(self) -> bool:
        """Receive what is there into the frame reader; False at the end of the stream."""
        buffer = self._reader.buffer_for_next()
        try:
            if buffer is None:
                data = self._sock.recv(RECEIVE_BYTES)
                count = len(data)
                self._reader.feed(data)
            else:
                count = self._sock.recv_into(buffer)
                self._reader.received(count)
        except BlockingIOError:
            return True
        self._services.metrics.bytes_in.add(count)
        return count > 0

    async def _reserve(self, size: int) -> None:
        """Before a large frame gets memory: wait until all connections together hold few enough bytes."""
        if self._share is None:
            self._share = Share()
            self._shares.add(self._share)
        await self._services.inflight.grow(self._share, size)
        self.last_active = trio.current_time()

    async def _prepare_and_begin(self, request: ProduceRequest) -> Produce:
        """Create the topics that a request is the first to use, then queue it."""
        dispatcher = self._services.dispatcher
        self._services.writer.write_queued()
        await dispatcher.prepare(request)
        produce = dispatcher.begin_produce(request, create=False)
        assert produce is not None
        return produce

    async def _handle(self, call: Any, request: Request, size: int, received_at: float) -> None:
        """Answer all that came before, then handle a request and put its reply into the outbox."""
        await self._answer_all()
        dispatcher = self._services.dispatcher
        metrics = self._services.metrics.requests(request.api, self._wire.name)
        exchange = Exchange(received_at, metrics)
        exchange.begun_at = perf_counter()
        if isinstance(request, FetchRequest):
            found = dispatcher.fetch_now(request)
            exchange.handled_at = perf_counter()
            response = (
                await self._while_there(partial(dispatcher.fetch_later, found)) if isinstance(found, Fetch) else found
            )
        else:
            handle = partial(dispatcher.handle, request, self._session)
            response = await (self._while_there(handle) if request.may_wait else handle())
            exchange.handled_at = perf_counter()
        self._put(exchange, call, response, size)

    async def _while_there(self, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Wait for an answer that may take its time, and give up when the peer goes away meanwhile."""
        response: Response | None = None
        async with trio.open_nursery() as nursery:
            self._wait = nursery.cancel_scope
            nursery.start_soon(self._watch_peer, nursery.cancel_scope)
            response = await answer()
            nursery.cancel_scope.cancel()
        self._wait = None
        if response is None:
            raise PeerGoneError("closed while its request waited")
        return response

    async def _watch_peer(self, waiting: trio.CancelScope) -> None:
        """Cancel the wait when the peer closes.

        Requests that wait behind this one keep the socket readable; then the connection's state is looked at now and
        then.
        """
        await trio.lowlevel.wait_readable(self._sock)
        while not self._stopping and is_established(self._sock):  # noqa: ASYNC110  # nothing tells us but asking
            await trio.sleep(PEER_CHECK_S)
        waiting.cancel()

    def _put(self, exchange: Exchange, call: Any, response: Response, size: int) -> None:
        exchange.reply = (call, response)
        self._outbox.append(exchange)
        self._keep(exchange, size)

    def _keep(self, exchange: Exchange, size: int) -> None:
        """Count a request against the connection's limits until it is answered."""
        exchange.count += 1
        exchange.size += size
        if self._share is not None:
            exchange.share, self._share = self._share, None
        self._unanswered_requests += 1
        self._unanswered_bytes += size

    # -- answer --

    async def _answer(self) -> None:
        """Send what is done, or leave it to the sending task; past the limits wait until the outbox is shorter."""
        if not self._sending and self._all_done():
            run = list(self._outbox)
            self._outbox.clear()
            await self._send_run(run)
            return
        self._work.set()
        max_requests = self._services.max_requests
        while self._unanswered_requests >= max_requests or self._unanswered_bytes > MAX_UNANSWERED_BYTES:
            await self._wait_shorter()

    def _all_done(self) -> bool:
        for exchange in self._outbox:  # noqa: SIM110  # a generator costs twice the loop, on every read
            if not exchange.done:
                return False
        return True

    async def _answer_all(self) -> None:
        """Return when everything in the outbox is sent."""
        self._services.writer.write_queued()
        if self._outbox or self._sending:
            await self._answer()
            while self._outbox or self._sending:
                self._work.set()
                await self._wait_shorter()

    async def _wait_shorter(self) -> None:
        self._settled = trio.Event()
        await self._settled.wait()

    async def _send_loop(self, connection: trio.CancelScope) -> None:
        """The sending task: waits for what is not done yet, so that the receiver need not."""
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while self._outbox and not self._sending:
                    await self._outbox[0].wait()
                    if not self._sending:
                        await self._send_run(self._take_done())
        except (PeerGoneError, SlowPeerError, TruncatedSliceError, OSError) as error:
            logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
            connection.cancel()

    def _take_done(self) -> list[Exchange]:
        """The exchanges at the head of the outbox that are done."""
        run = []
        while self._outbox and self._outbox[0].done:
            run.append(self._outbox.popleft())
        return run

    async def _send_run(self, run: list[Exchange]) -> None:
        """Encode and send replies, which are done and out of the outbox."""
        self._sending = True
        try:
            done_at = perf_counter()
            items: list[Sized] = []
            is_sound = True
            for exchange in run:
                is_sound = self._encode(exchange, items)
                if not is_sound:
                    break
            if items:
                await self._sender.send(items)
            if not is_sound:
                raise PeerGoneError("a produce with acks=0 failed, and closing is the only way to say so")
            self._account(run, done_at)
        finally:
            self._sending = False
            self._settled.set()

    def _encode(self, exchange: Exchange, items: list[Sized]) -> bool:
        """Add the replies to `items`; False where the connection must close after them."""
        encode = self._wire.encode
        if exchange.reply is not None:
            items += encode(*exchange.reply)
            return True
        for call, produce in exchange.produces:
            response = produce.response()
            if produce.acks:
                items += encode(call, response)
            elif any(partition.error for partition in response.partitions):
                return False
        return True

    def _account(self, run: list[Exchange], done_at: float) -> None:
        sent_at = perf_counter()
        for exchange in run:
            self._unanswered_requests -= exchange.count
            self._unanswered_bytes -= exchange.size
            exchange.metrics.observe(exchange, done_at, sent_at)
            if exchange.share is not None:
                self._services.inflight.release(exchange.share)
                self._shares.discard(exchange.share)
        self.last_active = trio.current_time()

    async def _refuse(self, error: ProtocolError, size: int) -> None:
        """Answer a frame that is no request; the stream itself is still in step.

        Raises PeerGoneError where the protocol has no answer to it but to close.
        """
        await self._answer_all()
        refusal = self._wire.refusal(error)
        if refusal is None:
            self._services.tell_closed(self._session, error)
            raise PeerGoneError(str(error))
        metrics = self._services.metrics.requests("invalid", self._wire.name)
        self._put(Exchange(perf_counter(), metrics), refusal.call, refusal.response, size)

    async def _refuse_stream(self, error: FrameError) -> None:
        """Answer, then close: after a bad length nobody knows where the next frame begins."""
        await self._refuse(error, 0)
        await self._answer_all()


def _handled(run: Exchange | None) -> None:
    """End a run of produces: all of it is queued."""
    if run is not None:
        run.handled_at = perf_counter()


def is_established(sock: socket.socket) -> bool:
    """Whether the peer has neither closed nor reset a TCP connection, whatever it has sent before."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_ESTABLISHED


def shutdown(sock: socket.socket, how: int) -> None:
    """Shut a socket down; one that is not connected any more is down already."""
    try:
        sock.shutdown(how)
    except OSError:
        return
