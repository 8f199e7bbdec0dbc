"""Replay the producers and transactions of a log, and check `.snapshot` and `.txnindex` files against them.

1. A state that some valid history produces is not a finding: producers expire, retention removes their batches,
compaction removes batches, markers and whole transactions. So a producer missing from a snapshot is not reported,
and a log with gaps is checked less strictly than one without gaps.
2. The files are read before the log, so that all their entries must be in the log even beside a running broker.
3. After a batch that could not be read, nothing is checked against the batches before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from warmlog.broker.log.errors import CorruptSnapshotError
from warmlog.broker.log.index.leader_epochs import UNDEFINED
from warmlog.broker.log.index.transaction import ENTRY, VERSION, AbortedTransaction
from warmlog.broker.log.io.directory_names import SNAPSHOT_SUFFIX
from warmlog.broker.log.producers.replay import apply_batch
from warmlog.broker.log.producers.snapshot import ENTRY_SIZE, HEADER_SIZE, decode_snapshot
from warmlog.broker.log.producers.state import NO_OFFSET, ProducerState
from warmlog.inspect.findings import Finding
from warmlog.inspect.paths import SegmentFile
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import EndMarker, Outcome

MAX_GAPS = 100  # maximum gaps reported for one log


class History:
    """The states of the producers after the batches added so far.

    `first_offset`, `next_offset`: range of those batches. `epochs`: their (leader epoch, first offset). `is_whole`:
    whether all of them could be read.
    """

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.states: dict[int, ProducerState] = {}
        self.first_offset: int | None = None
        self.next_offset = 0
        self.has_gaps = False
        self.is_whole = True
        self.was_compacted = False
        self._gaps: list[Finding] = []
        self._writing: set[int] = set()

    def begin_segment(self, base_offset: int) -> None:
        """Record a gap before a segment, which counts even if the segment has no batch."""
        if self.first_offset is not None and base_offset > self.next_offset:
            self.has_gaps = True

    def check_offsets(self, path: Path, position: int, header: BatchHeader, segment_base: int) -> None:
        """Record a gap before a batch and traces of compaction, before the batch is added."""
        expected = segment_base if self.first_offset is None else self.next_offset
        if self.first_offset is None:
            self.first_offset = segment_base
        if header.base_offset > expected:
            self.has_gaps = True
            if len(self._gaps) < MAX_GAPS:
                what = f"offsets {expected} to {header.base_offset - 1} are missing"
                self._gaps.append(Finding(path, what, position))
        is_thinned = header.record_count != header.last_offset_delta + 1 or header.delete_horizon_ms is not None
        self.was_compacted |= is_thinned

    def add(self, header: BatchHeader, marker: EndMarker | None) -> None:
        """Apply a batch to the states."""
        self.next_offset = max(self.next_offset, header.next_offset)
        if header.leader_epoch > (self.epochs[-1][0] if self.epochs else UNDEFINED):
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.producer_id < 0:
            return
        apply_batch(self.states, header, marker)
        if header.is_control:
            self._writing.discard(header.producer_id)
        elif header.record_count:
            self._writing.add(header.producer_id)

    def has_written(self, producer_id: int) -> bool:
        """Return whether a producer has written records since its last marker."""
        return producer_id in self._writing

    def gaps(self) -> list[Finding]:
        """Return the gaps between the first offset and the last, or no gaps if compaction may have caused them."""
        return [] if self.was_compacted else self._gaps

    def open_since(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, or -1 if none is open."""
        state = self.states.get(producer_id)
        return NO_OFFSET if state is None else state.transaction_first_offset

    def stable_after(self, header: BatchHeader) -> int:
        """Return the last stable offset after this marker has ended its transaction."""
        others = (state for state in self.states.values() if state.producer_id != header.producer_id)
        open_since = [state.transaction_first_offset for state in others if state.transaction_first_offset >= 0]
        return min(open_since, default=header.next_offset)


class SnapshotChecks:
    """Checks the `.snapshot` files of a log, which the constructor reads. Raises OSError."""

    def __init__(self, files: Sequence[SegmentFile], history: History) -> None:
        self._history = history
        self._damaged: list[Finding] = []
        self._pending: list[tuple[SegmentFile, list[ProducerState]]] = []
        for file in files:
            if file.suffix == SNAPSHOT_SUFFIX and not file.state:
                self._read(file)

    def _read(self, file: SegmentFile) -> None:
        try:
            self._pending.append((file, decode_snapshot(file.path.read_bytes())))
        except CorruptSnapshotError as error:
            self._damaged.append(Finding(file.path, str(error)))
        except FileNotFoundError:
            return  # a running broker has removed it

    def decoding_findings(self) -> Iterator[Finding]:
        """Report the snapshots that cannot be decoded."""
        yield from self._damaged

    def findings_up_to(self, offset: int) -> Iterator[Finding]:
        """Check the snapshots up to the offset where the next batch begins or the log ends."""
        while self._pending and self._pending[0][0].base_offset <= offset:
            file, states = self._pending.pop(0)
            for slot, state in enumerate(states):
                for what in self._faults(file.base_offset, state):
                    position = HEADER_SIZE + slot * ENTRY_SIZE
                    yield Finding(file.path, f"producer {state.producer_id}: {what}", position)

    def end_findings(self, log_end: int) -> Iterator[Finding]:
        """Check the remaining snapshots at the end of the log."""
        yield from self.findings_up_to(log_end)
        for file, _ in self._pending:
            yield Finding(file.path, f"snapshot is past the end of the log at {log_end}")

    def _faults(self, offset: int, stored: ProducerState) -> Iterator[str]:
        history, seen = self._history, self._history.states.get(stored.producer_id)
        if max(stored.last_offset, stored.transaction_first_offset) >= offset:
            yield f"last offset {stored.last_offset} is past the snapshot at {offset}"
        elif not history.is_whole:
            return
        elif seen is None:
            first = offset if history.first_offset is None else history.first_offset
            if not history.has_gaps and stored.last_offset >= first:
                yield f"last offset {stored.last_offset}, but the log has no batch of this producer"
        elif history.has_gaps:
            if stored.epoch == seen.epoch and stored.last_offset < seen.last_offset:
                yield f"last offset {stored.last_offset}, but the log has {seen.last_offset}"
        elif last_batch(stored) != last_batch(seen) and not self._is_before_start(stored, seen):
            yield f"epoch, sequence, offset, offset delta {last_batch(stored)}, but the log has {last_batch(seen)}"

    def _is_before_start(self, stored: ProducerState, seen: ProducerState) -> bool:
        """Return whether the log has only the producer's marker, since its records are before the log start offset."""
        return (
            stored.epoch == seen.epoch and not seen.batches and stored.last_offset < (self._history.first_offset or 0)
        )


def last_batch(state: ProducerState) -> tuple[int, int, int, int]:
    """Return the values that must be equal in a snapshot and the log: epoch, last sequence and offset, offset delta."""
    delta = state.batches[-1].offset_delta if state.batches else 0
    return state.epoch, state.last_sequence, state.last_offset, delta


class TransactionIndexCheck:
    """Checks the `.txnindex` of a segment: the aborted transactions whose markers it has. A missing file is empty."""

    def __init__(self, path: Path, history: History, *, at_rest: bool) -> None:
        """Read the file. `at_rest`: no broker is writing it now. Raises OSError."""
        self.path = path
        self._history = history
        self._at_rest = at_rest
        data = b""
        with suppress(FileNotFoundError):
            data = path.read_bytes()
        whole = len(data) // ENTRY.size * ENTRY.size
        self._rest = len(data) - whole
        rows = list(ENTRY.iter_unpack(data[:whole]))
        self._foreign = [slot for slot, row in enumerate(rows) if row[0] != VERSION]
        self._transactions = [AbortedTransaction(*row[1:]) for row in rows]
        self._pending = {entry.last_offset: (slot, entry) for slot, entry in enumerate(self._transactions)}

    def form_findings(self) -> Iterator[Finding]:
        """Check size, versions and order."""
        if self._rest and self._at_rest:
            position = len(self._transactions) * ENTRY.size
            yield Finding(self.path, f"{self._rest} bytes at the end are not a whole entry", position)
        for slot in self._foreign:
            yield self._finding(slot, f"not version {VERSION}")
        for slot, (before, after) in enumerate(pairwise(self._transactions), start=1):
            if after.last_offset <= before.last_offset:
                yield self._finding(slot, "not greater than the entry before")

    def marker_findings(self, header: BatchHeader, marker: EndMarker) -> Iterator[Finding]:
        """Check the entry of an aborted transaction against its marker, before that is added to the history."""
        if marker.outcome is not Outcome.ABORT:
            return
        pending = self._pending.pop(header.last_offset, None)
        if pending is not None:
            slot, entry = pending
            for what in self._faults(entry, header):
                yield self._finding(slot, what)
        elif self._at_rest and self._history.is_whole and self._history.has_written(header.producer_id):
            what = f"no entry for the transaction that producer {header.producer_id} aborted"
            yield Finding(self.path, f"{what} at offset {header.last_offset}")

    def end_findings(self) -> Iterator[Finding]:
        """Report entries without a marker at the end of the segment."""
        for slot, entry in self._pending.values():
            yield self._finding(slot, f"no transaction was aborted at offset {entry.last_offset}")

    def _faults(self, entry: AbortedTransaction, header: BatchHeader) -> Iterator[str]:
        history = self._history
        if entry.producer_id != header.producer_id:
            yield f"producer {entry.producer_id}, but the marker at {entry.last_offset} is from {header.producer_id}"
        elif history.is_whole:
            yield from self._first_offset_faults(entry, history.open_since(header.producer_id))
            expected, stored = history.stable_after(header), entry.last_stable_offset
            is_early = history.has_gaps or stored < (history.first_offset or 0)
            if stored != expected and not (is_early and 0 <= stored <= header.next_offset):
                yield f"last stable offset {stored}, but according to the log {expected}"

    def _first_offset_faults(self, entry: AbortedTransaction, seen: int) -> Iterator[str]:
        """Check the first offset, unless it is before the log start offset or may have been compacted."""
        first = entry.first_offset
        if seen >= 0 and (first > seen or (first < seen and not self._may_be_gone(first))):
            yield f"first offset {first}, but the log has {seen}"
        elif seen < 0 and not self._may_be_gone(first):
            yield f"first offset {first}, but the log has no records of that transaction"

    def _may_be_gone(self, offset: int) -> bool:
        return offset >= 0 and (self._history.has_gaps or offset < (self._history.first_offset or 0))

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * ENTRY.size)
