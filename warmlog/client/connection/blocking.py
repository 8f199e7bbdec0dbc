"""A native connection for a thread without an event loop: one request after another, or a few ahead of their replies.

The pipeline's tasks use it: a Spark worker needs neither an event loop nor a client's producer and streams.
"""

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from warmlog.client.connection.session import Session
from warmlog.client.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from warmlog.client.settings import DEFAULT_PORT, Settings
from warmlog.protocol.errors import FrameError, ProtocolError
from warmlog.protocol.native.messages import NativeRequest
from warmlog.protocol.request import Value
from warmlog.protocol.response import HelloResponse

R = TypeVar("R", bound=Value)
T = TypeVar("T")


class BlockingConnection:
    """A connection that has exchanged hello; a context manager. Never retries. Not thread-safe.

    `settings`: the client's name, the timeouts, and `fetch_bytes`, the size limit of records in one reply.
    """

    def __init__(self, host: str, port: int, settings: Settings) -> None:
        """Connect. Raises ConnectError; ConnectionLostError and BrokerError if the hello fails."""
        self.address = f"{host}:{port}"
        self._session = Session(settings.fetch_bytes)
        self._timeout_s = settings.request_timeout_s
        try:
            self._socket = socket.create_connection((host, port), settings.connect_timeout_s)
        except OSError as error:
            raise ConnectError(f"cannot connect to {self.address}: {error.strerror or error}") from error
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ask(Session.hello(settings.client), HelloResponse)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: NativeRequest, response_type: type[R]) -> R:
        """Send a request and wait for its reply. Raises as `receive`."""
        self.send(request)
        return self.receive(response_type)

    def send(self, request: NativeRequest) -> None:
        """Send a request that gets a reply; `receive` replies in request order. Raises ConnectionLostError."""
        encoded = self._session.encode(request)
        self._checked(lambda: self._socket.sendall(encoded))

    def receive(self, response_type: type[R]) -> R:
        """Wait for the next reply.

        Raises BrokerError for an error reply, ConnectionLostError (final where the peer does not speak the protocol),
        RequestTimeoutError.
        """
        return self._checked(lambda: self._receive(response_type))

    def _receive(self, response_type: type[R]) -> R:
        while (frame := self._session.next_frame()) is None:
            if not self._session.receive_from(self._socket):
                raise ConnectionResetError("closed by the broker")
        return self._session.decode(frame, response_type)

    def _checked(self, act: Callable[[], T]) -> T:
        """Call `act`, and raise its errors as those of the client."""
        try:
            return act()
        except TimeoutError as error:
            raise RequestTimeoutError(f"{self.address} did not reply within {self._timeout_s:g} s") from error
        except OSError as error:
            raise ConnectionLostError(f"connection to {self.address} lost: {error.strerror or error}") from error
        except ProtocolError as error:
            raise self._invalid(error) from error

    def _invalid(self, error: ProtocolError) -> ConnectionLostError:
        is_frame = isinstance(error, FrameError)
        what = f"is not the native listener of a broker (port {DEFAULT_PORT} by default)"
        lost = ConnectionLostError(f"{self.address} {what if is_frame else 'sent an invalid reply'}: {error}")
        lost.is_final = True
        return lost

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
