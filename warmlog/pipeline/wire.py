"""One connection to a broker's native listener, blocking: for Spark's workers, which have no event loop.

Owns: the socket, framing, one request after the other (or one ahead). Must not know: what is asked. It does not try
again: `Lost` says that it may be worth it.
"""

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from protocol.errors import ErrorCode, ProtocolError
from protocol.frame import DEFAULT_MAX_FRAME_BYTES, FrameReader
from protocol.native.codec import decode_response, encode_request
from protocol.native.messages import VERSIONS, NativeRequest
from protocol.request import HelloRequest, Value
from protocol.response import ErrorResponse, HelloResponse
from warmlog.client.settings import parse_bootstrap
from warmlog.pipeline.errors import PipelineError

R = TypeVar("R", bound=Value)
T = TypeVar("T")

CLIENT_NAME = "warmlog pipeline"
CONNECT_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 30.0  # as the client's request_timeout_s
RECEIVE_BYTES = 256 << 10
# Of a partition or a group, while a broker starts or a disk recovers.
PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


class LostError(PipelineError):
    """There is no broker, it went away before its reply, or cannot answer yet: that may pass."""


class BrokerConnection:
    """A connection on which the hello is done; a context manager. `max_reply_bytes`: of a fetch. Not thread-safe."""

    def __init__(self, bootstrap: str, *, max_reply_bytes: int = 0) -> None:
        self._reader = FrameReader(max_reply_bytes + DEFAULT_MAX_FRAME_BYTES)
        self._last_id = 0
        self.address, self._socket = _connected(bootstrap)
        try:
            self.ask(HelloRequest(versions=VERSIONS, client=CLIENT_NAME), HelloResponse)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for the reply. Raises LostError, PipelineError where the broker says no."""
        self.send(request)
        return self.receive(response_type)

    def send(self, request: NativeRequest) -> None:
        """Send a request; its reply is the next but for those of earlier ones. Raises LostError."""
        self._last_id += 1
        self._carefully(lambda: self._socket.sendall(encode_request(self._last_id, request)))

    def receive(self, response_type: type[R]) -> R:
        """The next reply. Raises LostError, PipelineError where the broker says no."""
        while (frame := self._carefully(self._reader.next_frame)) is None:
            self._carefully(self._receive_some)
        try:
            _, response = decode_response(frame, response_type)
        except ProtocolError as error:
            raise PipelineError(f"{self.address} answered what is no reply: {error}") from error
        if isinstance(response, ErrorResponse):
            raise refusal(response.error, response.message)
        return response

    def _receive_some(self) -> None:
        buffer = self._reader.buffer_for_next()
        if buffer is None:
            data = self._socket.recv(RECEIVE_BYTES)
            self._reader.feed(data)
            count = len(data)
        else:
            count = self._socket.recv_into(buffer)
            self._reader.received(count)
        if not count:
            raise ConnectionResetError("it closed the connection")

    def _carefully(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            raise LostError(f"the connection to {self.address} is lost: {error.strerror or error}") from error
        except ProtocolError as error:
            raise PipelineError(f"{self.address} is no native listener of a broker: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _connected(bootstrap: str) -> tuple[str, socket.socket]:
    """The first address that accepts. Raises LostError."""
    problem = LostError("no address of a broker was given")
    for host, port in parse_bootstrap(bootstrap):
        try:
            made = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            problem = LostError(f"cannot connect to {host}:{port}: {error.strerror or error}")
            continue
        made.settimeout(REPLY_TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return f"{host}:{port}", made
    raise problem


def refusal(code: ErrorCode, message: str | None, *, about: str = "") -> PipelineError:
    """The error for a code in a reply."""
    text = message or code.name
    return PipelineError(f"{about}: {text}" if about else text)


def trouble(code: ErrorCode, message: str | None, *, about: str) -> PipelineError:
    """The error for what a broker says of a topic, a partition or a group: LostError where it may pass."""
    if code in PASSING:
        return LostError(f"{about}: {message or code.name}")
    return refusal(code, message, about=about)
