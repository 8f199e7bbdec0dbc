"""The serving turn: one task serves all ready sockets together.

    epoll -> turn:  receive from each ready socket, begin its requests       (produce: appends are queued)
                    one write per partition for all requests of the turn     Writer.write_queued
                    send all finished replies, also those of fetches that these writes satisfied;
                    of a busy turn, a thread sends them while the next turn begins             SharedSends

All sockets are registered once with an epoll instance, whose descriptor is the only one that trio waits for. So a
request costs no task switch, no `epoll_ctl` and no checkpoint, and requests that arrive together share writes.

A request that cannot be answered in its turn is *pending*: it keeps its position in its connection's reply queue, and
`due` schedules the connection when the response is ready. Only async handlers and disk reads run in tasks.

Bounds: a turn begins requests for at most `RECEIVE_S`, then it writes, and answers for at most `FINISH_S`. A connection
begins at most `request_handling.MAX_REQUESTS` in a turn. Further requests, and replies for which a turn has no time,
wait in a backlog. Connections that became ready or due in this turn take precedence over the backlog for at least half
of the time. So a client with one request waits for one or two turns, however many others send without waiting for
replies, or are closed together. Other tasks run every `STRETCH_S`.
"""

import logging
import select
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from os import sched_getaffinity
from time import perf_counter
from typing import Final

import trio

from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.net.turns.deadlines import Deadlines
from warmlog.broker.net.turns.send_thread import SharedSends
from warmlog.broker.net.turns.served import Served

logger = logging.getLogger(__name__)

MAX_EVENTS: Final = 512  # events per epoll call; RECEIVE_S usually ends a turn earlier
RECEIVE_S = 0.0025  # time to begin a turn's requests; writing and answering them takes about as long again
FRESH_S: Final = RECEIVE_S / 2  # share of that time for sockets that became ready, while others are in the backlog
FINISH_S: Final = 0.005
STRETCH_S: Final = 0.001  # time between two checkpoints; a checkpoint costs as much as half a request
PROMPT_S = 0.0002  # time from a reply to the next request of a local client that does nothing in between
CAN_LINGER = len(sched_getaffinity(0)) > 1  # on a single processor, lingering would take processor time from the client
PROMPT_TURNS = 16  # consecutive prompt requests before lingering; two active clients never reach this


class ServingTurn:
    """The serving turns of a broker, for all of its listeners. Used on the event loop only."""

    def __init__(self, write_queued: Callable[[], None], guard: LoopGuard) -> None:
        """`write_queued` is called at the end of each turn, before its replies."""
        self.deadlines = Deadlines()
        self.guard = guard
        self.began_at = self.ends_at = 0.0  # start of this turn, and the time after which it begins no requests
        self.write_queued = write_queued
        self._epoll = select.epoll()
        self._served: dict[int, Served] = {}
        self._ready: deque[tuple[Served, int]] = deque()  # as epoll reports
        self._backlog: deque[Served] = deque()
        self._due: deque[Served] = deque()
        self._late: deque[Served] = deque()  # due, but without time in their turn
        self._in_turn = False
        self._settled = trio.Event()  # set when a connection is scheduled between turns
        self._has_spawned = False
        self._nursery: trio.Nursery | None = None
        self._last_fd = -1  # the last socket that was the only ready one
        self._prompt_turns = 0  # consecutive turns in which it was ready right after its reply
        self._finished_at = 0.0
        self._sends = SharedSends()

    def __len__(self) -> int:
        return len(self._served)

    @property
    def lingers(self) -> bool:
        """Whether the loop polls instead of sleeping, for a prompt client."""
        return self._prompt_turns >= PROMPT_TURNS

    # -- for connections --

    def add(self, served: Served, fd: int, events: int) -> None:
        """Start serving a socket. Raises OSError."""
        self._epoll.register(fd, events)
        self._served[fd] = served

    def change(self, fd: int, events: int) -> None:
        """Change the events to wait for on a socket."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop serving a socket; call this before closing it."""
        del self._served[fd]
        if not self._epoll.closed:
            self._epoll.unregister(fd)

    def due(self, served: Served) -> None:
        """Schedule a connection for `finish`, in this turn or in one that begins immediately."""
        if not served.is_due:
            served.is_due = True
            self._due.append(served)
            self._wake()

    def again(self, served: Served) -> None:
        """Schedule a connection to continue after others have had their turn."""
        if not served.is_left_over:
            served.is_left_over = True
            self._backlog.append(served)
            self._wake()

    def spawn(self, served: Served, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task for a connection. It is cancelled with the turns; an exception closes the connection."""
        assert self._nursery is not None, "connections are served while `run` runs"
        self._has_spawned = True
        self._nursery.start_soon(_run_for, served, run)

    def run_beside(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task that belongs to no connection. It is cancelled with the turns; after their end, nothing is run."""
        if self._nursery is not None:
            self._nursery.start_soon(_run_beside, run)

    def hand_over(self, served: Served, fd: int, data: bytes) -> bool:
        """Let a thread send; return False if it cannot. The socket must stay open until `handed_back`."""
        return self._sends.put(served, fd, data)

    def _wake(self) -> None:
        if not self._in_turn:
            self._settled.set()

    # -- turns --

    async def run(self) -> None:
        """Take turns until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._serve_settled)
                nursery.start_soon(self.deadlines.run)
                while True:
                    if not self.lingers or not await self._linger():
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                    await self._take_turns()
        finally:
            self._nursery = None
            self._hand_back(self._sends.end())
            self._epoll.close()

    async def _serve_settled(self) -> None:
        while True:
            await self._settled.wait()
            await self._take_turns()

    async def _take_turns(self) -> None:
        """Take turns while connections are ready; other tasks run every `STRETCH_S`."""
        ends_at = perf_counter() + STRETCH_S
        while self._take_turn():
            if self._has_spawned or perf_counter() > ends_at:
                self._has_spawned = False
                await trio.lowlevel.checkpoint()
                ends_at = perf_counter() + STRETCH_S

    async def _linger(self) -> bool:
        """Poll for a prompt client for `PROMPT_S`; return whether any socket became ready.

        On a virtual machine, sleeping and waking up costs more than serving a small request. Other tasks still run.
        """
        until = perf_counter() + PROMPT_S
        while perf_counter() < until:
            await trio.lowlevel.checkpoint()
            if self._ready or self._find_ready():
                return True
        self._prompt_turns = 0
        return False

    def _take_turn(self) -> bool:
        """Serve every ready connection; return False if there was none."""
        if self._settled.is_set():
            self._settled = trio.Event()
        is_idle = not self._ready and not self._find_ready() and not (self._backlog or self._due or self._late)
        if is_idle and not self._sends:
            return False
        self._in_turn = True
        now = self.began_at = perf_counter()
        self.ends_at = now + RECEIVE_S
        self._hand_back(self._sends.take(wait=is_idle))
        self._begin(now)
        self._finish()
        self._in_turn = False
        return True

    def _begin(self, now: float) -> None:
        """Begin requests."""
        ready, backlog = self._ready, self._backlog
        fresh_until = now + FRESH_S if backlog else self.ends_at
        while now <= self.ends_at:
            if ready and (now <= fresh_until or not backlog):
                served, events = ready.popleft()
            elif backlog:
                served, events = backlog.popleft(), 0
                served.is_left_over = False
            else:
                break
            try:
                served.ready(events)
            except Exception:  # error boundary of a connection: a defect closes this one only
                logger.exception("unexpected error while serving a connection, closing it")
                served.close()
            now = perf_counter()

    def _hand_back(self, results: Sequence[tuple[Served, int]]) -> None:
        """Resume connections whose replies were sent by the thread."""
        for served, sent in results:
            try:
                served.handed_back(sent)
            except Exception:  # as above
                logger.exception("unexpected error while serving a connection, closing it")
                served.close()

    def _find_ready(self) -> bool:
        """Queue connections that epoll reports; return whether there are any."""
        ready, served = self._ready, self._served
        events = self._epoll.poll(0, MAX_EVENTS)
        for fd, event in events:
            ready.append((served[fd], event))
        if events and CAN_LINGER:
            self._note_prompt_client(events[0][0] if len(events) == 1 else -1)
        return bool(ready)

    def _note_prompt_client(self, fd: int) -> None:
        """Count consecutive turns in which one connection is ready alone, right after its reply."""
        is_prompt = fd == self._last_fd and perf_counter() - self._finished_at < PROMPT_S
        self._prompt_turns = self._prompt_turns + 1 if is_prompt else 0
        self._last_fd = fd

    def _finish(self) -> None:
        """Write the queued appends, then send replies."""
        self.guard.begin("produce")
        self.write_queued()
        due, late = self._due, self._late
        if due or late:
            now = at = self.guard.begin("replies")
            self._due = deque()  # connections that become due from now on have no reply before the next write
            self._sends.open(len(due) + len(late), now - self.began_at)
            ends_at = now + FINISH_S
            due_until = now + FINISH_S / 2 if late else ends_at
            while at <= ends_at:
                if due and (at <= due_until or not late):
                    each = due.popleft()
                elif late:
                    each = late.popleft()
                else:
                    break
                each.is_due = False
                try:
                    each.finish(now)
                except Exception:  # as above
                    logger.exception("unexpected error while serving a connection, closing it")
                    each.close()
                at = perf_counter()
            late.extend(due)
            self._sends.close()
        self._finished_at = perf_counter()


async def _run_for(served: Served, run: Callable[[], Awaitable[None]]) -> None:
    """Run a connection's task within its error boundary."""
    try:
        await run()
    except Exception:
        logger.exception("unexpected error while serving a connection, closing it")
        served.close()


async def _run_beside(run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except Exception:
        logger.exception("unexpected error in a background task of the listeners")
