"""Limit the rate of new connections: of the broker, each listener, and each address.

A connection above its address's rate is closed after a pause, and does not count otherwise. A connection above the rate
of its listener or of the broker waits, with all connections behind it. Rates are measured like those of clients, and no
pause is longer than one window.

Source: kafka.network.ConnectionQuotas. There, a connection of an address above its rate waits for its listener first.
"""

from collections.abc import Callable
from typing import Final

from warmlog.broker.security.acls import host_of
from warmlog.broker.security.quotas.entities import QuotaIndex
from warmlog.broker.security.quotas.rates import MS, Rate, Windows

MAX_ADDRESSES: Final = 10_000  # addresses measured; the least recently used ones are dropped first
UNLIMITED: Final = (1 << 31) - 1


class ConnectionRates:
    """The rates of connections at one broker. Belongs to the event loop."""

    def __init__(
        self, index: QuotaIndex, windows: Windows, clock: Callable[[], float], broker_rate: Callable[[], int]
    ) -> None:
        """`clock` returns seconds, `broker_rate` the current setting, in connections per second."""
        self._index = index
        self._windows = windows
        self._clock = clock
        self._broker_rate = broker_rate
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        self._addresses: dict[str, Rate] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._addresses)

    def address_pause_s(self, address: str) -> float:
        """Record a connection of an address; return how long to hold it before closing it, 0 to accept it.

        A closed connection is not recorded.
        """
        bound = self._index.connection_rate(address)
        if bound is None:
            return 0.0
        now, name = self._now(), host_of(address).text
        rate = self._addresses.pop(name, None)
        if rate is None:
            rate = Rate(self._windows)
            if len(self._addresses) >= MAX_ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
        self._addresses[name] = rate  # as the most recently used one
        rate.record(1, now)
        pause_ms = self._pause_ms(rate, bound, now)
        if pause_ms:
            rate.record(-1, now)
        return pause_ms / MS

    def listener_pause_s(self, listener: str, bound: Callable[[], int], *, counts_at_broker: bool) -> float:
        """Record a connection of a listener; return how long it has to wait.

        `bound`: the listener's rate. `counts_at_broker`: the broker's applies, too.
        """
        of_listener, of_broker = bound(), self._broker_rate() if counts_at_broker else UNLIMITED
        if of_listener == UNLIMITED and of_broker == UNLIMITED:
            return 0.0
        now = self._now()
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self._windows)
        rate.record(1, now)
        pause_ms = self._pause_ms(rate, of_listener, now)
        if counts_at_broker:
            self._broker.record(1, now)
            pause_ms = max(pause_ms, self._pause_ms(self._broker, of_broker, now))
        return pause_ms / MS

    def _pause_ms(self, rate: Rate, bound: float, now: int) -> int:
        return min(self._windows.window_ms, rate.throttle_ms(bound, now))

    def _now(self) -> int:
        return int(self._clock() * MS)
