"""Produce: batches onto the ends of partitions.

Two halves, so that requests which came together are written together: `begin` queues every batch and never waits; the
`Produce` it returns is done when all of them are written (and synced, where that was asked for).
"""

from collections.abc import Callable

from msgspec import UNSET

from broker.api.errors import EXPECTED, RequestError, describe
from broker.metadata.topic import InvalidTopicError, is_internal
from broker.partition import Append, Partition
from broker.partitions import Partitions
from protocol.errors import ErrorCode, RecordsRefusedError, UnsupportedCompressionError
from protocol.records.batch import read_header
from protocol.records.layout import CODEC_MASK, Codec
from protocol.request import PartitionRecords, ProduceRequest
from protocol.response import ProducedPartition, ProduceResponse, RecordError

ADMIN_CLIENT_ID = "__admin_client"  # of who may write to internal topics (org.apache.kafka.admin.AdminUtils)
ALL_REPLICAS = -1
REPLICAS = 1  # of each partition
# Errors that are told without the log start offset (source: kafka.server.ReplicaManager.appendToLocalLog).
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)


class Produce:
    """A produce request on its way: one entry per partition, an Append or what was refused at once."""

    __slots__ = ("_entries", "acks")

    def __init__(self, acks: int, entries: list[Append | ProducedPartition]) -> None:
        self.acks = acks
        self._entries = entries

    @property
    def done(self) -> bool:
        """Whether `response` can be had."""
        for entry in self._entries:  # noqa: SIM110  # a generator costs twice the loop, on every produce
            if type(entry) is Append and not entry.done:
                return False
        return True

    def notify(self, settled: Callable[[], None]) -> None:
        """Call back when the first append that is not settled yet is, at once if there is none."""
        for entry in self._entries:
            if isinstance(entry, Append) and not entry.done:
                entry.notify(settled)
                return
        settled()

    def response(self) -> ProduceResponse:
        """The outcome of each partition, in the order of the request."""
        return ProduceResponse(partitions=tuple([_outcome(entry) for entry in self._entries]))


def begin(request: ProduceRequest, client_id: str, partitions: Partitions, *, create: bool) -> Produce | None:
    """Check and queue every batch of the request. Never waits; what is refused is an entry with its error.

    With `create`, nothing is queued and None comes back if a topic is missing.
    """
    found = [partitions.get(asked.topic, asked.partition) for asked in request.partitions]
    if create and None in found and missing_topics(request, partitions):
        return None
    entries: list[Append | ProducedPartition] = []
    for place, asked in enumerate(request.partitions):
        entries.append(_queue(asked, found[place], partitions, request, client_id))
    return Produce(request.acks, entries)


def missing_topics(request: ProduceRequest, partitions: Partitions) -> list[str]:
    """Topics of the request that do not exist, or not quite yet, and may be created by who first uses them."""
    asked_for = dict.fromkeys(asked.topic for asked in request.partitions)
    topics = [topic for topic in asked_for if not partitions.has(topic) or partitions.is_pending(topic)]
    return [topic for topic in topics if not is_internal(topic)]


def _queue(
    asked: PartitionRecords,
    partition: Partition | None,
    partitions: Partitions,
    request: ProduceRequest,
    client_id: str,
) -> Append | ProducedPartition:
    try:
        if is_internal(asked.topic) and client_id != ADMIN_CLIENT_ID:
            raise InvalidTopicError(f"{asked.topic} is the broker's own: nobody else writes to it")
        if partition is None:
            raise partitions.missing(asked.topic, asked.partition)
        if request.acks == ALL_REPLICAS and partition.log.config.min_insync_replicas > REPLICAS:
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, _too_few_replicas(partition))
        if not request.knows_zstd:
            _refuse_zstd(asked)
        return partition.append(asked.records)
    except EXPECTED as error:
        return _refused(asked.topic, asked.partition, error, partition)


def _too_few_replicas(partition: Partition) -> str:
    minimum = partition.log.config.min_insync_replicas
    return f"{partition.topic}: min.insync.replicas is {minimum}, and a partition has {REPLICAS} replica"


def _refuse_zstd(asked: PartitionRecords) -> None:
    """For clients that must not be given what they cannot send. Raises UnsupportedCompressionError."""
    if read_header(asked.records).attributes & CODEC_MASK == Codec.ZSTD:
        raise UnsupportedCompressionError("a batch compressed by zstd, which Produce knows from version 7 on")


def _outcome(entry: Append | ProducedPartition) -> ProducedPartition:
    if not isinstance(entry, Append):
        return entry
    partition = entry.partition
    if entry.error is not None:
        return _refused(partition.topic, partition.index, entry.error, partition)
    return ProducedPartition(
        topic=partition.topic,
        partition=partition.index,
        base_offset=entry.planned.base_offset,
        log_append_time=entry.planned.log_append_time,
        log_start_offset=partition.log.log_start_offset,
        duplicate=True if entry.planned.is_duplicate else UNSET,
    )


def _refused(topic: str, index: int, error: Exception, partition: Partition | None) -> ProducedPartition:
    code, message = describe(error)
    refused = error.record_errors if isinstance(error, RecordsRefusedError) else ()
    tells_start = partition is not None and code not in _WITHOUT_LOG_START
    return ProducedPartition(
        topic=topic,
        partition=index,
        log_start_offset=partition.log.log_start_offset if partition is not None and tells_start else -1,
        error=code,
        message=message,
        record_errors=tuple([RecordError(index=index, message=why) for index, why in refused]) or UNSET,
    )
