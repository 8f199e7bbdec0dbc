"""One segment checked from its first batch to its last, and its indexes with it.

Owns: what must be true of a segment, its batches and its records. Must not know: what else lies in the directory.

1. The log is read once; its indexes are shown each batch as it comes.
2. A batch with a wrong CRC is told and passed over; where no batch can be found any more, the rest is not judged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from os import fstat
from pathlib import Path

from broker.log.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from broker.log.leader_epochs import UNDEFINED, LeaderEpochs
from broker.log.mapped_index import MAX_RELATIVE_OFFSET
from protocol.errors import ProtocolError
from protocol.records.batch import verify_crc
from protocol.records.codec import Record
from protocol.records.layout import BatchHeader
from protocol.records.reader import decode_batch
from warmlog.cli.findings import Finding, Tally
from warmlog.cli.index_checks import IndexCheck, OffsetIndexCheck, SegmentEnd, TimeIndexCheck
from warmlog.cli.scan import DamageError, StoredBatch, opened, scan_batches

INDEXES: dict[str, Callable[..., IndexCheck]] = {
    OFFSET_INDEX_SUFFIX: OffsetIndexCheck,
    TIME_INDEX_SUFFIX: TimeIndexCheck,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a check must know beside the files.

    `running`: a broker serves the directory now. `index_interval_bytes`: see SegmentEnd. `progress` is told of records
    and bytes as they are done.
    """

    running: bool
    index_interval_bytes: int
    progress: Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as its directory shows it.

    `next_base_offset`: the following segment's, None for the active one. `still`: nobody writes to its files.
    """

    log: Path
    base_offset: int
    next_base_offset: int | None
    still: bool

    @property
    def settled(self) -> bool:
        """Whether it is closed, and nobody is at work on its files."""
        return self.still and self.next_base_offset is not None

    def beside(self, suffix: str) -> Path:
        """The path of its file of another kind."""
        return self.log.with_name(self.log.name.removesuffix(LOG_SUFFIX) + suffix)


class SegmentCheck:
    """Checks one segment. `findings()` does it, once; `next_offset` is then the first offset after it."""

    def __init__(self, segment: Segment, epochs: LeaderEpochs, circumstances: Circumstances, tally: Tally) -> None:
        self.segment = segment
        self.next_offset = segment.base_offset
        self._epochs = epochs
        self._epoch = UNDEFINED
        self._circumstances = circumstances
        self._tally = tally
        self._indexes: list[IndexCheck] = []

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong with it. Raises OSError."""
        yield from self._open_indexes()  # before the log: whatever they tell of must then be in it
        with opened(self.segment.log) as descriptor:
            size, batches = fstat(descriptor).st_size, 0
            try:
                for batch in scan_batches(descriptor, size):
                    batches += 1
                    yield from self._batch(batch)
            except DamageError as damage:
                yield from self._damage(damage)
                if not damage.zeros:
                    return
        end = SegmentEnd(
            size=size,
            batches=batches,
            next_offset=self.next_offset,
            still=self.segment.still,
            settled=self.segment.settled,
            index_interval_bytes=self._circumstances.index_interval_bytes,
        )
        for index in self._indexes:
            yield from index.end(end)

    def _open_indexes(self) -> Iterator[Finding]:
        self._tally.segments += 1
        for suffix, check in INDEXES.items():
            path = self.segment.beside(suffix)
            try:
                index = check(path, self.segment.base_offset, still=self.segment.still, settled=self.segment.settled)
            except FileNotFoundError:
                if self.segment.still:  # else it may just be made
                    yield Finding(path, "missing")
            else:
                self._indexes.append(index)
                yield from index.form()

    def _batch(self, batch: StoredBatch) -> Iterator[Finding]:
        header = batch.header
        self._tally.batches += 1
        self._tally.records += header.record_count
        self._tally.size += header.size
        self._circumstances.progress(header.record_count, header.size)
        for what in self._batch_faults(batch):
            yield Finding(self.segment.log, what, batch.position)
        self.next_offset = max(self.next_offset, header.next_offset)
        for index in self._indexes:
            yield from index.batch(batch.position, header)

    def _batch_faults(self, batch: StoredBatch) -> Iterator[str]:
        try:
            verify_crc(batch.data, batch.start, batch.header)
        except ProtocolError as error:
            yield str(error)
            return  # nothing in it can be believed
        yield from self._offset_faults(batch.header)
        yield from self._epoch_faults(batch.header)
        try:
            records = decode_batch(batch.data, batch.start, batch.header)
        except ProtocolError as error:
            yield str(error)
        else:
            yield from record_faults(batch.header, records)

    def _offset_faults(self, header: BatchHeader) -> Iterator[str]:
        first, last, segment = header.base_offset, header.last_offset, self.segment
        if first < self.next_offset:
            yield f"offsets {first} to {last} do not follow on what came before, which ends at {self.next_offset}"
        if last < first:
            yield f"last offset {last} is smaller than the first, {first}"
        if segment.next_base_offset is not None and last >= segment.next_base_offset:
            yield f"offsets {first} to {last} reach into the next segment, which begins at {segment.next_base_offset}"
        if last - segment.base_offset > MAX_RELATIVE_OFFSET:
            yield f"offset {last} is too far from the segment's base"

    def _epoch_faults(self, header: BatchHeader) -> Iterator[str]:
        epoch = header.leader_epoch
        if epoch == self._epoch:
            return
        if epoch < self._epoch:
            yield f"leader epoch {epoch} after {self._epoch}"
        self._epoch = max(epoch, self._epoch)
        known = self._epochs.epoch_of(header.base_offset)
        if known not in {UNDEFINED, epoch} and not self._circumstances.running:
            yield f"leader epoch {epoch}, but the checkpoint says {known} for offset {header.base_offset}"

    def _damage(self, damage: DamageError) -> Iterator[Finding]:
        """The end of a segment that is being written may be half there, and a preallocated one is followed by zeros."""
        excused = damage.zeros or (damage.cut and self._circumstances.running)
        if self.segment.settled or not excused:
            yield Finding(self.segment.log, str(damage), damage.position)


def record_faults(header: BatchHeader, records: list[Record]) -> Iterator[str]:
    """What the records of a batch say against its header."""
    offsets = [record.offset for record in records]
    if any(after <= before for before, after in pairwise(offsets)):
        yield "the offsets of its records do not ascend"
    elif offsets and (offsets[0] < header.base_offset or offsets[-1] > header.last_offset):
        yield f"a record has an offset outside {header.base_offset} to {header.last_offset}"
    largest = max((record.timestamp for record in records), default=header.max_timestamp)
    if largest != header.max_timestamp:
        yield f"its largest time is {largest}, its header says {header.max_timestamp}"
