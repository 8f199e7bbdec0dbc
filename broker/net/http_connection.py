"""One HTTP connection, parsed with h11.

Limits: `MAX_HEAD_BYTES` for a request's head, `IDLE_S` between requests, `SEND_S` for the peer to read a response.
Request bodies are not read.

A module of its own because importing h11 takes about 20 ms: the listener imports it for the first connection, in a
worker thread, and not while the broker starts.
"""

from collections.abc import Awaitable, Callable

import h11
import trio

MAX_HEAD_BYTES = 16_384
IDLE_S = 60  # longer than usual scrape intervals, so that scrapers keep their connection
SEND_S = 30
LINGER_S = 1
PLAIN = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, content type, body


class HttpConnection:
    """Answers the requests of one connection in order."""

    def __init__(
        self,
        stream: trio.SocketStream,
        answer: Callable[[str, str], Awaitable[Answer]],
        stop: trio.Event,
        waiting: set[trio.CancelScope],
    ) -> None:
        """Answer each request with `answer(method, path)`.

        While the connection waits for a request, its cancel scope is in `waiting`.
        """
        self._stream = stream
        self._answer = answer
        self._stop = stop
        self._waiting = waiting
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve(self) -> None:
        """Serve until the peer closes, is silent for too long, or `stop` is set.

        Raises trio.BrokenResourceError, trio.TooSlowError.
        """
        try:
            while await self._answer_next():
                self._parser.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._parser.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                await self._send((error.error_status_hint, PLAIN, b"bad request\n"), close=True)

    async def _answer_next(self) -> bool:
        """Read a request and answer it; return False to close the connection."""
        request = await self._next_request()
        if request is None:
            return False
        # A request without a body is complete here. A body is not read, so its connection has to be closed.
        close = self._parser.next_event() is h11.NEED_DATA or self._parser.their_state is not h11.DONE
        answer = await self._answer(request.method.decode(), request.target.decode().partition("?")[0])
        return await self._send(answer, head=request.method == b"HEAD", close=close)

    async def _next_request(self) -> h11.Request | None:
        """Return None if the peer closes, is silent for too long, or the listener stops."""
        with trio.move_on_after(0 if self._stop.is_set() else IDLE_S) as scope:
            self._waiting.add(scope)
            try:
                while (event := self._parser.next_event()) is h11.NEED_DATA:
                    self._parser.receive_data(await self._stream.receive_some())
            finally:
                self._waiting.discard(scope)
            return event if isinstance(event, h11.Request) else None
        return None

    async def _send(self, answer: Answer, *, head: bool = False, close: bool) -> bool:
        """Send an answer and return whether another request may follow. Raises BrokenResourceError, TooSlowError."""
        parser, (status, content_type, body) = self._parser, answer
        headers = [("content-type", content_type), ("content-length", str(len(body)))]
        if close:
            headers.append(("connection", "close"))
        data = parser.send(h11.Response(status_code=status, headers=headers)) or b""
        if not head:
            data += parser.send(h11.Data(data=body)) or b""
        data += parser.send(h11.EndOfMessage()) or b""
        with trio.fail_after(SEND_S):
            await self._stream.send_all(data)
        if parser.our_state is h11.DONE and parser.their_state is h11.DONE:
            return True
        # Closing with unread bytes in the socket resets the connection, and the peer may lose the response.
        await self._stream.send_eof()
        with trio.move_on_after(LINGER_S):
            async for _ in self._stream:
                pass
        return False
