"""ListOffsets: offsets by time, and the start and end of logs. Source: kafka.server.ReplicaManager.fetchOffset."""

from collections.abc import Mapping

from broker.api.context import Context
from broker.api.errors import EXPECTED, describe_in
from broker.api.handler import Handler
from broker.api.records.epochs import check_leader_epoch
from broker.api.records.time_lookups import Outcome, TimeLookups, TimeQuestion
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
from protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Isolation,
    ListOffsetsRequest,
    OffsetQuery,
)
from protocol.response import FoundOffset, ListOffsetsResponse

_EARLIEST = frozenset({EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP})
_REMOTE = frozenset({LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP})


class RepeatedQuestionError(ProtocolError):
    """A partition is named twice in one request."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedTimeError(ProtocolError):
    """A negative timestamp that has no meaning, or none in the version of the request."""

    code = ErrorCode.UNSUPPORTED_VERSION


class OffsetsApi:
    """Answers ListOffsets. Lookups by time read the log, so they run in worker threads, in groups."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._metrics = metrics
        self._lookups = TimeLookups()

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler by API."""
        return {ListOffsetsRequest.api: self.list_offsets}

    async def list_offsets(self, request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
        """Answer each query in order. As in Kafka, a partition queried twice gets one entry, with an error."""
        is_kafka = isinstance(request, KafkaListOffsetsRequest)  # native clients may query several timestamps
        repeated = await _repeated(request, context) if is_kafka else set()
        found: list[FoundOffset] = []
        searched: list[tuple[int, OffsetQuery]] = []  # each with the index of its answer in `found`
        questions: list[TimeQuestion] = []
        refused: set[tuple[str, int]] = set()
        for query in request.partitions:
            place = (query.topic, query.partition)
            if place not in repeated:
                answer = self._answer(query, request.isolation)
                if isinstance(answer, Partition):
                    searched.append((len(found), query))
                    questions.append(TimeQuestion(answer, query.timestamp))
                    answer = FoundOffset(topic=query.topic, partition=query.partition)  # unless a record is found
                found.append(answer)
            elif place not in refused:
                refused.add(place)
                error = RepeatedQuestionError(f"{query.topic}-{query.partition} is named more than once in the request")
                found.append(self._refused(query, error))
            if context.is_piece_over:
                await context.pause()
        await context.empty(repeated)
        await context.empty(refused)
        outcomes = await self._lookups.find(questions)
        for (at, query), (partition, _), outcome in zip(searched, questions, outcomes, strict=True):
            found[at] = self._found(query, partition, outcome, request.isolation) or found[at]
            if context.is_piece_over:
                await context.pause()
        return ListOffsetsResponse(partitions=tuple(found))

    def _answer(self, query: OffsetQuery, isolation: Isolation) -> FoundOffset | Partition:
        """Answer a query for a special timestamp, or refuse it; for a time, return the partition to search."""
        partition = self._partitions.served.get((query.topic, query.partition))
        try:
            if isinstance(query, KafkaOffsetQuery) and query.error is not ErrorCode.NONE:
                raise UnsupportedTimeError(
                    f"timestamp {query.timestamp} is not supported in this version of ListOffsets"
                )
            if partition is None:
                raise self._partitions.missing(query.topic, query.partition)
            if isinstance(query, KafkaOffsetQuery):
                check_leader_epoch(partition, query.current_leader_epoch)
            log, timestamp, offset, epoch = partition.log, query.timestamp, -1, -1
            if timestamp == LATEST_TIMESTAMP:
                offset, epoch = _end_for(isolation, log), log.leader_epoch
            elif timestamp in _EARLIEST:
                offset, epoch = log.log_start_offset, _first_epoch(log)
            elif timestamp not in _REMOTE:  # there is no remote storage
                return partition
        except EXPECTED as error:
            return self._refused(query, error, partition)
        return FoundOffset(topic=query.topic, partition=query.partition, offset=offset, leader_epoch=epoch)

    def _found(
        self, query: OffsetQuery, partition: Partition, outcome: Outcome, isolation: Isolation
    ) -> FoundOffset | None:
        """Answer a query for a time by the outcome of its lookup; None if there is no such record."""
        if isinstance(outcome, Exception):
            return self._refused(query, outcome, partition)
        if outcome is None:
            return None
        timestamp, offset, epoch, section = outcome
        if section is not None:
            self._metrics.time_lookups[section].add()
        if offset >= _end_for(isolation, partition.log):
            return None
        return FoundOffset(
            topic=query.topic, partition=query.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    def _refused(self, query: OffsetQuery, error: Exception, partition: Partition | None = None) -> FoundOffset:
        code, message = describe_in(partition, self._partitions, error)
        return FoundOffset(topic=query.topic, partition=query.partition, error=code, message=message)


async def _repeated(request: ListOffsetsRequest, context: Context) -> set[tuple[str, int]]:
    """Return the partitions that are named more than once, found in pieces.

    Uses a set of indexes per topic, since freeing 100,000 tuples would take several milliseconds.
    """
    seen: dict[str, set[int]] = {}
    repeated: set[tuple[str, int]] = set()
    for query in request.partitions:
        indexes = seen.get(query.topic)
        if indexes is None:
            indexes = seen[query.topic] = set()
        if query.partition in indexes:
            repeated.add((query.topic, query.partition))
        indexes.add(query.partition)
        if context.is_piece_over:
            await context.pause()
    return repeated


def _end_for(isolation: Isolation, log: PartitionLog) -> int:
    """Return the end of the log at an isolation level."""
    return log.last_stable_offset if isolation is Isolation.READ_COMMITTED else log.high_watermark


def _first_epoch(log: PartitionLog) -> int:
    """Return the epoch of the first record, or the current epoch if the log is empty."""
    start = log.log_start_offset
    return log.leader_epoch if start == log.log_end_offset else log.epoch_of(start)
