"""Describe the active producers of partitions.

Source: kafka.server.ReplicaManager.activeProducerState.
"""

from collections.abc import Mapping

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.metadata.topic import check_name
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.transactions import (
    NO_PRODUCER_ID,
    ActiveProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
)


class ProducersApi:
    """Answers DescribeProducers."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {DescribeProducersRequest.api: self.describe_producers}

    async def describe_producers(
        self, request: DescribeProducersRequest, context: Context
    ) -> DescribeProducersResponse:
        """List the active producers of each partition."""

        async def described(requested: PartitionEntry) -> DescribedProducers:
            return await self._describe(requested, context)

        return DescribeProducersResponse(partitions=await context.answer_at_length(described, request.partitions))

    async def _describe(self, requested: PartitionEntry, context: Context) -> DescribedProducers:
        try:
            check_name(requested.topic)
            partition = self._partitions.local(requested.topic, requested.partition)  # any replica can be queried
            if partition is None:
                raise self._partitions.missing(requested.topic, requested.partition)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedProducers(topic=requested.topic, partition=requested.partition, error=code, message=message)
        producers = await context.map(_active, partition.log.producers.capture())
        return DescribedProducers(topic=requested.topic, partition=requested.partition, producers=producers)


def _active(state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=state.transaction_first_offset,
    )


def largest_producer_id(partitions: Partitions) -> int:
    """Return the largest producer id that a log knows, -1 if none does."""
    return max((partition.log.producers.largest_id for partition in partitions), default=NO_PRODUCER_ID)
