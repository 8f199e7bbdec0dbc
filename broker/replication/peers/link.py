"""A connection to one broker that is reopened after a loss, with growing pauses."""

import math
from collections.abc import Callable, Iterator
from random import Random

import trio

from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.backoff import delays_s


class Link:
    """Connects on demand. The pauses between attempts grow until a connection has answered a request.

    address() returns host and port, or raises PeerError if the broker is not known. It is called for each attempt.
    failed() is called immediately when an attempt to connect or an open connection fails.
    """

    def __init__(
        self,
        address: Callable[[], tuple[str, int]],
        settings: PeerSettings,
        nursery: trio.Nursery,
        random: Random,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._settings = settings
        self._nursery = nursery
        self._random = random
        self._failed = failed
        self._connecting = trio.Lock()
        self._connection: PeerConnection | None = None
        self._delays: Iterator[float] = delays_s(random)
        self._not_before = 0.0  # on trio's clock
        self._connecting_since = math.inf
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None and self._connection.is_open

    def silence_s(self, now: float) -> float:
        """Return how long the broker has not answered a request or an attempt to connect."""
        if self._connection is not None and self._connection.is_open:
            return self._connection.silence_s(now)
        return max(0.0, now - self._connecting_since)

    async def connection(self) -> PeerConnection:
        """Return the connection; if necessary open it, after a pause. Raises PeerError after one failed attempt."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is not None:
                if self._connection.is_open:
                    return self._connection
                if not self._connection.is_given_up:
                    self._pause(is_sound=self._connection.answered > 0)
                self._connection = None
            await trio.sleep_until(self._not_before)
            host, port = self._address()
            self._connecting_since = trio.current_time()
            try:
                self._connection = await PeerConnection.connect(host, port, self._settings, self._nursery, self._failed)
            except PeerError:
                self._failed()
                self._pause(is_sound=False)
                raise
            finally:
                self._connecting_since = math.inf
            if self._is_closed:
                self._connection.close()
            return self._connection

    def close(self) -> None:
        """Close the connection, also one that is being opened."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()

    def _pause(self, *, is_sound: bool) -> None:
        """Schedule the next attempt; the first pause after a working connection is short."""
        if is_sound:
            self._delays = delays_s(self._random)
        self._not_before = trio.current_time() + next(self._delays)
