"""WriteTxnMarkers: markers from coordinators of other brokers, and from tools that abort hanging transactions.

Source: kafka.server.KafkaApis (handleWriteTxnMarkersRequest).
"""

from collections.abc import Mapping

import trio

from broker.api.context import Context
from broker.api.handler import Handler
from broker.transactions.effects import Producer
from broker.transactions.markers import Marker, MarkerWriter
from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.records.markers import Outcome
from protocol.transaction_requests import (
    AddedPartition,
    MarkersOfTransaction,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarkers,
)
from protocol.transactions import TopicIndex, TransactionVersion


class TransactionMarkersApi:
    """Answers WriteTxnMarkers."""

    def __init__(self, markers: MarkerWriter) -> None:
        """Write with `markers`."""
        self._markers = markers

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {WriteTxnMarkersRequest.api: self.write}

    async def write(self, request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
        """Write markers, and respond once every partition has written or rejected its marker."""
        results = []
        for asked in request.markers:
            results.append(await self._write(asked, context))
            await context.checkpoint()
        return WriteTxnMarkersResponse(markers=tuple(results))

    async def _write(self, asked: MarkersOfTransaction, context: Context) -> WrittenMarkers:
        places: set[TopicIndex] = set()
        for one in asked.partitions:
            places.add(_place(one))
            await context.checkpoint()
        errors: dict[TopicIndex, ErrorCode] = {}
        done = trio.Event()

        def written(results: Mapping[TopicIndex, ErrorCode]) -> None:
            errors.update(results)
            if len(errors) == len(places):
                done.set()

        marker = Marker(
            Producer(asked.producer_id, asked.producer_epoch),
            Outcome.COMMIT if asked.commits else Outcome.ABORT,
            asked.coordinator_epoch,
            TransactionVersion(min(max(asked.version, 0), max(TransactionVersion))),
        )
        if marker.producer.id < 0 or marker.producer.epoch < 0:  # no producer has these: they mean "none" in a log
            errors = dict.fromkeys(places, ErrorCode.INVALID_REQUEST)
        elif places:
            self._markers.write(marker, places, written)
            await context.wait(done.wait())

        def result(one: TopicPartition) -> AddedPartition:
            return AddedPartition(topic=one.topic, partition=one.partition, error=errors[_place(one)])

        results = await context.map(result, asked.partitions)
        await context.empty(errors)
        await context.empty(places)
        return WrittenMarkers(producer_id=asked.producer_id, partitions=results)


def _place(one: TopicPartition) -> TopicIndex:
    return one.topic, one.partition
