"""One client's connection: frames in, replies out, in order.

Owns: the receive loop and the life of one connection; its replies are the outbox's. Must not know: what requests mean
beyond produce (queued, many at once), fetch (may wait) and the rest (awaited one by one).

    receive -> frames -> decode -+- produce: queued, its place kept in the outbox; all of one read are written together
                                 +- others: first everything before them is answered, then they are handled and answered
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

import trio

from broker.api.context import Context, Session
from broker.api.fetch import Fetch
from broker.api.produce import Produce
from broker.net.inflight import Share
from broker.net.outbox import Exchange, Outbox, PeerGoneError
from broker.net.sender import Sender
from broker.net.sendfile import TruncatedSliceError
from broker.net.services import Services
from protocol.errors import FrameError, ProtocolError
from protocol.frame import FrameReader
from protocol.request import FetchRequest, ProduceRequest, Request
from protocol.response import Response

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10  # one read: some 300 small requests; larger frames are received into a buffer of their own
MAX_TURN_S = 0.005  # then others get the loop: one read can bring 3,000 small requests that are answered one by one
PEER_CHECK_S = 1.0  # how late the end of a peer may be noticed that sent more requests behind a waiting fetch
PROMPT_S = 0.0002  # from a reply to the peer's next request: a local client's that waits for nothing else
CAN_LINGER = len(os.sched_getaffinity(0)) > 1  # else it is the peer whose time we would take
TCP_ESTABLISHED = 1  # the first byte of Linux's tcp_info: closed by the peer is 8, reset 7


class Connection:
    """Serves one accepted, non-blocking socket until either end closes it. Closes the socket."""

    def __init__(self, sock: socket.socket, session: Session, services: Services) -> None:
        self._sock = sock
        self._session = session
        self._context = Context(session, services.pacer)
        self._services = services
        self._wire = services.wire
        self._produce_metrics = services.metrics.requests("produce", services.wire.name)
        self._reader = FrameReader(services.max_frame_bytes)
        self._sender = Sender(sock, session, services.slices, services.metrics)
        self._outbox = Outbox(self._sender, services)
        self._share: Share | None = None  # of the large frame that is being received
        self._stopping = False
        self._closed = False
        self._slow_since = 0.0  # since when the peer had not taken its reply when it was too long for the first time
        self._is_prompt = False  # whether the last request came at once after a reply
        self._receiving = False  # whether we wait for the peer: only then is silence the peer's
        self._wait: trio.CancelScope | None = None
        self.last_active = trio.current_time()

    # -- life --

    async def serve(self) -> None:
        """Receive and answer until the end. Returns however the connection ended; only defects of ours are raised."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, nursery.cancel_scope)
                try:
                    await self._receive_loop()
                    await self._answer_all()
                except (PeerGoneError, TruncatedSliceError, OSError) as error:
                    logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    async def _send(self, connection: trio.CancelScope) -> None:
        """The sending task; its end is the connection's."""
        try:
            await self._outbox.serve()
        except (PeerGoneError, TruncatedSliceError, OSError) as error:
            logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
            connection.cancel()

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
        """Whether the peer takes too long: to take its reply, or to say something while it is its turn.

        Within a frame, as for a reply, the slow-peer limit holds, between requests the idle limit. While a request is
        handled, a fetch waits, or we wait for room, what the peer sends stays in the socket, and its silence says
        nothing.
        """
        slow_peer_s = self._services.slow_peer_s
        waits_since = self._sender.waits_since
        if now - waits_since > slow_peer_s:
            if waits_since == self._slow_since:
                return True  # at the second look: after a freeze of the whole machine, the socket has its turn first
            self._slow_since = waits_since
        if not self._receiving:
            return False
        silent_s = now - max(self.last_active, self._outbox.last_sent)
        if self._reader.is_within_frame:
            return silent_s > slow_peer_s
        return not self._outbox and silent_s > idle_s

    def drop(self) -> None:
        """End the connection as if the peer had."""
        if not self._closed:
            shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and give back what was reserved."""
        if not self._closed:
            self._closed = True
            self._outbox.close()
            self._services.slices.forget(self._session)
            self._services.dispatcher.forget(self._session)
            if self._share is not None:
                self._services.inflight.release(self._share)
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    # -- receive --

    async def _receive_loop(self) -> None:
        reader, services = self._reader, self._services
        while not self._stopping:
            self._receiving = True
            count = await self._linger() if self._is_prompt else None
            while count is None:
                await trio.lowlevel.wait_readable(self._sock)
                count = self._receive_available()
            self._receiving = False
            if not count:
                return
            self.last_active = trio.current_time()
            self._is_prompt = self.last_active - self._outbox.last_sent < PROMPT_S and CAN_LINGER
            try:
                await self._take_frames()
            except FrameError as error:
                await self._refuse_stream(error)
                return
            if self._outbox:
                if services.writer.is_shared(self):
                    await trio.lowlevel.cancel_shielded_checkpoint()
                services.writer.write_queued()
                await self._outbox.flush()
            if reader.announced_bytes:
                await self._reserve(reader.announced_bytes)

    async def _linger(self) -> int | None:
        """Keep the loop awake for a peer that has been answering at once; as `_receive_available`.

        Falling asleep and being woken costs a virtual machine more than a small request does. Everyone else has their
        turn meanwhile, and as soon as another client writes the loop is awake anyway.
        """
        writer, until = self._services.writer, perf_counter() + PROMPT_S
        while perf_counter() < until and writer.is_alone(self):
            await trio.lowlevel.checkpoint()
            count = self._receive_available()
            if count is not None:
                return count
        return None

    async def _take_frames(self) -> None:
        """Queue or handle every whole frame of one read. Raises FrameError where the stream is out of step."""
        next_frame, decode, context = self._reader.next_frame, self._wire.decode, self._context
        begin_produce = self._services.dispatcher.begin_produce
        received_at = perf_counter()
        turn_ends = received_at + MAX_TURN_S
        run: Exchange | None = None  # the produces in a row
        while (frame := next_frame()) is not None:
            if run is None and perf_counter() > turn_ends:
                await trio.lowlevel.checkpoint()
                turn_ends = perf_counter() + MAX_TURN_S
            try:
                call, request = decode(frame, context)
            except ProtocolError as error:
                _handled(run)
                run = None
                await self._refuse(error, len(frame))
                continue
            if isinstance(request, ProduceRequest):
                produce = begin_produce(request, context)
                if produce is None:
                    _handled(run)
                    run = None  # it may be answered while we wait
                    produce = await self._prepare_and_begin(request)
                if run is None:
                    run = Exchange(received_at, self._produce_metrics)
                    run.begun_at = perf_counter()
                    self._services.guard.begin("produce")
                    self._outbox.add(run)
                run.produces.append((call, produce))
                self._keep(run, len(frame))
            else:
                _handled(run)
                run = None
                await self._handle(call, request, len(frame), received_at)
        _handled(run)

    def _receive_available(self) -> int | None:
        """Receive what is there into the frame reader: how many bytes, 0 at the end of the stream, None if nothing."""
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
            return None
        self._services.metrics.bytes_in.add(count)
        return count

    async def _reserve(self, size: int) -> None:
        """Before a large frame gets memory: wait until all connections together hold few enough bytes."""
        if self._share is None:
            self._share = Share()
        await self._services.inflight.grow(self._share, size)
        self.last_active = trio.current_time()

    async def _prepare_and_begin(self, request: ProduceRequest) -> Produce:
        """Create the topics that a request is the first to use, then queue it."""
        dispatcher = self._services.dispatcher
        self._services.writer.write_queued()
        await dispatcher.prepare(request)
        produce = dispatcher.begin_produce(request, self._context, create=False)
        assert produce is not None
        return produce

    async def _handle(self, call: Any, request: Request, size: int, received_at: float) -> None:
        """Answer all that came before, then handle a request and put its reply into the outbox."""
        await self._answer_all()
        dispatcher = self._services.dispatcher
        metrics = self._services.metrics.requests(request.api, self._wire.name)
        exchange = Exchange(received_at, metrics)
        exchange.begun_at = perf_counter()
        self._services.guard.begin(request.api)
        if isinstance(request, FetchRequest):
            found = dispatcher.fetch_now(request, self._context)
            exchange.handled_at = perf_counter()
            response = (
                await self._while_there(partial(dispatcher.fetch_later, found, self._context))
                if isinstance(found, Fetch)
                else found
            )
        else:
            handle = partial(dispatcher.handle, request, self._context)
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
        self._outbox.add(exchange)
        self._keep(exchange, size)

    def _keep(self, exchange: Exchange, size: int) -> None:
        """Count a request against the connection's limits until it is answered."""
        self._outbox.count(exchange, size, self._share)
        self._share = None

    async def _answer_all(self) -> None:
        """Return when everything that came is answered."""
        self._services.writer.write_queued()
        await self._outbox.flush_all()

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
