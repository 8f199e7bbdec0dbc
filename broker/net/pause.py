"""The pause of a client that has exceeded a quota: it gets its reply, then its socket is not read (KIP-219)."""

from time import perf_counter
from typing import Final

from warmlog.broker.net.connection import Connection
from warmlog.broker.net.turns.served import Served
from warmlog.broker.net.turns.turn import ServingTurn

NO_TICK: Final = -1


class Pause:
    """Whether a connection pauses. The time of a pause counts neither as idleness nor as slowness of its peer."""

    __slots__ = ("_connection", "_owner", "_tick", "_turn", "is_on")

    def __init__(self, owner: Served, connection: Connection, turn: ServingTurn) -> None:
        """Prepare pauses of a connection; `owner` resumes after each."""
        self.is_on = False
        self._owner: Served | None = owner  # None once closed, which breaks a reference cycle
        self._connection = connection
        self._turn = turn
        self._tick = NO_TICK

    def begin(self, throttle_ms: int) -> None:
        """Pause for at least this time from now. Does nothing for a closed connection."""
        if self._owner is None:
            return
        tick = self._turn.deadlines.add(self, throttle_ms / 1000)
        earlier = min(tick, self._tick)
        if self.is_on and earlier != max(tick, self._tick):
            self._turn.deadlines.remove(self, earlier)
        self.is_on, self._tick = True, max(tick, self._tick)

    def expire(self) -> None:
        """End the pause: its time has passed."""
        self._tick = NO_TICK
        self.is_on = False
        self._connection.resume_receiving(perf_counter())
        if self._owner is not None:
            self._turn.again(self._owner)

    def end(self) -> None:
        """End the pause early, because the peer or the broker closes the connection."""
        if self.is_on:
            self._turn.deadlines.remove(self, self._tick)
            self.expire()

    def close(self) -> None:
        """Drop the reference to a closed connection."""
        self._owner = None
        if self.is_on:
            self._turn.deadlines.remove(self, self._tick)
            self.is_on = False
