"""From request to handler.

Owns: the table, the error boundary, and the split between what is queued (produce) and what is awaited (everything
else). Must not know: sockets and wire formats.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from broker.api import fetch, produce
from broker.api.errors import EXPECTED, describe
from broker.api.offsets import OffsetsApi
from broker.api.session import Session
from broker.api.topics import TopicsApi
from broker.metadata.topic import MAX_NAME_LENGTH
from broker.metrics import Metrics
from broker.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.native.messages import VersionError, choose_version
from protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    FetchRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    Request,
)
from protocol.response import ErrorResponse, FetchResponse, HelloResponse, Response

logger = logging.getLogger(__name__)

DEFECT = ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker failed to answer; its log says why")
MAX_CLIENT_LENGTH = 255  # of a client's name; it is kept as long as its connection


class Dispatcher:
    """Gives each request to its handler; a failure becomes an answer, never an exception of the connection."""

    def __init__(self, partitions: Partitions, metrics: Metrics, *, cluster_id: str, version: str) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._cluster_id = cluster_id
        self._version = version
        self._topics = TopicsApi(partitions, cluster_id)
        offsets = OffsetsApi(partitions, metrics)
        self._handlers: dict[str, Callable[[Any, Session], Awaitable[Response]]] = {
            HelloRequest.api: self._hello,
            MetadataRequest.api: self._topics.metadata,
            CreateTopicsRequest.api: lambda request, _: self._topics.create(request),
            DeleteTopicsRequest.api: lambda request, _: self._topics.delete(request),
            DescribeTopicsRequest.api: lambda request, _: self._topics.describe(request),
            AlterTopicsRequest.api: lambda request, _: self._topics.alter(request),
            ListOffsetsRequest.api: lambda request, _: offsets.list_offsets(request),
        }

    def begin_produce(self, request: ProduceRequest, *, create: bool = True) -> produce.Produce | None:
        """Queue a produce request; it is written when the caller says `Writer.write_queued`.

        None, with nothing queued, if it is the first to use a topic: `prepare` it, then begin it with `create` False.
        """
        return produce.begin(request, self._partitions, create=create)

    async def prepare(self, request: ProduceRequest) -> None:
        """Create the topics that a produce request is the first to use.

        One that cannot be created is refused by `begin_produce`.
        """
        if self._partitions.settings.auto_create_topics_enable:
            for name in produce.missing_topics(request, self._partitions):
                try:
                    await self._topics.ensure(name)
                except EXPECTED as error:
                    logger.info("topic %.*r not created on first use: %s", MAX_NAME_LENGTH, name, error)

    def fetch_now(self, request: FetchRequest) -> fetch.Slices | FetchResponse | ErrorResponse:
        """What there is: the response if that is enough, else the slices to wait with."""
        try:
            found = fetch.read_now(request, self._partitions)
        except Exception:
            logger.exception("a request failed: fetch")
            return DEFECT
        return fetch.response(found) if fetch.is_enough(found, request) else found

    async def fetch_later(self, request: FetchRequest, found: fetch.Slices) -> FetchResponse | ErrorResponse:
        """Wait for more, then answer."""
        try:
            return fetch.response(await fetch.wait_and_read(request, self._partitions, found))
        except Exception:
            logger.exception("a request failed: fetch")
            return DEFECT

    async def handle(self, request: Request, session: Session) -> Response:
        """Answer any other request.

        The error boundary: what nobody expected is logged and answered UNKNOWN_SERVER_ERROR.
        """
        try:
            return await self._handlers[request.api](request, session)
        except EXPECTED as error:
            code, message = describe(error)
            return ErrorResponse(error=code, message=message)
        except Exception:
            logger.exception("a request failed: %s from %s:%d", request.api, *session.peer)
            return DEFECT

    async def _hello(self, request: HelloRequest, session: Session) -> Response:
        try:
            session.protocol_version = choose_version(request.versions)
        except VersionError as error:
            return ErrorResponse(error=error.code, message=str(error))
        session.client_id = request.client[:MAX_CLIENT_LENGTH]
        return HelloResponse(
            version=session.protocol_version,
            broker=f"warmlog/{self._version}",
            cluster_id=self._cluster_id,
            node_id=self._partitions.node_id,
            max_frame_bytes=self._partitions.settings.socket_request_max_bytes,
        )
