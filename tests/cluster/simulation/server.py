"""A broker's Kafka listener over simulated connections: the real wire, handlers and writer, without the serving turn.

One request of a connection at a time, as Kafka does it.
"""

from collections.abc import Callable, Sized
from typing import Any

import trio

from tests.cluster.simulation.network import Socket
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.dispatch import Dispatcher
from warmlog.broker.api.fetch.fetch import Fetch
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.produce import Produce
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.net.wire import KafkaWire
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT
from warmlog.protocol.request import FetchRequest, ProduceRequest
from warmlog.protocol.response import Response

MAX_FRAME_BYTES = 100 << 20
RECEIVE_BYTES = 1 << 20


class SimulatedListener:
    """Serves simulated connections with the handlers of one broker."""

    def __init__(self, wire: KafkaWire, dispatcher: Dispatcher, write_queued: Callable[[], None]) -> None:
        self._wire = wire
        self._dispatcher = dispatcher
        self._write_queued = write_queued
        self._pacer = Pacer(trio.lowlevel.current_clock().current_time)

    async def serve(self, end: Socket) -> None:
        """Serve one connection until either end closes it."""
        session = Session(listener="kafka", peer=(end.there, 0), local=(end.here, 0))
        reader = FrameReader(MAX_FRAME_BYTES)
        try:
            while True:
                frame = reader.next_frame()
                if frame is not None:
                    await self._answer(end, frame, session)
                    continue
                data = await end.recv(RECEIVE_BYTES)
                if not data:
                    return
                reader.feed(data)
        except (OSError, ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            end.close()
            self._dispatcher.forget(session)

    async def _answer(self, end: Socket, frame: memoryview, session: Session) -> None:
        context = Context(session, self._pacer)
        call, request = self._wire.decode(frame, context, NO_LIMIT)
        try:
            if isinstance(request, ProduceRequest):
                response: Response = await self._produce(request, context)
            elif isinstance(request, FetchRequest):
                response = await self._fetch(request, context)
            else:
                response = await self._dispatcher.handle(request, context)
        finally:
            context.end()
        if isinstance(request, ProduceRequest) and not request.acks:
            return
        await end.send_all(_joined(self._wire.encode(call, response, limit=NO_LIMIT)))

    async def _produce(self, request: ProduceRequest, context: Context) -> Response:
        produce: Produce | None = self._dispatcher.begin_produce(request, context)
        if produce is None:
            produce = await self._dispatcher.begin_large_produce(request, context, self._write_queued)
        self._write_queued()
        while not produce.done:
            settled = trio.Event()
            produce.notify(settled.set)
            await settled.wait()
        return produce.response()

    async def _fetch(self, request: FetchRequest, context: Context) -> Response:
        found: Any = self._dispatcher.fetch_now(request, context)
        deadline = trio.current_time() + request.max_wait_ms / 1000
        while isinstance(found, Fetch):
            try:
                if found.needs_task:
                    found = await self._dispatcher.fetch_work(found, context)
                    continue
                woken = trio.Event()
                found.wait(woken.set)
                with trio.move_on_at(deadline):
                    await woken.wait()
            except trio.Cancelled:
                found.abandon()
                raise
            found = self._dispatcher.fetch_again(found, context, is_over=trio.current_time() >= deadline)
        response: Response = found
        return response


def _joined(items: list[Sized]) -> bytes:
    return b"".join(item.read_all() if isinstance(item, FileSlice) else item for item in items)  # type: ignore[misc]
