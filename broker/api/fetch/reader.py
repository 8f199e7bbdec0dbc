"""Read the available records of a fetch's partitions, within the size limits.

Size limits (KIP-74): partitions are served in the order requested. `max_bytes` bounds the whole response and each
partition's own limit bounds its part, but the first batch of the first partition that has one is always returned whole,
so that a batch larger than the limits can be read at all.

A response has records of at most `MAX_SLICES` partitions, since each slice holds a file open until it is sent.
"""

from collections.abc import Iterable, Mapping, Sized
from typing import Final

from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.records.epochs import check_leader_epoch, diverged
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.index import transaction as log_index
from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.io.residency import ColdReadError
from warmlog.broker.partitions.partition import Partition, StorageError
from warmlog.broker.partitions.partitions import Partitions, UnknownTopicError
from warmlog.protocol.errors import CorruptBatchError, ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import (
    CONSUMER,
    KafkaFetchPartition,
    KafkaFetchRequest,
    RedirectedPartition,
)
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation
from warmlog.protocol.response import AbortedTransaction, FetchedPartition

# Maximum partitions with records in one response: each slice holds a file open until it is sent, in addition to the
# files that logs keep open. The remaining partitions are served by the next fetch.
MAX_SLICES = 128
MAX_REPLY_BYTES = (
    1 << 30
)  # together with the first batch, which is always whole, and other fields, this fits into a frame's 32-bit length


MAX_CHECKED_BYTES: Final = 1 << 20  # of a slice, checked for residency before the response begins, then by the sender
NO_FAILURES: Mapping[Partition, Exception] = {}
NO_RECORDS: Sized = b""
NONE_ABORTED: tuple[AbortedTransaction, ...] = ()
# Kafka returns these errors before it reads the log, with no aborted transactions; with others the list is null.
BEFORE_READING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
    }
)
UNREADABLE: Final = (OSError, StorageError, CorruptBatchError)  # caused by the disk, not by the request


class FetchReader:
    """Reads partitions one after the other, and counts the bytes that the response may still hold."""

    __slots__ = (
        "_failures",
        "_is_committed",
        "_is_follower",
        "_left",
        "_most",
        "_partitions",
        "_rack",
        "_replica",
        "_reports",
        "_slices",
        "cold_lookups",
        "cold_slices",
        "lags",
        "size",
        "unknown",
        "urgent",
    )

    def __init__(
        self,
        request: FetchRequest,
        partitions: Partitions,
        failures: Mapping[Partition, Exception] = NO_FAILURES,
        *,
        reports: bool = False,
    ) -> None:
        """Begin a pass. `failures` maps partitions whose read has just failed to the error to report.

        `reports`: this is a fetch's first pass, in which a follower's offsets show its progress.
        """
        self._partitions = partitions
        self._left = self._most = min(request.max_bytes, partitions.settings.fetch_max_bytes, MAX_REPLY_BYTES)
        self._replica, self._rack, self._reports = CONSUMER, "", reports
        if isinstance(request, KafkaFetchRequest):
            self._replica = request.replica
            if request.rack and partitions.settings.selects_by_rack:
                self._rack = request.rack
        self._is_follower = self._replica.broker >= 0
        self._is_committed = request.isolation is Isolation.READ_COMMITTED and not self._is_follower
        self._slices = 0  # partitions with records
        self.size = 0
        self.unknown = 0  # partitions that do not exist
        self.urgent = False  # there is something to report immediately, such as an error of an existing partition
        self.cold_lookups: list[tuple[Partition, ColdReadError]] = []  # index or header pages are not resident
        self.cold_slices: list[tuple[Partition, FileSlice]] = []  # the beginning of the slice is not resident
        self._failures = failures
        self.lags = False  # some records come from a sealed segment

    def missing_bytes(self, min_bytes: int) -> int:
        """Return how many bytes a response still lacks; never more than a response can hold."""
        return min(min_bytes, max(self._most, 1)) - self.size

    def at(self, requested: FetchPartition, partition: Partition | None) -> FetchedPartition:
        """Read one partition, the next in order, and return its part of the response."""
        try:
            if partition is None:
                raise self._gone(requested)
            if type(requested) is KafkaFetchPartition:
                self._check(requested, partition)
                if requested.last_fetched_epoch >= 0 and (answer := diverged(partition, requested)) is not None:
                    self.urgent = True
                    return answer
                if self._is_follower and self._reports:
                    self._report(requested, partition)
                if self._rack and (redirected := self._redirected(requested, partition)) is not None:
                    self.urgent = True
                    return redirected
            read = self._take(requested, partition)
        except EXPECTED as error:
            return self._refused(requested, partition, error)
        offsets, records, aborted = partition.log.offsets, NO_RECORDS, None
        if self._is_committed:
            aborted = NONE_ABORTED if read is None or not read.aborted else _aborted_transactions(read.aborted)
        if read is not None and read.slice is not None:
            records = read.slice
        return FetchedPartition(
            topic=requested.topic,
            partition=requested.partition,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            aborted_transactions=aborted,
            records=records,
        )

    def unauthorized(self, requested: FetchPartition) -> FetchedPartition:
        """Return the result of a partition that the client may not read, without any information about it."""
        self.urgent = True
        return FetchedPartition(
            topic=requested.topic,
            partition=requested.partition,
            error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            message="not authorized",
            aborted_transactions=NONE_ABORTED,
        )

    def _gone(self, requested: FetchPartition) -> Exception:
        """Return the error for a partition that is not served; an offline one is reported immediately."""
        error = self._partitions.missing(requested.topic, requested.partition)
        if isinstance(error, UnknownTopicError):
            self.unknown += 1
        else:
            self.urgent = True
        return error

    def _check(self, requested: KafkaFetchPartition, partition: Partition) -> None:
        """Validate the fields that only Kafka's protocol has. Raises ProtocolError."""
        if requested.topic_id != NO_TOPIC_ID and self._partitions.topic_name(requested.topic_id) != requested.topic:
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {requested.topic!r} now has another id")
        if requested.current_leader_epoch >= 0:
            check_leader_epoch(partition, requested.current_leader_epoch)
        if self._is_follower:
            self._check_replica(requested, partition)

    def _check_replica(self, requested: KafkaFetchPartition, partition: Partition) -> None:
        """Raise RequestError for a broker without a replica, or with an epoch other than its registration's.

        Fetches advance the high watermark, so neither an invented epoch nor -1 (before version 15) may count. A later
        one may belong to a registration that this broker has not seen yet: the follower retries.
        """
        broker, epoch = self._replica
        replication = partition.replication
        if replication is None or not replication.is_follower(broker):
            knows_epoch = requested.current_leader_epoch >= 0  # and perhaps a later assignment
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise RequestError(code, f"broker {broker} is not a replica of {partition.topic}-{partition.index}")
        if not replication.is_latest(broker, epoch):
            message = f"broker {broker} is not registered with epoch {epoch}"
            raise RequestError(ErrorCode.STALE_BROKER_EPOCH, message)
        if requested.current_leader_epoch < 0:
            message = f"broker {broker} does not name the leader epoch of {partition.topic}-{partition.index}"
            raise RequestError(ErrorCode.FENCED_LEADER_EPOCH, message)

    def _redirected(self, requested: KafkaFetchPartition, partition: Partition) -> RedirectedPartition | None:
        """Return the result for a consumer that should read from a follower in its rack; None for others."""
        replication = partition.replication
        if replication is None or self._is_follower:
            return None
        nearest = replication.nearest(self._rack, requested.offset)
        if nearest is None:
            return None
        log = partition.log
        return RedirectedPartition(
            topic=requested.topic,
            partition=requested.partition,
            high_watermark=log.offsets.high_watermark,
            last_stable_offset=log.offsets.last_stable_offset,
            log_start_offset=log.offsets.log_start_offset,
            preferred_replica=nearest,
        )

    def _report(self, requested: KafkaFetchPartition, partition: Partition) -> None:
        """Report the progress of a follower, before the read: the response then has the new high watermark."""
        log, replication = partition.log, partition.replication
        assert replication is not None, "checked"
        if log.offsets.log_start_offset <= requested.offset <= log.offsets.log_end_offset:  # else the read refuses it
            replication.fetched(self._replica.broker, self._replica.epoch, requested.offset, requested.log_start_offset)

    def _take(self, requested: FetchPartition, partition: Partition) -> LogRead | None:
        """Read the records of one partition and count their size; return None if there are none to send."""
        if requested.max_bytes < 0 or self._most < 0:
            name, most = f"{requested.topic}-{requested.partition}", min(requested.max_bytes, self._most)
            message = f"max_bytes of {name} is negative: {most}"
            raise RequestError(ErrorCode.INVALID_FETCH_SIZE, message)
        log = partition.log
        end = log.offsets.last_stable_offset if self._is_committed else log.offsets.high_watermark
        if requested.offset == (log.offsets.log_end_offset if self._is_follower else end):
            return None  # the usual case: no new records
        replication = partition.replication if self._is_follower else None
        if replication is not None and replication.is_throttled(self._replica.broker):
            return None
        if self._failures and partition in self._failures:
            raise self._failures[partition]
        try:
            read = partition.read(
                requested.offset,
                min(requested.max_bytes, self._left),
                min_one_batch=self.size == 0,
                committed=self._is_committed,
                to_log_end=self._is_follower,
            )
        except ColdReadError as cold:
            self.cold_lookups.append((partition, cold))
            return None
        except UNREADABLE as error:
            partition.cannot_read(error)
            raise
        if read is None or read.slice is None or read.first_batch_incomplete:
            return None
        if not partition.is_in_memory(read.slice, min(len(read.slice), MAX_CHECKED_BYTES)):
            self.cold_slices.append((partition, read.slice))
        size = len(read.slice)
        self.size += size
        self.lags = self.lags or read.segment_base_offset < log.active_base_offset
        self._left = max(0, self._left - size)
        self._slices += 1
        if self._slices == MAX_SLICES:
            self._most, self._left = self.size, 0
        return read

    def _refused(self, requested: FetchPartition, partition: Partition | None, error: Exception) -> FetchedPartition:
        code, message = describe(error)
        self.urgent = self.urgent or partition is not None
        known = None if type(requested) is KafkaFetchPartition else partition  # Kafka returns no offsets with an error
        return FetchedPartition(
            topic=requested.topic,
            partition=requested.partition,
            error=code,
            message=message,
            log_start_offset=-1 if known is None else known.log.offsets.log_start_offset,
            high_watermark=-1 if known is None else known.log.offsets.high_watermark,
            aborted_transactions=NONE_ABORTED if code in BEFORE_READING else None,
        )


def _aborted_transactions(aborted: Iterable[log_index.AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple(
        [
            AbortedTransaction(producer_id=transaction.producer_id, first_offset=transaction.first_offset)
            for transaction in aborted
        ]
    )
