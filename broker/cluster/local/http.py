"""One HTTP/1.1 connection of a server, parsed with h11: requests with a body, responses whole or in parts."""

from typing import Final, NamedTuple

import h11
import trio

MAX_HEAD_BYTES: Final = 16_384
_RECEIVE_BYTES: Final = 64 << 10


class Request(NamedTuple):
    """A request. `body` is None if it was too large, and dropped."""

    path: str
    body: bytes | None


class HttpServerConnection:
    """Reads requests, and sends a response to each. Its methods raise trio.BrokenResourceError, h11.ProtocolError."""

    def __init__(self, stream: trio.SocketStream, max_body_bytes: int) -> None:
        self._stream = stream
        self._max_body_bytes = max_body_bytes
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def next_request(self) -> Request | None:
        """Return the next request, or None if the peer has closed the connection."""
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
        request = await self._event()
        if not isinstance(request, h11.Request):
            return None
        parts, size = [], 0
        while isinstance(part := await self._event(), h11.Data):
            size += len(part.data)
            if size <= self._max_body_bytes:
                parts.append(bytes(part.data))
        return Request(request.target.decode(), b"".join(parts) if size <= self._max_body_bytes else None)

    async def respond(self, status: int, body: bytes) -> None:
        """Send a response."""
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        data = self._parser.send(h11.Response(status_code=status, headers=headers)) or b""
        data += self._parser.send(h11.Data(data=body)) or b""
        data += self._parser.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(data)

    async def begin_response(self) -> None:
        """Begin a response that `send` continues, without an end."""
        headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")]
        await self._stream.send_all(self._parser.send(h11.Response(status_code=200, headers=headers)) or b"")

    async def send(self, part: bytes) -> None:
        """Send a part of a response."""
        await self._stream.send_all(self._parser.send(h11.Data(data=part)) or b"")

    async def closed(self) -> None:
        """Return when the peer has closed the connection; it sends nothing before."""
        while await self._stream.receive_some(_RECEIVE_BYTES):
            pass

    async def _event(self) -> h11.Event:
        while not isinstance(event := self._parser.next_event(), h11.Event):
            self._parser.receive_data(await self._stream.receive_some(_RECEIVE_BYTES))
        return event
