"""ListOffsets: offsets by time, and the ends of logs. Source: kafka.server.ReplicaManager.fetchOffset."""

from collections.abc import Mapping
from functools import partial

import trio

from broker.api.context import Context
from broker.api.epochs import check_leader_epoch
from broker.api.errors import EXPECTED, describe_in
from broker.api.handler import Handler
from broker.log.errors import IndexCorruptError
from broker.log.index.time import TimestampOffset
from broker.log.partition_log import PartitionLog
from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
)
from protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, ListOffsetsRequest, OffsetQuery
from protocol.response import FoundOffset, ListOffsetsResponse

NOTHING = TimestampOffset(-1, -1)
MAX_TIME_LOOKUPS = 4  # at once: each may read and open batches; more would only take the disk from the fetches


class RepeatedQuestionError(ProtocolError):
    """A partition is named twice in one request."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedTimeError(ProtocolError):
    """A time below 0 that means nothing, or nothing in the version of the request."""

    code = ErrorCode.UNSUPPORTED_VERSION


class OffsetsApi:
    """Answers ListOffsets. Lookups by time read the log, so they run in workers, a few at a time."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._threads = trio.CapacityLimiter(MAX_TIME_LOOKUPS)

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {ListOffsetsRequest.api: self.list_offsets}

    async def list_offsets(self, request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
        """One answer per question, in that order. Kafka refuses a partition that is asked for twice, once."""
        is_kafka = isinstance(request, KafkaListOffsetsRequest)  # ours may ask for several times
        asked = ((query.topic, query.partition) for query in request.partitions) if is_kafka else ()
        repeated = await context.repeated(asked)
        found: list[FoundOffset] = []
        refused: set[tuple[str, int]] = set()
        for query in request.partitions:
            place = (query.topic, query.partition)
            if place not in refused:
                found.append(await self._find(query, is_repeated=place in repeated))
            if place in repeated:
                refused.add(place)
            await context.checkpoint()
        return ListOffsetsResponse(partitions=tuple(found))

    async def _find(self, query: OffsetQuery, *, is_repeated: bool) -> FoundOffset:
        partition = self._partitions.get(query.topic, query.partition)
        try:
            if is_repeated:
                raise RepeatedQuestionError(f"{query.topic}-{query.partition} is asked for more than once")
            if isinstance(query, KafkaOffsetQuery) and query.error is not ErrorCode.NONE:
                raise UnsupportedTimeError(f"no time of this version: {query.timestamp}")
            if partition is None:
                raise self._partitions.missing(query.topic, query.partition)
            if isinstance(query, KafkaOffsetQuery):
                check_leader_epoch(partition, query.current_leader_epoch)
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
        if timestamp in {EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP}:
            return TimestampOffset(-1, log.log_start_offset, _first_epoch(log))
        if timestamp in {LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP}:
            return NOTHING  # there is no remote storage
        find = log.largest_timestamp if timestamp == MAX_TIMESTAMP else partial(log.offset_for_time, timestamp)
        while True:
            try:
                found = await trio.to_thread.run_sync(find, limiter=self._threads)
                break
            except IndexCorruptError as damage:
                await partition.rebuilt(damage)
        if found is None:
            return NOTHING
        if found.section is not None:
            self._metrics.time_lookups[found.section].add()
        return found if found.offset < log.high_watermark else NOTHING


def _first_epoch(log: PartitionLog) -> int:
    """The epoch of the first record; of an empty log that of the record to come."""
    start = log.log_start_offset
    return log.leader_epoch if start == log.log_end_offset else log.epoch_of(start)
