"""One client's connection in the serving turn: receives, begins requests and sends replies without blocking.

    ready    receive, and begin all requests that ordering and limits allow:
               produce   queued; written at the end of the turn together with those of other connections
               fetch     answered from available data, or pending
               others    a task runs the handler
    finish   encode and send finished replies in order, then begin requests that waited for them

`RequestHandling` decides which requests may be begun. While none may, received bytes stay in the socket.

Invariants:
1. Callbacks of other objects only schedule the channel, with `ServingTurn.due` or `again`.
2. While the client pauses for a quota, nothing is received unless a side closes.
3. A channel that ends because of an invalid request, or because the peer has closed its side, first replies to all
   earlier requests.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from time import perf_counter
from typing import Final

from warmlog.broker.api.context import Session
from warmlog.broker.net.connection import Connection
from warmlog.broker.net.large_work import LargeWork
from warmlog.broker.net.memory_budget import UNCOUNTED_BYTES, Share
from warmlog.broker.net.request_handling import RequestHandling
from warmlog.broker.net.request_memory import RequestMemory
from warmlog.broker.net.sender import Sender
from warmlog.broker.net.sendfile import FULL, MORE, SENT, TruncatedSliceError
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.transport import Transport
from warmlog.broker.net.turns.served import Served

logger = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 << 10  # bytes per read: about 300 small requests; larger frames have their own buffer
MAX_RECEIVE_BYTES: Final = 1 << 20  # bytes per read into such a buffer: half a millisecond
SENDING: Final = EPOLLOUT
READING: Final = EPOLLIN | EPOLLRDHUP
FAILED: Final = EPOLLHUP | EPOLLERR  # reported by epoll without being requested


class Channel(Served):
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
        super().__init__()
        self.connection = Connection(
            session,
            services.wire_of(session),
            services.pacer,
            perf_counter(),
            max_frame_bytes=services.max_frame_bytes,
            max_requests=services.max_requests,
        )
        self.is_closed = False
        self._transport = transport
        self._fd = transport.fd
        self._session = session
        self._services = services
        self._turn = services.turn
        self._closed = closed
        self._sender = Sender(transport, session, services, self)
        self._reply_share = Share(self, session.peer[0], self.connection.sending)  # of `Services.replies`
        request_share = Share(self, session.peer[0], self.connection.receiving)
        self._memory = RequestMemory(self.connection, transport, services, self, request_share)
        self._large = LargeWork(self.connection, services, self, self._reply_share)
        self._handling = RequestHandling(
            self.connection, services, self, sender=self._sender, large=self._large, memory=self._memory
        )
        self._interest = READING
        self._has_ended = False  # no more bytes are received
        self._is_leaving = False  # everything is sent; bytes of the peer are dropped until it closes
        services.turn.add(self, self._fd, READING)
        if received:
            services.metrics.bytes_in.add(self._take(received))
            self._handling.is_behind = True
            self._turn.again(self)

    # -- turns --

    def ready(self, events: int) -> None:
        """Receive or send as epoll reports; with 0, continue with work left from the last turn."""
        if self.is_closed:
            return
        try:
            if self._sender and (events & SENDING or not events):
                self._send()
            if events & ~SENDING:
                self._readable(events)
            if self._handling.is_behind and not self.is_left_over:
                self._advance()
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def finish(self, now: float) -> None:
        """Send finished replies at the end of a turn."""
        if self.is_closed:
            return
        try:
            self._handling.resume_fetch()
            self._answer(now)
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def handed_back(self, sent: int) -> None:
        """Resume when a thread has sent the replies handed over, or as much as the socket accepted."""
        self._sender.handed_back(sent)
        if self.is_closed:
            return
        try:
            self._send()
            if self._handling.is_behind:
                self._advance()
            self._proceed()
        except (OSError, TruncatedSliceError) as error:
            self._lost(error)

    def _settled(self) -> None:
        self._turn.due(self)

    def _proceed(self) -> None:
        """Schedule the next step: requests that had to wait, receiving, or closing."""
        if self.is_closed:
            return
        connection, handling = self.connection, self._handling
        if handling.has_failed:
            if not self._sender and connection.must_close:
                self.close()
            elif not self._sender and connection.is_answered:
                self._leave()
            else:
                self._set_interest(self._interest & SENDING)
        elif handling.is_behind:
            if handling.may_continue:
                self._turn.again(self)
        elif self._has_ended:
            if connection.is_answered:
                self.close()
            else:
                self._set_interest(self._interest & SENDING)
        elif self._interest != READING and self.is_receiving:
            self._set_interest(READING)

    # -- closing --

    def stop(self) -> None:
        """Stop receiving, answer the received requests that do not wait, then close."""
        self._handling.stop()
        if not self.is_closed:
            self._transport.shutdown(socket.SHUT_RD)

    def _leave(self) -> None:
        """End the stream of replies, and close when the peer has closed as well, or takes too long.

        Closing immediately while the peer sends would reset the connection, and the peer might not see the last reply.
        """
        if self._has_ended:
            self.close()
        elif not self._is_leaving:
            self._is_leaving = True
            self._memory.release()
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
        """Return whether the reply has held a deleted file, and its disk space, for longer than is allowed."""
        if now - self.connection.sending.since <= self._services.slow_peer_s:
            return False
        sending = self._sender.slice
        return sending is not None and os.fstat(sending.piece.descriptor.fd).st_nlink == 0

    def evict(self, why: str) -> None:
        """Close the connection to free memory that others wait for."""
        self._services.evicted(self._session, "memory", why)
        self.close()

    def close(self) -> None:
        """Close the socket and release everything reserved for the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        self._turn.remove(self._fd)
        self._handling.close()
        self._services.slices.forget(self._session)
        self._services.dispatcher.forget(self._session)
        self._memory.close()
        self._reply_share.holder = None  # breaks a reference cycle
        self._large.close()
        if not self._large.is_encoding:
            self._services.replies.release(self._reply_share)
        if self._handling.is_idle:
            self.connection.context.end()
        self._sender.close()
        self._closed(self)

    def _lost(self, error: Exception) -> None:
        logger.debug("connection of %s:%d ended: %s", *self._session.peer, error)
        self.close()

    # -- receive --

    @property
    def is_receiving(self) -> bool:
        """Whether the channel waits for bytes from the peer; the idle timeout applies only then."""
        handling = self._handling
        is_blocked = handling.is_behind or self._memory.is_short or self._has_ended or handling.has_failed
        return not is_blocked and handling.may_begin

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
            self._handling.peer_closed()
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
            if self._transport.unsent_bytes:  # TLS has generated an answer
                self._set_interest(self._interest | SENDING)
        if count:
            self._services.metrics.bytes_in.add(count)
            self._handling.is_behind = True
        else:
            self._handling.peer_closed()
        if not count or self._handling.is_stopping:
            self._has_ended = True

    def _take(self, data: bytes) -> int:
        self.connection.receive(data, self._turn.began_at)
        return len(data)

    def _advance(self) -> None:
        """Begin received requests, and account for the memory of unanswered ones."""
        self._handling.begin_received()
        self._memory.count(is_waiting=self._handling.is_waiting)

    def _set_interest(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self._turn.change(self._fd, interest)

    # -- replies --

    def _answer(self, now: float) -> None:
        """Send finished replies, and watch the first unfinished one."""
        connection = self.connection
        began = perf_counter() if self._services.quotas.is_on else 0.0
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
            self._handling.has_failed = True
        elif connection.large_reply is None:
            if connection.has_untaken:
                connection.watch_first(self._settled)
            if self._handling.is_idle:
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
            if self._memory.is_counted:
                self._memory.count(is_waiting=self._handling.is_waiting)
            self._set_interest(self._interest & ~SENDING)
        elif state == FULL:
            connection.sending.begin(perf_counter())
            self._count_replies()
            self._set_interest(self._interest | SENDING)
        elif state == MORE:
            self._turn.again(self)
        else:
            connection.sending.end()  # the peer is not slow while the broker is busy

    def _count_replies(self) -> None:
        """Account for the memory held for replies that the peer does not read."""
        held = self._sender.held_bytes
        if held > max(UNCOUNTED_BYTES, self._reply_share.size):
            self._services.replies.charge(self._reply_share, held)
