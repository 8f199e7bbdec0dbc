"""A fetch that cannot be answered in the turn of its arrival: it waits for data, its deadline, or a task."""

from typing import Final, TypeAlias

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.fetch.fetch import Fetch
from warmlog.broker.net.turns.served import Served
from warmlog.broker.net.turns.turn import ServingTurn
from warmlog.protocol.response import ErrorResponse, FetchResponse

NO_TICK: Final = -1  # no deadline is set

FetchReply: TypeAlias = FetchResponse | ErrorResponse


class PendingFetch:
    """The pending fetch of a connection.

    New data and the deadline only set a flag and make the connection due, which then calls `resume`. A fetch that reads
    from disk or has many partitions runs in a task.
    """

    __slots__ = (
        "_context",
        "_dispatcher",
        "_fetch",
        "_is_closed",
        "_is_over",
        "_is_woken",
        "_max_wait_s",
        "_owner",
        "_result",
        "_tick",
        "_turn",
        "_working",
    )

    def __init__(
        self, fetch: Fetch, context: Context, dispatcher: Dispatcher, owner: Served, turn: ServingTurn
    ) -> None:
        """Start to wait; `owner` becomes due when a response may be ready."""
        self._fetch = fetch
        self._context = context
        self._dispatcher = dispatcher
        self._owner = owner
        self._turn = turn
        self._result: Fetch | FetchReply | None = None  # result of the task
        self._is_woken = False
        self._is_over = False  # the deadline has passed
        self._max_wait_s = fetch.max_wait_ms / 1000
        self._is_closed = False
        self._working: trio.CancelScope | None = None  # the task
        self._tick = NO_TICK
        self._wait()

    def limit_wait(self, limit_s: float) -> None:
        """Limit the wait to `limit_s` seconds from now."""
        self._max_wait_s = min(self._max_wait_s, limit_s)
        if self._tick != NO_TICK:
            deadlines, earlier = self._turn.deadlines, self._tick
            later = deadlines.add(self, limit_s)
            if later < earlier:
                earlier, later = later, earlier
            if later != earlier:
                deadlines.remove(self, later)
            self._tick = earlier

    def expire(self) -> None:
        """Record that the deadline has passed."""
        self._is_over = True
        self._tick = NO_TICK
        self._wake()

    def resume(self) -> FetchReply | None:
        """Return the response if the fetch has enough data now; otherwise continue to wait and return None."""
        if not self._is_woken or self._working is not None:
            return None
        self._is_woken = False
        result, self._result = self._result, None
        if result is None or (self._is_over and isinstance(result, Fetch)):
            result = self._dispatcher.fetch_again(self._fetch, self._context, is_over=self._is_over)
        if isinstance(result, Fetch):
            self._wait()
            return None
        self._end()
        return result

    def close(self) -> None:
        """Cancel the fetch without a response."""
        self._end()
        if self._working is not None:
            self._working.cancel()
        elif self._result is None or isinstance(self._result, Fetch):
            self._fetch.abandon()

    def _end(self) -> None:
        self._is_closed = True
        if self._tick != NO_TICK:
            self._turn.deadlines.remove(self, self._tick)
            self._tick = NO_TICK

    def _wake(self) -> None:
        self._is_woken = True
        self._turn.due(self._owner)

    def _wait(self) -> None:
        fetch = self._fetch
        self._context.end()
        if fetch.needs_task:
            self._working = trio.CancelScope()
            self._turn.spawn(self._owner, self._work)
            return
        fetch.wait(self._wake)
        if self._tick == NO_TICK:
            self._tick = self._turn.deadlines.add(self, self._max_wait_s)

    async def _work(self) -> None:
        """Run the part of the fetch that needs a task."""
        assert self._working is not None
        result: Fetch | FetchReply | None = None
        with self._working:
            result = await self._dispatcher.fetch_work(self._fetch, self._context)
        self._working = None
        if not self._is_closed:
            self._result = result
            self._wake()
            return
        self._context.end()
        if isinstance(result, Fetch):
            result.abandon()
