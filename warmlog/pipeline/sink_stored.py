"""What earlier attempts at a task have stored: found by the producer id and epoch in the headers of batches.

Owns: finding those records, and telling which rows need not be sent any more. Must not know: how rows are sent.

How many there are the broker says (`describe_producer`: sequences count from 0 in an epoch), and where the last one is;
so they are read backwards from there, in steps that double, until the batch with sequence 0 is found.

Invariants:
1. A stored record stands for one row. Which one is a matter of what is in it (topic, key, value, headers; partition and
   time where the row says them), not of its place: rows may come in another order than before. Rows that are equal but
   for what one of them does not say may be taken for one another.
2. What is held is a fingerprint of each record (about 150 bytes), and only of those that earlier attempts have stored.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from msgpack import packb

from protocol.errors import ErrorCode
from protocol.native.messages import ReceivedFetch
from protocol.native.producers import ProducerPosition
from protocol.records.layout import BatchHeader
from protocol.records.reader import Record, decoded_batches
from protocol.request import EARLIEST_TIMESTAMP, FetchPartition, FetchRequest, ListOffsetsRequest, OffsetQuery
from protocol.response import ListOffsetsResponse
from warmlog.pipeline.sink_broker import PatientBroker
from warmlog.pipeline.sink_identity import Identity
from warmlog.pipeline.sink_rows import Headers
from warmlog.pipeline.wire import trouble

FETCH_BYTES = 4 << 20


def fingerprint(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """16 bytes for what is in a record: no two that differ are to be expected to have the same."""
    return blake2b(packb((topic, key, value, headers)), digest_size=16).digest()


def _begins(found: Sequence[tuple[BatchHeader, Record]], start: int) -> bool:
    """Whether these begin with all of the epoch's first batch (compaction may have taken records of it, or others)."""
    return bool(found) and found[0][0].base_sequence == 0 and found[0][0].base_offset >= start


class StoredRecords:
    """Records that are stored already, each to be matched by a row once. `gone`: of how many nothing is left to see."""

    def __init__(self) -> None:
        self._records: dict[bytes, list[tuple[int, int | None]]] = defaultdict(list)
        self.left = 0
        self.gone = 0

    def add(self, topic: str, partition: int, header: BatchHeader, record: Record) -> None:
        """A record that was found. Its time is not known where it is the broker's."""
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
        """Whether a row (key, value, headers) is stored already; then it is matched. None: any will do."""
        mark = fingerprint(topic, *row)
        places = self._records.get(mark, ())
        for at, (found_partition, found_time) in enumerate(places):
            if partition in {None, found_partition} and (time is None or found_time in {None, time}):
                del self._records[mark][at]
                self.left -= 1
                return True
        return False


class StoredReader:
    """Reads back what was stored under an identity."""

    def __init__(self, broker: PatientBroker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity

    def collect(self, position: ProducerPosition, into: StoredRecords) -> None:
        """Add the records of one partition, which the broker says are there. Raises PipelineError."""
        topic, partition = position.topic, position.partition
        count, end = position.last_sequence + 1, position.last_offset + 1
        first, reach = self._log_start(topic, partition), count
        while True:
            start = max(end - reach, first)
            found = list(self._written(topic, partition, start, end))
            if start == first or len(found) == count or _begins(found, start):
                break
            reach *= 2
        for header, record in found:
            into.add(topic, partition, header, record)
        into.gone += count - len(found)

    def records_at(self, topic: str, partition: int, offset: int, count: int) -> list[Record]:
        """So many records from an offset on that were written under the identity, as far as they are there."""
        return [record for _, record in self._written(topic, partition, offset, offset + count)]

    def _written(self, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[BatchHeader, Record]]:
        """The records at these offsets, the last one excluded, that the identity has written."""
        mine = self._identity.producer_id, self._identity.producer_epoch
        while start < end:
            records = self._fetch(topic, partition, start)
            before = start
            for header, decoded in decoded_batches(records, from_offset=start):
                if (header.producer_id, header.producer_epoch) == mine:
                    yield from ((header, record) for record in decoded if record.offset < end)
                start = header.next_offset
            if start == before:
                return  # what was there when the broker was asked is gone

    def _fetch(self, topic: str, partition: int, offset: int) -> memoryview:
        wanted = FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=FETCH_BYTES)
        request = FetchRequest(partitions=(wanted,), max_wait_ms=0, max_bytes=FETCH_BYTES)

        def check(reply: ReceivedFetch) -> None:
            (part,) = reply.partitions
            if part.error and part.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise trouble(part.error, part.message, about=f"{topic}-{partition}")

        (part,) = self._broker.ask(request, ReceivedFetch, check).partitions
        return memoryview(b"") if part.error else part.records

    def _log_start(self, topic: str, partition: int) -> int:
        query = OffsetQuery(topic=topic, partition=partition, timestamp=EARLIEST_TIMESTAMP)
        request = ListOffsetsRequest(partitions=(query,))

        def check(reply: ListOffsetsResponse) -> None:
            (found,) = reply.partitions
            if found.error:
                raise trouble(found.error, found.message, about=f"{topic}-{partition}")

        return self._broker.ask(request, ListOffsetsResponse, check).partitions[0].offset
