"""The producer identity that all attempts at a task share, and the records stored under it.

Batch headers carry the producer id and epoch, so an attempt can find the records of earlier ones. The broker reports
their number (`describe_producer`: sequences of an epoch count from 0) and the offset of the last one. The log is read
backwards from that offset, in doubling steps, until the batch with sequence 0 is found.

Invariants:
1. All attempts at a task have the same identity. Batch job: the write id, the number of the write, and the frame's
   partition. Stream: the query id (from its checkpoint), the micro-batch, and the frame's partition.
2. The micro-batch is the epoch: the broker refuses writers of an earlier micro-batch once the next one writes, and
   keeps one state per task of a query instead of one per micro-batch.
3. A stored record matches one row. Rows are matched by content (topic, key, value, headers; partition and time if the
   row has them), not by order, because rows may arrive in another order than before. Rows that differ only in a
   partition or time that one of them does not specify may be confused.
4. Memory use is a fingerprint (about 150 bytes) for each record stored by earlier attempts.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from msgpack import packb

from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.pipeline.offsets import Offsets, fetch_once
from warmlog.pipeline.sink.rows import Headers
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.native.producers import DescribeProducerRequest, DescribeProducerResponse, ProducerPosition
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT, BatchHeader
from warmlog.protocol.records.reader import Record, decoded_batches
from warmlog.protocol.request import EARLIEST_TIMESTAMP

FETCH_BYTES = 4 << 20
FIRST_ID = 1 << 62  # brokers assign ids below this (`broker.log.producers.state`)
EPOCHS = 1 << 15  # an epoch is a non-negative int16; later micro-batches take the next id


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The producer under which the records of a task are sent, outside transactions or in one."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None

    @property
    def attributes(self) -> int:
        """The attributes of its batches."""
        return 0 if self.transactional_id is None else TRANSACTIONAL_BIT


def batch_identity(write_id: str, task: int, batch: int = 0) -> Identity:
    """Return the identity of a task of a batch job. `task`: the frame's partition; `batch`: the number of the write."""
    return _identity("batch", write_id, batch, task)


def stream_identity(query_id: str, batch_id: int, task: int) -> Identity:
    """Return the identity of a task of a micro-batch."""
    return _identity("stream", query_id, batch_id, task)


def _identity(kind: str, name: str, batch: int, task: int) -> Identity:
    turn, epoch = divmod(batch, EPOCHS)
    return Identity(producer_id=_producer_id(kind, name, turn, task), producer_epoch=epoch)


def _producer_id(*parts: str | int) -> int:
    """Hash the parts to 62 bits, enough to make collisions improbable."""
    digest = blake2b(repr(parts).encode(), digest_size=8, person=b"warmlog sink").digest()
    return FIRST_ID | int.from_bytes(digest, "big") % FIRST_ID


def fingerprint(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Hash a record's content to 16 bytes, enough to make collisions improbable."""
    return blake2b(packb((topic, key, value, headers)), digest_size=16).digest()


def producer_positions(cluster: ClusterConnection, identity: Identity, topic: str) -> list[ProducerPosition]:
    """Return the state of a producer from the leaders of a topic's partitions. Raises PipelineError."""
    partitions = cluster.call(lambda client: client.topic(topic, auto_create=False)).partitions

    def request(some: Sequence[TopicPartition]) -> DescribeProducerRequest:
        keys = tuple(PartitionEntry(topic=name, partition=partition) for name, partition in some)
        return DescribeProducerRequest(producer_id=identity.producer_id, partitions=keys)

    positions: list[ProducerPosition] = cluster.ask_leaders(
        [(topic, partition) for partition in range(partitions)],
        request,
        lambda reply: reply.partitions,
        DescribeProducerResponse,
    )
    for position in positions:
        if position.error:
            raise reply_error(position.error, position.message, about=f"{position.topic}-{position.partition}")
    return positions


class StoredRecords:
    """Stored records, each to be matched by one row. `left`: number unmatched; `gone`: number deleted from the log."""

    def __init__(self) -> None:
        self._records: dict[bytes, list[tuple[int, int | None]]] = defaultdict(list)
        self.left = 0
        self.gone = 0

    def add(self, topic: str, partition: int, header: BatchHeader, record: Record) -> None:
        """Add a record. Its time is used only if the producer set it."""
        time = None if header.append_time_ms is not None else record.timestamp
        self._records[fingerprint(topic, record.key, record.value, record.headers)].append((partition, time))
        self.left += 1

    def match(
        self,
        topic: str,
        row: tuple[bytes | None, bytes | None, Headers],
        *,
        partition: int | None,
        time: int | None,
    ) -> bool:
        """Match a row (key, value, headers) with a stored record; False if there is none. None matches any value."""
        mark = fingerprint(topic, *row)
        stored = self._records.get(mark, ())
        for at, (stored_partition, stored_time) in enumerate(stored):
            if partition in {None, stored_partition} and (time is None or stored_time in {None, time}):
                del self._records[mark][at]
                self.left -= 1
                return True
        return False


class StoredReader:
    """Reads back the records stored under an identity."""

    def __init__(self, cluster: ClusterConnection, identity: Identity) -> None:
        self._cluster = cluster
        self._identity = identity

    def collect(self, position: ProducerPosition, into: StoredRecords) -> None:
        """Add the records that the broker reports for one partition. Raises PipelineError."""
        topic, partition = position.topic, position.partition
        count, end = position.last_sequence + 1, position.last_offset + 1
        first, reach = self._log_start(topic, partition), count
        while True:
            start = max(end - reach, first)
            records = list(self._written(topic, partition, start, end))
            if start == first or len(records) == count or _has_first_batch(records, start):
                break
            reach *= 2
        for header, record in records:
            into.add(topic, partition, header, record)
        into.gone += count - len(records)

    def records_at(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        """Return the records of the identity among `count` offsets, starting at this one."""
        return [record for _, record in self._written(topic, partition, offset, offset + count)]

    def _written(self, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[BatchHeader, Record]]:
        """Yield the records of the identity between two offsets."""
        mine = self._identity.producer_id, self._identity.producer_epoch
        while start < end:
            records = fetch_once(self._cluster, topic, partition, start, max_bytes=FETCH_BYTES).records
            before = start
            for header, decoded in decoded_batches(records, from_offset=start):
                if (header.producer_id, header.producer_epoch) == mine:
                    yield from ((header, record) for record in decoded if record.offset < end)
                start = header.next_offset
            if start == before:
                return  # deleted since the broker reported them

    def _log_start(self, topic: str, partition: int) -> int:
        return Offsets(self._cluster, [(topic, partition)]).bound((topic, partition), EARLIEST_TIMESTAMP)


def _has_first_batch(records: Sequence[tuple[BatchHeader, Record]], start: int) -> bool:
    """Return whether the epoch's first batch was read in full (compaction may have removed records)."""
    return bool(records) and records[0][0].base_sequence == 0 and records[0][0].base_offset >= start
