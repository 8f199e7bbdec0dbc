"""Read records of a share-partition that a member may acquire, and cut the slice to the acquired ones."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from warmlog.broker.log.io.files import FileSlice
from warmlog.broker.log.segments.log_scan import walk_headers
from warmlog.broker.share.partitions.acquiring import ReadBatch
from warmlog.protocol.kafka.messages.share.fetch import AcquiredRange
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.response import AbortedTransaction

CHUNK_BYTES = 16 << 10  # bytes of headers per read; batches are often larger, and then a page is enough


class ReadRecords(NamedTuple):
    """A slice of a log, and its first batches, with the position after each."""

    records: FileSlice
    batches: Sequence[ReadBatch]
    ends: Sequence[int]

    def cut(self, acquired: Sequence[AcquiredRange]) -> FileSlice:
        """Return the part of the slice from the first to the last batch with acquired offsets."""
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        start, end = self.records.position, self.records.position
        for batch, end_of_batch in zip(self.batches, self.ends, strict=True):
            if batch.last < first:
                start = end_of_batch
            if batch.first > last:
                break
            end = end_of_batch
        piece = FileSlice(self.records.descriptor, start, end - start)
        warm_end = self.records.position + self.records.warm_length
        piece.warm_length = min(max(warm_end - start, 0), len(piece))
        return piece


def read_batches(records: FileSlice, last_offset: int, aborted: Iterable[AbortedTransaction]) -> ReadRecords:
    """Read the headers of a slice up to the batch that reaches `last_offset`. Raises OSError, CorruptBatchError.

    `aborted`: the transactions whose records are not delivered.
    """
    discard = AbortedFilter(aborted)
    batches: list[ReadBatch] = []
    ends: list[int] = []
    end = records.position + records.length
    for position, header in walk_headers(records.descriptor, records.position, end, CHUNK_BYTES):
        is_aborted = discard.discards(header) and not header.is_control
        batches.append(ReadBatch(header.base_offset, header.last_offset, is_aborted))
        ends.append(position + header.size)
        if header.last_offset >= last_offset:
            break
    return ReadRecords(records, batches, ends)
