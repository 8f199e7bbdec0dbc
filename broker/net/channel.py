"""One client's connection in the serving turn: receives, begins requests and sends replies without blocking.

    ready    receive, and begin every request that ordering and limits allow:
               produce   queued; written at the end of the turn together with those of other connections
               fetch     answered from available data, or pending
               others    a task runs the handler
    finish   encode and send finished replies in order, then begin requests that were waiting for that

Kafka mutes a channel while it processes a request. Likewise, while a request of this connection is being handled, no
other is begun, except for consecutive produces. Bytes that arrive in the meantime stay in the socket.

Invariants:
1. Every request other than a produce is begun after all replies before it have been sent.
2. While a reply does not fit into the socket, no request is begun.
3. Callbacks from elsewhere only schedule the channel, with `ServingTurn.due` or `again`.
4. While the client pauses for a quota, no request is begun, and nothing is received unless a side closes.
5. A peer that has closed its sending side gets replies to all it has sent. It may be gone, though, which only shows
   when something is sent, so a request that waits for data or for a group is given limited time.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from time import perf_counter
from typing import Any

import trio

from warmlog.broker.api.context import Session
from warmlog.broker.api.fetch.fetch import Fetch
from warmlog.broker.net.connection import Connection, Exchange
from warmlog.broker.net.large_work import LargeWork
from warmlog.broker.net.memory_budget import UNCOUNTED_BYTES, Share
from warmlog.broker.net.pause import Pause
from warmlog.broker.net.pending_fetch import PendingFetch
from warmlog.broker.net.sender import Sender
from warmlog.broker.net.sendfile import FULL, MORE, SENT, TruncatedSliceError
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.transport import Transport
from warmlog.broker.security.sasl import Login
from warmlog.protocol.errors import FrameError, ProtocolError
from warmlog.protocol.kafka.codec.bounds import LargeMessageError
from warmlog.protocol.request import FetchRequest, ProduceRequest
from warmlog.protocol.response import Response

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10  # per read: about 300 small requests; larger frames are received into their own buffer
MAX_RECEIVE_BYTES = 1 << 20  # per read into such a buffer: half a millisecond
MAX_REQUESTS = 16  # begun at once; others come before this connection's next ones
# How long a request of a group waits for other members after its peer has closed its side. Such a peer is hardly ever
# half-closed, but a member that died, whose session should begin to expire.
HALF_CLOSED_MEMBER_S = 5.0
READING = EPOLLIN | EPOLLRDHUP
FAILED = EPOLLHUP | EPOLLERR  # always reported


class Channel:
    """Serves one connection until either end closes it. Closes its transport."""

    def __init__(
        self,
        transport: Transport,
        session: Session,
        services: Services,
        closed: Callable[["Channel"], None],
        received: bytes = b"",
    ) -> None:
        """Register with the serving turn. `closed` is called once, when the channel has closed. Raises OSError.

        `received`: bytes that were received before.
        """
        self.connection = Connection(
            session,
            services.wire_of(session),
            services.pacer,
            perf_counter(),
            max_frame_bytes=services.max_frame_bytes,
            max_requests=services.max_requests,
        )
        self.is_due = self.is_left_over = False  # see Served
        self.is_closed = False
        self._transport = transport
        self._fd = transport.fd
        self._session = session
        self._services = services
        self._turn = services.turn
        self._closed = closed
        self._sender = Sender(transport, session, services, self)
        self._reply_share = Share(self, session.peer[0], self.connection.sending)  # of `Services.replies`
        self._request_share = Share(self, session.peer[0], self.connection.receiving)  # of `_requests`
        self._requests = services.requests if session.login is None else services.logins
        self._large = LargeWork(self.connection, services, self, self._reply_share)
        self._pause = Pause(self, self.connection, services.turn)
        self._quotas = services.quotas
        self._interest = READING
        self._lacks_room = False  # the frame being received waits for memory
        self._next: tuple[Any, Any, int] | None = None  # decoded; begun once all earlier replies are sent
        self._handled: Exchange | None = None  # the request being handled; no other is begun until it is answered
        self._fetch: PendingFetch | None = None  # that request, if it is a pending fetch
        self._waiting: trio.CancelScope | None = None  # its task, if it waits only for the peer's sake
        self._is_behind = False  # complete frames may be buffered whose requests are not begun
        self._has_ended = False  # no more bytes will be received
        self._peer_has_ended = False  # its side is closed, and bytes may be left to read
        self._is_stopping = False
        self._is_broken = False  # no more requests are begun; the channel closes once all are answered
        self._is_leaving = False  # all that will be sent is sent; the peer's bytes are dropped until it closes
        if session.login is not None:
            self._limit_frames(session.login)
        services.turn.add(self, self._fd, READING)
        if received:
            services.metrics.bytes_in.add(self._take(received))
            self._is_behind = True
            self._turn.again(self)

    # -- turns --

    def ready(self, events: int) -> None:
        """Receive or send as epoll reports; with 0, continue with what was left over from the last turn."""
        if self.is_closed:
            return
        try:
            if self._sender and (events & EPOLLOUT or not events):
                self._send()
            if events & ~EPOLLOUT:
                self._readable(events)
            if self._is_behind and not self.is_left_over:
                self._advance()
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def finish(self, now: float) -> None:
        """Send finished replies at the end of a turn."""
        if self.is_closed:
            return
        try:
            if self._fetch is not None:
                response = self._fetch.resume()
                if response is not None:
                    self._take_response(response)
            self._answer(now)
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def handed_back(self, sent: int) -> None:
        """Continue after a thread has sent replies, or as much of them as the socket accepted."""
        self._sender.handed_back(sent)
        if self.is_closed:
            return
        try:
            self._send()
            if self._is_behind:
                self._advance()
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def broke(self) -> None:
        """Close the connection after an unexpected exception."""
        self.close()

    def _settled(self) -> None:
        self._turn.due(self)

    def _proceed(self) -> None:
        """Schedule what comes next: requests that had to wait, receiving, or closing."""
        if self.is_closed:
            return
        connection = self.connection
        if self._is_broken:
            if not self._sender and connection.must_close:
                self.close()
            elif not self._sender and connection.is_answered:
                self._leave()
            else:
                self._set_interest(self._interest & EPOLLOUT)
        elif self._is_behind:
            if self._may_begin and (self._next is None or connection.is_answered):
                self._turn.again(self)
        elif self._has_ended:
            if connection.is_answered:
                self.close()
            else:
                self._set_interest(self._interest & EPOLLOUT)
        elif self._interest != READING and self.is_receiving:
            self._set_interest(READING)

    # -- life --

    def stop(self) -> None:
        """Receive no more; answer the requests that were received, then close.

        A request that waits for data or for a group is dropped without a reply, since nothing will arrive for it.
        """
        self._is_stopping = True
        self._pause.end()
        if self._fetch is not None:
            self.close()
        if self._waiting is not None:
            self._waiting.cancel()
        if not self.is_closed:
            self._transport.shutdown(socket.SHUT_RD)

    def _leave(self) -> None:
        """End the stream of replies, and close when the peer has closed, too, or takes too long.

        Closing at once while the peer sends would reset the connection, and the peer might not see the last reply.
        """
        if self._has_ended:
            self.close()
        elif not self._is_leaving:
            self._is_leaving = True
            self._requests.release(self._request_share)
            self.connection.sending.begin(perf_counter())
            self._transport.shutdown(socket.SHUT_WR)
            self._set_interest(READING)

    def close_overdue(self, now: float, idle_s: float) -> None:
        """Close the connection if its peer exceeds a time limit."""
        services, login = self._services, self._session.login
        if login is not None and login.overdue(now):
            services.evicted(self._session, "login", "has not authenticated in time")
            self.close()
            return
        overdue = self.connection.overdue(
            now,
            slow_peer_s=services.slow_peer_s,
            min_rate=services.slow_peer_bytes,
            idle_s=idle_s,
            is_receiving=self.is_receiving,
        )
        if overdue is None and self._reads_deleted_file(now):
            overdue = "reads a deleted segment too slowly"
        if overdue is None:
            return
        if overdue:
            services.evicted(self._session, "slow", overdue)
        self.close()

    def _reads_deleted_file(self, now: float) -> bool:
        """Whether the reply has kept a deleted file, and its space on the disk, for longer than a slow peer may."""
        if now - self.connection.sending.since <= self._services.slow_peer_s:
            return False
        sending = self._sender.slice
        return sending is not None and os.fstat(sending.piece.descriptor.fd).st_nlink == 0

    def evict(self, why: str) -> None:
        """Close the connection for the sake of others that wait for memory."""
        self._services.evicted(self._session, "memory", why)
        self.close()

    def close(self) -> None:
        """Close the socket and release everything reserved for the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        self._pause.close()
        self._turn.remove(self._fd)
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None  # breaks a reference cycle
        if self._waiting is not None:
            self._waiting.cancel()
        self._next = None
        self._services.slices.forget(self._session)
        self._services.dispatcher.forget(self._session)
        self._request_share.holder = self._reply_share.holder = None  # breaks a reference cycle
        self._requests.release(self._request_share)
        self._large.close()
        if not self._large.is_encoding:
            self._services.replies.release(self._reply_share)
        if self._handled is None:
            self.connection.context.end()
        self._sender.close()
        self._closed(self)

    def _lost(self, error: Exception) -> None:
        logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
        self.close()

    def _limit_wait(self) -> None:
        """Limit the time of the request being handled, because the peer has closed its side."""
        if self._fetch is not None:
            self._fetch.limit_wait(self._services.slow_peer_s)
        if self._waiting is not None:
            self._waiting.deadline = trio.current_time() + HALF_CLOSED_MEMBER_S

    # -- receive --

    @property
    def is_receiving(self) -> bool:
        """Whether the channel waits for bytes from the peer; only then does the idle timeout apply."""
        return not (self._is_behind or self._lacks_room or self._has_ended or self._is_broken) and self._may_begin

    def _readable(self, events: int) -> None:
        if self.is_receiving:
            self._receive()
        elif self._is_leaving:
            with suppress(BlockingIOError):
                if not self._transport.recv(RECEIVE_BYTES):
                    self.close()
        elif events & FAILED:
            self.close()
        elif events & EPOLLRDHUP:  # bytes may be left to read before the end of the stream
            self._set_interest(self._interest & ~READING)
            self._peer_has_ended = True
            self._limit_wait()
            self._pause.end()
        else:
            self._set_interest(self._interest & ~EPOLLIN)

    def _receive(self) -> None:
        connection = self.connection
        try:
            buffer = connection.reader.buffer_for_next()
            if buffer is None or not self._transport.is_plain:
                count = self._take(self._transport.recv(RECEIVE_BYTES))
            else:
                count = self._transport.recv_into(buffer[:MAX_RECEIVE_BYTES])
                connection.received(count, self._turn.began_at)
        except BlockingIOError:
            return
        finally:
            if self._transport.unsent_bytes:  # TLS has answered by itself
                self._set_interest(self._interest | EPOLLOUT)
        if count:
            self._services.metrics.bytes_in.add(count)
            self._is_behind = True
        if not count or self._is_stopping:
            self._has_ended = True

    def _take(self, data: bytes) -> int:
        self.connection.receive(data, self._turn.began_at)
        return len(data)

    def _count_requests(self) -> None:
        """Count the memory held for requests; receiving stops until the budget allows the next step of a large frame.

        A request that waits, for data or for other clients, is not in progress: its connection is closed rather than
        one that moves a message.
        """
        connection, share, requests = self.connection, self._request_share, self._requests
        held = connection.held_bytes + self._transport.received_bytes
        if held <= UNCOUNTED_BYTES:
            if share.size:
                requests.release(share)
            return
        if self._fetch is not None or self._waiting is not None:
            connection.receiving.begin(self._turn.began_at)
        if held < share.size:
            requests.shrink(share, held)
            return
        announced = connection.reader.announced_bytes
        if held - announced > share.size:
            requests.charge(share, held - announced)
        if held > share.size and not self._lacks_room:
            self._lacks_room = not requests.grow(share, held - share.size, self._room_granted)

    def _room_granted(self) -> None:
        self._lacks_room = False
        self.connection.last_received = perf_counter()
        self._turn.again(self)

    def _set_interest(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._turn.change(self._fd, interest)

    # -- requests --

    @property
    def _may_begin(self) -> bool:
        """Whether ordering and limits allow another request to be decoded."""
        return (
            self._handled is None
            and not self._large.is_decoding
            and not self._sender
            and not self.connection.is_full
            and not self._pause.is_on
        )

    def _advance(self) -> None:
        """Begin the requests that have been received completely, as far as ordering and limits allow."""
        self._begin_received()
        self._count_requests()

    def _begin_received(self) -> None:
        connection, turn = self.connection, self._turn
        begin_produce, context = self._services.dispatcher.begin_produce, connection.context
        quotas = self._quotas
        run: Exchange | None = None  # of consecutive produces
        now, left = turn.began_at, MAX_REQUESTS
        if self._next is not None:
            self._begin_next()
        while self._next is None and self._may_begin and not self._is_broken:
            if not left or now > turn.ends_at:
                turn.again(self)
                return
            left -= 1
            try:
                received = connection.next_request()
            except ProtocolError as error:
                run = None
                self._refuse(error)
                continue
            if received is None:
                self._is_behind = False
                return
            call, request, size = received
            if not isinstance(request, ProduceRequest):
                run = None
                self._next = received
                self._begin_next()
                continue
            produce = begin_produce(request, context)
            if run is None or produce is None:
                run = self._new_exchange("produce", call)
                turn.due(self)
            connection.count(run, size)
            if produce is None:
                self._handled = run
                turn.spawn(self, partial(self._begin_large, run, request))
                return
            run.produces.append((call, produce))
            began, now = now, turn.guard.begin("produce")
            run.handled_at = now
            if quotas.is_on:
                self._session.worked_s += now - began
                self._charge_produce(run, size, is_timed=request.acks != 0)

    def _new_exchange(self, api: str, call: Any) -> Exchange:
        """Add an exchange to the reply queue."""
        exchange = Exchange(self._turn.began_at, self._services.api_metrics(api), call)
        exchange.begun_at = exchange.handled_at = self._turn.guard.begin(api)
        self.connection.add(exchange)
        return exchange

    async def _begin_large(self, exchange: Exchange, request: ProduceRequest) -> None:
        """Queue a produce that takes longer than a turn."""
        context = self.connection.context
        work = self._services.dispatcher.begin_large_produce(request, context, partial(self._turn.write_queued, 1))
        if self._quotas.is_on:
            produce = await context.timed(work)
            self._charge_produce(exchange, exchange.size, is_timed=request.acks != 0)
        else:
            produce = await work
        exchange.produces.append((exchange.call, produce))
        exchange.handled_at = perf_counter()
        self._handled = None
        context.end()
        self._turn.due(self)

    def _charge_produce(self, exchange: Exchange, size: int, *, is_timed: bool) -> None:
        """Record the last produce of an exchange, and pause if it exceeds a quota."""
        session = self._session
        throttle_ms = max(session.throttle_ms, self._quotas.produced(session, size, is_timed=is_timed))
        session.throttle_ms = 0
        if throttle_ms and not self._is_stopping:
            exchange.throttle_ms = throttle_ms
            self._pause.begin(throttle_ms)

    def _begin_next(self) -> None:
        """Begin the next request once all replies before it are sent."""
        if not self.connection.is_answered:
            self._turn.due(self)
            return
        assert self._next is not None
        call, request, size = self._next
        self._next = None
        exchange = self._handled = self._new_exchange(request.api, call)
        self.connection.count(exchange, size)
        if isinstance(request, FetchRequest):
            self._fetch_now(exchange, request)
        elif request.may_wait and self._is_stopping:
            self.close()
        else:
            self._turn.spawn(self, partial(self._handle, request))

    def _fetch_now(self, exchange: Exchange, request: FetchRequest) -> None:
        dispatcher, context = self._services.dispatcher, self.connection.context
        found = dispatcher.fetch_now(request, context)
        exchange.handled_at = perf_counter()
        if not isinstance(found, Fetch):
            self._take_response(found)
            return
        self._fetch = PendingFetch(found, context, dispatcher, self, self._turn)
        if self._is_stopping:
            self.close()
        elif self._has_ended or self._peer_has_ended:
            self._limit_wait()

    async def _handle(self, request: Any) -> None:
        """Run the handler of a request other than produce and fetch."""
        handle, context = self._services.dispatcher.handle, self.connection.context
        response: Response | None = None
        if request.may_wait:
            with trio.CancelScope() as self._waiting:
                if self._has_ended or self._peer_has_ended:
                    self._limit_wait()
                response = await handle(request, context)
            self._waiting = None
        else:
            response = await handle(request, context)
        login = self._session.login
        if login is not None:
            self._limit_frames(login)
        if response is None:
            context.end()
            self.close()
        elif self.is_closed:
            context.end()
            self._large.free([response])
        else:
            assert self._handled is not None
            self._handled.handled_at = perf_counter()
            self._take_response(response)

    def _limit_frames(self, login: Login) -> None:
        """Apply what the state of a login allows; after a failed one, close with its reply."""
        limit = login.max_frame_bytes
        self.connection.reader.max_frame_bytes = self._services.max_frame_bytes if limit is None else limit
        if login.principal is not None and self._requests is not self._services.requests:
            self._requests.release(self._request_share)
            self._requests = self._services.requests
        if login.has_failed:
            self.connection.must_close = True

    def _take_response(self, response: Response) -> None:
        """Store the response of the request being handled, after which the client may have to pause."""
        assert self._handled is not None
        session = self._session
        if session.throttle_ms:
            if not self._is_stopping:
                self._handled.throttle_ms = session.throttle_ms
                self._pause.begin(session.throttle_ms)
            session.throttle_ms = 0
        self._handled.response = response
        self._handled = self._fetch = None
        self._turn.due(self)

    def _refuse(self, error: ProtocolError) -> None:
        """Handle a frame that could not be decoded. After anything but a FrameError the next frame can still be found.

        When the protocol has no error reply for it, or the next frame cannot be found, the channel closes after
        everything before it is answered. A frame that is merely large (LargeMessageError) is decoded in a task.
        """
        if isinstance(error, LargeMessageError):
            self._large.decode()
            return
        refusal = self._services.wire.refusal(error)
        if refusal is None:
            self._services.log_closed(self._session, error)
        else:
            exchange = self._new_exchange("invalid", refusal.call)
            exchange.response = refusal.response
            self.connection.count(exchange, 0)
        self._is_broken = refusal is None or isinstance(error, FrameError)
        self._turn.due(self)

    # -- replies --

    def _answer(self, now: float) -> None:
        """Send finished replies, and watch the first unfinished one."""
        connection = self.connection
        began = perf_counter() if self._quotas.is_on else 0.0
        items = connection.take_replies(now)
        if began:
            self._session.worked_s += perf_counter() - began
        if connection.released:
            self._large.free_released()
        if connection.has_unsent:
            if items:
                self._sender.put(items)
            self._send()
        if connection.must_close:
            self._is_broken = True
        elif connection.large_reply is None:
            connection.watch_first(self._settled)
            if self._handled is None:
                connection.context.end()
        else:
            self._large.encode()

    def _send(self) -> None:
        """Send as much as the socket accepts."""
        connection, sender = self.connection, self._sender
        before = sender.sent_bytes
        state = sender.send()
        connection.sending.moved += sender.sent_bytes - before
        if state == SENT:
            now = perf_counter()
            connection.sent(now)
            if self._reply_share.size and not self._large.is_encoding:
                self._services.replies.release(self._reply_share)
            if self._request_share.size:
                self._count_requests()
            self._set_interest(self._interest & ~EPOLLOUT)
        elif state == FULL:
            connection.sending.begin(perf_counter())
            self._count_replies()
            self._set_interest(self._interest | EPOLLOUT)
        elif state == MORE:
            self._turn.again(self)
        else:
            connection.sending.end()  # what the broker does meanwhile is not the peer's slowness

    def _count_replies(self) -> None:
        """Count the memory held for replies that the peer does not read."""
        held = self._sender.held_bytes
        if held > max(UNCOUNTED_BYTES, self._reply_share.size):
            self._services.replies.charge(self._reply_share, held)
