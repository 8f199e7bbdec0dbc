"""The async native connection, on asyncio and trio.

Requests are written immediately, in the call that submits them; replies settle in request order.

Invariants:
1. A connection ends once: by its peer, by an error, by an overdue reply or by `close`. From then on every outstanding
and every new request fails with that reason.
2. The socket is closed once no task waits for it.
"""

import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from secrets import token_urlsafe
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from warmlog.client.connection.async_socket import AsyncSocket
from warmlog.client.connection.background import TaskStarter
from warmlog.client.connection.session import Session
from warmlog.client.errors import (
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    WarmlogError,
    broker_error,
)
from warmlog.client.settings import DEFAULT_PORT, Settings
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.frame import DEFAULT_MAX_FRAME_BYTES
from warmlog.protocol.native.login import AuthenticateRequest, AuthenticateResponse
from warmlog.protocol.native.messages import FIRST_WITH_LOGIN, NativeRequest
from warmlog.protocol.oauthbearer import log_in_with
from warmlog.protocol.request import Value
from warmlog.protocol.response import HelloResponse
from warmlog.protocol.scram import SaslError, log_in

R = TypeVar("R", bound=Value)

RENEW_AFTER = 0.85  # fraction of a login's lifetime after which it is renewed
MIN_RENEWAL_S = 1.1  # brokers refuse a login within a second of the previous one


class Reply(Generic[R]):
    """The pending reply to one request: await it, or register a callback."""

    __slots__ = ("_callback", "_error", "_event", "_value", "deadline", "response_type")

    def __init__(self, response_type: type[R], deadline: float) -> None:

        self.response_type = response_type
        self.deadline = deadline
        self._value: R | None = None
        self._error: WarmlogError | None = None
        self._event: anyio.Event | None = None
        self._callback: Callable[[Reply[R]], None] | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises the outcome."""
        return self._value is not None or self._error is not None

    def result(self) -> R:
        """Return the response. Raises WarmlogError: the broker's error, or the reason for a missing reply."""
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    async def wait(self) -> R:
        """Wait for the response. Raises the same errors as `result`."""
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        return self.result()

    def when_done(self, callback: Callable[["Reply[R]"], None]) -> None:
        """Call `callback` once, from the receiving task. There can be only one callback, which must not raise."""
        assert self._callback is None
        self._callback = callback
        if self.done:
            callback(self)

    def settle(self, value: R | None, error: WarmlogError | None = None) -> None:
        """Set the outcome: a response or an error."""
        self._value = value
        self._error = error
        if self._event is not None:
            self._event.set()
        if self._callback is not None:
            self._callback(self)


class _Unsent(NamedTuple):
    """The unsent rest of a request. If no reply is expected, `reply` is settled with `posted` after the last byte."""

    data: memoryview
    reply: Reply[Any] | None
    posted: Value | None


class Connection:
    """A connection that has exchanged hello. Its tasks run in the task group in which it was opened; `close` it.

    Not thread-safe. `submit` and `post` never wait; the caller bounds what is in flight.
    """

    def __init__(self, connected: AsyncSocket, address: str, tasks: TaskStarter, settings: Settings) -> None:
        self._socket = connected
        self._tasks = tasks
        self._timeout_s = settings.request_timeout_s
        self._session = Session(settings.fetch_bytes)
        self._unsent: deque[_Unsent] = deque()
        self._unanswered: deque[Reply[Any]] = deque()

        self._loops: list[anyio.CancelScope] = []  # scopes of tasks that may wait for the socket
        self._next_check_at = inf  # next check for an overdue reply; never after the earliest deadline
        self._receive_scope: anyio.CancelScope | None = None
        self.address = address
        self.error: WarmlogError | None = None
        self.hello: HelloResponse | None = None

    @classmethod
    async def open(cls, host: str, port: int, tasks: TaskStarter, settings: Settings) -> "Connection":
        """Connect and exchange hello. Raises ConnectError, or BrokerError if no protocol version is shared."""
        address = f"{host}:{port}"
        try:
            with anyio.fail_after(settings.connect_timeout_s):
                connection = cls(await AsyncSocket.connect(host, port, settings.tls), address, tasks, settings)
                await connection._exchange_hello(settings)
        except TimeoutError:
            raise ConnectError(f"cannot connect to {address} within {settings.connect_timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as problem:
            error = ConnectError(f"cannot connect to {address}: its certificate is not valid: {problem.verify_message}")
            error.is_final = True
            raise error from problem
        except ssl.SSLError as problem:
            reason = (problem.reason or str(problem)).replace("_", " ").lower()
            message = f"cannot connect to {address}: TLS failed: {reason}; is the listener encrypted?"
            raise ConnectError(message) from problem
        except OSError as problem:
            raise ConnectError(f"cannot connect to {address}: {problem.strerror or problem}") from problem
        except ConnectionLostError as problem:
            error = ConnectError(
                f"no warmlog broker at {address}: {problem.message}; is it the native listener"
                f" (port {DEFAULT_PORT} by default)"
                + (", and without encryption (tls, --tls-ca)?" if settings.tls is None else "?")
            )
            error.is_final = isinstance(problem.__cause__, ProtocolError)  # another program listens at the address
            raise error from problem
        return connection

    async def _exchange_hello(self, settings: Settings) -> None:
        """Exchange hello, and log in. Raises WarmlogError."""
        self._start(self._receive_loop)
        try:
            self.hello = await self.ask(Session.hello(settings.client), HelloResponse)
            if settings.sasl_mechanism is not None:
                lifetime_s = await self._log_in(settings)
                if lifetime_s:
                    self._start(partial(self._renew_login, settings, lifetime_s))
        except BaseException:
            self.close()
            raise

    async def _renew_login(self, settings: Settings, lifetime_s: float) -> None:
        """Authenticate again each time before the login expires, while other requests are sent."""
        while not self.closed:
            await anyio.sleep(max(lifetime_s * RENEW_AFTER, MIN_RENEWAL_S))
            try:
                lifetime_s = await self._log_in(settings)
            except WarmlogError as error:
                self._end(ConnectionLostError(f"{self.address}: the login could not be renewed: {error.message}"))

    async def _log_in(self, settings: Settings) -> float:
        """Log in, and return the login's lifetime in seconds; 0 means forever. Raises WarmlogError."""
        if self.version < FIRST_WITH_LOGIN:
            raise broker_error(ErrorCode.UNSUPPORTED_VERSION, "the broker is too old for logins: update it")
        mechanism, token = settings.sasl_mechanism or "", settings.token
        if callable(token):
            token = await anyio.to_thread.run_sync(token, abandon_on_cancel=True)
        if token is not None:
            tokens = log_in_with(token)
        else:
            user, password = settings.username or "", settings.password or ""
            tokens = log_in(mechanism, user, password, token_urlsafe(), is_token=settings.delegation_token)
        lifetime_ms = 0
        try:
            message = next(tokens)
            while True:
                request = AuthenticateRequest(mechanism=mechanism, token=message)
                answer = await self.ask(request, AuthenticateResponse)
                lifetime_ms = answer.session_lifetime_ms
                message = tokens.send(answer.token)
        except StopIteration:
            return lifetime_ms / 1000
        except SaslError as problem:
            raise broker_error(problem.code, str(problem), about=self.address) from None

    @property
    def closed(self) -> bool:
        """Whether the connection has ended; `error` holds the reason."""
        return self.error is not None

    @property
    def version(self) -> int:
        """The protocol version agreed on in the hello exchange."""
        return self.hello.version if self.hello else 0

    @property
    def max_frame_bytes(self) -> int:
        """The size limit of requests to the broker."""
        return self.hello.max_frame_bytes if self.hello else DEFAULT_MAX_FRAME_BYTES

    def submit(self, request: NativeRequest, response_type: type[R], *, extra_s: float = 0) -> Reply[R]:
        """Send a request; its reply fails unless it arrives within the request timeout plus `extra_s`."""
        reply: Reply[R] = Reply(response_type, anyio.current_time() + self._timeout_s + extra_s)
        if self.error is not None:
            reply.settle(None, self.error)
            return reply
        encoded = self._session.encode(request)
        self._unanswered.append(reply)
        if reply.deadline < self._next_check_at:
            self._check_at(reply.deadline)
        self._send(_Unsent(memoryview(encoded), None, None))
        return reply

    def post(self, request: NativeRequest, posted: R) -> Reply[R]:
        """Send a request that gets no reply; settle with `posted` once the kernel has accepted the whole request."""
        reply = Reply(type(posted), inf)
        if self.error is not None:
            reply.settle(None, self.error)
        else:
            encoded = self._session.encode(request, expects_reply=False)
            self._send(_Unsent(memoryview(encoded), reply, posted))
        return reply

    async def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for its reply. Raises WarmlogError."""
        return await self.submit(request, response_type).wait()

    def close(self) -> None:
        """End the connection; outstanding requests fail with ClosedError."""
        self._end(ClosedError("the connection was closed"))

    # -- sending --

    def _send(self, unsent: _Unsent) -> None:
        """Send what the kernel accepts now, and leave the rest to a task."""
        self._unsent.append(unsent)
        if len(self._unsent) == 1:
            self._send_unsent()
            if self._unsent:
                self._start(self._send_loop)

    async def _send_loop(self) -> None:
        """Send the rest as the kernel accepts it, until nothing is left."""
        while self._unsent:
            await self._socket.wait_writable()
            self._send_unsent()

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                data, reply, posted = self._unsent[0]
                sent = self._socket.send(data)
                if sent < len(data):
                    self._unsent[0] = _Unsent(data[sent:], reply, posted)
                    return
                self._unsent.popleft()
                if reply is not None:
                    reply.settle(posted)
        except OSError as problem:
            self._end(self._lost(problem))

    # -- receiving --

    async def _receive_loop(self) -> None:
        """Receive until the connection ends; wake up at `_next_check_at` to check for an overdue reply."""
        while not self.closed:
            with anyio.CancelScope(deadline=self._next_check_at) as self._receive_scope:
                await self._receive_replies()
            self._check_overdue()

    async def _receive_replies(self) -> None:
        try:
            while True:
                await self._socket.wait_readable()
                while self._receive() and (self._session.is_within_frame or self._socket.has_pending):
                    pass
        except EOFError:
            self._end(ConnectionLostError(f"{self.address} closed the connection"))
        except ProtocolError as problem:
            lost = ConnectionLostError(f"{self.address} sent an invalid reply: {problem}")
            lost.__cause__ = problem
            self._end(lost)
        except OSError as problem:
            self._end(self._lost(problem))

    def _check_overdue(self) -> None:
        """End the connection if the oldest reply is overdue, else schedule the next check."""
        if not self._unanswered:
            self._next_check_at = inf
        elif (deadline := self._unanswered[0].deadline) > anyio.current_time():
            self._next_check_at = deadline
        else:
            self._end(RequestTimeoutError(f"{self.address} did not reply within {self._timeout_s:g} s"))

    def _check_at(self, deadline: float) -> None:
        self._next_check_at = deadline
        if self._receive_scope is not None:
            self._receive_scope.deadline = deadline

    def _receive(self) -> bool:
        """Receive once; return False if nothing was available. Raises EOFError, OSError, ProtocolError."""
        count = self._socket.receive(self._session)
        if count is None:
            return False
        if not count:
            raise EOFError
        while not self.closed and (frame := self._session.next_frame()) is not None:
            self._settle_next(frame)
        return True

    def _settle_next(self, frame: memoryview) -> None:
        """Settle the oldest reply. Raises ProtocolError if the frame is not its reply."""
        reply = self._unanswered[0]
        try:
            response = self._session.decode(frame, reply.response_type)
        except BrokerError as error:
            self._unanswered.popleft()
            reply.settle(None, error)
        else:
            self._unanswered.popleft()
            reply.settle(response)

    # -- closing --

    def _lost(self, problem: OSError) -> ConnectionLostError:
        return ConnectionLostError(f"connection to {self.address} lost: {problem.strerror or problem}")

    def _end(self, error: WarmlogError) -> None:
        if self.error is not None:
            return
        self.error = error
        for loop in self._loops:
            loop.cancel()
        self._close_if_unused()
        abandoned = [*self._unanswered, *(unsent.reply for unsent in self._unsent if unsent.reply)]
        self._unanswered.clear()
        self._unsent.clear()
        for reply in abandoned:
            reply.settle(None, error)

    def _start(self, loop: Callable[[], Awaitable[None]]) -> None:
        scope = anyio.CancelScope()
        self._loops.append(scope)
        self._tasks.start_soon(self._run, loop, scope)

    async def _run(self, loop: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        """Run one of the connection's tasks, and end the connection if it fails."""
        try:
            with scope:
                await loop()
        except BaseException:
            self._end(ClosedError())  # the client is closing
            raise
        finally:
            self._loops.remove(scope)
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.closed and not self._loops:
            self._socket.close()
