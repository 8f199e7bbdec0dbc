"""ListOffsets: offsets by time, and the start and end of logs. Source: kafka.server.ReplicaManager.fetchOffset."""

from collections.abc import Mapping, Sequence
from typing import Final

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe_in
from warmlog.broker.api.handler import Handler
from warmlog.broker.api.records.epochs import NO_EPOCH, check_leader_epoch
from warmlog.broker.api.records.offset_errors import (
    OffsetNotAvailableError,
    RepeatedQuestionError,
    UnsupportedTimeError,
)
from warmlog.broker.api.records.time_lookups import Outcome, TimeLookups, TimeQuestion
from warmlog.broker.log.errors import LogFailedError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.kafka.codec.schema import NEVER
from warmlog.protocol.kafka.messages.records.fetch import DEBUGGER
from warmlog.protocol.kafka.messages.records.offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    FIRST_WITH_TIME,
    LATEST_TIERED_TIMESTAMP,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
)
from warmlog.protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Isolation,
    ListOffsetsRequest,
    OffsetQuery,
)
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse

QUERIES_PER_STEP: Final = 64  # between two readings of the clock: 0.05 ms, or 1 ms if all are refused
CLIENT: Final = -1  # as a replica id
_EARLIEST: Final = frozenset({EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP})
_REMOTE: Final = frozenset({LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP})


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
        answers = _Answers(request, context.version, self._partitions)
        queries = request.partitions
        for start in range(0, len(queries), QUERIES_PER_STEP):
            answers.add(queries[start : start + QUERIES_PER_STEP])
            if context.is_piece_over:
                await context.pause()
        searched = [(at, query, partition) for at, query, partition in answers.searched if at not in answers.repeated]
        outcomes = await self._lookups.find([TimeQuestion(each[2], each[1].timestamp) for each in searched])
        for (at, query, partition), outcome in zip(searched, outcomes, strict=True):
            if isinstance(outcome, tuple) and outcome[3] is not None:
                self._metrics.time_lookups[outcome[3]].add()
            answers.add_time(at, query, partition, outcome)
            if context.is_piece_over:
                await context.pause()
        return ListOffsetsResponse(partitions=tuple(answers.all))


class _Answers:
    """The answers to the queries of a request.

    Clients see a log up to its high watermark or last stable offset, brokers all of it. Native clients may query
    several timestamps of a partition.

    all: the answers so far. searched: queries for times, each with the index of its answer, which is that there is no
    such record, and the partition. repeated: indexes of the refusals of partitions that are named more than once.
    """

    def __init__(self, request: ListOffsetsRequest, version: int, partitions: Partitions) -> None:
        self.all: list[ListedOffset] = []
        self.searched: list[tuple[int, OffsetQuery, Partition]] = []
        self.repeated: set[int] = set()
        self._version = version
        self._partitions = partitions
        self._served = partitions.served
        self._is_of_kafka = isinstance(request, KafkaListOffsetsRequest)
        replica_id = request.replica_id if isinstance(request, KafkaListOffsetsRequest) else CLIENT
        self._is_client = replica_id == CLIENT
        self._is_debugger = replica_id == DEBUGGER
        self._is_committed = request.isolation is Isolation.READ_COMMITTED
        self._indexes: dict[str, dict[int, int]] = {}  # of answers, by topic and partition

    def add(self, queries: Sequence[OffsetQuery]) -> None:
        """Answer more queries; those for a time are only listed in `searched`."""
        topic, indexes = "", self._indexes.setdefault("", {})
        for query in queries:
            at, index = len(self.all), query.partition
            if query.topic != topic:
                topic = query.topic
                indexes = self._indexes.setdefault(topic, {})
            if self._is_of_kafka:
                first = indexes.setdefault(index, at)
                if first != at:
                    self._refuse_repeated(query, first)
                    continue
            partition = self._find(topic, index)
            try:
                answer = self._answer(query, topic, index, partition)
            except EXPECTED as error:
                answer = self._refused(query, error, partition)
            if answer is None:
                assert partition is not None
                self.searched.append((at, query, partition))
                answer = ListedOffset(topic=topic, partition=index)
            self.all.append(answer)

    def _find(self, topic: str, index: int) -> Partition | None:
        """Return a partition that this broker leads or, if that is enough, has a log of."""
        if not self._is_debugger:
            return self._served.get((topic, index))
        replica = self._partitions.local(topic, index)
        return None if replica is None or replica.is_of_deleted_topic else replica

    def _answer(self, query: OffsetQuery, topic: str, index: int, partition: Partition | None) -> ListedOffset | None:
        """Answer a query for a special timestamp; return None for a time. Raises one of `EXPECTED`."""
        timestamp, client_epoch = query.timestamp, NO_EPOCH
        if isinstance(query, KafkaOffsetQuery):
            if timestamp < EARLIEST_TIMESTAMP and self._version < FIRST_WITH_TIME.get(timestamp, NEVER):
                raise UnsupportedTimeError(f"timestamp {timestamp} is not supported in this version of ListOffsets")
            client_epoch = query.current_leader_epoch
        if partition is None:
            raise self._partitions.missing(topic, index)
        if client_epoch != NO_EPOCH:
            check_leader_epoch(partition, client_epoch)
        log, offset, epoch = partition.log, -1, -1
        if self._is_debugger and log.failed:
            raise LogFailedError(f"{topic}-{index} has failed: its end is not known")
        if timestamp == LATEST_TIMESTAMP:
            self._check_known(partition)
            offset, epoch = self._end_of(log), log.epochs.current
            if self._is_debugger:
                epoch = log.last_epoch
        elif timestamp in _EARLIEST:
            offset, epoch = log.offsets.log_start_offset, _first_epoch(log)
        elif timestamp not in _REMOTE:  # there is no remote storage
            return None
        return ListedOffset(topic=topic, partition=index, offset=offset, leader_epoch=epoch)

    def add_time(self, at: int, query: OffsetQuery, partition: Partition, outcome: Outcome) -> None:
        """Answer a query for a time with the outcome of its lookup."""
        if isinstance(outcome, Exception):
            self.all[at] = self._refused(query, outcome, partition)
            return
        if outcome is not None:
            timestamp, offset, epoch, _ = outcome
            if offset < self._end_of(partition.log):
                self.all[at] = ListedOffset(
                    topic=query.topic, partition=query.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch
                )
                return
        try:
            self._check_known(partition)
        except OffsetNotAvailableError as error:
            self.all[at] = self._refused(query, error, partition)

    def _end_of(self, log: PartitionLog) -> int:
        """Return the end of the log."""
        if not self._is_client:
            return log.offsets.log_end_offset
        return log.offsets.last_stable_offset if self._is_committed else log.offsets.high_watermark

    def _check_known(self, partition: Partition) -> None:
        """Raise OffsetNotAvailableError if the end may be below one that was shown earlier."""
        replication = partition.replication
        if self._is_client and replication is not None and not replication.shows_all_committed:
            raise OffsetNotAvailableError(
                f"the high watermark of {partition.topic}-{partition.index} is not known yet after an election"
            )

    def _refuse_repeated(self, query: OffsetQuery, at: int) -> None:
        if at not in self.repeated:
            self.repeated.add(at)
            error = RepeatedQuestionError(f"{query.topic}-{query.partition} is named more than once in the request")
            self.all[at] = self._refused(query, error, None)

    def _refused(self, query: OffsetQuery, error: Exception, partition: Partition | None) -> ListedOffset:
        code, message = describe_in(partition, self._partitions, error)
        return ListedOffset(topic=query.topic, partition=query.partition, error=code, message=message)


def _first_epoch(log: PartitionLog) -> int:
    """Return the epoch of the first record, or the current epoch if the log is empty."""
    start = log.offsets.log_start_offset
    return log.epochs.current if start == log.offsets.log_end_offset else log.epochs.epoch_of(start)
