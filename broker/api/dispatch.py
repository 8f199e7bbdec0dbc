"""From request to handler.

Every request of both protocols goes through one of `begin_produce`, `fetch_now` and `handle`, with its context: whether
the sender may do this, how much of it, and who wants to know is decided here. Produce is queued, everything else is
awaited. A handler's failure becomes a response.
"""

import logging
from collections.abc import Collection, Iterable

from broker.api import produce
from broker.api.context import Context, Session
from broker.api.errors import EXPECTED, describe
from broker.api.fetch import Fetch, Fetches
from broker.api.handler import Family, Handler
from broker.metadata.topic import MAX_NAME_LENGTH
from broker.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.request import FetchRequest, ProduceRequest, Request
from protocol.response import ErrorResponse, FetchResponse, Response

logger = logging.getLogger(__name__)

DEFECT = ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker failed to answer; its log says why")


class Dispatcher:
    """Gives each request to its handler; a failure becomes an answer, never an exception of the connection."""

    def __init__(self, partitions: Partitions, fetches: Fetches, families: Iterable[Family]) -> None:
        self._partitions = partitions
        self._fetches = fetches
        self._handlers: dict[str, Handler] = {}
        for family in families:
            handlers = family.handlers()
            assert not handlers.keys() & self._handlers.keys(), "an API has one handler"
            self._handlers.update(handlers)

    @property
    def apis(self) -> Collection[str]:
        """What is handled beside produce and fetch, by the `api` of the requests."""
        return self._handlers.keys()

    def begin_produce(
        self, request: ProduceRequest, context: Context, *, create: bool = True
    ) -> produce.Produce | None:
        """Queue a produce request; it is written when the caller says `Writer.write_queued`.

        None, with nothing queued, if it is the first to use a topic: `prepare` it, then begin it with `create` False.
        """
        return produce.begin(request, context.session.client_id, self._partitions, create=create)

    async def prepare(self, request: ProduceRequest) -> None:
        """Create the topics that a produce request is the first to use, and wait for those that are being created.

        One that cannot be created is refused by `begin_produce`.
        """
        for name in produce.missing_topics(request, self._partitions):
            await self._partitions.changes.until_ready(name)
            if self._partitions.settings.auto_create_topics_enable:
                try:
                    await self._partitions.ensure(name)
                except EXPECTED as error:
                    logger.info("topic %.*r not created on first use: %s", MAX_NAME_LENGTH, name, error)

    def fetch_now(self, request: FetchRequest, context: Context) -> Fetch | FetchResponse | ErrorResponse:
        """Serve from the data available now, or return a pending `Fetch`."""
        context.start()
        try:
            return self._fetches.begin(request, context)
        except Exception:
            logger.exception("a request failed: fetch")
            return DEFECT

    async def fetch_later(self, fetch: Fetch, context: Context) -> FetchResponse | ErrorResponse:
        """Wait for more data, or for the disk, and return the response."""
        try:
            return await self._fetches.finish(fetch, context)
        except Exception:
            logger.exception("a request failed: fetch")
            return DEFECT

    def forget(self, session: Session) -> None:
        """Release what is kept for a connection that has gone."""
        self._fetches.forget(session)

    async def handle(self, request: Request, context: Context) -> Response:
        """Answer any other request; an unexpected failure is logged and answered UNKNOWN_SERVER_ERROR."""
        context.start()
        try:
            response: Response = await self._handlers[request.api](request, context)
        except EXPECTED as error:
            code, message = describe(error)
            return ErrorResponse(error=code, message=message)
        except Exception:
            logger.exception("a request failed: %s from %s:%d", request.api, *context.session.peer)
            return DEFECT
        return response
