"""Begin the requests of one connection in order as they are received, handle them, and charge quotas.

Kafka mutes a channel while it processes a request. Likewise, while a request of this connection is being handled, no
other is begun, except for consecutive produces. Frames that arrive in the meantime stay undecoded.

Invariants:
1. Every request other than a produce is begun after all replies before it have been sent.
2. While a reply does not fit into the socket, no request is begun.
3. While the client pauses for a quota, no request is begun.
4. A peer that has closed its sending side gets replies to everything it has sent. But the peer may be gone, which is
   detected only when a reply is sent, so a request that waits for data or for a group gets limited time.
"""

from functools import partial
from time import perf_counter
from typing import Any, Final

import trio

from warmlog.broker.api.fetch.fetch import Fetch
from warmlog.broker.net.connection import Connection, Exchange
from warmlog.broker.net.large_work import LargeWork
from warmlog.broker.net.pause import Pause
from warmlog.broker.net.pending_fetch import PendingFetch
from warmlog.broker.net.request_memory import RequestMemory
from warmlog.broker.net.sender import Sender
from warmlog.broker.net.services import Services
from warmlog.broker.net.turns.served import Served
from warmlog.broker.security.sasl import Login
from warmlog.protocol.errors import FrameError, ProtocolError
from warmlog.protocol.kafka.codec.bounds import LargeMessageError
from warmlog.protocol.request import FetchRequest, ProduceRequest
from warmlog.protocol.response import Response

MAX_REQUESTS: Final = 16  # begun in one turn; then other connections are served
# How long a group request waits for other members after its peer has closed its side. Such a peer is hardly ever
# half-closed; it is a member that died, whose session should begin to expire.
HALF_CLOSED_MEMBER_S = 5.0


class RequestHandling:
    """Takes requests from a `Connection` and adds exchanges; the channel becomes due when a reply may be ready."""

    __slots__ = (
        "_connection",
        "_fetch",
        "_handled",
        "_is_half_closed",
        "_is_late",
        "_large",
        "_memory",
        "_next",
        "_owner",
        "_pause",
        "_quotas",
        "_sender",
        "_services",
        "_session",
        "_turn",
        "_waiting",
        "has_failed",
        "is_behind",
        "is_stopping",
    )

    def __init__(
        self,
        connection: Connection,
        services: Services,
        owner: Served,
        *,
        sender: Sender,
        large: LargeWork,
        memory: RequestMemory,
    ) -> None:
        """`owner` is the channel."""
        session = connection.session
        self.is_behind = False  # complete frames may be buffered whose requests have not begun
        self.is_stopping = False
        self.has_failed = False  # no more requests are begun; the channel closes once all are answered
        self._connection = connection
        self._session = session
        self._services = services
        self._turn = services.turn
        self._quotas = services.quotas
        self._owner: Served | None = owner  # None once closed, which breaks a reference cycle
        self._sender = sender
        self._large = large
        self._memory = memory
        self._pause = Pause(owner, connection, services.turn)
        self._is_half_closed = False  # the peer has closed its side
        self._next: tuple[Any, Any, int] | None = None  # decoded; begun once all earlier replies are sent
        self._is_late = False  # it has waited for them since it was decoded
        self._handled: Exchange | None = None  # the request being handled; no other is begun until it is answered
        self._fetch: PendingFetch | None = None  # the same request, if it is a pending fetch
        self._waiting: trio.CancelScope | None = None  # its task, if it only waits on the peer's behalf
        if session.login is not None:
            self._apply_login(session.login)

    # -- for the channel --

    @property
    def may_begin(self) -> bool:
        """Whether ordering and limits allow another request to be decoded."""
        return (
            self._handled is None
            and not self._large.is_decoding
            and not self._sender
            and not self._connection.is_full
            and not self._pause.is_on
        )

    @property
    def may_continue(self) -> bool:
        """Whether the next request, decoded or not, may be begun."""
        return self.may_begin and (self._next is None or self._connection.is_answered)

    @property
    def is_waiting(self) -> bool:
        """Whether the request being handled waits, for data or for other clients."""
        return self._fetch is not None or self._waiting is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being handled, except for produces."""
        return self._handled is None

    def peer_closed(self) -> None:
        """Limit the time of waiting requests, and end a pause, because the peer has closed its side."""
        self._is_half_closed = True
        self._limit_wait()
        self._pause.end()

    def stop(self) -> None:
        """Answer the received requests that do not wait.

        A request that waits for data or for a group is dropped without a reply, since nothing will arrive for it.
        """
        self.is_stopping = True
        self._pause.end()
        if self._fetch is not None:
            self._close_channel()
        if self._waiting is not None:
            self._waiting.cancel()

    def resume_fetch(self) -> None:
        """Take the response of a pending fetch if it has enough data."""
        if self._fetch is not None:
            response = self._fetch.resume()
            if response is not None:
                self._take_response(response)

    def close(self) -> None:
        """Cancel waiting requests, for a connection that closes."""
        self._owner = None
        self._pause.close()
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None  # breaks a reference cycle
        if self._waiting is not None:
            self._waiting.cancel()
        self._next = None
        self.is_behind = False

    def begin_received(self) -> None:
        """Begin the requests that have been received completely, as far as ordering and limits allow."""
        connection, turn, owner = self._connection, self._turn, self._owner
        assert owner is not None
        begin_produce, context = self._services.dispatcher.begin_produce, connection.context
        quotas = self._quotas
        run: Exchange | None = None  # of consecutive produces
        now, left = turn.began_at, MAX_REQUESTS
        if self._next is not None:
            self._begin_next()
        while self._next is None and self.may_begin and not self.has_failed:
            if not left or now > turn.ends_at:
                turn.again(owner)
                return
            left -= 1
            try:
                received = connection.next_request()
            except ProtocolError as error:
                run = None
                self._refuse(error)
                continue
            if received is None:
                self.is_behind = False
                return
            call, request, size = received
            if not isinstance(request, ProduceRequest):
                run = None
                self._next = received
                self._begin_next()
                continue
            connection.drop_frame()  # these are large, and never wait
            produce = begin_produce(request, context)
            if run is None or produce is None:
                run = self._new_exchange("produce", call)
                turn.due(owner)
            connection.count(run, size)
            if produce is None:
                self._handled = run
                turn.spawn(owner, partial(self._begin_large, run, request))
                return
            run.produces.append((call, produce))
            began, now = now, turn.guard.begin("produce")
            run.handled_at = now
            if quotas.is_on:
                self._session.worked_s += now - began
                self._charge_produce(run, size, is_timed=request.acks != 0)

    # -- produces --

    async def _begin_large(self, exchange: Exchange, request: ProduceRequest) -> None:
        """Queue a produce that takes longer than a turn."""
        context = self._connection.context
        work = self._services.dispatcher.begin_large_produce(request, context, self._turn.write_queued)
        if self._quotas.is_on:
            produce = await context.timed(work)
            self._charge_produce(exchange, exchange.size, is_timed=request.acks != 0)
        else:
            produce = await work
        exchange.produces.append((exchange.call, produce))
        exchange.handled_at = perf_counter()
        self._handled = None
        context.end()
        self._become_due()

    def _charge_produce(self, exchange: Exchange, size: int, *, is_timed: bool) -> None:
        """Charge the last produce of an exchange, and pause if it exceeds a quota."""
        session = self._session
        throttle_ms = max(session.throttle_ms, self._quotas.produced(session, size, is_timed=is_timed))
        session.throttle_ms = 0
        if throttle_ms and not self.is_stopping:
            exchange.throttle_ms = throttle_ms
            self._pause.begin(throttle_ms)

    # -- other requests --

    def _begin_next(self) -> None:
        """Begin the next request once all replies before it are sent.

        One that had to wait is decoded again: its topic ids now name other topics if these were deleted and recreated.
        """
        connection = self._connection
        if not connection.is_answered:
            self._is_late = True
            self._become_due()
            return
        assert self._next is not None
        call, request, size = self._next
        self._next = None
        if self._is_late:
            self._is_late = False
            try:
                call, request, size = connection.decode_again()
            except ProtocolError as error:
                self._refuse(error)
                return
        connection.drop_frame()
        exchange = self._handled = self._new_exchange(request.api, call)
        self._connection.count(exchange, size)
        if isinstance(request, FetchRequest):
            self._fetch_now(exchange, request)
        elif request.may_wait and self.is_stopping:
            self._close_channel()
        else:
            assert self._owner is not None
            self._turn.spawn(self._owner, partial(self._handle, request))

    def _fetch_now(self, exchange: Exchange, request: FetchRequest) -> None:
        dispatcher, context = self._services.dispatcher, self._connection.context
        result = dispatcher.fetch_now(request, context)
        exchange.handled_at = perf_counter()
        if not isinstance(result, Fetch):
            self._take_response(result)
            return
        assert self._owner is not None
        self._fetch = PendingFetch(result, context, dispatcher, self._owner, self._turn)
        if self.is_stopping:
            self._close_channel()
        elif self._is_half_closed:
            self._limit_wait()

    async def _handle(self, request: Any) -> None:
        """Run the handler of a request other than produce and fetch."""
        handle, context = self._services.dispatcher.handle, self._connection.context
        response: Response | None = None
        if request.may_wait:
            with trio.CancelScope() as self._waiting:
                if self._is_half_closed:
                    self._limit_wait()
                response = await handle(request, context)
            self._waiting = None
        else:
            response = await handle(request, context)
        login = self._session.login
        if login is not None:
            self._apply_login(login)
        if response is None:
            context.end()
            self._close_channel()
        elif self._owner is None:
            context.end()
            self._large.free([response])
        else:
            assert self._handled is not None
            self._handled.handled_at = perf_counter()
            self._take_response(response)

    def _limit_wait(self) -> None:
        """Limit the time of the current request, because the peer has closed its side."""
        if self._fetch is not None:
            self._fetch.limit_wait(self._services.slow_peer_s)
        if self._waiting is not None:
            self._waiting.deadline = trio.current_time() + HALF_CLOSED_MEMBER_S

    def _apply_login(self, login: Login) -> None:
        """Apply the state of the login to what may follow; after a failed login, close with its reply."""
        limit = login.max_frame_bytes
        self._connection.reader.max_frame_bytes = self._services.max_frame_bytes if limit is None else limit
        if login.principal is not None:
            self._memory.use_requests()
        if login.has_failed:
            self._connection.must_close = True

    def _take_response(self, response: Response) -> None:
        """Store the response of the current request; the client may then have to pause."""
        assert self._handled is not None
        session = self._session
        if session.throttle_ms:
            if not self.is_stopping:
                self._handled.throttle_ms = session.throttle_ms
                self._pause.begin(session.throttle_ms)
            session.throttle_ms = 0
        self._handled.response = response
        self._handled = self._fetch = None
        self._become_due()

    # -- all requests --

    def _new_exchange(self, api: str, call: Any) -> Exchange:
        """Add an exchange to the reply queue."""
        exchange = Exchange(self._turn.began_at, self._services.api_metrics(api), call)
        exchange.begun_at = exchange.handled_at = self._turn.guard.begin(api)
        self._connection.add(exchange)
        return exchange

    def _refuse(self, error: ProtocolError) -> None:
        """Handle a frame that could not be decoded. Only after a FrameError, the next frame cannot be located.

        If the protocol has no error reply for it, or the next frame cannot be located, the channel closes after all
        earlier requests are answered. A frame that is merely large (LargeMessageError) is decoded in a task.
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
            self._connection.count(exchange, 0)
        self.has_failed = refusal is None or isinstance(error, FrameError)
        self._become_due()

    def _become_due(self) -> None:
        if self._owner is not None:
            self._turn.due(self._owner)

    def _close_channel(self) -> None:
        if self._owner is not None:
            self._owner.close()
