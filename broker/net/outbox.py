"""The replies of one connection, on their way out, in the order of their requests.

Owns: what is received and not yet answered, its count and its bytes, and who sends. Must not know: how requests come
in, or what they mean beyond "done or not yet".

    add -> done? -> encode -> send      by the receiver itself if all is done (`flush`), else by the sending task
                                        (`serve`), so that the next frames can come in meanwhile

Invariants:
1. Replies leave in the order in which their exchanges were added.
2. Only one task sends at a time (`_sending`).
3. Past the limits on what is unanswered, `flush` waits: the connection is not read then, and the peer's window closes.
"""

import math
from collections import deque
from collections.abc import Sized
from time import perf_counter
from typing import Any

import trio

from broker.api.produce import Produce
from broker.metrics import RequestMetrics
from broker.net.inflight import Share
from broker.net.sender import Sender
from broker.net.services import Services
from protocol.response import Response

MAX_UNANSWERED_BYTES = 32 << 20  # of one connection; one full frame above it is still taken, so nothing gets stuck


class Exchange:
    """What is answered together: the produces that came in one read, or one other request. Its place in the outbox.

    Sizes in bytes, times in perf_counter seconds; the produces are begun, written and answered together, so each is
    timed as all of them.
    """

    __slots__ = (
        "begun_at",
        "count",
        "handled_at",
        "metrics",
        "produces",
        "received_at",
        "reply",
        "share",
        "size",
    )

    def __init__(self, received_at: float, metrics: RequestMetrics) -> None:
        self.received_at = self.begun_at = self.handled_at = received_at
        self.metrics = metrics
        self.count = self.size = 0
        self.share: Share | None = None  # of the bytes in flight, if a large frame is among the requests
        self.produces: list[tuple[Any, Produce]] = []  # with their calls (see Wire)
        self.reply: tuple[Any, Response] | None = None

    @property
    def done(self) -> bool:
        """Whether the replies can be encoded."""
        for _, produce in self.produces:  # noqa: SIM110  # a generator costs twice the loop, on every read
            if not produce.done:
                return False
        return True

    def notify(self, event: trio.Event) -> None:
        """Set an event when something of what is missing is there, at once if nothing is missing."""
        for _, produce in self.produces:
            if not produce.done:
                produce.notify(event)
                return
        event.set()


class PeerGoneError(Exception):
    """The other end has closed, or must be closed: nothing more can be said on this connection."""


class Outbox:
    """What is to be answered. Belongs to one connection."""

    def __init__(self, sender: Sender, services: Services) -> None:
        self._sender = sender
        self._services = services
        self._wire = services.wire
        self._exchanges: deque[Exchange] = deque()
        self._unanswered_requests = 0
        self._unanswered_bytes = 0
        self._shares: set[Share] = set()
        self._sending = False
        self._work = trio.Event()  # there is something for the sending task
        self._settled = trio.Event()  # the outbox has become shorter
        self.last_sent = -math.inf  # by trio's clock

    def __bool__(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._exchanges)

    def add(self, exchange: Exchange) -> None:
        """Give an exchange its place."""
        self._exchanges.append(exchange)

    def count(self, exchange: Exchange, size: int, share: Share | None) -> None:
        """Count one more request of an exchange, of so many bytes, against the limits until it is answered."""
        exchange.count += 1
        exchange.size += size
        if share is not None:
            exchange.share = share
            self._shares.add(share)
        self._unanswered_requests += 1
        self._unanswered_bytes += size

    def close(self) -> None:
        """Give back what is reserved for requests that will not be answered any more."""
        for share in self._shares:
            self._services.inflight.release(share)

    async def flush(self) -> None:
        """Send what is done, or leave it to the sending task; past the limits wait until the outbox is shorter.

        Raises as `serve` does.
        """
        if not self._sending and self._all_done():
            run = list(self._exchanges)
            self._exchanges.clear()
            await self._send_run(run)
            return
        self._watch_head()
        max_requests = self._services.max_requests
        while self._unanswered_requests >= max_requests or self._unanswered_bytes > MAX_UNANSWERED_BYTES:
            await self._wait_shorter()

    def _all_done(self) -> bool:
        for exchange in self._exchanges:  # noqa: SIM110  # a generator costs twice the loop, on every read
            if not exchange.done:
                return False
        return True

    async def flush_all(self) -> None:
        """Return when everything in the outbox is sent. Raises as `serve` does."""
        if self._exchanges or self._sending:
            await self.flush()
            while self._exchanges or self._sending:
                self._watch_head()
                await self._wait_shorter()

    async def _wait_shorter(self) -> None:
        self._settled = trio.Event()
        await self._settled.wait()

    async def serve(self) -> None:
        """The sending task: waits for what is not done yet, so that the receiver need not.

        Raises PeerGoneError, TruncatedSliceError, OSError.
        """
        while True:
            await self._work.wait()
            self._work = trio.Event()
            if not self._sending:  # else whoever sends looks at the head when it is done
                run = self._take_done()
                if run:
                    await self._send_run(run)
                else:
                    self._watch_head()

    def _watch_head(self) -> None:
        """Have the sending task woken when it has something to do: once a request, and not first to wait."""
        if self._exchanges:
            self._exchanges[0].notify(self._work)

    def _take_done(self) -> list[Exchange]:
        """The exchanges at the head of the outbox that are done."""
        run = []
        while self._exchanges and self._exchanges[0].done:
            run.append(self._exchanges.popleft())
        return run

    async def _send_run(self, run: list[Exchange]) -> None:
        """Encode and send replies, which are done and out of the outbox."""
        self._sending = True
        try:
            done_at = perf_counter()
            items: list[Sized] = []
            is_sound = True
            for exchange in run:
                is_sound = self._encode(exchange, items)
                if not is_sound:
                    break
            if items:
                await self._sender.send(items)
            if not is_sound:
                raise PeerGoneError("a produce with acks=0 failed, and closing is the only way to say so")
            self._account(run, done_at)
        finally:
            self._sending = False
            self._settled.set()
            self._watch_head()

    def _encode(self, exchange: Exchange, items: list[Sized]) -> bool:
        """Add the replies to `items`; False where the connection must close after them."""
        encode = self._wire.encode
        if exchange.reply is not None:
            items += encode(*exchange.reply)
            return True
        for call, produce in exchange.produces:
            response = produce.response()
            if produce.acks:
                items += encode(call, response)
            elif any(partition.error for partition in response.partitions):
                return False
        return True

    def _account(self, run: list[Exchange], done_at: float) -> None:
        sent_at = perf_counter()
        for exchange in run:
            self._unanswered_requests -= exchange.count
            self._unanswered_bytes -= exchange.size
            exchange.metrics.observe(exchange, done_at, sent_at)
            if exchange.share is not None:
                self._services.inflight.release(exchange.share)
                self._shares.discard(exchange.share)
        self.last_sent = trio.current_time()
