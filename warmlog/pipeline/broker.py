"""Talk to a broker's native listener from a thread without an event loop, and wait for one that is away.

`BrokerConnection` is one connection, one request after the other (or one ahead); it never retries. `Retry` is the only
retry loop of the pipeline; `PatientBroker` joins the two.
"""

import logging
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from protocol.errors import ErrorCode, ProtocolError
from protocol.frame import DEFAULT_MAX_FRAME_BYTES, FrameReader
from protocol.native.codec import decode_response, encode_request
from protocol.native.messages import VERSIONS, NativeRequest
from protocol.request import HelloRequest, Value
from protocol.response import ErrorResponse, HelloResponse
from warmlog.client.settings import DEFAULT_PORT, parse_bootstrap
from warmlog.pipeline.errors import PipelineError, UnavailableError

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Value)
T = TypeVar("T")

CLIENT_NAME = "warmlog pipeline"
CONNECT_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 30.0  # as the client's request_timeout_s
RECEIVE_BYTES = 256 << 10
READ_PATIENCE_S = 60.0  # how long a read waits for a broker
FIRST_PAUSE_S = 0.1  # Kafka's retry.backoff.ms, doubled up to
LONGEST_PAUSE_S = 1.0  # Kafka's retry.backoff.max.ms

# Kafka's ApiVersions, version 0: length, key, version, correlation id, no client id; the reply begins with the id.
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
API_VERSIONS_REPLY = struct.pack(">i", 1)

# Codes for a topic, a partition or a group that a later request may not get.
PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


class BrokerConnection:
    """A connection that has said hello; a context manager. Not thread-safe. `max_reply_bytes`: of a fetch."""

    def __init__(self, bootstrap: str, *, max_reply_bytes: int = 0) -> None:
        """Connect to the first address that accepts. Raises UnavailableError, PipelineError."""
        self._reader = FrameReader(max_reply_bytes + DEFAULT_MAX_FRAME_BYTES)
        self._last_id = 0
        host, port, self._socket = _connected(bootstrap)
        self.address = f"{host}:{port}"
        try:
            self.ask(HelloRequest(versions=VERSIONS, client=CLIENT_NAME), HelloResponse)
        except UnavailableError as error:
            self._socket.close()
            if _speaks_kafka(host, port):
                raise PipelineError(
                    f"{self.address} speaks Kafka's protocol: give the address of the native listener"
                    f" (its port is {DEFAULT_PORT} unless it was changed)"
                ) from error
            raise
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for its reply. Raises UnavailableError, PipelineError for an error reply."""
        self.send(request)
        return self.receive(response_type)

    def send(self, request: NativeRequest) -> None:
        """Send a request; replies keep the order of requests. Raises UnavailableError."""
        self._last_id += 1
        self._guarded(lambda: self._socket.sendall(encode_request(self._last_id, request)))

    def receive(self, response_type: type[R]) -> R:
        """Wait for the next reply. Raises UnavailableError, PipelineError for an error reply."""
        while (frame := self._guarded(self._reader.next_frame)) is None:
            self._guarded(self._receive_some)
        try:
            _, response = decode_response(frame, response_type)
        except ProtocolError as error:
            raise PipelineError(f"{self.address} sent an invalid reply: {error}") from error
        if isinstance(response, ErrorResponse):
            raise reply_error(response.error, response.message)
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
            raise ConnectionResetError("closed by the broker")

    def _guarded(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            raise UnavailableError(f"connection to {self.address} lost: {error.strerror or error}") from error
        except ProtocolError as error:
            what = f"{self.address} is not the native listener of a broker (port {DEFAULT_PORT} unless it was changed)"
            raise PipelineError(f"{what}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _connected(bootstrap: str) -> tuple[str, int, socket.socket]:
    problem = UnavailableError("no address of a broker was given")
    for host, port in parse_bootstrap(bootstrap):
        try:
            made = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            problem = UnavailableError(f"cannot connect to {host}:{port}: {error.strerror or error}")
            continue
        made.settimeout(REPLY_TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return host, port, made
    raise problem


def _speaks_kafka(host: str, port: int) -> bool:
    """Whether a Kafka listener answers at an address that has closed a native connection."""
    with suppress(OSError), socket.create_connection((host, port), CONNECT_TIMEOUT_S) as asked:
        asked.settimeout(CONNECT_TIMEOUT_S)
        asked.sendall(API_VERSIONS_REQUEST)
        reply = asked.recv(len(API_VERSIONS_REPLY) + 4, socket.MSG_WAITALL)
        return reply[4:] == API_VERSIONS_REPLY
    return False


def reply_error(code: ErrorCode, message: str | None, *, about: str = "") -> PipelineError:
    """Return the error for a code in a reply: UnavailableError if trying again may help. `about`: what was asked."""
    text = message or code.name
    kind = UnavailableError if code in PASSING else PipelineError
    return kind(f"{about}: {text}" if about else text)


class Retry:
    """Try again with doubling pauses while a broker is unavailable.

    Patience is measured from the first failure since the last progress, so a job that progresses, or has nothing to
    send for a while, never gives up. `setting`: the option that sets `patience_s`, for the error.
    """

    def __init__(
        self,
        patience_s: float = READ_PATIENCE_S,
        *,
        setting: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience_s = patience_s
        self._setting = f" ({setting})" if setting else ""
        self._clock = clock
        self._sleep = sleep
        self._failing_since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def progressed(self) -> None:
        """Reset patience and pause."""
        self._failing_since = None
        self._pause_s = FIRST_PAUSE_S

    def wait(self, error: UnavailableError) -> None:
        """Pause after an error. Raises UnavailableError with it once patience is over."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            _log.warning("%s; trying again", error)
        if now - self._failing_since >= self._patience_s:
            raise UnavailableError(f"{error}; gave up after {self._patience_s:g} s{self._setting}") from error
        self._sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def call(self, act: Callable[[], T]) -> T:
        """Call `act` until it does not raise UnavailableError. Raises what else it raises."""
        while True:
            try:
                result = act()
            except UnavailableError as error:
                self.wait(error)
            else:
                self.progressed()
                return result


class PatientBroker:
    """A broker that may go away and come back: one connection at a time; a context manager. Not thread-safe."""

    def __init__(self, bootstrap: str, retry: Retry, *, max_reply_bytes: int = 0) -> None:
        self._bootstrap = bootstrap
        self._max_reply_bytes = max_reply_bytes
        self._connection: BrokerConnection | None = None
        self.retry = retry

    def connection(self) -> BrokerConnection:
        """Return the connection, connecting if there is none. Raises UnavailableError, PipelineError."""
        if self._connection is None:
            self._connection = BrokerConnection(self._bootstrap, max_reply_bytes=self._max_reply_bytes)
        return self._connection

    def disconnect(self) -> None:
        """Close the connection if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, request: NativeRequest, response_type: type[R], check: Callable[[R], None] | None = None) -> R:
        """Ask something idempotent, again while it, or `check` of the reply, raises UnavailableError.

        Raises PipelineError.
        """

        def once() -> R:
            response = self._ask_once(request, response_type)
            if check is not None:
                check(response)
            return response

        return self.retry.call(once)

    def _ask_once(self, request: NativeRequest, response_type: type[R]) -> R:
        try:
            return self.connection().ask(request, response_type)
        except UnavailableError:
            self.disconnect()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()
