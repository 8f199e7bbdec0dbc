"""Limit how many names a client may introduce: producer ids and transactional ids.

The broker remembers each name for hours or days, so the number of names is limited. A client that invents names must
not use up the limit for others:

- A connection may introduce `warmlog.connection.names.max`. A producer has one id, or a few over time.
- All connections of an address may introduce a quarter of the limit within the time for which a name is kept.

Introduced names count even after the broker has dropped them, which can only be to the advantage of other clients.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable

from warmlog.broker.api.context import Session
from warmlog.broker.api.errors import RequestError
from warmlog.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

ADDRESS_SHARE = 4  # an address's share is the limit divided by this, but at least `ADDRESS_LEAST`
ADDRESS_LEAST = 100
MAX_ADDRESSES = 10_000  # addresses kept; the one that introduced a name least recently is dropped first
LOG_PAUSE_S = 10.0


class Newcomers:
    """The names of one kind that connections and addresses have introduced. Used on the event loop only."""

    def __init__(
        self, what: str, setting: str, *, limit: int, of_connection: int, window_s: float, clock: Callable[[], float]
    ) -> None:
        """Count names (`what`, in the plural) that are kept for `window_s` seconds; `limit` is that of `setting`."""
        self._what = what
        self._setting = setting
        self._of_connection = of_connection
        self._of_address = max(ADDRESS_LEAST, limit // ADDRESS_SHARE)
        self._window_s = window_s
        self._clock = clock
        self._addresses: OrderedDict[str, _Window] = OrderedDict()
        self._log_at = -math.inf
        self.refused = 0

    def admit(self, session: Session, name: str | int) -> None:
        """Count an unknown name. Raises RequestError beyond a limit."""
        introduced = session.introduced
        if name in introduced:
            return
        address = session.peer[0]
        if len(introduced) >= self._of_connection:
            message = f"the connection has introduced {len(introduced)} names (warmlog.connection.names.max)"
            raise self._refused(session, message)
        if not self._window_of(address).take(self._clock(), self._window_s, self._of_address):
            message = f"{address} has introduced {self._of_address:,} lately, its share of {self._setting}"
            raise self._refused(session, message)
        introduced.add(name)

    def _refused(self, session: Session, message: str) -> RequestError:
        self.refused += 1
        now = self._clock()
        if now >= self._log_at:
            self._log_at = now + LOG_PAUSE_S
            logger.warning("refused new %s of %s:%d: %s", self._what, *session.peer, message)
        return RequestError(ErrorCode.POLICY_VIOLATION, f"no more new {self._what}: {message}")

    def _window_of(self, address: str) -> "_Window":
        window = self._addresses.get(address)
        if window is None:
            window = self._addresses[address] = _Window()
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        return window


class _Window:
    """A count over a sliding window, approximated by the count of the current window and a part of the previous one."""

    __slots__ = ("_began_at", "_count", "_previous")

    def __init__(self) -> None:
        self._began_at = 0.0
        self._count = self._previous = 0

    def take(self, now: float, window_s: float, most: int) -> bool:
        """Count one more, unless that would exceed `most`."""
        passed = (now - self._began_at) / window_s
        if passed >= 1.0:
            windows = int(passed)
            self._previous = self._count if windows == 1 else 0
            self._count = 0
            self._began_at += windows * window_s
            passed -= windows
        if self._count + self._previous * (1.0 - passed) >= most:
            return False
        self._count += 1
        return True
