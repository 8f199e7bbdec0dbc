"""One HTTP connection, parsed with h11.

Limits: `MAX_HEAD_BYTES` and `HEAD_S` for a request's head, `IDLE_S` between requests, `SEND_S` for the peer to read a
response, `BODY_S` for a body. A body is read only if the handler calls `body`; otherwise the connection is closed.

This is a separate module because importing h11 takes about 20 ms: the listener imports it for the first connection, in
a worker thread, and not while the broker starts.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import h11
import trio

MAX_HEAD_BYTES = 16_384
HEAD_S = 10  # since the connection was accepted, or since the first byte
IDLE_S = 60  # longer than usual scrape intervals, so that scrapers can reuse their connection
SEND_S = 30
PART_BYTES = 256 << 10  # pieces of a body; each is copied and encrypted while it is sent
BODY_S = 10
LINGER_S = 1
NOT_MODIFIED = 304
PLAIN = "text/plain; charset=utf-8"

_Stream: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()


class Request(NamedTuple):
    """A request. `authorization` is empty without that header, or if it occurs twice.

    `path` and `query` are as sent, percent-encoded. `headers` are by lower-case name; repeated ones are joined by
    commas.
    """

    method: str
    path: str
    authorization: str = ""
    query: str = ""
    headers: Mapping[str, str] = {}


class HttpConnection:
    """Answers the requests of one connection in order."""

    def __init__(self, stream: _Stream, answer: Callable[["HttpConnection", Request], Awaitable[Answer]]) -> None:
        """Answer each request with `answer(connection, request)`."""
        self.waits_since = trio.current_time()  # for a request, since this time; infinite while one is answered
        self.unsent_bytes = 0  # bytes of the answer being sent, until its last part is sent
        self.sends_since = -math.inf
        self._stream = stream
        self._answer = answer
        self._scope = trio.CancelScope()
        self._idle_s = HEAD_S
        self._is_stopping = False
        self._part: object = None  # the parser's latest event for the current request
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve(self) -> None:
        """Serve until the peer closes, is silent for too long, or `stop` or `close` is called.

        Raises trio.BrokenResourceError, trio.TooSlowError.
        """
        with self._scope:
            try:
                while await self._answer_next() and not self._is_stopping:
                    self._parser.start_next_cycle()
            except h11.RemoteProtocolError as error:
                if self._parser.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                    await self._send(Answer(error.error_status_hint, PLAIN, b"bad request\n"), close=True)

    def stop(self) -> None:
        """End the connection after its current request, immediately if there is none."""
        self._is_stopping = True
        if self.waits_since != math.inf:
            self.close()

    def close(self) -> None:
        """End the connection immediately."""
        self._scope.cancel()

    async def body(self, max_bytes: int) -> bytes | None:
        """Return the body of the current request; None if it is too large or too slow.

        Raises h11.RemoteProtocolError, trio.BrokenResourceError.
        """
        parts, size = list[bytes](), 0
        with trio.move_on_after(BODY_S):
            while not isinstance(self._part, h11.EndOfMessage):
                if self._part is h11.NEED_DATA:
                    self._parser.receive_data(bytes(await self._stream.receive_some()))
                elif isinstance(self._part, h11.Data):
                    size += len(self._part.data)
                    if size > max_bytes:
                        return None
                    parts.append(bytes(self._part.data))
                else:
                    return None
                self._part = self._parser.next_event()
            return b"".join(parts)
        return None

    async def _answer_next(self) -> bool:
        """Read a request and answer it; return False to close the connection."""
        request = await self._next_request()
        if request is None:
            return False
        self.waits_since = math.inf
        # A request without a body is complete here. If a body is left unread, the connection has to be closed.
        self._part = self._parser.next_event()
        try:
            answer = await self._answer(self, _read(request))
            close = self._part is h11.NEED_DATA or self._parser.their_state is not h11.DONE
            is_open = await self._send(answer, head=request.method == b"HEAD", close=close)
        finally:
            self.unsent_bytes = 0
        self.waits_since = trio.current_time()
        self._idle_s = IDLE_S
        return is_open

    async def _next_request(self) -> h11.Request | None:
        """Return the next request; None if the peer closes or takes too long."""
        with trio.move_on_after(self._idle_s) as scope:
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                is_first = self._parser.trailing_data == (b"", False)
                self._parser.receive_data(bytes(await self._stream.receive_some()))
                if is_first:
                    scope.deadline = min(scope.deadline, trio.current_time() + HEAD_S)
            return event if isinstance(event, h11.Request) else None
        return None

    async def _send(self, answer: Answer, *, head: bool = False, close: bool) -> bool:
        """Send an answer and return whether another request may follow. Raises BrokenResourceError, TooSlowError."""
        parser, (status, content_type, body, others) = self._parser, answer
        headers = [("content-type", content_type), *others]
        if status != NOT_MODIFIED:  # it has no body, and Content-Length would be that of the unmodified one
            headers.append(("content-length", str(len(body))))
        if close:
            headers.append(("connection", "close"))
        data = parser.send(h11.Response(status_code=status, headers=headers)) or b""
        rest = b"" if head else parser.send(h11.Data(data=body)) or b""
        parser.send(h11.EndOfMessage())  # empty, because Content-Length was sent
        with trio.fail_after(SEND_S):
            await self._stream.send_all(data + rest[:PART_BYTES])
            for position in range(PART_BYTES, len(rest), PART_BYTES):
                await self._stream.send_all(memoryview(rest)[position : position + PART_BYTES])
        if parser.our_state is h11.DONE and parser.their_state is h11.DONE:
            return True
        # Closing with unread bytes in the socket resets the connection; the peer may lose the response.
        stream = self._stream
        socket = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        await socket.send_eof()
        with trio.move_on_after(LINGER_S):
            async for _ in socket:
                pass
        return False


def _read(request: h11.Request) -> Request:
    credentials = [value for name, value in request.headers if name == b"authorization"]
    authorization = credentials[0].decode("latin-1") if len(credentials) == 1 else ""
    headers: dict[str, str] = {}
    for name, value in request.headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    path, _, query = request.target.decode().partition("?")
    return Request(request.method.decode(), path, authorization, query, headers)
