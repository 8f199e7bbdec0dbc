"""Send batches to the leaders of their partitions so that each is stored exactly once.

    send -> collected into a request for a leader -> in flight -> settled
                                                       |  the connection is lost, or the error is transient
                                                       +-> one batch at a time, in order, to the current leader

Invariants:
1. At most MAX_IN_FLIGHT requests for each leader, and half of `buffer_bytes` in all, are unanswered, or one request.
2. At most one batch of a partition is unanswered. So when a batch is stored, all batches before it were known to be
   stored when it was sent, and its sequence proves that no other attempt has written under this identity since the
   partition was looked up. (With two in flight, the second could be accepted after the first was rejected, if another
   attempt filled the gap.)
3. If the broker reports a batch as a duplicate that was sent only once, another attempt has sent it, and this attempt
   fails. If it was sent twice, the stored records are compared.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from warmlog.client.connection.connection import Connection, Reply
from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.sink.attempts import Identity, StoredReader
from warmlog.pipeline.sink.ended import ENDED, ENDED_CODES, WRITTEN_AGAIN
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.reader import Record, records_in
from warmlog.protocol.request import PartitionRecords, ProduceRequest
from warmlog.protocol.response import ProducedPartition, ProduceResponse

MAX_IN_FLIGHT = 5
MAX_REQUEST_BYTES = 1 << 20  # Kafka's max.request.size; a single batch may be larger
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


@dataclass(slots=True, kw_only=True)
class SinkBatch:
    """A batch of one partition as sent. `resent`: whether an earlier request may have stored it."""

    topic: str
    partition: int
    base_sequence: int
    count: int
    encoded: bytes
    resent: bool = False

    @property
    def key(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """Topic and partition as text."""
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class SentTally:
    """Totals of stored records. `bytes`: bytes of batches as sent. `retries`: batches sent again."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0


@dataclass(slots=True, kw_only=True)
class _Collected:
    """Unsent batches for one leader, by topic and partition."""

    batches: dict[TopicPartition, SinkBatch] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True, kw_only=True)
class _InFlight:
    """An unanswered request."""

    leader: Connection
    batches: list[SinkBatch]
    size: int
    reply: Reply[ProduceResponse]


class BatchSender:
    """Sends batches; `flush` at the end. Not thread-safe. `tally` counts stored records."""

    def __init__(self, cluster: ClusterConnection, identity: Identity, codec: Codec, buffer_bytes: int) -> None:
        self._cluster = cluster
        self._retry = cluster.retry
        self._identity = identity
        self._codec = codec
        self._max_bytes = buffer_bytes // 2
        self._collected: dict[Connection, _Collected] = {}
        self._collected_for: dict[TopicPartition, Connection] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._unanswered: set[TopicPartition] = set()
        self.first_offsets: dict[TopicPartition, int] = {}  # first stored offset of each partition
        self.tally = SentTally()

    def send(self, batch: SinkBatch) -> None:
        """Send a batch; wait if too much is in flight. Raises PipelineError."""
        if (earlier := self._collected_for.get(batch.key)) is not None:
            self._post(earlier)
        try:
            leader = self._cluster.leader(*batch.key)
        except UnavailableError as error:
            self.flush()
            self._deliver_failed([(batch, error)])
            return
        collected = self._collected.setdefault(leader, _Collected())
        if collected.size + len(batch.encoded) > MAX_REQUEST_BYTES and collected.batches:
            self._post(leader)
            collected = self._collected[leader] = _Collected()
        collected.batches[batch.key] = batch
        collected.size += len(batch.encoded)
        self._collected_for[batch.key] = leader

    def flush(self) -> None:
        """Wait until all sent batches are stored. Raises PipelineError."""
        while self._collected:
            self._post(next(iter(self._collected)))
        while self._in_flight:
            self._take_reply()

    # -- in flight --

    def _post(self, leader: Connection) -> None:
        """Send the collected batches of a leader as one request."""
        collected = self._collected.pop(leader)
        keys, batches = collected.batches.keys(), list(collected.batches.values())
        for key in keys:
            del self._collected_for[key]
        while self._in_flight and not (self._may_send(leader, collected.size) and self._unanswered.isdisjoint(keys)):
            self._take_reply()
        reply = self._cluster.submit(leader, self._request(batches), ProduceResponse)
        self._in_flight.append(_InFlight(leader=leader, batches=batches, size=collected.size, reply=reply))
        self._in_flight_bytes += collected.size
        self._unanswered |= keys

    def _may_send(self, leader: Connection, size: int) -> bool:
        requests = sum(1 for each in self._in_flight if each.leader is leader)
        return requests < MAX_IN_FLIGHT and self._in_flight_bytes + size <= self._max_bytes

    def _take_reply(self) -> None:
        """Process the oldest reply, and send rejected batches again if that may succeed. Raises PipelineError."""
        request = self._in_flight.popleft()
        self._in_flight_bytes -= request.size
        self._unanswered -= {batch.key for batch in request.batches}
        failed: list[tuple[SinkBatch, PipelineError]] = []
        try:
            response = self._cluster.wait(request.reply)
        except UnavailableError as error:
            failed += [(batch, error) for batch in request.batches]
        else:
            for batch, outcome in zip(request.batches, response.partitions, strict=True):
                if self._is_transient(batch, outcome):
                    failed.append((batch, _unavailable(_reply_error(batch, outcome))))
                elif outcome.error in TOO_LARGE:
                    failed.append((batch, _reply_error(batch, outcome)))
                else:
                    self._settle(batch, outcome)
        if failed:
            self._deliver_failed(failed)

    def _is_transient(self, batch: SinkBatch, outcome: ProducedPartition) -> bool:
        return bool(outcome.error) and self._cluster.is_transient(*batch.key, outcome.error)

    def _request(self, batches: Sequence[SinkBatch]) -> ProduceRequest:
        transactional_id = self._identity.transactional_id
        return ProduceRequest(
            transactional_id=UNSET if transactional_id is None else transactional_id,
            partitions=tuple(
                PartitionRecords(topic=batch.topic, partition=batch.partition, records=memoryview(batch.encoded))
                for batch in batches
            ),
        )

    # -- one at a time --

    def _deliver_failed(self, failed: Sequence[tuple[SinkBatch, PipelineError]]) -> None:
        """Back off if any of the errors is transient, and deliver the batches when nothing else is in flight."""
        while self._in_flight:
            self._take_reply()
        transient = [(batch, error) for batch, error in failed if isinstance(error, UnavailableError)]
        for batch, _ in transient:
            self._may_be_stored(batch)
        for _, error in transient[:1]:
            self._retry.wait(error)
        for batch, _ in failed:
            self._deliver(batch)

    def _deliver(self, batch: SinkBatch) -> None:
        """Send a batch, retrying until it is stored; nothing else is in flight. Raises PipelineError."""
        while True:
            self.tally.retries += 1
            try:
                leader = self._cluster.leader(*batch.key)
                reply = self._cluster.submit(leader, self._request([batch]), ProduceResponse)
                (outcome,) = self._cluster.wait(reply).partitions
            except UnavailableError as error:
                self._may_be_stored(batch)
                self._retry.wait(error)
                continue
            if outcome.error in TOO_LARGE:
                self._deliver_halves(batch, outcome)
                return
            if not self._is_transient(batch, outcome):
                self._settle(batch, outcome)
                return
            self._may_be_stored(batch)
            self._retry.wait(_unavailable(_reply_error(batch, outcome)))

    def _may_be_stored(self, batch: SinkBatch) -> None:
        """Record that a request failed without revealing whether the batch was stored, or which broker leads now."""
        batch.resent = True
        self._cluster.forget_leaders(batch.topic)

    def _deliver_halves(self, batch: SinkBatch, outcome: ProducedPartition) -> None:
        """Deliver the halves of a batch that is too large for the topic. Raises PipelineError if a single record is."""
        records = list(records_in(batch.encoded, check_crc=False))
        if len(records) == 1:
            raise _too_large(batch, records[0], outcome)
        middle = len(records) // 2
        for part, sequence in ((records[:middle], 0), (records[middle:], middle)):
            self._deliver(self._part(batch, part, batch.base_sequence + sequence))

    def _part(self, batch: SinkBatch, records: Sequence[Record], base_sequence: int) -> SinkBatch:
        encoded = build_batch(
            [(record.timestamp, record.key, record.value, record.headers) for record in records],
            compression=self._codec,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=base_sequence,
            attributes=self._identity.attributes,
        )
        return SinkBatch(
            topic=batch.topic,
            partition=batch.partition,
            base_sequence=base_sequence,
            count=len(records),
            encoded=encoded,
            resent=batch.resent,
        )

    # -- replies --

    def _settle(self, batch: SinkBatch, outcome: ProducedPartition) -> None:
        """Count a batch that is stored. Raises PipelineError if it was rejected for good."""
        if outcome.error in ENDED_CODES and self._identity.transactional_id is not None:
            raise PipelineError(f"{batch.name}: {ENDED}; {WRITTEN_AGAIN}: {_reply_error(batch, outcome)}")
        if outcome.error:
            raise _refused(batch, outcome)
        if outcome.duplicate is not UNSET and not (batch.resent and self._is_ours(batch, outcome.base_offset)):
            raise PipelineError(f"{batch.name}: another attempt at this task is running, and has sent other rows")
        self._retry.progressed()
        first = self.first_offsets.get(batch.key, outcome.base_offset)
        self.first_offsets[batch.key] = min(first, outcome.base_offset)
        self.tally.rows += batch.count
        self.tally.bytes += len(batch.encoded)
        self.tally.batches += 1

    def _is_ours(self, batch: SinkBatch, offset: int) -> bool:
        """Return whether the records stored at an offset are the batch's (the broker may have set timestamps)."""
        reader = StoredReader(self._cluster, self._identity)
        stored = reader.records_at(batch.topic, batch.partition, offset, batch.count)
        sent = records_in(batch.encoded, check_crc=False)
        return [_content(record) for record in stored] == [_content(record) for record in sent]


def _content(record: Record) -> Record:
    return replace(record, offset=0, timestamp=0)


def _reply_error(batch: SinkBatch, outcome: ProducedPartition) -> PipelineError:
    return reply_error(outcome.error, outcome.message, about=batch.name)


def _unavailable(error: PipelineError) -> UnavailableError:
    return error if isinstance(error, UnavailableError) else UnavailableError(str(error))


def _refused(batch: SinkBatch, outcome: ProducedPartition) -> PipelineError:
    if outcome.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return PipelineError(
            f"{batch.name}: another attempt at this task has written since this one began, or the broker has lost"
            f" acknowledged records: {outcome.message}"
        )
    if outcome.error is ErrorCode.INVALID_PRODUCER_EPOCH:
        return PipelineError(f"{batch.name}: a later micro-batch is being written: {outcome.message}")
    why = _reply_error(batch, outcome)
    if outcome.record_errors is UNSET:
        return why
    return PipelineError(f"{why} ({'; '.join(each.message for each in outcome.record_errors[:3])})")


def _too_large(batch: SinkBatch, record: Record, outcome: ProducedPartition) -> PipelineError:
    size = len(record.key or b"") + len(record.value or b"")
    key = "without a key" if record.key is None else f"with key {record.key[:40]!r}"
    return PipelineError(f"{batch.name}: a record of {size} bytes {key} is too large: {outcome.message}")
