"""ListOffsets: offsets by time, and the start and end of logs. Source: kafka.server.ReplicaManager.fetchOffset."""

from collections.abc import Mapping
from typing import NamedTuple

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe_in
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.records.epochs import check_leader_epoch
from warmlog.broker.api.records.time_lookups import Outcome, TimeLookups, TimeQuestion
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.kafka.messages.records.fetch import DEBUGGER
from warmlog.protocol.kafka.messages.records.offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
)
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Isolation,
    ListOffsetsRequest,
    OffsetQuery,
)
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse

CLIENT = -1  # as a replica id
_EARLIEST = frozenset({EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP})
_REMOTE = frozenset({LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP})


class RepeatedQuestionError(ProtocolError):
    """A partition is named twice in one request."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedTimeError(ProtocolError):
    """A negative timestamp without a meaning in the request's version."""

    code = ErrorCode.UNSUPPORTED_VERSION


class OffsetNotAvailableError(ProtocolError):
    """The high watermark does not yet cover everything that earlier leaders have shown (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class _Asker(NamedTuple):
    """The sender of a query: clients see a log up to its high watermark or last stable offset, brokers all of it."""

    isolation: Isolation
    replica_id: int

    @property
    def is_client(self) -> bool:
        """Whether the sender is a client."""
        return self.replica_id == CLIENT

    def partition(self, partitions: Partitions, topic: str, index: int) -> Partition | None:
        """Return a partition that this broker leads or, if that is enough, has a log of."""
        if self.replica_id != DEBUGGER:
            return partitions.get(topic, index)
        replica = partitions.local(topic, index)
        return None if replica is None or replica.is_of_deleted_topic else replica

    def end_of(self, log: PartitionLog) -> int:
        """Return the end of the log."""
        if not self.is_client:
            return log.offsets.log_end_offset
        return (
            log.offsets.last_stable_offset if self.isolation is Isolation.READ_COMMITTED else log.offsets.high_watermark
        )

    def check_known(self, partition: Partition) -> None:
        """Raise OffsetNotAvailableError if the end may be below one that was shown earlier."""
        replication = partition.replication
        if self.is_client and replication is not None and not replication.shows_all_committed:
            raise OffsetNotAvailableError(
                f"the high watermark of {partition.topic}-{partition.index} is not known yet after an election"
            )


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
        """Answer each query in order. As in Kafka, a repeated partition gets one entry, with an error."""
        repeated, replica_id = set[TopicPartition](), CLIENT
        if isinstance(request, KafkaListOffsetsRequest):  # native clients may query several timestamps
            repeated, replica_id = await _repeated(request, context), request.replica_id
        answers: list[ListedOffset] = []
        searched: list[tuple[int, OffsetQuery]] = []  # each with the index of its answer in `answers`
        questions: list[TimeQuestion] = []
        refused: set[TopicPartition] = set()
        asker = _Asker(request.isolation, replica_id)
        for query in request.partitions:
            topic_partition = (query.topic, query.partition)
            if topic_partition not in repeated:
                answer = self._answer(query, asker)
                if isinstance(answer, Partition):
                    searched.append((len(answers), query))
                    questions.append(TimeQuestion(answer, query.timestamp))
                    answer = ListedOffset(topic=query.topic, partition=query.partition)  # unless there is such a record
                answers.append(answer)
            elif topic_partition not in refused:
                refused.add(topic_partition)
                error = RepeatedQuestionError(f"{query.topic}-{query.partition} is named more than once in the request")
                answers.append(self._refused(query, error))
            if context.is_piece_over:
                await context.pause()
        await context.empty(repeated)
        await context.empty(refused)
        outcomes = await self._lookups.find(questions)
        for (at, query), (partition, _), outcome in zip(searched, questions, outcomes, strict=True):
            answers[at] = self._answer_time(query, partition, outcome, asker) or answers[at]
            if context.is_piece_over:
                await context.pause()
        return ListOffsetsResponse(partitions=tuple(answers))

    def _answer(self, query: OffsetQuery, asker: "_Asker") -> ListedOffset | Partition:
        """Answer a query for a special timestamp, or refuse it; for a time, return the partition to search."""
        partition = asker.partition(self._partitions, query.topic, query.partition)
        try:
            if isinstance(query, KafkaOffsetQuery) and query.error is not ErrorCode.NONE:
                raise UnsupportedTimeError(
                    f"timestamp {query.timestamp} is not supported in this version of ListOffsets"
                )
            if partition is None:
                raise self._partitions.missing(query.topic, query.partition)
            if isinstance(query, KafkaOffsetQuery):
                check_leader_epoch(partition, query.current_leader_epoch)
            if asker.replica_id == DEBUGGER and partition.log.failed:
                raise LogFailedError(f"{query.topic}-{query.partition} has failed: its end is not known")
            log, timestamp, offset, epoch = partition.log, query.timestamp, -1, -1
            if timestamp == LATEST_TIMESTAMP:
                asker.check_known(partition)
                offset, epoch = asker.end_of(log), log.epochs.current
                if asker.replica_id == DEBUGGER:
                    epoch = log.last_epoch
            elif timestamp in _EARLIEST:
                offset, epoch = log.offsets.log_start_offset, _first_epoch(log)
            elif timestamp not in _REMOTE:  # there is no remote storage
                return partition
        except EXPECTED as error:
            return self._refused(query, error, partition)
        return ListedOffset(topic=query.topic, partition=query.partition, offset=offset, leader_epoch=epoch)

    def _answer_time(
        self, query: OffsetQuery, partition: Partition, outcome: Outcome, asker: "_Asker"
    ) -> ListedOffset | None:
        """Answer a query for a time with the outcome of its lookup; None if there is no such record."""
        if isinstance(outcome, Exception):
            return self._refused(query, outcome, partition)
        if outcome is not None:
            timestamp, offset, epoch, section = outcome
            if section is not None:
                self._metrics.time_lookups[section].add()
            if offset < asker.end_of(partition.log):
                return ListedOffset(
                    topic=query.topic, partition=query.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
                )
        try:
            asker.check_known(partition)
        except OffsetNotAvailableError as error:
            return self._refused(query, error, partition)
        return None

    def _refused(self, query: OffsetQuery, error: Exception, partition: Partition | None = None) -> ListedOffset:
        code, message = describe_in(partition, self._partitions, error)
        return ListedOffset(topic=query.topic, partition=query.partition, error=code, message=message)


async def _repeated(request: ListOffsetsRequest, context: Context) -> set[TopicPartition]:
    """Return the repeated partitions, computed in pieces.

    Uses a set of indexes per topic, since freeing 100,000 tuples would take several milliseconds.
    """
    seen: dict[str, set[int]] = {}
    repeated: set[TopicPartition] = set()
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


def _first_epoch(log: PartitionLog) -> int:
    """Return the epoch of the first record, or the current epoch if the log is empty."""
    start = log.offsets.log_start_offset
    return log.epochs.current if start == log.offsets.log_end_offset else log.epochs.epoch_of(start)
