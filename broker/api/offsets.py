"""ListOffsets: offsets by time, and the ends of logs."""

from functools import partial

import trio

from broker.api.errors import EXPECTED, describe_in
from broker.log.time_index import TimestampOffset
from broker.metrics import Metrics
from broker.partition import Partition
from broker.partitions import Partitions, unknown_partition
from protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, ListOffsetsRequest, OffsetQuery
from protocol.response import FoundOffset, ListOffsetsResponse

NOTHING = TimestampOffset(-1, -1)
MAX_TIME_LOOKUPS = 4  # at once: each may read and open batches; more would only take the disk from the fetches


class OffsetsApi:
    """Answers ListOffsets. Lookups by time read the log, so they run in workers, a few at a time."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._threads = trio.CapacityLimiter(MAX_TIME_LOOKUPS)

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """One answer per question, in that order."""
        return ListOffsetsResponse(partitions=tuple([await self._find(query) for query in request.partitions]))

    async def _find(self, query: OffsetQuery) -> FoundOffset:
        partition = self._partitions.get(query.topic, query.partition)
        try:
            if partition is None:
                raise unknown_partition(query.topic, query.partition)
            found = await self._lookup(partition, query.timestamp)
        except EXPECTED as error:
            code, message = describe_in(partition, self._partitions, error)
            return FoundOffset(topic=query.topic, partition=query.partition, error=code, message=message)
        return FoundOffset(
            topic=query.topic,
            partition=query.partition,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )

    async def _lookup(self, partition: Partition, timestamp: int) -> TimestampOffset:
        """The record found, or NOTHING; the ends have an offset and no timestamp."""
        log = partition.log
        if timestamp == LATEST_TIMESTAMP:
            return TimestampOffset(-1, log.high_watermark, log.leader_epoch)
        if timestamp == EARLIEST_TIMESTAMP:
            return TimestampOffset(-1, log.log_start_offset, log.epoch_of(log.log_start_offset))
        find = log.largest_timestamp if timestamp == MAX_TIMESTAMP else partial(log.offset_for_time, timestamp)
        found = await trio.to_thread.run_sync(find, limiter=self._threads)
        if found is None:
            return NOTHING
        if found.section is not None:
            self._metrics.time_lookups[found.section].add()
        return found if found.offset < log.high_watermark else NOTHING
