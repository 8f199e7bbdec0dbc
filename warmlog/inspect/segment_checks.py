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

from broker.log.index.mapped import MAX_RELATIVE_OFFSET
from broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from broker.log.leader_epochs import UNDEFINED, LeaderEpochs
from protocol.errors import ProtocolError
from protocol.records.batch import verify_crc
from protocol.records.codec import Record
from protocol.records.layout import BatchHeader
from protocol.records.markers import end_marker
from protocol.records.reader import decode_batch
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.history_checks import History, SnapshotChecks, TransactionIndexCheck
from warmlog.inspect.index_checks import IndexCheck, OffsetIndexCheck, SegmentEnd, TimeIndexCheck
from warmlog.inspect.scan import DamageError, StoredBatch, opened, scan_batches

INDEXES: dict[str, Callable[..., IndexCheck]] = {
    OFFSET_INDEX_SUFFIX: OffsetIndexCheck,
    TIME_INDEX_SUFFIX: TimeIndexCheck,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a check must know beside the files.

    `running`: a broker serves the directory now. `clean`: the last one stopped in order, and nobody has been here
    since. `index_interval_bytes`: see SegmentEnd. `progress` is told of records and bytes as they are done.
    """

    running: bool
    clean: bool
    index_interval_bytes: int
    progress: Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as its directory shows it.

    `next_base_offset`: the following segment's, None for the active one. `still`: nobody writes to its files.
    `settled`: and they are closed in order, as those of a sealed segment, and of all after a clean stop.
    """

    log: Path
    base_offset: int
    next_base_offset: int | None
    still: bool
    settled: bool

    def beside(self, suffix: str) -> Path:
        """The path of its file of another kind."""
        return self.log.with_name(self.log.name.removesuffix(LOG_SUFFIX) + suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """What all segments of a log have in common: its epochs, and what the batches before have said."""

    epochs: LeaderEpochs
    history: History
    snapshots: SnapshotChecks
    circumstances: Circumstances
    tally: Tally


class SegmentCheck:
    """Checks one segment. `findings()` does it, once; `next_offset` is then the first offset after it."""

    def __init__(self, segment: Segment, context: LogContext) -> None:
        self.segment = segment
        self.next_offset = segment.base_offset
        self._epochs = context.epochs
        self._history = context.history
        self._snapshots = context.snapshots
        self._epoch = UNDEFINED
        self._contradicted: set[tuple[int, int]] = set()
        self._circumstances = context.circumstances
        self._tally = context.tally
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
        yield from self._transactions.end()

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
        path = self.segment.beside(TRANSACTION_INDEX_SUFFIX)
        self._transactions = TransactionIndexCheck(path, self._history, still=self.segment.still)
        yield from self._transactions.form()

    def _batch(self, batch: StoredBatch) -> Iterator[Finding]:
        header = batch.header
        self._tally.batches += 1
        self._tally.records += header.record_count
        self._tally.size += header.size
        self._circumstances.progress(header.record_count, header.size)
        self._history.meet(self.segment.log, batch.position, header, self.segment.base_offset)
        yield from self._snapshots.reach(header.base_offset)
        for what in self._batch_faults(batch):
            yield Finding(self.segment.log, what, batch.position)
        yield from self._remember(batch)
        self.next_offset = max(self.next_offset, header.next_offset)
        if header.has_invalid_max_timestamp and self._records:
            header = header._replace(max_timestamp=max(record.timestamp for record in self._records))
        for index in self._indexes:
            yield from index.batch(batch.position, header)

    def _remember(self, batch: StoredBatch) -> Iterator[Finding]:
        """What a batch means for its producer, and what its marker must have left in the transaction index."""
        header, history = batch.header, self._history
        records = self._records
        if records is None:
            history.is_whole = False
        marker = end_marker(records) if header.is_control and records is not None else None
        if marker is not None:
            yield from self._transactions.marker(header, marker)
        history.add(header, marker)

    def _batch_faults(self, batch: StoredBatch) -> Iterator[str]:
        self._records: list[Record] | None = None
        try:
            verify_crc(batch.data, batch.start, batch.header)
        except ProtocolError as error:
            yield str(error)
            return  # nothing in it can be believed
        yield from self._offset_faults(batch.header)
        yield from self._epoch_faults(batch.header)
        try:
            self._records = decode_batch(batch.data, batch.start, batch.header)
        except ProtocolError as error:
            yield str(error)
        else:
            yield from record_faults(batch.header, self._records)

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
        if epoch < self._epoch:
            yield f"leader epoch {epoch} after {self._epoch}"
        self._epoch = max(epoch, self._epoch)
        known = self._epochs.epoch_of(header.base_offset)
        if known in {UNDEFINED, epoch} or self._circumstances.running or (known, epoch) in self._contradicted:
            return
        self._contradicted.add((known, epoch))
        yield f"leader epoch {epoch}, but the checkpoint says {known} for offset {header.base_offset}"

    def _damage(self, damage: DamageError) -> Iterator[Finding]:
        """The end of a segment that is being written may be half there, and a preallocated one is followed by zeros."""
        self._history.is_whole &= damage.zeros
        excused = damage.zeros or (damage.cut and self._circumstances.running)
        if self.segment.settled or not excused:
            yield Finding(self.segment.log, str(damage), damage.position)


def record_faults(header: BatchHeader, records: list[Record]) -> Iterator[str]:
    """What the records of a batch say against its header.

    A largest time that cannot be right is no finding: nobody goes by it, neither this broker nor Kafka's consumers.
    """
    offsets = [record.offset for record in records]
    if any(after <= before for before, after in pairwise(offsets)):
        yield "the offsets of its records do not ascend"
    elif offsets and (offsets[0] < header.base_offset or offsets[-1] > header.last_offset):
        yield f"a record has an offset outside {header.base_offset} to {header.last_offset}"
    largest = max((record.timestamp for record in records), default=header.max_timestamp)
    if largest != header.max_timestamp and not header.has_invalid_max_timestamp:
        yield f"its largest time is {largest}, its header says {header.max_timestamp}"
