"""WriteTxnMarkers: markers from coordinators of other brokers, and from tools that abort hanging transactions.

Source: kafka.server.KafkaApis (handleWriteTxnMarkersRequest).
"""

from collections.abc import Mapping

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.handler import Handler
from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.markers import Marker, MarkerWriter
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import TopicPartition
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.transaction_requests import (
    AddedPartition,
    MarkersOfTransaction,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarkers,
)
from warmlog.protocol.transactions import TopicIndex, TransactionVersion

LIMIT_S = 15.0  # for the in-sync replicas to have the markers; the coordinator waits for 30


class TransactionMarkersApi:
    """Answers WriteTxnMarkers."""

    def __init__(self, markers: MarkerWriter) -> None:
        """Write with `markers`."""
        self._markers = markers

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {WriteTxnMarkersRequest.api: self.write}

    async def write(self, request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
        """Write markers, and respond once every partition has written or rejected its marker, or the time is over."""
        writes = [await self._begin(asked, context) for asked in request.markers]
        with trio.move_on_after(LIMIT_S):
            for write in writes:
                await context.wait(write.done.wait())
        results = []
        for asked, write in zip(request.markers, writes, strict=True):
            errors = write.errors

            def result(one: TopicPartition, errors: Mapping[TopicIndex, ErrorCode] = errors) -> AddedPartition:
                error = errors.get(_place(one), ErrorCode.REQUEST_TIMED_OUT)
                return AddedPartition(topic=one.topic, partition=one.partition, error=error)

            written = await context.map(result, asked.partitions)
            results.append(WrittenMarkers(producer_id=asked.producer_id, partitions=written))
            await context.empty(errors)
        return WriteTxnMarkersResponse(markers=tuple(results))

    async def _begin(self, asked: MarkersOfTransaction, context: Context) -> "_Write":
        """Begin to write a marker to its partitions."""
        places: set[TopicIndex] = set()
        for one in asked.partitions:
            places.add(_place(one))
            await context.checkpoint()
        write = _Write(len(places))
        marker = Marker(
            Producer(asked.producer_id, asked.producer_epoch),
            Outcome.COMMIT if asked.commits else Outcome.ABORT,
            asked.coordinator_epoch,
            TransactionVersion(min(max(asked.version, 0), max(TransactionVersion))),
        )
        if marker.producer.id < 0 or marker.producer.epoch < 0:  # no producer has these: they mean "none" in a log
            write.written(dict.fromkeys(places, ErrorCode.INVALID_REQUEST))
        elif places:
            self._markers.write(marker, places, write.written)
        return write


class _Write:
    """A marker that is being written, with the outcomes so far."""

    def __init__(self, count: int) -> None:
        self.errors: dict[TopicIndex, ErrorCode] = {}
        self.done = trio.Event()
        self._count = count
        if not count:
            self.done.set()

    def written(self, results: Mapping[TopicIndex, ErrorCode]) -> None:
        """Take outcomes of partitions."""
        self.errors.update(results)
        if len(self.errors) == self._count:
            self.done.set()


def _place(one: TopicPartition) -> TopicIndex:
    return one.topic, one.partition
