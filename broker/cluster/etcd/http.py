"""A client's HTTP/1.1 connection, parsed with h11: one request at a time, its response whole or line by line."""

import os
import ssl
from typing import Final, NamedTuple, TypeAlias

import h11
import trio

from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint
from warmlog.broker.cluster.etcd.tls import failure_in_words, is_permanent

MAX_HEAD_BYTES: Final = 16_384
_RECEIVE_BYTES: Final = 64 << 10


_Stream: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"
_FAILURES: Final = (h11.ProtocolError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class HttpError(Exception):
    """The connection could not be opened, was lost, or the peer does not speak HTTP. `str()` is one line."""

    def __init__(self, what: str, error: BaseException) -> None:
        cause = _first_cause(error)
        self.is_refusal = is_permanent(cause)  # one side rejects the other's certificate, or TLS
        super().__init__(failure_in_words(cause) if isinstance(cause, ssl.SSLError) else f"{what}: {_reason(cause)}")


class Response(NamedTuple):
    """A response."""

    status: int
    body: bytes


class HttpClientConnection:
    """An open connection. Close it after an error, or after a call was cancelled."""

    def __init__(self, stream: _Stream, socket: trio.socket.SocketType, host: str) -> None:
        self._stream = stream
        self._socket = socket
        self._host = host
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._line = bytearray()  # the beginning of the next line

    @classmethod
    async def connect(cls, endpoint: EtcdEndpoint, tls: ssl.SSLContext | None = None) -> "HttpClientConnection":
        """Connect, with TLS if there is a context. Raises HttpError."""
        try:
            tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port)
            stream = tcp if tls is None else await _secured(tcp, tls, endpoint.host)
        except (OSError, trio.BrokenResourceError) as error:
            raise HttpError("cannot connect", error) from None
        return cls(stream, tcp.socket, endpoint.authority)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def is_idle(self) -> bool:
        """Whether a request can be sent: the last response was read to its end, and the connection is still open."""
        return self._parser.our_state is h11.IDLE and not self._socket.is_readable()

    async def post(self, path: str, body: bytes, token: str = "") -> Response:
        """Send a request, authorized by a token, and return the whole response. Raises HttpError."""
        try:
            status = await self._send(path, body, token)
            parts = []
            while (part := await self._part()) is not None:
                parts.append(part)
        except _FAILURES as error:
            raise HttpError("connection lost", error) from None
        return Response(status, b"".join(parts))

    async def open_stream(self, path: str, body: bytes, token: str = "") -> int:
        """Send a request and return the status of the response, which `read_line` reads. Raises HttpError."""
        try:
            return await self._send(path, body, token)
        except _FAILURES as error:
            raise HttpError("connection lost", error) from None

    async def read_line(self) -> bytes:
        """Return the next line of the response, b"" at its end. Cancelling it loses nothing. Raises HttpError."""
        try:
            while (end := self._line.find(b"\n")) < 0:
                part = await self._part()
                if part is None:
                    return b""
                self._line += part
        except _FAILURES as error:
            raise HttpError("connection lost", error) from None
        line = bytes(self._line[: end + 1])
        del self._line[: end + 1]
        return line

    async def _send(self, path: str, body: bytes, token: str) -> int:
        """Send a request and return the status of its response."""
        headers = [
            ("host", self._host),
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        if token:
            headers.append(("authorization", token))
        data = self._parser.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        data += self._parser.send(h11.Data(data=body)) or b""
        data += self._parser.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(data)
        while not isinstance(event := await self._event(), h11.Response):
            pass
        return event.status_code

    async def _part(self) -> bytes | None:
        """Return the next part of the response's body, or None at its end."""
        event = await self._event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
        return None

    async def _event(self) -> h11.Event:
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the peer closed it")
            if isinstance(event, h11.Event):
                return event
            self._parser.receive_data(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))


async def _secured(tcp: trio.SocketStream, tls: ssl.SSLContext, host: str) -> "trio.SSLStream[trio.SocketStream]":
    """Perform the TLS handshake and return the stream; close the socket if that fails."""
    # https_compatible: a peer may close without a close_notify, since HTTP delimits responses
    stream = trio.SSLStream(tcp, tls, server_hostname=host, https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException as error:
        tcp.socket.close()
        if isinstance(_first_cause(error), ConnectionError | ssl.SSLEOFError):  # a close with unread data is a reset
            raise ConnectionError("it closed the connection during the TLS handshake: does it use TLS?") from None
        raise
    return stream


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that trio wraps; of several attempts, the first one's."""
    while isinstance(cause := error.__cause__, BaseException):
        error = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
    return error


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
