"""Send requests to a broker from a thread without an event loop, and retry while it is unavailable.

`BrokerConnection` is one connection, without retries. `Retry` is the pipeline's only retry policy; `RetryingBroker`
combines the two.
"""

import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from warmlog.client.connection.blocking import BlockingConnection
from warmlog.client.errors import BrokerError, ConnectError, ConnectionLostError, RequestTimeoutError, WarmlogError
from warmlog.client.settings import DEFAULT_PORT, Settings, parse_bootstrap
from warmlog.pipeline.errors import BusyError, PipelineError, UnavailableError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.request import Value

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Value)
T = TypeVar("T")

DEFAULT_SETTINGS = Settings(client="warmlog pipeline")
READ_TIMEOUT_S = 60.0  # how long a read retries before it fails
FIRST_PAUSE_S = 0.1  # Kafka's retry.backoff.ms, doubled up to
LONGEST_PAUSE_S = 1.0  # Kafka's retry.backoff.max.ms

# Kafka's ApiVersions, version 0: length, key, version, correlation id, no client id; the reply begins with the id.
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
API_VERSIONS_REPLY = struct.pack(">i", 1)

# Transient errors of a topic, a partition or a group: a retry may succeed.
TRANSIENT = frozenset(
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
BUSY = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT})


class BrokerConnection:
    """The client's blocking connection with the pipeline's errors; a context manager. Not thread-safe.

    `max_reply_bytes`: limit of records in one reply.
    """

    def __init__(self, bootstrap: str, *, max_reply_bytes: int = DEFAULT_SETTINGS.fetch_bytes) -> None:
        """Connect to the first address that accepts. Raises UnavailableError, PipelineError."""
        self._connection = _connect(bootstrap, replace(DEFAULT_SETTINGS, fetch_bytes=max_reply_bytes))

    def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for its reply. Raises UnavailableError, PipelineError for an error reply."""
        with _pipeline_errors():
            return self._connection.ask(request, response_type)

    def send(self, request: NativeRequest) -> None:
        """Send a request; replies keep the order of requests. Raises UnavailableError."""
        with _pipeline_errors():
            self._connection.send(request)

    def receive(self, response_type: type[R]) -> R:
        """Wait for the next reply. Raises UnavailableError, PipelineError for an error reply."""
        with _pipeline_errors():
            return self._connection.receive(response_type)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _pipeline_errors() -> Iterator[None]:
    """Raise the client's errors as those of the pipeline."""
    try:
        yield
    except BrokerError as error:
        raise reply_error(error.code, error.message) from error
    except WarmlogError as error:
        kind = UnavailableError if error.is_retriable else PipelineError
        raise kind(error.message) from error


def _connect(bootstrap: str, settings: Settings) -> BlockingConnection:
    unreachable = UnavailableError("no broker address given")
    for host, port in parse_bootstrap(bootstrap):
        with _pipeline_errors():
            try:
                return BlockingConnection(host, port, settings)
            except ConnectError as error:
                unreachable = UnavailableError(error.message)
            except (ConnectionLostError, RequestTimeoutError) as error:
                if not error.is_final and _speaks_kafka(host, port):
                    raise PipelineError(
                        f"{host}:{port} speaks Kafka's protocol: give the address of the native listener"
                        f" (port {DEFAULT_PORT} by default)"
                    ) from error
                raise
    raise unreachable


def _speaks_kafka(host: str, port: int) -> bool:
    """Whether an address that closed a native connection is a Kafka listener."""
    with suppress(OSError), socket.create_connection((host, port), DEFAULT_SETTINGS.connect_timeout_s) as connection:
        connection.settimeout(DEFAULT_SETTINGS.connect_timeout_s)
        connection.sendall(API_VERSIONS_REQUEST)
        reply = connection.recv(len(API_VERSIONS_REPLY) + 4, socket.MSG_WAITALL)
        return reply[4:] == API_VERSIONS_REPLY
    return False


def reply_error(code: ErrorCode, message: str | None, *, about: str = "") -> PipelineError:
    """Return the error for a code in a reply: UnavailableError if a retry may succeed. `about`: its subject."""
    text = message or code.name
    kind = BusyError if code in BUSY else UnavailableError if code in TRANSIENT else PipelineError
    return kind(f"{about}: {text}" if about else text)


class Retry:
    """Retry with exponential backoff while a broker is unavailable.

    The timeout runs from the first failure since the last progress, so a job that makes progress, or is idle for a
    while, never gives up. `setting`: the option that sets `timeout_s`, for the error message.
    """

    def __init__(
        self,
        timeout_s: float = READ_TIMEOUT_S,
        *,
        setting: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = timeout_s
        self._setting = f" ({setting})" if setting else ""
        self._clock = clock
        self._sleep = sleep
        self._failing_since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def progressed(self) -> None:
        """Reset the timeout and the backoff."""
        self._failing_since = None
        self._pause_s = FIRST_PAUSE_S

    def wait(self, error: UnavailableError) -> None:
        """Back off after an error. Raises UnavailableError with it once the timeout is over."""
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            _log.log(logging.DEBUG if isinstance(error, BusyError) else logging.WARNING, "%s; retrying", error)
        if now - self._failing_since >= self._timeout_s:
            raise UnavailableError(f"{error}; gave up after {self._timeout_s:g} s{self._setting}") from error
        self._sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def call(self, act: Callable[[], T]) -> T:
        """Call `act`, retrying while it raises UnavailableError; other exceptions propagate."""
        while True:
            try:
                result = act()
            except UnavailableError as error:
                self.wait(error)
            else:
                self.progressed()
                return result


class RetryingBroker:
    """A connection to a broker that may restart, opened again when needed; a context manager. Not thread-safe."""

    def __init__(self, bootstrap: str, retry: Retry, *, max_reply_bytes: int = DEFAULT_SETTINGS.fetch_bytes) -> None:
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
        """Send an idempotent request, retrying while it or `check` of its reply raises UnavailableError.

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
