"""The position of an idempotent producer in its partitions (native protocol).

A producer that restarts with its previous id gets its last stored record, and continues after it.
"""

from collections.abc import Mapping
from functools import partial

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.metadata.topic import check_name
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.native.producers import DescribeProducerRequest, DescribeProducerResponse, ProducerPosition


class NativeProducersApi:
    """Answers describe_producer."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {DescribeProducerRequest.api: self._describe_producer}

    async def _describe_producer(self, request: DescribeProducerRequest, context: Context) -> DescribeProducerResponse:
        position = partial(self._position, request.producer_id)
        return DescribeProducerResponse(partitions=await context.answer(position, request.partitions))

    def _position(self, producer_id: int, requested: PartitionEntry) -> ProducerPosition:
        try:
            check_name(requested.topic)
            partition = self._partitions.require(requested.topic, requested.partition)
        except EXPECTED as error:
            code, message = describe(error)
            return ProducerPosition(topic=requested.topic, partition=requested.partition, error=code, message=message)
        state = partition.log.producers.get(producer_id)
        if state is None:
            return ProducerPosition(topic=requested.topic, partition=requested.partition)
        return ProducerPosition(
            topic=requested.topic,
            partition=requested.partition,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_offset=state.last_offset,
        )
