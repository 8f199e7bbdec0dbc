"""Check one segment from its first batch to its last, together with its indexes.

1. The log is read once; each batch is passed to the index checks as it is read.
2. A batch with a wrong CRC is reported and skipped; the check ends when no further batch can be found.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs
from warmlog.broker.log.index.mapped import MAX_RELATIVE_OFFSET
from warmlog.broker.log.io.directory_names import (
    LOG_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from warmlog.inspect.checks.history import History, SnapshotChecks, TransactionIndexCheck
from warmlog.inspect.checks.indexes import INDEX_CHECKS, IndexCheck, SegmentEnd
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.log_file import DamageError, LogFile, StoredBatch
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import EndMarker, end_marker
from warmlog.protocol.records.reader import decode_batch, offsets_and_times


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """State shared by the checks of a directory.

    `running`: whether a broker serves the directory. `clean`: whether the last one stopped cleanly and none has started
    since.
    `index_interval_bytes`: see SegmentEnd. `progress(records, bytes)` is called for each batch.
    """

    running: bool
    clean: bool
    index_interval_bytes: int
    progress: Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSegment:
    """A segment and its context.

    `next_base_offset`: base offset of the following segment, None for the active one. `at_rest`: whether no broker is
    writing its files. `closed`: whether the files were trimmed and closed, as happens when a segment is sealed and at a
    clean stop.
    """

    log: Path
    base_offset: int
    next_base_offset: int | None
    at_rest: bool
    closed: bool

    def beside(self, suffix: str) -> Path:
        """Return the path of the segment's file with another suffix."""
        return self.log.with_name(self.log.name.removesuffix(LOG_SUFFIX) + suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """State shared by the checks of a log's segments: `history` holds the state after the batches checked so far."""

    epochs: LeaderEpochs
    history: History
    snapshots: SnapshotChecks
    check: CheckContext
    tally: Tally


class SegmentCheck:
    """Checks one segment. `findings()` may be called once; `next_offset` is then the first offset after the segment."""

    def __init__(self, segment: CheckedSegment, context: LogContext) -> None:
        self.segment = segment
        self.next_offset = segment.base_offset
        self._epochs = context.epochs
        self._history = context.history
        self._snapshots = context.snapshots
        self._epoch = UNDEFINED
        self._contradicted: set[tuple[int, int]] = set()
        self._context = context.check
        self._tally = context.tally
        self._indexes: list[IndexCheck] = []

    def findings(self) -> Iterator[Finding]:
        """Check the log and its indexes. Raises OSError."""
        self._history.begin_segment(self.segment.base_offset)
        yield from self._open_indexes()  # read before the log, so that every entry must be in it
        with LogFile(str(self.segment.log)) as log:
            size, batches = log.size, 0
            try:
                for batch in log.scan():
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
            at_rest=self.segment.at_rest,
            closed=self.segment.closed,
            index_interval_bytes=self._context.index_interval_bytes,
        )
        for index in self._indexes:
            yield from index.end_findings(end)
        yield from self._transactions.end_findings()

    def _open_indexes(self) -> Iterator[Finding]:
        self._tally.segments += 1
        for suffix, check in INDEX_CHECKS.items():
            path = self.segment.beside(suffix)
            try:
                index = check(path, self.segment.base_offset, at_rest=self.segment.at_rest, closed=self.segment.closed)
            except FileNotFoundError:
                if self.segment.at_rest:  # otherwise a roll may be in progress
                    yield Finding(path, "missing")
            else:
                self._indexes.append(index)
                yield from index.form_findings()
        path = self.segment.beside(TRANSACTION_INDEX_SUFFIX)
        self._transactions = TransactionIndexCheck(path, self._history, at_rest=self.segment.at_rest)
        yield from self._transactions.form_findings()

    def _batch(self, batch: StoredBatch) -> Iterator[Finding]:
        header = batch.header
        self._tally.batches += 1
        self._tally.records += header.record_count
        self._tally.size += header.size
        self._context.progress(header.record_count, header.size)
        self._history.check_offsets(self.segment.log, batch.position, header, self.segment.base_offset)
        yield from self._snapshots.findings_up_to(header.base_offset)
        for what in self._batch_faults(batch):
            yield Finding(self.segment.log, what, batch.position)
        yield from self._history_findings(batch)
        self.next_offset = max(self.next_offset, header.next_offset)
        if header.has_invalid_max_timestamp and self._largest is not None:
            header = header._replace(max_timestamp=self._largest)
        for index in self._indexes:
            yield from index.batch_findings(batch.position, header)

    def _history_findings(self, batch: StoredBatch) -> Iterator[Finding]:
        """Check a marker against the transaction index, and add the batch to the history."""
        header, history, marker = batch.header, self._history, self._marker
        history.is_whole &= self._is_trusted
        if marker is not None:
            yield from self._transactions.marker_findings(header, marker)
        history.add(header, marker)

    def _batch_faults(self, batch: StoredBatch) -> Iterator[str]:
        self._is_trusted = False
        self._marker: EndMarker | None = None
        self._largest: int | None = None
        try:
            verify_crc(batch.data, batch.start, batch.header)
        except ProtocolError as error:
            yield str(error)
            return  # none of the batch's fields can be trusted
        yield from self._offset_faults(batch.header)
        yield from self._epoch_faults(batch.header)
        try:
            if batch.header.is_control:
                self._marker = end_marker(decode_batch(batch.data, batch.start, batch.header))
            self._is_trusted = True
            self._largest, faults = record_faults(
                batch.header, offsets_and_times(batch.data, batch.start, batch.header)
            )
        except ProtocolError as error:
            yield str(error)
        else:
            yield from faults

    def _offset_faults(self, header: BatchHeader) -> Iterator[str]:
        first, last, segment = header.base_offset, header.last_offset, self.segment
        if first < self.next_offset:
            yield f"offsets {first} to {last} overlap the batches before, which end at {self.next_offset}"
        if last < first:
            yield f"last offset {last} is before the first, {first}"
        if segment.next_base_offset is not None and last >= segment.next_base_offset:
            yield f"offsets {first} to {last} reach into the next segment, which begins at {segment.next_base_offset}"
        if last - segment.base_offset > MAX_RELATIVE_OFFSET:
            yield f"offset {last} is too far from the base offset {segment.base_offset}"

    def _epoch_faults(self, header: BatchHeader) -> Iterator[str]:
        epoch = header.leader_epoch
        if epoch < self._epoch:
            yield f"leader epoch {epoch} after {self._epoch}"
        self._epoch = max(epoch, self._epoch)
        known = self._epochs.epoch_of(header.base_offset)
        if known in {UNDEFINED, epoch} or self._context.running or (known, epoch) in self._contradicted:
            return
        self._contradicted.add((known, epoch))
        yield f"leader epoch {epoch}, but the checkpoint says {known} for offset {header.base_offset}"

    def _damage(self, damage: DamageError) -> Iterator[Finding]:
        """Report damage, except an incomplete batch at the end of an active segment and zeros of a preallocated one."""
        self._history.is_whole &= damage.zeros
        expected = damage.zeros or (damage.cut and self._context.running)
        if self.segment.closed or not expected:
            yield Finding(self.segment.log, str(damage), damage.position)


def record_faults(header: BatchHeader, rows: Iterable[tuple[int, int]]) -> tuple[int | None, list[str]]:
    """Check the offsets and timestamps of a batch's records against its header; also return the largest timestamp.

    An impossible largest timestamp is not a finding: neither this broker nor Kafka uses it.
    """
    before: int | None = None
    largest: int | None = None
    is_ordered = is_inside = True
    for offset, timestamp in rows:
        is_ordered &= before is None or offset > before
        is_inside &= header.base_offset <= offset <= header.last_offset
        before = offset
        largest = timestamp if largest is None else max(largest, timestamp)
    faults = []
    if not is_ordered:
        faults.append("record offsets do not increase")
    elif not is_inside:
        faults.append(f"a record has an offset outside {header.base_offset} to {header.last_offset}")
    if largest is not None and largest != header.max_timestamp and not header.has_invalid_max_timestamp:
        faults.append(f"largest timestamp is {largest}, but the header says {header.max_timestamp}")
    return largest, faults
