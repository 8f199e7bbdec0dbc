"""The pipeline's only retry policy: exponential backoff while a broker is unavailable."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from warmlog.pipeline.errors import BusyError, MovedError, UnavailableError

_log = logging.getLogger(__name__)

T = TypeVar("T")

READ_TIMEOUT_S = 60.0  # how long a read retries before it fails
FIRST_PAUSE_S = 0.1  # Kafka's retry.backoff.ms, doubled up to
LONGEST_PAUSE_S = 1.0  # Kafka's retry.backoff.max.ms


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
        """Back off after an error, unless it is the first and another broker may succeed immediately.

        Raises UnavailableError with the error once the timeout is over.
        """
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
            _log.log(
                logging.DEBUG if isinstance(error, BusyError | MovedError) else logging.WARNING, "%s; retrying", error
            )
            if isinstance(error, MovedError):
                return
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
