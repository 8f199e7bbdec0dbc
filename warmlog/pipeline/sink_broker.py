"""The broker that a task writes to, with patience: it may be away for a while.

Owns: one connection at a time, coming back after it is lost, and when patience ends. Must not know: what is asked.

1. Patience is counted from the first trouble since something got on: a job that gets on, or has nothing to send for a
   while, is never given up.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from protocol.native.messages import NativeRequest
from protocol.request import Value
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.wire import BrokerConnection, LostError

RETRY_S = 0.1  # Kafka's retry.backoff.ms; doubled up to
LONGEST_RETRY_S = 1.0  # Kafka's retry.backoff.max.ms

R = TypeVar("R", bound=Value)


class PatientBroker:
    """A context manager. Not thread-safe. `max_reply_bytes`: of a fetch.

    `patience_s`: how long nothing may get on before it is given up.
    """

    def __init__(
        self,
        bootstrap: str,
        patience_s: float,
        *,
        max_reply_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bootstrap = bootstrap
        self._patience_s = patience_s
        self._max_reply_bytes = max_reply_bytes
        self._clock = clock
        self._sleep = sleep
        self._connection: BrokerConnection | None = None
        self._trouble_since: float | None = None
        self._pause_s = RETRY_S

    def connection(self) -> BrokerConnection:
        """The connection, made if there is none. Raises LostError where there is no broker."""
        if self._connection is None:
            self._connection = BrokerConnection(self._bootstrap, max_reply_bytes=self._max_reply_bytes)
        return self._connection

    def lose(self) -> None:
        """The connection is of no more use."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def progressed(self) -> None:
        """Something got on."""
        self._trouble_since = None
        self._pause_s = RETRY_S

    def wait(self, error: PipelineError) -> None:
        """Wait a little after an error that may pass. Raises PipelineError with it, once patience is over."""
        now = self._clock()
        if self._trouble_since is None:
            self._trouble_since = now
        if now - self._trouble_since >= self._patience_s:
            raise PipelineError(f"given up after {self._patience_s:g} s (deliveryTimeoutMs): {error}") from error
        self._sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_RETRY_S)

    def ask(self, request: NativeRequest, response_type: type[R], check: Callable[[R], None] | None = None) -> R:
        """Ask what may be asked twice, and again while `check` raises LostError of the reply. Raises PipelineError."""
        while True:
            try:
                response = self._ask_once(request, response_type)
                if check is not None:
                    check(response)
            except LostError as error:
                self.wait(error)
            else:
                self.progressed()
                return response

    def _ask_once(self, request: NativeRequest, response_type: type[R]) -> R:
        try:
            return self.connection().ask(request, response_type)
        except LostError:
            self.lose()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lose()
