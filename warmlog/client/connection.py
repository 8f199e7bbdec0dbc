"""One connection to a broker: requests go out at once, replies are matched in order.

Owns: the hello, what is unsent, what is unanswered, the time limit of replies. Must not know: which broker to ask, or
what to do when a request fails (`cluster`, `producer`, `stream`).

Invariants:
1. Replies belong to requests in the order in which these were submitted; the id only confirms it.
2. A connection ends once: by its peer, by an error, by a reply that is overdue, or by `close`. From then on every
   request that was or is submitted fails with that reason.
3. The socket is closed when no task waits for it any more.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ProtocolError
from protocol.frame import DEFAULT_MAX_FRAME_BYTES, FrameReader
from protocol.native.codec import ReplyError, decode_response, encode_request
from protocol.native.messages import VERSIONS, NativeRequest
from protocol.request import HelloRequest, Value
from protocol.response import ErrorResponse, HelloResponse
from warmlog.client.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    WarmlogError,
    broker_error,
)
from warmlog.client.settings import DEFAULT_PORT, Settings
from warmlog.client.wire import Wire

R = TypeVar("R", bound=Value)

# Ids count from 1, because 0 stands for an id that the broker could not read.
MAX_REQUEST_ID = (1 << 32) - 1


class Reply(Generic[R]):
    """A reply that is to come: wait for it, or be called when it is there."""

    __slots__ = ("_callback", "_error", "_event", "_value", "deadline", "request_id", "response_type")

    def __init__(self, request_id: int, response_type: type[R], deadline: float) -> None:
        self.request_id = request_id
        self.response_type = response_type
        self.deadline = deadline
        self._value: R | None = None
        self._error: WarmlogError | None = None
        self._event: anyio.Event | None = None
        self._callback: Callable[[Reply[R]], None] | None = None

    @property
    def done(self) -> bool:
        """Whether `result` can be had."""
        return self._value is not None or self._error is not None

    def result(self) -> R:
        """The response. Raises WarmlogError: what the broker answered instead, or why there is no answer."""
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    async def wait(self) -> R:
        """Wait for the response. Raises as `result`."""
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        return self.result()

    def when_done(self, callback: Callable[["Reply[R]"], None]) -> None:
        """Call back once, from the receiving task. Only one callback, and it must not raise."""
        assert self._callback is None
        self._callback = callback
        if self.done:
            callback(self)

    def settle(self, value: R | None, error: WarmlogError | None = None) -> None:
        """The response is there, or never will be."""
        self._value = value
        self._error = error
        if self._event is not None:
            self._event.set()
        if self._callback is not None:
            self._callback(self)


class _Unsent(NamedTuple):
    """What is left of a request; with the last byte a reply is settled by `posted`, where there is no other."""

    data: memoryview
    reply: Reply[Any] | None
    posted: Value | None


class Connection:
    """A connection on which the hello is done. `close` it; it lives in the task group it was opened with.

    Not thread-safe. `submit` and `send` never wait; who submits bounds how much is in flight.
    """

    def __init__(self, wire: Wire, address: str, tasks: TaskGroup, settings: Settings) -> None:
        self._wire = wire
        self._tasks = tasks
        self._timeout_s = settings.request_timeout_s
        self._reader = FrameReader(settings.fetch_bytes + DEFAULT_MAX_FRAME_BYTES)
        self._unsent: deque[_Unsent] = deque()
        self._unanswered: deque[Reply[Any]] = deque()
        self._last_id = 0
        self._loops: list[anyio.CancelScope] = []  # of the tasks that may be waiting for the socket
        self._alarm = inf  # when to look for an overdue reply; not after the first deadline
        self._alarm_scope: anyio.CancelScope | None = None
        self.address = address
        self.error: WarmlogError | None = None
        self.hello: HelloResponse | None = None

    @classmethod
    async def open(cls, host: str, port: int, tasks: TaskGroup, settings: Settings) -> "Connection":
        """Connect and say hello. Raises ConnectError, or BrokerError if there is no version in common."""
        address = f"{host}:{port}"
        try:
            with anyio.fail_after(settings.connect_timeout_s):
                connection = cls(await Wire.connect(host, port), address, tasks, settings)
                await connection._say_hello(settings.client)
        except TimeoutError:
            raise ConnectError(f"cannot connect to {address} within {settings.connect_timeout_s:g} s") from None
        except OSError as problem:
            raise ConnectError(f"cannot connect to {address}: {problem.strerror or problem}") from problem
        except ConnectionLostError as problem:
            raise ConnectError(
                f"no warmlog broker at {address}: {problem.message}; is this the native listener ({DEFAULT_PORT})?"
            ) from problem
        return connection

    async def _say_hello(self, client: str) -> None:
        self._start(self._receive_loop)
        try:
            self.hello = await self.ask(HelloRequest(versions=VERSIONS, client=client), HelloResponse)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the connection has ended; `error` says why."""
        return self.error is not None

    @property
    def max_frame_bytes(self) -> int:
        """The longest request that the broker accepts."""
        return self.hello.max_frame_bytes if self.hello else DEFAULT_MAX_FRAME_BYTES

    def submit(self, request: NativeRequest, response_type: type[R], *, extra_s: float = 0) -> Reply[R]:
        """Send a request; its reply fails if it does not come within the request timeout and `extra_s`."""
        reply: Reply[R] = Reply(self._next_id(), response_type, anyio.current_time() + self._timeout_s + extra_s)
        if self.error is not None:
            reply.settle(None, self.error)
            return reply
        self._unanswered.append(reply)
        if reply.deadline < self._alarm:
            self._set_alarm(reply.deadline)
        self._send(_Unsent(memoryview(encode_request(reply.request_id, request)), None, None))
        return reply

    def post(self, request: NativeRequest, posted: R) -> Reply[R]:
        """Send a request that gets no reply; `posted` stands for one when the kernel has taken the whole request."""
        reply = Reply(self._next_id(), type(posted), inf)
        if self.error is not None:
            reply.settle(None, self.error)
        else:
            self._send(_Unsent(memoryview(encode_request(reply.request_id, request)), reply, posted))
        return reply

    async def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for the reply. Raises WarmlogError."""
        return await self.submit(request, response_type).wait()

    def close(self) -> None:
        """End the connection. Whoever waits for a reply gets ClosedError."""
        self._end(ClosedError("the connection was closed"))

    # -- sending --

    def _next_id(self) -> int:
        self._last_id = self._last_id % MAX_REQUEST_ID + 1
        return self._last_id

    def _send(self, unsent: _Unsent) -> None:
        """Send what the kernel takes now, leave the rest to a task."""
        self._unsent.append(unsent)
        if len(self._unsent) == 1:
            self._send_unsent()
            if self._unsent:
                self._start(self._send_loop)

    async def _send_loop(self) -> None:
        """Send what the kernel did not take at once. Ends with the last byte."""
        while self._unsent:
            await self._wire.wait_writable()
            self._send_unsent()

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                data, reply, posted = self._unsent[0]
                sent = self._wire.send(data)
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
        """Receive until the end; leave the wait when the alarm rings, to see whether a reply is overdue."""
        while not self.closed:
            with anyio.CancelScope(deadline=self._alarm) as self._alarm_scope:
                await self._receive_replies()
            self._look_for_overdue()

    async def _receive_replies(self) -> None:
        try:
            while True:
                await self._wire.wait_readable()
                while self._receive() and self._reader.is_within_frame:
                    pass
        except EOFError:
            self._end(ConnectionLostError(f"{self.address} closed the connection"))
        except ProtocolError as problem:
            self._end(ConnectionLostError(f"{self.address} answered what is no reply: {problem}"))
        except OSError as problem:
            self._end(self._lost(problem))

    def _look_for_overdue(self) -> None:
        if not self._unanswered:
            self._alarm = inf
        elif (deadline := self._unanswered[0].deadline) > anyio.current_time():
            self._alarm = deadline
        else:
            self._end(RequestTimeoutError(f"{self.address} has not answered within {self._timeout_s:g} s"))

    def _set_alarm(self, deadline: float) -> None:
        self._alarm = deadline
        if self._alarm_scope is not None:
            self._alarm_scope.deadline = deadline

    def _receive(self) -> bool:
        """Take what is there; False if that is nothing. Raises EOFError, OSError, ProtocolError."""
        buffer = self._reader.buffer_for_next()
        if buffer is None:
            data = self._wire.receive()
            if data is None:
                return False
            received = len(data)
            self._reader.feed(data)
        else:
            count = self._wire.receive_into(buffer)
            if count is None:
                return False
            received = count
            self._reader.received(count)
        if not received:
            raise EOFError
        while (frame := self._reader.next_frame()) is not None:
            self._take(frame)
        return True

    def _take(self, frame: memoryview) -> None:
        if not self._unanswered:
            raise ReplyError("nothing was asked")
        reply = self._unanswered[0]
        request_id, response = decode_response(frame, reply.response_type)
        failed = isinstance(response, ErrorResponse)
        if request_id != reply.request_id and not (failed and request_id == 0):
            raise ReplyError(f"id {request_id} instead of {reply.request_id}")
        self._unanswered.popleft()
        if isinstance(response, ErrorResponse):
            reply.settle(None, broker_error(response.error, response.message))
        else:
            reply.settle(response)

    # -- the end --

    def _lost(self, problem: OSError) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self.address} is lost: {problem.strerror or problem}")

    def _end(self, error: WarmlogError) -> None:
        if self.error is not None:
            return
        self.error = error
        for loop in self._loops:
            loop.cancel()
        self._close_if_left()
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
        """One of the connection's tasks, from its start to its end."""
        try:
            with scope:
                await loop()
        except BaseException:
            self._end(ClosedError())  # the client is leaving
            raise
        finally:
            self._loops.remove(scope)
            self._close_if_left()

    def _close_if_left(self) -> None:
        if self.closed and not self._loops:
            self._wire.close()
