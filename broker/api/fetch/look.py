"""Read from the partitions of a fetch what can be sent now, within the size limits.

Size limits (KIP-74): partitions are served in the order requested. `max_bytes` bounds the whole response and each
partition's own limit bounds its part, but the first batch of the first partition that has one is always returned whole,
so that a batch larger than the limits can be read at all.

A response has records of at most `MAX_SLICES` partitions, since each slice holds a file open until it is sent.
"""

from collections.abc import Iterable, Mapping, Sized

from broker.api.errors import EXPECTED, RequestError, describe
from broker.api.records.epochs import check_leader_epoch, diverged
from broker.log.descriptions import LogRead
from broker.log.index import transaction as log_index
from broker.log.io.files import FileSlice
from broker.log.io.residency import ColdReadError
from broker.partitions.partition import Partition, StorageError
from broker.partitions.partitions import Partitions, UnknownTopicError
from protocol.errors import CorruptBatchError, ErrorCode
from protocol.kafka.codec.bounds import NO_TOPIC_ID
from protocol.kafka.values import (
    KafkaFetchPartition,
    KafkaFetchRequest,
)
from protocol.request import FetchPartition, FetchRequest, Isolation
from protocol.response import AbortedTransaction, FetchedPartition

# Partitions of one reply that can have records: each slice keeps a file open until it is sent, beyond those that the
# broker keeps open for itself. The others have their turn in the next fetch.
MAX_SLICES = 128
MAX_REPLY_BYTES = (
    1 << 30
)  # with the batch that is always whole and what surrounds it, less than a frame's length can say


MAX_CHECKED_BYTES = 1 << 20  # of a slice, before its reply begins; the sender asks for the rest in its turn
NO_FAILURES: Mapping[Partition, Exception] = {}
NO_RECORDS: Sized = b""
NONE_ABORTED: tuple[AbortedTransaction, ...] = ()
# Kafka answers these before it reads a log, with an empty list of aborted transactions; beside other errors it is null.
BEFORE_READING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
    }
)
UNREADABLE = (OSError, StorageError, CorruptBatchError)  # what is the disk's doing, not the request's


class Look:
    """One look at partitions: what of each can be sent now, within the size limits."""

    __slots__ = (
        "_failures",
        "_is_committed",
        "_knows_zstd",
        "_left",
        "_most",
        "_partitions",
        "_replica_id",
        "_slices",
        "cold_lookups",
        "cold_slices",
        "failed",
        "lags",
        "size",
        "unknown",
    )

    def __init__(
        self, request: FetchRequest, partitions: Partitions, failures: Mapping[Partition, Exception] = NO_FAILURES
    ) -> None:
        """`failures`: partitions that could just not be read."""
        self._partitions = partitions
        self._left = self._most = min(request.max_bytes, partitions.settings.fetch_max_bytes, MAX_REPLY_BYTES)
        self._is_committed = request.isolation is Isolation.READ_COMMITTED
        self._replica_id, self._knows_zstd = -1, True
        if isinstance(request, KafkaFetchRequest):
            self._replica_id, self._knows_zstd = request.replica_id, request.knows_zstd
        self._slices = 0  # partitions with records
        self.size = 0
        self.unknown = 0  # partitions that are not there
        self.failed = False  # one that is there cannot be read as asked
        self.cold_lookups: list[tuple[Partition, ColdReadError]] = []  # the way to a slice is not in memory
        self.cold_slices: list[tuple[Partition, FileSlice]] = []  # the slice itself is not, or not its beginning
        self._failures = failures
        self.lags = False  # some of it comes from a sealed segment

    def missing_bytes(self, min_bytes: int) -> int:
        """What is to come until there is enough to answer with: what no reply can hold is not waited for."""
        return min(min_bytes, max(self._most, 1)) - self.size

    def at(self, asked: FetchPartition, partition: Partition | None) -> FetchedPartition:
        """The answer for one partition, the next in turn."""
        try:
            if partition is None:
                raise self._gone(asked)
            if type(asked) is KafkaFetchPartition:
                self._check(asked, partition)
                if asked.last_fetched_epoch >= 0 and (answer := diverged(partition, asked)) is not None:
                    self.failed = True
                    return answer
            found = self._take(asked, partition)
        except EXPECTED as error:
            return self._refused(asked, partition, error)
        log, records, aborted = partition.log, NO_RECORDS, None
        if self._is_committed:
            aborted = NONE_ABORTED if found is None or not found.aborted else _told(found.aborted)
        if found is not None and found.slice is not None:
            records = found.slice
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=records,
        )

    def _gone(self, asked: FetchPartition) -> Exception:
        """The error for a partition that is not served; one that is offline is told at once."""
        error = self._partitions.missing(asked.topic, asked.partition)
        if isinstance(error, UnknownTopicError):
            self.unknown += 1
        else:
            self.failed = True
        return error

    def _check(self, asked: KafkaFetchPartition, partition: Partition) -> None:
        """What only Kafka's clients can get wrong."""
        if asked.topic_id != NO_TOPIC_ID and self._partitions.topic_name(asked.topic_id) != asked.topic:
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {asked.topic!r} has another id by now")
        if asked.current_leader_epoch >= 0:
            check_leader_epoch(partition, asked.current_leader_epoch)
        if self._replica_id >= 0:
            knows_epoch = asked.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            name = f"{partition.topic}-{partition.index}"
            raise RequestError(code, f"broker {self._replica_id} is no replica of {name}")
        if not self._knows_zstd and partition.log.config.compression_type == "zstd":
            message = f"{asked.topic} has compression.type=zstd, for clients from Fetch version 10 on"
            raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)

    def _take(self, asked: FetchPartition, partition: Partition) -> LogRead | None:
        """Read the records of one partition and count them; None if there are none to send."""
        if asked.max_bytes < 0 or self._most < 0:
            message = f"max_bytes of {asked.topic}-{asked.partition} is negative: {min(asked.max_bytes, self._most)}"
            raise RequestError(ErrorCode.INVALID_FETCH_SIZE, message)
        if asked.offset == (partition.log.last_stable_offset if self._is_committed else partition.log.high_watermark):
            return None  # nearly always: there is nothing yet
        if self._failures and partition in self._failures:
            raise self._failures[partition]
        try:
            found = partition.read(
                asked.offset,
                min(asked.max_bytes, self._left),
                min_one_message=self.size == 0,
                committed=self._is_committed,
            )
        except ColdReadError as cold:
            self.cold_lookups.append((partition, cold))
            return None
        except UNREADABLE as error:
            partition.cannot_read(error)
            raise
        if found is None or found.slice is None or found.first_batch_incomplete:
            return None
        if not partition.is_in_memory(found.slice, min(len(found.slice), MAX_CHECKED_BYTES)):
            self.cold_slices.append((partition, found.slice))
        size = len(found.slice)
        self.size += size
        self.lags = self.lags or found.segment_base_offset < partition.log.active_base_offset
        self._left = max(0, self._left - size)
        self._slices += 1
        if self._slices == MAX_SLICES:
            self._most, self._left = self.size, 0
        return found

    def _refused(self, asked: FetchPartition, partition: Partition | None, error: Exception) -> FetchedPartition:
        code, message = describe(error)
        self.failed = self.failed or partition is not None
        told = None if type(asked) is KafkaFetchPartition else partition  # Kafka tells no offsets with an error
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            error=code,
            message=message,
            log_start_offset=-1 if told is None else told.log.log_start_offset,
            high_watermark=-1 if told is None else told.log.high_watermark,
            aborted_transactions=NONE_ABORTED if code in BEFORE_READING else None,
        )


def _told(aborted: Iterable[log_index.AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple([AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted])
