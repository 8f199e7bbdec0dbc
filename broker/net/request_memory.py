"""The memory of one connection for requests, counted in a budget that all connections share."""

from time import perf_counter

from warmlog.broker.net.connection import Connection
from warmlog.broker.net.memory_budget import UNCOUNTED_BYTES, Share
from warmlog.broker.net.services import Services
from warmlog.broker.net.transport.transport import Transport
from warmlog.broker.net.turns.served import Served


class RequestMemory:
    """One connection's share: in the budget of logins until its client has authenticated, then of requests."""

    __slots__ = ("_budget", "_connection", "_owner", "_services", "_share", "_transport", "is_short")

    def __init__(
        self, connection: Connection, transport: Transport, services: Services, owner: Served, share: Share
    ) -> None:
        """Give `owner` another turn when memory that it waits for is granted."""
        self.is_short = False  # the frame being received waits for memory
        self._connection = connection
        self._transport = transport
        self._services = services
        self._owner: Served | None = owner  # None once closed, which breaks a reference cycle
        self._share = share
        self._budget = services.requests if connection.session.login is None else services.logins

    @property
    def is_counted(self) -> bool:
        """Whether the connection holds memory of the budget."""
        return self._share.size > 0

    def count(self, *, is_waiting: bool) -> None:
        """Count the memory held now; receiving stops until the budget allows the next step of a large frame.

        `is_waiting`: the current request waits for data or for other clients. Its connection is then closed rather than
        one that moves a message.
        """
        connection, share, budget = self._connection, self._share, self._budget
        held = connection.held_bytes + self._transport.received_bytes
        if held <= UNCOUNTED_BYTES:
            if share.size:
                budget.release(share)
            return
        if self._owner is None:
            return
        if is_waiting:
            connection.receiving.begin(self._services.turn.began_at)
        if held < share.size:
            budget.shrink(share, held)
            return
        announced = connection.reader.announced_bytes
        if held - announced > share.size:
            budget.charge(share, held - announced)
        if held > share.size and not self.is_short:
            self.is_short = not budget.grow(share, held - share.size, self._granted)

    def use_requests(self) -> None:
        """Count in the budget for requests from now on, because the client has authenticated."""
        if self._budget is not self._services.requests:
            self.release()
            self._budget = self._services.requests

    def release(self) -> None:
        """Release the counted memory."""
        self._budget.release(self._share)

    def close(self) -> None:
        """Release everything, for a connection that closes."""
        self._owner = self._share.holder = None
        self.release()

    def _granted(self) -> None:
        self.is_short = False
        self._connection.last_received = perf_counter()
        if self._owner is not None:
            self._services.turn.again(self._owner)
