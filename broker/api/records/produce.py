"""Produce: append batches to partitions.

Requests that arrive together are written together: `begin` queues every batch without waiting, and the `Produce` it
returns is done when all of them are written, and flushed if that was requested. A request with many partitions, or one
that creates a topic, takes `begin_in_pieces`.
"""

import logging
from collections.abc import Callable
from itertools import islice
from struct import Struct
from typing import Any, Final

from msgspec import UNSET

from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.current_leaders import CurrentLeaders
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.newcomers import Newcomers
from warmlog.broker.api.transactions.admission import Admission, Admit, admit_batches, has_transaction, needs_admission
from warmlog.broker.classes import mypyc_attr
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import (
    AUDIT_TOPIC,
    INTERNAL_TOPICS,
    MAX_NAME_LENGTH,
    MAX_PARTITIONS_PER_REQUEST,
    InvalidTopicError,
    is_internal,
    mirrored_error,
)
from warmlog.broker.partitions.appends.append_queue import LOCAL
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.partition import Append, Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.protocol.errors import ErrorCode, InvalidRecordError, RecordsRefusedError, UnsupportedCompressionError
from warmlog.protocol.kafka.messages.common import UNKNOWN_TOPIC_NAME
from warmlog.protocol.records.batch import batch_spans, read_header
from warmlog.protocol.records.codec import plain_batch_producer
from warmlog.protocol.records.layout import (
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    Codec,
)
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProducedPartition, ProduceResponse, RecordError

logger = logging.getLogger(__name__)

PIECE: Final = 64  # partitions queued and written in one step, each to its own file: about 0.6 ms
LARGE: Final = 512  # partitions above which the response is built in pieces
ACKS_ALL: Final = -1
ADMIN_CLIENT_ID: Final = "__admin_client"  # may write to internal topics (org.apache.kafka.admin.AdminUtils)
_PRODUCER_ID: Final = Struct(">q")
# Errors reported without the log start offset (source: kafka.server.ReplicaManager.appendToLocalLog).
_WITHOUT_LOG_START: Final = frozenset(
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


class NotOneBatchError(InvalidRecordError):
    """The records of a partition are not exactly one batch of the current format; raised before its log is used."""


class Produce:
    """A produce request in progress: one entry per partition, an Append or an immediate error."""

    __slots__ = ("_done", "_entries", "_leaders", "_response", "_session", "acks")

    def __init__(self, acks: int, entries: list[Append | ProducedPartition]) -> None:
        self.acks = acks
        self._entries = entries
        self._done = 0  # number of leading entries that are done
        self._response: ProduceResponse | None = None
        self._leaders: CurrentLeaders | None = None
        self._session: Session | None = None

    def name_leaders(self, leaders: CurrentLeaders, session: Session) -> None:
        """Add the leaders of partitions that this broker does not lead to the response, unless it is large."""
        self._leaders, self._session = leaders, session

    def add_refused(self, refused: dict[int, ProducedPartition]) -> None:
        """Add results of partitions that were removed from the request, by their positions."""
        if refused:
            left = iter(self._entries)
            count = len(self._entries) + len(refused)
            self._entries = [refused[number] if number in refused else next(left) for number in range(count)]

    @property
    def is_large(self) -> bool:
        """Whether `respond` must be awaited before `response` is called."""
        return self._response is None and len(self._entries) > LARGE

    @property
    def done(self) -> bool:
        """Whether all appends are done, so that `response` may be called."""
        return self._next() is None

    def notify(self, settled: Callable[[], None]) -> None:
        """Have `settled` called when the first unfinished append is done, or now if there is none."""
        waited_for = self._next()
        if waited_for is None:
            settled()
        else:
            waited_for.notify(settled)

    def _next(self) -> Append | None:
        """Return the first unfinished append. Entries before it are not checked again."""
        entries, number = self._entries, self._done
        while number < len(entries):
            entry = entries[number]
            if isinstance(entry, Append) and not entry.done:
                self._done = number
                return entry
            number += 1
        self._done = number
        return None

    def released(self) -> list[Any]:
        """Return the entries and the response after the reply, dropping all references to them."""
        owned = [self._entries, self._response]
        self._entries, self._response = [], None
        return owned

    async def respond(self, context: Context) -> None:
        """Build the response in pieces."""
        self._response = ProduceResponse(partitions=await context.map(_outcome, self._entries))

    def response(self) -> ProduceResponse:
        """Return the outcome of each partition, in the order of the request."""
        if self._response is not None:
            return self._response
        response = ProduceResponse(partitions=tuple([_outcome(entry) for entry in self._entries]))
        if self._leaders is not None and self._session is not None:
            return self._leaders.in_produce(response, self._session)
        return response


def begin(request: ProduceRequest, context: Context, partitions: Partitions, producers: Newcomers) -> Produce | None:
    """Validate and queue every batch of the request without waiting; a refused batch becomes an entry with its error.

    Returns None and queues nothing for a request that needs `begin_in_pieces`.
    """
    if len(request.partitions) > PIECE:
        return None
    is_transactional = isinstance(request.transactional_id, str)
    served = partitions.served
    producer_ids: list[int | None] = []
    local: list[Partition | None] = []
    all_plain = all_served = True
    for requested in request.partitions:
        producer_id = plain_batch_producer(requested.records)
        partition = served.get((requested.topic, requested.partition))
        all_plain = all_plain and producer_id is not None
        all_served = all_served and partition is not None
        producer_ids.append(producer_id)
        local.append(partition)
    if not all_plain and not is_transactional and any(map(has_transaction, request.partitions)):
        return Produce(request.acks, [_without_transaction(requested) for requested in request.partitions])
    if is_transactional and any(map(needs_admission, request.partitions, local)):
        return None
    if not all_served and any(_is_new(requested.topic, partitions) for requested in request.partitions):
        return None
    terms = _Terms(request, context, partitions, producers)
    entries: list[Append | ProducedPartition] = []
    for number, requested in enumerate(request.partitions):
        entries.append(terms.queue(requested, local[number], producer_ids[number]))
    return Produce(request.acks, entries)


async def begin_in_pieces(
    request: ProduceRequest,
    context: Context,
    partitions: Partitions,
    producers: Newcomers,
    *,
    write: Callable[[], None],
    admit: Admit,
    quotas: ClientQuotas,
) -> Produce:
    """Create missing topics if that is enabled, then queue the batches and write them piece by piece.

    Batches of a transaction that is not open in their partition are queued if `admit` allows it. Waits for topics that
    are being created. A topic that cannot be created is an error in the response.
    """
    if not request.is_transactional and any(await context.map(has_transaction, request.partitions)):
        return Produce(request.acks, [*await context.map(_without_transaction, request.partitions)])
    left = MAX_PARTITIONS_PER_REQUEST // partitions.settings.num_partitions
    for topic in dict.fromkeys(await context.map(_topic_of, request.partitions)):
        if left > 0 and _is_new(topic, partitions):
            left -= 1
            if not partitions.is_pending(topic) and partitions.settings.auto_create_topics_enable:
                quotas.mutate(context.session, partitions.settings.num_partitions, is_strict=False)
            await context.wait(_create(topic, partitions))
        await context.checkpoint()
    terms, served = _Terms(request, context, partitions, producers), partitions.served
    if request.is_transactional:
        terms.admission = await admit_batches(request, context, partitions, admit)
    entries: list[Append | ProducedPartition] = []
    for start in range(0, len(request.partitions), PIECE):
        piece = request.partitions[start : start + PIECE]
        for requested in piece:
            partition = served.get((requested.topic, requested.partition))
            entries.append(terms.queue(requested, partition, plain_batch_producer(requested.records)))
        write()
        await context.checkpoint()
    return Produce(request.acks, entries)


def _topic_of(requested: PartitionRecords) -> str:
    return requested.topic


async def _create(topic: str, partitions: Partitions) -> None:
    await partitions.changes.until_ready(topic)
    if partitions.settings.auto_create_topics_enable:
        try:
            await partitions.ensure(topic)
        except EXPECTED as error:
            logger.info("topic %.*r not created on first use: %s", MAX_NAME_LENGTH, topic, error)


def _is_new(topic: str, partitions: Partitions) -> bool:
    """Return whether a topic does not exist, or is being created, and may be created on first use."""
    if topic == UNKNOWN_TOPIC_NAME:  # an id without a topic
        return False
    return (not partitions.has(topic) or partitions.is_pending(topic)) and not is_internal(topic)


@mypyc_attr(acyclic=True)
class _Terms:
    """The fields of a request that apply to each of its batches."""

    __slots__ = ("_partitions", "_producers", "_request", "_session", "admission")

    def __init__(self, request: ProduceRequest, context: Context, partitions: Partitions, producers: Newcomers) -> None:
        self._request = request
        self._partitions = partitions
        self._producers = producers
        self._session = context.session
        self.admission: Admission | None = None

    def _append(self, partition: Partition, records: memoryview, guard: int) -> Append:
        """Queue an append, which waits for replicas if the request requires it."""
        request = self._request
        replicas_ms = request.timeout_ms if request.acks == ACKS_ALL else LOCAL
        return partition.append(records, guard=guard, replicas_ms=replicas_ms, source=self._session)

    def queue(
        self, requested: PartitionRecords, partition: Partition | None, producer_id: int | None
    ) -> Append | ProducedPartition:
        """Validate and queue the records of a partition, or return the error for the client.

        `producer_id`: what `plain_batch_producer` returned for them.
        """
        try:
            is_open = requested.topic not in INTERNAL_TOPICS if partition is None else not partition.is_internal
            if not is_open and not self._may_write_internal(requested.topic):
                raise InvalidTopicError(f"{requested.topic} is an internal topic: clients cannot write to it")
            if partition is None:
                raise self._partitions.missing(requested.topic, requested.partition)
            if partition.mirror_of is not None:
                raise mirrored_error(requested.topic, partition.mirror_of)
            records = requested.records
            guard = 0 if self.admission is None else _guard(self.admission, requested, partition)
            if producer_id is None:
                self._check_unusual(records, partition)
            elif producer_id >= 0:
                self._admit(producer_id, partition)
            is_alone = partition.appends.replication is None
            if is_alone:
                return partition.append(records, guard=guard, source=self._session)
            return self._append(partition, records, guard)
        except (NotOneBatchError, RequestError) as refusal:
            return _refused(requested.topic, requested.partition, refusal, None)
        except EXPECTED as error:
            return _refused(requested.topic, requested.partition, error, None if partition is None else partition.log)

    def _may_write_internal(self, topic: str) -> bool:
        """Return whether the sender may write to an internal topic: a tool, or another broker."""
        client_id = self._session.client_id
        return self._partitions.catalog.is_peer(client_id) if topic == AUDIT_TOPIC else client_id == ADMIN_CLIENT_ID

    def _check_unusual(self, records: memoryview, partition: Partition) -> None:
        """Raise NotOneBatchError, UnsupportedCompressionError, RequestError for records that are not a plain batch.

        Damaged batches pass: the log refuses them.
        """
        if self._request.is_one_batch_each:
            _check_one_batch(records)
        if not self._request.knows_zstd:
            _refuse_zstd(records)
        for position, _ in batch_spans(records):
            producer_id: int = _PRODUCER_ID.unpack_from(records, position + PRODUCER_ID_POSITION)[0]
            if producer_id >= 0:
                self._admit(producer_id, partition)

    def _admit(self, producer_id: int, partition: Partition) -> None:
        """Raise RequestError for a producer that is unknown to the log, if it may not be introduced."""
        if partition.log.producers.latest(producer_id) is None:
            self._producers.admit(self._session, producer_id)


def _guard(admission: Admission, requested: PartitionRecords, partition: Partition) -> int:
    """Return the guard with which a batch may begin a transaction, or 0. Raises RequestError, NotLeaderError."""
    topic_partition = (requested.topic, requested.partition)
    code = admission.refused.get(topic_partition)
    if code is not None:
        name = f"{requested.topic}-{requested.partition}"
        raise RequestError(code, f"{name}: the transaction coordinator refused the batch")
    guard = admission.guards.get(topic_partition, 0)
    if not guard and needs_admission(requested, partition):
        raise NotLeaderError(f"{requested.topic}-{requested.partition}: not led when the coordinator was queried")
    return guard


def _without_transaction(requested: PartitionRecords) -> ProducedPartition:
    """Refuse a partition because a batch belongs to a transaction and the request has no transactional id.

    Source: kafka.server.KafkaApis.handleProduceRequest.
    """
    return ProducedPartition(
        topic=requested.topic,
        partition=requested.partition,
        error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        message="a batch of a transaction, in a request without a transactional id",
    )


def _check_one_batch(records: memoryview) -> None:
    """Raise NotOneBatchError for no batch, a batch of an old format, or a second complete batch.

    A retry could store several batches partially. The log validates everything else.
    Source: org.apache.kafka.common.requests.ProduceRequest.validateRecords.
    """
    size = len(records)
    if not size:
        raise NotOneBatchError("the request has no batch for this partition")
    if size >= HEADER_SIZE and records[MAGIC_POSITION] < MAGIC:
        raise NotOneBatchError(f"a batch of magic {records[MAGIC_POSITION]}: Produce takes magic 2 from version 3 on")
    second = next(islice(batch_spans(records), 1, None), None)
    if second is not None and second[1] and sum(second) <= size:
        raise NotOneBatchError("several batches for one partition: Produce takes one in each request")


def _refuse_zstd(records: memoryview) -> None:
    """Raise UnsupportedCompressionError for zstd from a client whose Produce version does not support it."""
    if read_header(records).attributes & CODEC_MASK == Codec.ZSTD:
        raise UnsupportedCompressionError("a batch compressed with zstd, which requires Produce version 7 or later")


def _outcome(entry: Append | ProducedPartition) -> ProducedPartition:
    if not isinstance(entry, Append):
        return entry
    log = entry.log
    if entry.error is not None:
        return _refused(log.topic, log.partition, entry.error, log)
    return ProducedPartition(
        topic=log.topic,
        partition=log.partition,
        base_offset=entry.planned.base_offset,
        log_append_time=entry.planned.log_append_time,
        log_start_offset=log.offsets.log_start_offset,
        duplicate=True if entry.planned.is_duplicate else UNSET,
    )


def _refused(topic: str, index: int, error: Exception, log: PartitionLog | None) -> ProducedPartition:
    code, message = describe(error)
    refused = error.record_errors if isinstance(error, RecordsRefusedError) else ()
    tells_start = log is not None and code not in _WITHOUT_LOG_START
    return ProducedPartition(
        topic=topic,
        partition=index,
        log_start_offset=log.offsets.log_start_offset if log is not None and tells_start else -1,
        error=code,
        message=message,
        record_errors=tuple([RecordError(index=index, message=why) for index, why in refused]) or UNSET,
    )
