"""One connection to a broker of another cluster.

Requests are pipelined: each is sent without waiting, and responses arrive in the order of the requests, as Kafka sends
them. A request that waits at the broker, such as a fetch, delays the responses to later ones.

Invariants:
1. The first error closes the connection: a response that is late, too large, malformed or out of order, a request sent
   in part. All pending and later requests then fail with that error.
2. No memory is allocated for a response of more than `max_response_bytes`.
3. The response to a request whose caller was cancelled is read, but not decoded.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import trio

from warmlog.broker.replication.peers import peer_socket
from warmlog.broker.replication.peers.errors import (
    PeerError,
    PeerInvalidError,
    PeerRequestError,
    PeerUnavailableError,
    PeerUnsupportedError,
)
from warmlog.broker.replication.peers.login import PeerLogin
from warmlog.broker.replication.peers.peer_socket import PeerSocket
from warmlog.protocol.errors import FrameError
from warmlog.protocol.frame import DEFAULT_MAX_FRAME_BYTES, FrameReader
from warmlog.protocol.kafka.codec.bounds import LargeMessageError, UnwritableError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest
from warmlog.protocol.kafka.peer import PeerApi, PeerProtocol, PeerProtocolError, PeerVersionError, SentRequest
from warmlog.protocol.kafka.peer_apis import API_VERSIONS
from warmlog.protocol.version import VERSION

Q = TypeVar("Q")
R = TypeVar("R")

_RECEIVE_BYTES = 64 << 10
_GREETING = ApiVersionsRequest(software_name="warmlog", software_version=VERSION)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Limits of connections to peers.

    request_timeout_s: from the call to the complete response, excluding the time that a fetch may wait.
    """

    client_id: str = "warmlog"
    connect_timeout_s: float = 10.0  # limit until the peer's versions are known
    request_timeout_s: float = 30.0  # Kafka's request.timeout.ms
    max_response_bytes: int = DEFAULT_MAX_FRAME_BYTES
    tls: Callable[[], ssl.SSLContext] | None = None  # the context for a new connection
    login: PeerLogin | None = None


class _Answer:
    """A pending response. `due_at`: the deadline for it, which depends on the request."""

    __slots__ = ("arrived", "due_at", "value")

    def __init__(self, due_at: float) -> None:
        self.arrived = trio.Event()
        self.due_at = due_at
        self.value: Any = None


class PeerConnection:
    """A connection that `connect` has opened. `run` must run until it is closed.

    `failed` is called when anything but `close` or `give_up` closes it.
    """

    def __init__(self, sock: PeerSocket, address: str, settings: PeerSettings, failed: Callable[[], None]) -> None:
        self.address = address
        self.failure: PeerError | None = None  # the reason for closing it
        self.is_given_up = False  # it was closed without an error
        self.answered = 0  # responses received, not counting the greeting
        self._sock = sock
        self._settings = settings
        self._failed = failed
        self._protocol = PeerProtocol(settings.client_id)
        self._reader = FrameReader(settings.max_response_bytes)
        self._sending = trio.Lock()
        self._answers: dict[int, _Answer] = {}
        self._heard_at = trio.current_time()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        settings: PeerSettings,
        nursery: trio.Nursery,
        failed: Callable[[], None] = lambda: None,
    ) -> "PeerConnection":
        """Connect and query the peer's versions; the nursery runs the connection. Raises PeerError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection, is_usable = None, False
        try:
            with trio.fail_after(settings.connect_timeout_s):
                tls = None if settings.tls is None else settings.tls()
                sock = await peer_socket.connect(host, port, tls)
                connection = cls(sock, address, settings, failed)
                nursery.start_soon(connection.run)
                await connection._greet()
                if settings.login is not None:
                    await settings.login.run(connection.ask, address)
        except trio.TooSlowError:
            raise PeerUnavailableError(f"{address}: no connection in {settings.connect_timeout_s:g} s") from None
        except OSError as error:
            raise PeerUnavailableError(f"{address}: cannot connect: {error}") from None
        else:
            connection.answered = 0
            is_usable = True
            return connection
        finally:
            if connection is not None and not is_usable:
                connection.close()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self.failure is None

    def supports(self, api: PeerApi[Any, Any], version: int) -> bool:
        """Return whether a version of an API can be used."""
        return self._protocol.supports(api, version)

    async def ask(self, api: PeerApi[Q, R], request: Q, *, waits_s: float = 0.0) -> R:
        """Send a request and return its response. `waits_s`: how long the peer may delay it. Raises PeerError.

        Cancelling it keeps the connection, unless part of the request has been sent.
        """
        answer = _Answer(trio.current_time() + waits_s)
        limit_s = self._settings.request_timeout_s + waits_s
        number = -1
        try:
            with trio.move_on_after(limit_s):
                await self._begin_sending()
                try:
                    self._raise_failure()
                    number, frame = self._encode(api, request)
                    self._answers[number] = answer
                    await self._send(frame)
                finally:
                    self._sending.release()
                await answer.arrived.wait()
        finally:
            self._answers.pop(number, None)
        if not answer.arrived.is_set():
            self._fail(PeerUnavailableError(f"{self.address}: no response to {api.api.name} in {limit_s:g} s"))
        if answer.value is None:
            self._raise_failure()
        value: R = answer.value
        return value

    def silence_s(self, now: float) -> float:
        """Return how long the peer has been silent while a response is due; 0 if none is due."""
        oldest = next(iter(self._answers.values()), None)
        return 0.0 if oldest is None else max(0.0, now - max(oldest.due_at, self._heard_at))

    def give_up(self) -> None:
        """Close a working connection whose pending requests have no caller; a new one may be opened immediately."""
        self.is_given_up = self.is_open
        self.close()

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._end(PeerUnavailableError(f"{self.address}: the connection was closed"))

    async def run(self) -> None:
        """Receive responses until the connection is closed."""
        try:
            while self.is_open:
                frame = self._reader.next_frame()
                if frame is None:
                    await self._receive()
                else:
                    await self._take(frame)
        except (FrameError, PeerProtocolError) as error:
            self._fail(PeerInvalidError(f"{self.address}: {error}"))
        except (OSError, trio.ClosedResourceError) as error:
            self._fail(PeerUnavailableError(f"{self.address}: connection lost: {error}"))
        except MemoryError:
            self._fail(PeerUnavailableError(f"{self.address}: no memory for a response"))
        finally:
            self.close()

    async def _greet(self) -> None:
        while not self._protocol.is_ready:
            try:
                await self.ask(API_VERSIONS, _GREETING)
            except PeerUnavailableError as error:
                wanted = "without" if self._settings.tls is None else "with"
                raise PeerUnavailableError(f"{error}; is it a Kafka listener {wanted} TLS?") from None

    def _encode(self, api: PeerApi[Q, Any], request: Q) -> tuple[int, bytes]:
        try:
            return self._protocol.send(api, request)
        except PeerVersionError as error:
            raise PeerUnsupportedError(f"{self.address}: {error}") from None
        except UnwritableError as error:
            raise PeerRequestError(f"{self.address}: {api.api.name}: {error}") from None

    async def _begin_sending(self) -> None:
        """Wait until no other request is sent in part."""
        if self._sending.locked():
            await self._sending.acquire()
        else:
            self._sending.acquire_nowait()  # without a checkpoint, unlike `acquire`

    async def _send(self, frame: bytes) -> None:
        left = memoryview(frame)
        try:
            while True:
                sent = self._sock.send(left)
                left = left[sent:]
                if not left:
                    break
                await self._sock.until_writable()
        except (OSError, trio.ClosedResourceError) as error:
            self._fail(PeerUnavailableError(f"{self.address}: connection lost: {error}"))
            self._raise_failure()
        finally:
            if left:
                self._fail(PeerUnavailableError(f"{self.address}: a request was cancelled while it was being sent"))

    async def _receive(self) -> None:
        """Receive more of a response, a large one directly into its buffer. Raises OSError."""
        buffer = self._reader.buffer_for_next()
        if buffer is not None:
            count = await self._sock.recv_into(buffer)
            self._reader.received(count)
        else:
            data = await self._sock.recv(_RECEIVE_BYTES)
            self._reader.feed(data)
            count = len(data)
        if not count:
            raise ConnectionResetError("the peer closed it")
        self._heard_at = trio.current_time()

    async def _take(self, frame: memoryview) -> None:
        """Decode a response and pass it to its caller. Raises PeerProtocolError."""
        sent = self._protocol.match(frame)
        answer = self._answers.get(sent.correlation_id)
        if answer is None:
            return
        answer.value = await self._decode(sent, frame)
        self.answered += 1
        answer.arrived.set()

    async def _decode(self, sent: SentRequest, frame: memoryview) -> Any:
        try:
            return self._protocol.decode(sent, frame, ENGINE.loop_work)
        except LargeMessageError:
            return await trio.to_thread.run_sync(partial(self._protocol.decode, sent, frame))

    def _fail(self, failure: PeerError) -> None:
        """Close the connection for this reason, unless it is closed already."""
        if self.failure is None:
            self._end(failure)
            self._failed()

    def _end(self, failure: PeerError) -> None:
        if self.failure is None:
            self.failure = failure
            self._sock.close()
            for answer in self._answers.values():
                answer.arrived.set()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
